"""Continuous batching: new sequences join a batch while others are decoded.

See `scheduler` for why offline decoding has another policy.
"""

import concurrent.futures
import functools
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from keras_tfm.decode import inputs
from keras_tfm.runtime.compile import CompiledFunctions, captured
from keras_tfm.runtime.decoder import Decoder
from keras_tfm.runtime.offline import default_threads
from keras_tfm.runtime.round_robin import RoundRobin
from keras_tfm.runtime.slots import SlotBatch, resolve

# Source tokens for which functions are compiled; a longer source is decoded
# alone. The first bucket is wide enough for nearly all sources, since a step
# with few rows costs the most per row.
SOURCE_BUCKETS = (32, 132)


class _Future(concurrent.futures.Future):
    """The hypotheses of a source of a group; `cancel` is noted in any state."""

    def __init__(self, group):
        super().__init__()
        self.group, self.is_unwanted = group, False

    def cancel(self):
        self.is_unwanted = True
        return super().cancel()


class ContinuousDecoder:
    """Decodes sources as they arrive, together with those that came before.

    A batch has slots. Every four steps (eight with a single slot), finished
    sequences leave the batch and waiting sources take their slots. So a source
    does not wait until a whole batch is done, and the batch stays full.
    `Decoder.bulk` is faster if all sources are known from the start.

    Each sequence of a batch has its own step number. The cache is a ring buffer
    with a capacity of about 1.5 times the source bucket: each step overwrites
    the oldest entry. A sequence that outgrows the ring buffer is decoded again,
    alone.

    Background threads run the steps until `close` is called.

    Args:
        decoder: `Decoder` that `supports` accepts.
        batch_size: int >= 1, sources that are decoded at once.
        inter_threads: int >= 1, threads among which `batch_size` is divided,
            each with its own batches; None for 2, or 1 on PyTorch, see
            `Decoder.bulk`.
        source_buckets: ints >= 1, padded source lengths in tokens. Sources of
            one bucket are decoded together; a source longer than the largest
            bucket is decoded alone.
        target_prefix: ints that every hypothesis begins with.

    Raises:
        ValueError: a decoder that is not supported, a size below 1, or a token
            that no prefix may have.

    Source: Yu et al. 2022, Orca, section 3.1 (iteration-level scheduling),
    https://www.usenix.org/conference/osdi22/presentation/yu

    Example:
        ```python
        from keras_tfm import decode, models, runtime

        model = models.Transformer(
            12, num_layers=1, embedding_dim=8, intermediate_dim=8, num_heads=1
        )
        options = decode.Options(max_decoding_length=4, jit_compile=False)
        decoder = runtime.Decoder(model, options)
        with runtime.ContinuousDecoder(decoder, batch_size=2) as continuous:
            futures = [continuous.submit(ids) for ids in ([5, 6], [7], [8, 9])]
            assert all(future.result().lengths[0, 0] <= 4 for future in futures)
        ```
    """

    def __init__(
        self,
        decoder: Decoder,
        batch_size: int = 32,
        inter_threads: int | None = None,
        source_buckets: Sequence[int] = SOURCE_BUCKETS,
        target_prefix: Sequence[int] = (),
    ):
        if conflict := _conflict(decoder):
            raise ValueError(
                "`decoder` must be greedy or a beam over all tokens, of a model with "
                f"supports_row_steps=True; got {conflict}. Use `Decoder.bulk`."
            )
        if inter_threads is None:
            inter_threads = default_threads()
        if min(batch_size, inter_threads, *source_buckets) < 1:
            raise ValueError(
                "`batch_size`, `inter_threads` and `source_buckets` must be at least "
                f"1; got batch_size={batch_size}, inter_threads={inter_threads}, "
                f"source_buckets={tuple(source_buckets)}."
            )
        self.decoder, self.search = decoder, decoder.compiled_search
        size = self.search.capabilities.target_vocabulary_size
        [self.target_prefix] = inputs.id_lists(
            "target_prefix", [target_prefix], size, {decoder.options.end_id}
        )
        limit = decoder.max_positions
        self.buckets = sorted({min(size, limit or size) for size in source_buckets})
        threads = min(inter_threads, batch_size)
        self._num_slots = -(-batch_size // threads)
        # Shared by all batches.
        weights, model = self.search.weights, decoder.model
        take_step = functools.partial(self.search.strategy.take_step, model.step)
        self.get_take_step = captured(take_step, weights)
        self.functions = CompiledFunctions(weights, decoder.options.jit_compile)
        self._changed, self._is_closed = threading.Condition(), False
        self._waiting = {bucket: RoundRobin() for bucket in self.buckets}
        self._batches = [
            [self._new_batch(bucket) for bucket in self.buckets] for _ in range(threads)
        ]
        self._threads = [
            threading.Thread(target=self._work, args=(batches,), daemon=True)
            for batches in self._batches
        ]
        # By bucket, the sizes that its rows may use; `prepare` allows few.
        self.sizes = {batch.bucket: batch.all_sizes for batch in self._batches[0]}
        # Long sources and restarts delay no batch.
        self._alone = concurrent.futures.ThreadPoolExecutor(1)
        self._waiting_alone = RoundRobin()
        for thread in self._threads:
            thread.start()

    def __repr__(self) -> str:
        return f"<ContinuousDecoder: {self._num_slots} slots, {self.decoder!r}>"

    @staticmethod
    def supports(decoder: Decoder) -> bool:
        """Returns whether the sequences of a decoder can be at different steps.

        Args:
            decoder: `Decoder`.
        """
        return _conflict(decoder) is None

    def submit(
        self, source_ids: Sequence[int], group: Hashable = None
    ) -> concurrent.futures.Future:
        """Submits a source to be decoded with others.

        Args:
            source_ids: list of ids; padding at its end is ignored. An empty
                one has an empty hypothesis.
            group: hashable. Groups take turns, so that a group of many sources
                does not delay the others.

        Returns:
            Future of `Hypotheses` with a batch of one. If the future is
            cancelled before the source has a slot, the source is not decoded;
            later it is not decoded again, and may have a `CancelledError`.

        Raises:
            ValueError: an id outside the vocabulary, or a prefix as long as
                the limit.
            RuntimeError: the decoder is closed.
        """
        size = self.search.capabilities.vocabulary_size
        [row] = inputs.id_lists("source_ids", [source_ids], size)
        future = _Future(group)
        if row:
            limit = self.decoder.length_limit(len(row))
            inputs.check_prefix_length(self.target_prefix, limit)
        fitting = (size for size in self.buckets if size >= len(row))
        bucket = next((size for size in fitting if size in self.sizes), None)
        with self._changed:
            if self._is_closed:
                raise RuntimeError("The decoder is closed and accepts no more sources.")
            if row and bucket is not None:
                self._waiting[bucket].append((row, future), group)
                self._changed.notify()
            else:
                self.decode_alone(row, future)
        return future

    def decode_alone(self, row: Sequence[int], future: Any) -> None:
        """Decodes a source by itself, in a thread of its own.

        Args:
            row: list of ids.
            future: of `submit`.
        """
        with self._changed:
            self._waiting_alone.append((row, future), future.group)
        self._alone.submit(self._decode_next_alone)

    def prepare(self) -> None:
        """Compiles the fewest functions that can decode any source.

        Until `warm_up` ends, which may run in another thread, all sources are
        padded to the largest bucket and every batch has all of its slots.
        Decoding is slower then.
        """
        batch = self._new_batch(self.buckets[-1])
        self.sizes = {batch.bucket: batch.all_sizes.fewest}
        batch.warm_up(batch.all_sizes.fewest, lambda: None)

    def warm_up(
        self,
        lengths: Sequence[int] = SOURCE_BUCKETS[:-1],
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Compiles the functions for sources up to some length.

        Args:
            lengths: ints >= 1, in source tokens; only the largest counts.
            check: see `Decoder.warm_up`.
        """
        longest, previous = max(lengths, default=0), 0
        for bucket in self.buckets:
            batch = self._new_batch(bucket)
            if previous < longest:
                if bucket not in self.sizes:
                    batch.warm_up(batch.all_sizes.fewest, check)
                    self.sizes[bucket] = batch.all_sizes.fewest
                batch.warm_up(batch.all_sizes, check)
            self.sizes[bucket] = batch.all_sizes
            previous = bucket

    def close(self) -> None:
        """Accepts no more sources, and waits for those submitted."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._alone.shutdown()

    def __enter__(self) -> "ContinuousDecoder":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def _new_batch(self, bucket):
        return SlotBatch(self, bucket, self._num_slots)

    def _decode_next_alone(self):
        with self._changed:
            row, future = self._waiting_alone.pop()
        # One that has left a batch runs already.
        if not future.running() and not future.set_running_or_notify_cancel():
            return
        if future.is_unwanted:  # the client has gone
            future.set_exception(concurrent.futures.CancelledError())
        else:
            prefix = [self.target_prefix] if self.target_prefix and row else None
            resolve(future, self.decoder, [row], prefix)

    def _work(self, batches):
        """Takes chunks of steps until the decoder is closed and all is done."""
        while (arrivals := self._next(batches)) is not None:
            for batch, rows in zip(batches, arrivals, strict=True):
                batch.decode_chunk(rows)

    def _next(self, batches):
        """Waits for work; returns new rows of each batch, or None to stop."""
        with self._changed:
            while True:
                arrivals = [self._arrivals(batch) for batch in batches]
                if any(arrivals) or any(batch.num_busy for batch in batches):
                    return arrivals
                if self._is_closed:
                    return None
                self._changed.wait()

    def _arrivals(self, batch):
        """Takes waiting rows for a batch: every thread takes its share."""
        waiting, rows = self._waiting[batch.bucket], []
        num_busy = sum(
            peer.num_busy
            for peers in self._batches
            for peer in peers
            if peer.bucket == batch.bucket
        )
        share = -(-(num_busy + len(waiting)) // len(self._batches))
        while waiting and batch.num_busy + len(rows) < min(share, batch.max_slots):
            row, future = waiting.pop()
            if future.set_running_or_notify_cancel():
                rows.append((row, future))
        return rows


def _conflict(decoder):
    """Returns what needs all rows at one step; or None."""
    search, options = decoder.compiled_search, decoder.options
    conflicts = {
        "sampling": options.samples,
        "return_alternatives=True": options.return_alternatives,
        "a shortlist": options.shortlist is not None,
        "logits_processors": bool(options.logits_processors),
        "num_beam_groups > 1": options.num_beam_groups > 1,
        "return_attention or coverage_penalty": bool(search.begin_options),
        f"a {type(decoder.model).__name__} with supports_row_steps=False": (
            not search.capabilities.supports_row_steps
        ),
    }
    return next((name for name, is_set in conflicts.items() if is_set), None)
