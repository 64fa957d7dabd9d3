"""Marian's binary shortlists: target tokens for each source token."""

import pathlib
import struct
from collections.abc import Sequence

import numpy as np

from keras_tfm.decode import Shortlist
from keras_tfm.file_reading import reading
from keras_tfm.zoo.token_permutation import TokenPermutation

MAGIC = 0xF11A48D5013417F5
HEADER = "<6Q"  # magic, checksum, frequent, best, number of offsets and of ids
MAX_TARGETS = 1_000  # target tokens for one source token
MAX_GROWTH = 30  # elements of the padded matrix for each four bytes of the file


def read_shortlist(
    file: pathlib.Path, permutations: Sequence[TokenPermutation], shared: bool
) -> Shortlist:
    """Reads a binary shortlist.

    Args:
        file: path.
        permutations: pair of `TokenPermutation`, source and target.
        shared: bool. Both sides have one vocabulary, so that what stands in a
            source may stand in its translation.

    Returns:
        `Shortlist`, in the ids here.

    Raises:
        ValueError: the file is damaged, or of another model.
    """
    with reading(file, "a binary shortlist of this model"):
        data = file.read_bytes()
        header = struct.unpack_from(HEADER, data)
        magic, _, frequent, best, num_offsets, num_ids = header
        sizes = [int(p.order.max()) + 1 for p in permutations]
        start = struct.calcsize(HEADER)
        expected = start + 8 * num_offsets + 4 * num_ids
        if magic != MAGIC or num_offsets != sizes[0] + 1 or len(data) != expected:
            raise ValueError(
                f"expected magic {MAGIC:#x}, {sizes[0] + 1} offsets and {expected} "
                f"bytes; got {magic:#x}, {num_offsets} and {len(data)}"
            )
        offsets = np.frombuffer(data, "<u8", num_offsets, start).astype("int64")
        ids = np.frombuffer(data, "<u4", num_ids, start + 8 * num_offsets)
        counts = np.diff(offsets)
        longest = int(counts.max(initial=1))
        if max(frequent, best) > MAX_TARGETS or longest > max(best, 1):
            raise ValueError(f"up to {longest} of {best} targets, {frequent} frequent")
        is_ordered = (counts >= 0).all() and offsets[-1] == num_ids
        if not is_ordered or ids.max(initial=0) >= sizes[1]:
            raise ValueError("its offsets or ids are out of range")
        source, target = permutations
        if len(source.order) * longest > MAX_GROWTH * len(data) // 4:
            raise ValueError(
                f"{longest:,} of {num_ids:,} targets are of one token, which needs a "
                "matrix far larger than the file"
            )
        to_ours = np.array([target.to_ours(i) for i in range(sizes[1])])
        targets = np.zeros((len(source.order), longest), "int32")
        for row, token in enumerate(source.order):
            if token >= 0:
                values = to_ours[ids[offsets[token] : offsets[token + 1]]]
                targets[row, : len(values)] = values
        order = np.concatenate([to_ours, target.never_generated])
        return Shortlist(targets, order, int(frequent), max(1, int(best)), shared)
