"""Token ids around each text of a corpus."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class SpecialTokens:
    """Holds the ids that a pretrained model expects around each text.

    The start of a target and its end are not among them: every target has them.

    Attributes:
        source_prefix: ints before each source, such as a language tag.
        source_suffix: ints after each source, such as the end token.
        target_prefix: ints that each target begins with, after the start.

    Example:
        ```python
        from keras_tfm import text

        pairs = text.Pairs(["a cat", "a dog"], ["eine Katze", "ein Hund"])
        vocabulary = text.Vocabulary.train(pairs.source, size=270, exact=False)
        with_end = text.SpecialTokens(source_suffix=(vocabulary.end_id,))
        batches = text.Batches(pairs, vocabulary, special_tokens=with_end)
        inputs, labels = batches.batch(0)
        assert (inputs["source_ids"] == vocabulary.end_id).sum() == 2
        ```
    """

    source_prefix: tuple[int, ...] = ()
    source_suffix: tuple[int, ...] = ()
    target_prefix: tuple[int, ...] = ()

    @property
    def around_source(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ids before and after a source."""
        return self.source_prefix, self.source_suffix

    @property
    def around_target(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ids before and after a target, between its start and its end."""
        return self.target_prefix, ()
