"""What a model needs to be decoded, and what it may offer beyond that."""

import dataclasses
from typing import Any, Protocol, runtime_checkable

from keras_tfm.decode.options import Options
from keras_tfm.types import Tensor

Cache = Any


@runtime_checkable
class Decodable(Protocol):
    """Declares the two methods that decoding needs from a model.

    `begin` and `step` are all that a model needs. Their results must depend on
    their arguments and on the model's weights alone: they are compiled once,
    so that another attribute, a counter or a clock keeps the value it had then.
    Decoding also uses these members, if the model has them, see `Capabilities`:

    * `vocabulary_size`, `target_vocabulary_size`: int, to check ids.
    * `begin_options`: names of optional arguments of `begin`:
      `"return_attention"` (the cache has an entry `"attention"`, float
      `(B, K, S)`, what the last step attended to), `"candidates"` (int32
      `(B, C)`, the only tokens whose logits each sequence wants) and
      `"read_length"` (int, the columns of `source_ids` that are not padding).
    * `extend(cache, max_length) -> cache` lets more steps follow. Without it
      the cache has the full length from the beginning.
    * `logits_after(source_ids, target_ids) -> logits (B, T, V)`, which a
      language model has: hypotheses continue their source, and share its
      positions.
    * `supports_row_steps`: bool. `step` takes an index for each sequence.
    * `max_positions`: int or None, the tokens that it has positions for.
    * `variables`: the Keras variables that compiled functions read.

    Example:
        ```python
        from keras import ops
        from keras_tfm import decode

        class Counter:
            def begin(self, source_ids, max_length, beam_size):
                return {}

            def step(self, ids, index, cache):
                return ops.one_hot(ops.minimum(ids + 1, 5), 6), cache

        assert isinstance(Counter(), decode.Decodable)
        ```
    """

    def begin(self, source_ids: Tensor, max_length: Any, beam_size: int) -> Cache:
        """Reads the sources, and returns the cache before the first step.

        Args:
            source_ids: int32 `(B, S)`, padded with 0 at the end.
            max_length: int, or scalar int tensor: the most calls of `step`.
            beam_size: int, K, hypotheses of each source.

        Returns:
            A structure of tensors, with the batch first. The entry `"beams"` of
            a dictionary has leaves `(B, K, ...)` that follow their hypotheses.
        """
        ...

    def step(self, ids: Tensor, index: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """Advances every hypothesis by one token.

        Args:
            ids: int32 `(B, K)`, the last token of each hypothesis.
            index: int32 scalar, from 0, the number of steps before.
            cache: from `begin` or the step before.

        Returns:
            Logits `(B, K, V)` of the next token, and the new cache.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Capabilities:
    """What a model offers beyond `begin` and `step`, see `Decodable`.

    Attributes:
        vocabulary_size: int or None, unknown: ids of sources.
        target_vocabulary_size: int or None, unknown: ids of hypotheses.
        max_positions: int or None, unlimited: tokens that it has positions for.
        begin_options: names of the optional arguments of `begin`.
        can_extend: bool. It has `extend`.
        continues_source: bool. Hypotheses continue their source.
        supports_row_steps: bool. Sequences may be at different steps.

    Example:
        ```python
        from keras_tfm import decode, models

        sizes = {"num_layers": 1, "embedding_dim": 8, "num_heads": 2}
        model = models.Transformer(20, **sizes)
        assert decode.Capabilities.of(model).can_extend
        ```
    """

    vocabulary_size: int | None
    target_vocabulary_size: int | None
    max_positions: int | None
    begin_options: frozenset[str]
    can_extend: bool
    continues_source: bool
    supports_row_steps: bool

    @classmethod
    def of(cls, model: Decodable) -> "Capabilities":
        """Reads what a model declares.

        Args:
            model: `Decodable`.

        Raises:
            ValueError: the model has no `begin` or no `step`.

        Example:
            ```python
            from keras_tfm import decode

            class Model:
                target_vocabulary_size = 8

                def begin(self, source_ids, max_length, beam_size): ...

                def step(self, ids, index, cache): ...

            capabilities = decode.Capabilities.of(Model())
            assert capabilities.target_vocabulary_size == 8
            assert not capabilities.can_extend
            ```
        """
        if not isinstance(model, Decodable):
            raise ValueError(
                "`model` must have the methods `begin` and `step`, as a Transformer "
                f"has; got {type(model).__name__}. For a translator, pass its `.model`."
            )
        return cls(
            vocabulary_size=getattr(model, "vocabulary_size", None),
            target_vocabulary_size=getattr(model, "target_vocabulary_size", None),
            max_positions=getattr(model, "max_positions", None),
            begin_options=frozenset(getattr(model, "begin_options", ())),
            can_extend=hasattr(model, "extend"),
            continues_source=hasattr(model, "logits_after"),
            supports_row_steps=bool(getattr(model, "supports_row_steps", False)),
        )

    def check(self, options: Options) -> None:
        """Rejects options that the model cannot follow.

        Args:
            options: `Options`.

        Raises:
            ValueError: an id outside the target vocabulary, a shortlist of
                another vocabulary, or an option that needs an argument which
                `begin` does not have.
        """
        needed = {
            "return_attention": ("return_attention", options.return_attention),
            "coverage_penalty": ("return_attention", options.coverage_penalty),
            "shortlist": ("candidates", options.shortlist is not None),
        }
        for name, (argument, is_needed) in needed.items():
            if is_needed and argument not in self.begin_options:
                raise ValueError(
                    f"`{name}` needs a model whose `begin` accepts `{argument}`; got a "
                    f"model with begin_options={sorted(self.begin_options)}. Leave "
                    "the option out."
                )
        size = self.target_vocabulary_size
        if size is None:
            return
        ids = {
            "start_id": [options.start_id],
            "end_id": [options.end_id],
            "suppress_ids": options.suppressed_ids,
            "suppress_sequences": [
                t for seq in options.suppress_sequences for t in seq
            ],
        }
        for name, tokens in ids.items():
            outside = sorted(token for token in tokens if token >= size)
            if outside:
                raise ValueError(
                    f"`{name}` must hold ids of the target vocabulary; got {outside}, "
                    f"target_vocabulary_size={size}."
                )
        shortlist = options.shortlist
        if shortlist is not None and shortlist.vocabulary_size != size:
            raise ValueError(
                "`shortlist` must be of the model's target vocabulary; got "
                f"{shortlist.vocabulary_size} tokens, target_vocabulary_size={size}."
            )
