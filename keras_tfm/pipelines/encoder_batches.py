"""Runs an encoder on rows in batches of few sizes."""

from collections.abc import Callable, Sequence

import keras
import numpy as np

from keras_tfm.decode.inputs import rounded_up

# Lengths are rounded up to these, so that few functions are compiled.
LENGTHS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


def bucket_of(length: int, max_length: int) -> int:
    """Returns the padded length of a row, in tokens.

    Args:
        length: int, in tokens, special tokens included.
        max_length: int, the most tokens of any row.
    """
    return min(rounded_up(length, LENGTHS), max_length)


def run_in_batches(
    function: Callable,
    inputs_of: Callable[[np.ndarray, int], dict[str, np.ndarray]],
    buckets: Sequence[int],
    batch_tokens: int,
    dims: tuple[int, ...],
) -> np.ndarray:
    """Calls a compiled function on rows, sorted by their padded length.

    Args:
        function: compiled function from a dict of tensors to float
            `(B, *dims)`.
        inputs_of: function from the indices of B rows and their bucket to a
            dict of arrays.
        buckets: ints, the padded length of each of the N rows, in tokens.
        batch_tokens: int, the most tokens of a batch, with padding.
        dims: ints, the dimensions of the output of a row.

    Returns:
        float32 `(N, *dims)`, in the order of the rows.
    """
    lengths = np.asarray(buckets, "int64")
    outputs = np.zeros((len(lengths), *dims), "float32")
    for length in np.unique(lengths):
        indices = np.flatnonzero(lengths == length)
        batch_size = max(1, batch_tokens // length)
        for first in range(0, len(indices), batch_size):
            chosen = indices[first : first + batch_size]
            # Filled up to a power of two, so that few sizes are compiled.
            size = min(batch_size, 1 << (len(chosen) - 1).bit_length())
            inputs = inputs_of(np.resize(chosen, size), int(length))
            inputs = {k: keras.ops.convert_to_tensor(v) for k, v in inputs.items()}
            batch = keras.ops.convert_to_numpy(function(inputs))
            outputs[chosen] = batch[: len(chosen)]
    return outputs
