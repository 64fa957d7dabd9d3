"""From source ids to target ids, as one compiled program."""

import numpy as np
from keras import ops

from keras_tfm.decode.beam import beam, check_beam
from keras_tfm.decode.compile import compiled
from keras_tfm.decode.greedy import greedy
from keras_tfm.decode.hypotheses import Hypotheses, penalty

# Source lengths are rounded up to these, so that few programs are compiled.
LENGTHS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


class Search:
    """Decodes batches of source ids with a model, in one compiled program.

    Args:
        model: what has `begin(source_ids, max_length, beam_size)` and
            `step(ids, index, cache)`, such as `Transformer`.
        beam_size: int >= 1, K. 1 is greedy search.
        num_hypotheses: int from 1 to K, n.
        length_penalty: float >= 0, see `penalty`.
        length_penalty_form: `"mean"` or `"gnmt"`, see `penalty`.
        patience: float > 0, see `beam`.
        max_decoding_length: int >= 1, in tokens, the end token included; or
            None for twice the source and 16 more, or as many as the model has
            learned positions for. What has not ended by then is cut.
        start_id: int. The token before the first.
        end_id: int. The token that ends a hypothesis.
        suppress_ids: ints. Tokens that are never generated; by default
            padding, the unknown token and the start.
        jit_compile: bool. On TensorFlow, compile with XLA.

    Raises:
        ValueError: a number out of its range.
    """

    def __init__(
        self,
        model,
        beam_size=1,
        num_hypotheses=1,
        length_penalty=1.0,
        length_penalty_form="mean",
        patience=1.0,
        max_decoding_length=None,
        start_id=2,
        end_id=3,
        suppress_ids=(0, 1, 2),
        jit_compile=True,
    ):
        check_beam(beam_size, num_hypotheses, patience)
        penalty(1, length_penalty, length_penalty_form)  # raises, if it must
        if max_decoding_length is not None and max_decoding_length < 1:
            raise ValueError(
                "`max_decoding_length` must be 1 or more. "
                f"Received: {max_decoding_length}."
            )
        self.model = model
        self.beam_size = beam_size
        self.max_decoding_length = max_decoding_length
        self.options = {
            "start_id": start_id,
            "end_id": end_id,
            "length_penalty": length_penalty,
            "length_penalty_form": length_penalty_form,
            "suppress_ids": tuple(suppress_ids),
        }
        if beam_size > 1:
            self.options |= {
                "beam_size": beam_size,
                "num_hypotheses": num_hypotheses,
                "patience": patience,
            }
        self.longest = _longest(model)  # int or None
        self._program = compiled(self.decode, model, jit_compile)

    def __call__(self, source_ids):
        """Decodes a batch.

        Args:
            source_ids: integers `(B, S)`, NumPy or tensor, padded with 0; a
                row of nothing but 0 gives an empty hypothesis.

        Returns:
            `Hypotheses` of NumPy arrays.

        Raises:
            ValueError: another rank or dtype, or an id outside the model's
                vocabulary.
        """
        source_ids = np.asarray(ops.convert_to_numpy(source_ids))
        self._check(source_ids)
        rows, length = source_ids.shape
        rounded = next((size for size in LENGTHS if size >= length), length)
        rounded = max(length, min(rounded, self.longest or rounded))
        source_ids = np.pad(source_ids, ((0, 0), (0, rounded - length)))
        result = self._program(ops.convert_to_tensor(source_ids, "int32"))
        return Hypotheses(*(ops.convert_to_numpy(x) for x in result))

    def decode(self, source_ids):
        """Decodes a batch of tensors; what is compiled.

        Args:
            source_ids: int32 `(B, S)`.

        Returns:
            `Hypotheses` of tensors.
        """
        tokens = ops.sum(ops.cast(ops.not_equal(source_ids, 0), "int32"), axis=-1)
        max_length = self._limit(ops.shape(source_ids)[1])
        # Each row has its own, or a translation would depend on its neighbours.
        limits = self._limit(tokens) + ops.zeros_like(tokens)
        cache = self.model.begin(source_ids, max_length, self.beam_size)
        search = beam if self.beam_size > 1 else greedy
        active = ops.greater(tokens, 0)
        return search(
            self.model.step, cache, active, max_length, limits, **self.options
        )

    def _limit(self, source_length):
        """Tokens that a translation may have, from an int or a tensor."""
        if self.max_decoding_length is not None:
            return self.max_decoding_length
        limit = 2 * source_length + 16
        if self.longest is None:
            return limit
        if isinstance(limit, int):
            return min(limit, self.longest)
        return ops.minimum(limit, self.longest)

    def _check(self, source_ids):
        if source_ids.ndim != 2 or source_ids.dtype.kind not in "iu":
            raise ValueError(
                "Source ids are integers of shape (batch, length). Received: "
                f"shape={source_ids.shape}, dtype={source_ids.dtype}."
            )
        size = getattr(self.model, "vocabulary_size", None)
        if size is None or not source_ids.size:
            return
        low, high = source_ids.min(), source_ids.max()
        if low < 0 or high >= size:
            raise ValueError(
                "Source ids are from 0 to the vocabulary size - 1. Received: ids "
                f"from {low} to {high}; vocabulary_size={size}. Use the "
                "vocabulary the model was trained with."
            )


def _longest(model):
    """Tokens that a model of learned positions has room for; else None."""
    settings = getattr(model, "settings", {})
    positions = settings.get("positions")
    if positions == "learned":
        return settings["sequence_length"]
    return getattr(positions, "sequence_length", None)
