"""Decodes many sources that are all known: sorted, grouped and regrouped."""

import collections
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm.decode import inputs
from keras_tfm.decode.hypotheses import Hypotheses
from keras_tfm.runtime.bucketing import batch_sizes, batch_slices
from keras_tfm.runtime.compiled_search import CompiledSearch
from keras_tfm.runtime.rows import check_finite, select, take_rows
from keras_tfm.runtime.scheduler import OfflineBatch, decode_offline

# Full batches of one length after which functions for this very length pay:
# each takes a second or more to compile, and saves a hundredth of one a batch.
FREQUENT = 100


class OfflineDecoding:
    """Decodes any number of sources with a compiled search.

    Args:
        search: `CompiledSearch`.
    """

    def __init__(self, search: CompiledSearch):
        self.search = search
        self._num_batches = collections.Counter()  # by size and lengths

    def decode(
        self,
        source_ids: Iterable[Sequence[int]],
        batch_tokens: int,
        batch_size: int,
        inter_threads: int | None = None,
        seed: int | None = None,
        target_prefix: Sequence[Sequence[int]] | None = None,
        compile_lengths: bool | None = None,
    ) -> Iterator[tuple[int, Hypotheses]]:
        """Decodes sources, see `Decoder.bulk` for arguments and results."""
        if inter_threads is None:
            inter_threads = default_threads()
        if min(batch_tokens, batch_size, inter_threads) < 1:
            raise ValueError(
                "`batch_tokens`, `batch_size` and `inter_threads` must be at least 1; "
                f"got batch_tokens={batch_tokens}, batch_size={batch_size}, "
                f"inter_threads={inter_threads}."
            )
        capabilities = self.search.capabilities
        rows = inputs.id_lists("source_ids", source_ids, capabilities.vocabulary_size)
        if target_prefix is not None:
            # Before any is decoded, so that an error names a source's index.
            limit = self.search.buckets.length_limit
            limits = [limit(len(row)) if row else 0 for row in rows]
            size = capabilities.target_vocabulary_size
            target_prefix = list(target_prefix)
            inputs.prefix_array(target_prefix, limits, self.search.options, size)
        batches = self._batches(
            rows, batch_tokens, batch_size, seed, target_prefix, compile_lengths
        )
        for indices, hypotheses in decode_offline(
            batches, self._advance, inter_threads
        ):
            for i, index in enumerate(indices):
                result = select(hypotheses, slice(i, i + 1))
                yield int(index), check_finite(result, [index])

    def warm_up(
        self,
        lengths: Sequence[int],
        batch_tokens: int,
        batch_size: int,
        target_prefix: Sequence[int] = (),
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Compiles functions; arguments are those of `Decoder.warm_up`."""
        search, end_id = self.search, self.search.options.end_id
        for bucket in sorted({search.buckets.source_bucket(n) for n in lengths}):
            sizes, state = batch_sizes(bucket, batch_tokens, batch_size), None
            for size in sizes:
                check()
                source_ids = np.full((size, bucket), end_id, "int32")
                prefix = [target_prefix] * size if len(target_prefix) else None
                state = search.start(*search.batch_inputs(source_ids, prefix))
            first_state = state
            last = min(bucket + bucket // 2, search.buckets.max_length(bucket))
            for size in sizes:
                state, capacity = take_rows([first_state], [np.arange(size)]), 0
                while capacity < last:
                    check()
                    # A new tensor, since JAX may have overwritten the old one.
                    step = ops.convert_to_tensor(capacity, "int32")
                    state, _ = search.advance(state._replace(step=step), 1)
                    capacity = state.capacity

    def _batches(
        self, rows, batch_tokens, batch_size, seed, target_prefix, compile_lengths
    ):
        """Yields batches of sources, the longest first."""
        search, buckets = self.search, self.search.buckets
        order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))
        lengths = [len(rows[i]) for i in order]
        for bucket, count, batch_slice in batch_slices(
            lengths, buckets.source_bucket, batch_tokens, batch_size
        ):
            chosen = order[batch_slice]
            # Filled up, since another size would be compiled anew.
            fill = [[]] * (count - len(chosen))
            source_ids = inputs.padded_rows([rows[i] for i in chosen] + fill, bucket)
            indices = np.array([*chosen, *[-1] * len(fill)])
            prefix = None
            if target_prefix is not None:
                prefix = [target_prefix[i] for i in chosen] + fill
            tensors = search.batch_inputs(
                source_ids, prefix, seed=seed, indices=indices
            )
            start, read_length = (
                search.start,
                buckets.read_length(lengths[batch_slice.start]),
            )
            is_full = count == batch_sizes(bucket, batch_tokens, batch_size)[-1]
            key = count, bucket, read_length
            if is_full and self._is_frequent(key, compile_lengths):
                can_read = "read_length" in search.capabilities.begin_options
                start = functools.partial(
                    search.start,
                    read_length=read_length if can_read else None,
                    takes_first_step=True,
                )
            yield OfflineBatch(indices, start, tensors)

    def _is_frequent(self, key, compile_lengths):
        """Whether functions for the very length of a batch are compiled."""
        if compile_lengths is not None:
            return compile_lengths
        self._num_batches[key] += 1
        is_frequent = self._num_batches[key] > FREQUENT
        return is_frequent and not self.search.options.few_buckets

    def _advance(self, state: Any):
        # Rows are copied between chunks, and none leaves within one. So chunks
        # are longer while no row is done.
        step = int(state.step)
        has_done = ops.convert_to_numpy(state.is_done).all(axis=-1).any()
        num_steps = max(2, step // 8) if has_done else max(4, step // 4)
        return self.search.advance(state, num_steps)


def default_threads() -> int:
    """Returns how many batches are decoded at once, see `Decoder.bulk`."""
    return 1 if keras.config.backend() == "torch" else 2
