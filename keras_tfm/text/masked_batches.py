"""Batches with masked tokens, for an encoder that learns from text alone."""

import math

import numpy as np

from keras_tfm.text.checks import check
from keras_tfm.text.label_batches import LabelBatches
from keras_tfm.text.pair_packing import add_empty_texts
from keras_tfm.text.step_batches import StepBatches, pad_rows


class MaskedBatches(StepBatches):
    """Batches for a `MaskedLM`: some tokens are masked and predicted.

    In each epoch a fraction of the tokens of a sequence, special tokens
    excluded, is drawn anew: at least one, if there is one. Of those 80% are
    replaced by the mask, 10% by any token, and 10% stay. The texts, their
    buckets and their order are those of `batches`.

    An element is `({"token_ids": (B, S), "mask_positions": (B, P)}, labels)`,
    with `"segment_ids"` where `batches` have them, all int32. P is `mask_rate`
    times S, rounded up; labels `(B, P)` are the masked tokens, and 0 where a
    sequence has fewer, whose position is then 0.

    Args:
        batches: `LabelBatches`, whose labels are not used.
        mask_rate: float above 0 and at most 1, the fraction of tokens to
            predict.

    Attributes:
        steps_per_epoch: int.

    Raises:
        ValueError: `mask_rate` is out of its range, or the vocabulary has no
            mask.

    Source: Devlin et al. 2019, section 3.1 and appendix A.1.
    https://arxiv.org/abs/1810.04805

    Example:
        ```python
        from keras_tfm import text

        examples = text.LabeledDataset(["good", "bad", "so good"], list("+-+"))
        vocabulary = text.Vocabulary.train(examples.texts, 280, exact=False)
        batches = text.MaskedBatches(text.LabelBatches(examples, vocabulary))
        inputs, labels = batches.batch(0)
        print(inputs["mask_positions"], labels)
        ```
    """

    def __init__(self, batches: LabelBatches, mask_rate: float = 0.15):
        vocabulary = batches.vocabulary
        check(
            0 < mask_rate <= 1,
            "`mask_rate` must be above 0 and at most 1",
            mask_rate=mask_rate,
        )
        check(
            vocabulary.mask_id is not None,
            "`batches` must have a vocabulary with a mask",
            "Add the token [MASK] to the tokenizer.",
            vocabulary=vocabulary,
        )
        super().__init__(batches.seed)
        self.batches, self.mask_rate = batches, mask_rate
        self.steps_per_epoch, self.report = batches.steps_per_epoch, batches.report
        self._mask_id = vocabulary.mask_id
        self._special_ids = vocabulary.special_ids
        excluded = [*self._special_ids, vocabulary.mask_id, vocabulary.unknown_id]
        self._random_ids = np.setdiff1d(np.arange(vocabulary.size), excluded)

    def batch(self, step: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Returns one batch, as NumPy arrays.

        Args:
            step: int from 0, counted over all epochs.

        Returns:
            `(inputs, labels)`.
        """
        inputs = dict(self.batches.batch(step)[0])
        generator = self._generator(step, 2)
        ids = inputs["token_ids"]  # (B, S)
        is_text = ~np.isin(ids, self._special_ids)
        count = np.ceil(self.mask_rate * is_text.sum(1)).astype(int)  # (B,)
        max_count = math.ceil(self.mask_rate * ids.shape[1])  # P
        order = np.argsort(
            -np.where(is_text, generator.random(ids.shape), -1.0), axis=1
        )
        is_masked = np.arange(max_count) < count[:, None]  # (B, P)
        positions = np.where(is_masked, order[:, :max_count], 0)
        labels = np.where(is_masked, np.take_along_axis(ids, positions, 1), 0)
        kind = generator.random(positions.shape)
        random_ids = generator.choice(self._random_ids, positions.shape)
        replacement = np.where(kind < 0.9, random_ids, labels)
        replacement = np.where(kind < 0.8, self._mask_id, replacement)
        masked_ids = ids.copy()
        rows = np.nonzero(is_masked)[0]
        masked_ids[rows, positions[is_masked]] = replacement[is_masked]
        inputs["token_ids"] = masked_ids
        inputs["mask_positions"] = positions.astype("int32")
        return inputs, labels.astype("int32")

    def lengths(self, step: int) -> tuple[int, ...]:
        return self.batches.lengths(step)

    def _filled(self, batch, num_empty):
        inputs, labels = batch
        positions = inputs["mask_positions"]
        inputs = {k: v for k, v in inputs.items() if k != "mask_positions"}
        num_texts = 1 + self.batches.examples.paired
        vocabulary = self.batches.vocabulary
        inputs = add_empty_texts(inputs, num_empty, vocabulary, num_texts)
        inputs["mask_positions"] = pad_rows(positions, num_empty)
        return inputs, pad_rows(labels, num_empty)

    def _signature(self, tf):
        ids = tf.TensorSpec((None, None), "int32")
        return ({name: ids for name in self.batch(0)[0]}, ids)
