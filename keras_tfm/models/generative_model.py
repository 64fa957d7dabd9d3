"""Models that generate token ids, and `generate` for all of them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_tfm.models.configured_model import ConfiguredModel
from keras_tfm.types import Tensor

if TYPE_CHECKING:
    from keras_tfm.runtime import Decoder


class GenerativeModel(ConfiguredModel):
    """A functional Keras model with `begin`, `step` and `extend`; base class.

    Args:
        inputs, outputs, config, policy, options: see `ConfiguredModel`.

    Example:
        ```python
        import numpy as np
        from keras_tfm import models

        model = models.CausalLM(100, embedding_dim=16, num_heads=2)
        prompts = np.array([[2, 8, 6]])
        ids = model.generate(prompts, max_decoding_length=5)
        assert ids.shape[0] == 1 and ids.shape[1] <= 5
        ```
    """

    _decoder_of_generate: "Decoder | None" = None

    def generate(
        self,
        source_ids: Tensor | Sequence[Sequence[int]],
        seed: int | None = None,
        **options: Any,
    ) -> np.ndarray:
        """Generates target ids, or continuations of prompts.

        Compiled functions are kept for the next call with the same options.
        `runtime.Decoder` also returns scores; `pipelines.Translator` takes
        text and returns text.

        Args:
            source_ids: integers `(B, S)`, padded with 0 at the end, or B lists
                of ids: sources; of a `CausalLM` prompts.
            seed: int, of sampling; or None for another each time.
            **options: fields of `decode.Options`, such as `beam_size`,
                `sampling_temperature` and `max_decoding_length`. Set `end_id`
                and `start_id` for another vocabulary than `text.Vocabulary`.

        Returns:
            int32 `(B, T)`, padded with 0 after the end token; `(B, n, T)` with
            n = `num_hypotheses` above 1, the best first. Prompts are not
            repeated.

        Raises:
            TypeError: `source_ids` is text, or there is no such option; the
                error names the nearest option.
            ValueError: ids outside the vocabulary, or see `decode.Options`.

        Example:
            ```python
            from keras_tfm import models, pipelines

            vocabulary = pipelines.Translator.from_preset("en-de").vocabulary
            model = models.Transformer.from_preset("en-de")
            ids = model.generate([vocabulary("Good morning!")], beam_size=4)
            assert vocabulary.decode(ids) == ["Guten Morgen!"]
            ```
        """
        from keras_tfm.decode import Options
        from keras_tfm.runtime import Decoder

        _check_is_not_text(source_ids)
        values = Options(**options)
        decoder = self._decoder_of_generate
        if decoder is None or decoder.options != values:
            decoder = self._decoder_of_generate = Decoder(self, values)
        ids = decoder(source_ids, seed=seed).ids  # (B, n, T)
        return ids[:, 0] if values.num_hypotheses == 1 else ids


def _check_is_not_text(source_ids):
    items = [source_ids]
    if isinstance(source_ids, list | tuple):
        items = source_ids
    if any(isinstance(item, str) for item in items):
        raise TypeError(
            f"`source_ids` must be token ids; got text: {source_ids!r:.60}. Encode it "
            "with the vocabulary, as `[vocabulary(text)]`, or use "
            "`pipelines.Translator`, which takes text."
        )
