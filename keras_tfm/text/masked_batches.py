"""Batches with hidden tokens, for an encoder that learns from text alone."""

import math

import numpy as np

from keras_tfm.text.label_batches import LabelBatches
from keras_tfm.text.tf_data import step_dataset


class MaskedBatches:
    """Batches for a `MaskedLM`: some tokens are hidden and asked for.

    Of the tokens of a row, other than start and ends, a share is drawn anew in
    each epoch: at least one, if there is one. Of those 8 of 10 are replaced by
    the mask, one by any token, and one stays. The texts, their shapes and
    their order are those of the given batches.

    An element is `({"token_ids": (B, S), "mask_positions": (B, P)}, labels)`,
    with `"segment_ids"` where those batches have them, all int32. P is the
    share of S, rounded up; labels `(B, P)` are the tokens asked for, and 0
    where a row has fewer, whose place is then 0.

    Args:
        batches: `LabelBatches`, whose labels are not used.
        share: float above 0 and at most 1, of tokens to hide.

    Attributes:
        steps_per_epoch: int.

    Raises:
        ValueError: `share` is out of its range, or the vocabulary has no mask.

    Source: Devlin et al. 2019, section 3.1 and appendix A.1.
    https://arxiv.org/abs/1810.04805
    """

    def __init__(self, batches: LabelBatches, share: float = 0.15):
        vocabulary = batches.vocabulary
        if not 0 < share <= 1:
            raise ValueError(
                f"`share` must be above 0 and at most 1. Received: share={share}."
            )
        if vocabulary.mask_id is None:
            raise ValueError(
                "Hidden tokens need a mask. Received: a vocabulary without one. Add "
                "the token [MASK] to the tokenizer."
            )
        self.batches, self.share = batches, share
        self.steps_per_epoch = batches.steps_per_epoch
        self._mask_id = vocabulary.mask_id
        marks = {vocabulary.pad_id, vocabulary.start_id, vocabulary.end_id}
        self._marks = sorted(marks | {*vocabulary.separator_ids})
        unwanted = [*self._marks, vocabulary.mask_id, vocabulary.unknown_id]
        self._others = np.setdiff1d(np.arange(vocabulary.size), unwanted)

    def batch(self, step: int):
        """Makes one batch, as NumPy arrays.

        Args:
            step: int from 0, counted over all epochs.

        Returns:
            `(inputs, labels)`.
        """
        inputs = dict(self.batches.batch(step)[0])
        draw = np.random.default_rng([self.batches.seed, step, 2])
        ids = inputs["token_ids"]
        real = ~np.isin(ids, self._marks)
        count = np.ceil(self.share * real.sum(1)).astype(int)
        most = math.ceil(self.share * ids.shape[1])
        order = np.argsort(-np.where(real, draw.random(ids.shape), -1.0), axis=1)
        asked = np.arange(most) < count[:, None]
        places = np.where(asked, order[:, :most], 0)
        labels = np.where(asked, np.take_along_axis(ids, places, 1), 0)
        kind = draw.random(places.shape)
        shown = np.where(kind < 0.9, draw.choice(self._others, places.shape), labels)
        shown = np.where(kind < 0.8, self._mask_id, shown)
        changed = ids.copy()
        rows = np.nonzero(asked)[0]
        changed[rows, places[asked]] = shown[asked]
        inputs |= {"token_ids": changed, "mask_positions": places.astype("int32")}
        return inputs, labels.astype("int32")

    def dataset(self, first_step: int = 0, prefetch: int = 8):
        """Gives batches to train on without end, on any Keras backend.

        Args:
            first_step: int from 0. The first batch, counted over all epochs.
            prefetch: int. Batches made ahead.

        Returns:
            `tf.data.Dataset`; give it to `fit` with `shuffle=False`.

        Raises:
            ImportError: TensorFlow is not installed.
        """

        def signature(tf):
            ids = tf.TensorSpec((None, None), "int32")
            return ({name: ids for name in self.batch(0)[0]}, ids)

        return step_dataset(self.batch, signature, first_step, None, prefetch)
