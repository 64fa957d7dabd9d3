"""Continuous batching: each source has the hypotheses that it has alone."""

import concurrent.futures
import sys
import threading

import keras
import numpy as np
import pytest
from keras import ops

from keras_tfm import decode, runtime
from keras_tfm.runtime import continuous as continuous_module
from keras_tfm.runtime import slots as module
from keras_tfm.runtime.continuous import ContinuousDecoder
from tests.decode.conftest import VOCABULARY_SIZE, draw_transformer, redraw

OPTIONS = {"jit_compile": False}
BUCKETS = (6, 12)
SEARCHES = {
    "greedy": {},
    "beam": {"beam_size": 3, "num_hypotheses": 2, "return_token_scores": True},
    "processed": {
        "beam_size": 2,
        "min_decoding_length": 3,
        "repetition_penalty": 1.3,
        "no_repeat_ngram_size": 2,
        "suppress_sequences": [[5, 6], [7]],
        "length_penalty_form": "gnmt",
        "early_stopping": True,
        "patience": 2.0,
    },
}


def draw_rows(count, longest=12, seed=0):
    draw = np.random.default_rng(seed)
    lengths = draw.integers(1, longest + 1, count)
    return [draw.integers(4, VOCABULARY_SIZE, n).tolist() for n in lengths]


def assert_as_alone(search, rows, results, prefix=()):
    """Checks that each source has the hypotheses of `Decoder`."""
    for row, actual in zip(rows, results, strict=True):
        expected = search([row], [list(prefix)] if row and prefix else None)
        assert actual.lengths.tolist() == expected.lengths.tolist()
        for ids, expected_ids, length in zip(
            actual.ids[0], expected.ids[0], expected.lengths[0], strict=True
        ):
            assert ids[:length].tolist() == expected_ids[:length].tolist()
            assert not ids[length:].any()
        np.testing.assert_allclose(actual.scores, expected.scores, atol=1e-5)
        if expected.token_scores is not None:
            np.testing.assert_allclose(
                actual.token_scores.sum(-1), expected.token_scores.sum(-1), atol=1e-4
            )


def decode_all(continuous, rows):
    return [f.result(120) for f in [continuous.submit(row) for row in rows]]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("greedy", marks=pytest.mark.slow("tensorflow", "jax")),
        "beam",
        pytest.param("processed", marks=pytest.mark.slow("tensorflow", "jax")),
    ],
)
def search(request, transformer):
    return runtime.Decoder(
        transformer, decode.Options(**SEARCHES[request.param], **OPTIONS)
    )


def test_the_read_length_follows_the_source(transformer, monkeypatch):
    calls, begin = [], transformer.begin

    def recorded_begin(ids, *arguments, read_length=None, **options):
        calls.append((tuple(ids.shape), read_length))
        return begin(ids, *arguments, read_length=read_length, **options)

    search = runtime.Decoder(transformer, decode.Options(**OPTIONS))
    with ContinuousDecoder(search, 1, source_buckets=(6,)) as continuous:
        monkeypatch.setattr(transformer, "begin", recorded_begin)
        rows = [[4, 5, 6], [4, 5, 6, 7]]
        assert_as_alone(search, rows, decode_all(continuous, rows))
    assert ((1, 6), 3) in calls and ((1, 6), None) in calls


def test_each_source_has_the_hypotheses_that_it_has_alone(search):
    rows = [*draw_rows(12), [], draw_rows(1, 40, seed=5)[0]]
    assert len(rows[-1]) > BUCKETS[-1]
    with ContinuousDecoder(search, 4, source_buckets=BUCKETS) as continuous:
        assert_as_alone(search, rows, decode_all(continuous, rows))


@pytest.mark.slow("tensorflow")
def test_sources_may_be_submitted_at_any_time(transformer):
    search = runtime.Decoder(transformer, decode.Options(beam_size=2, **OPTIONS))
    rows = draw_rows(20, 6, seed=1)
    with ContinuousDecoder(search, 8, source_buckets=(6,)) as continuous:

        def submit_and_wait(row):
            return continuous.submit(row).result(120)

        with concurrent.futures.ThreadPoolExecutor(5) as pool:
            actual = list(pool.map(submit_and_wait, rows))
    assert_as_alone(search, rows, actual)


@pytest.mark.slow("tensorflow")
def test_a_sequence_longer_than_the_ring_is_decoded_again(search, monkeypatch):
    monkeypatch.setattr(module, "_ring_capacity", lambda bucket, buckets: 3)
    rows = draw_rows(6, 6, seed=2)
    longest = max(int(search([row]).lengths.max()) for row in rows)
    assert longest > 3
    with ContinuousDecoder(search, 4, source_buckets=(6,)) as continuous:
        assert_as_alone(search, rows, decode_all(continuous, rows))


class SlowToImprove:
    """Ends at once, or has hypotheses that become good only when long."""

    supports_row_steps = True
    vocabulary_size = target_vocabulary_size = 7

    def begin(self, source_ids, max_length, beam_size):
        counts = ops.zeros((source_ids.shape[0], beam_size), "int32")
        return {"beams": {"counts": counts}}

    def step(self, ids, index, cache):
        log_probs = np.full((7, 7), -40.0, "float32")
        log_probs[2, [3, 5, 6]] = -0.15, -3.0, -2.43
        log_probs[6, [3, 4, 5, 6]] = -30, np.log(0.5), np.log(0.5), -30
        log_probs[4, [4, 5, 6]] = np.log([0.3, 0.3, 0.4])
        log_probs[5, [3, 4, 5, 6]] = -30, -11, 0, -11
        return ops.take(ops.convert_to_tensor(log_probs), ids, axis=0), cache


def test_a_row_ends_at_its_own_limit_and_not_at_the_capacity():
    search = runtime.Decoder(SlowToImprove(), decode.Options(beam_size=2, **OPTIONS))
    row = [4] * 8
    assert search([row]).lengths.tolist() == [[32]]  # the limit
    with ContinuousDecoder(search, 2, source_buckets=(8,)) as continuous:
        assert continuous._new_batch(8).capacity < 32
        assert_as_alone(search, [row, row], decode_all(continuous, [row, row]))


@pytest.mark.backend("torch")
def test_a_prefix_is_checked(transformer):
    search = runtime.Decoder(
        transformer, decode.Options(max_decoding_length=(1, 2), **OPTIONS)
    )
    for prefix in ([3], [VOCABULARY_SIZE], [0, 4], ["a"]):
        with pytest.raises(ValueError, match="`target_prefix` must hold .* at index 0"):
            ContinuousDecoder(search, target_prefix=prefix)
        with pytest.raises(ValueError, match="`target_prefix` must hold .* at index 0"):
            search.decode(ops.convert_to_tensor([[4, 5]]), prefix)
    with ContinuousDecoder(search, 2, target_prefix=[4, 5, 6]) as continuous:
        assert continuous.submit([4, 5]).result(60).ids[0, 0, :3].tolist() == [4, 5, 6]
        with pytest.raises(
            ValueError, match="got 3 tokens at index 0, and a limit of 3"
        ):
            continuous.submit([4])
    with pytest.raises(ValueError, match="got 3 tokens at index 0, and a limit of 3"):
        search.decode(ops.convert_to_tensor([[4]]), [4, 5, 6])


@pytest.mark.slow("tensorflow", "jax")
def test_every_hypothesis_begins_with_a_prefix(search):
    rows = draw_rows(6, 6, seed=3)
    with ContinuousDecoder(
        search, 4, source_buckets=(6,), target_prefix=[5, 7]
    ) as continuous:
        actual = decode_all(continuous, rows)
    assert all(hypotheses.ids[0, 0, :2].tolist() == [5, 7] for hypotheses in actual)
    assert_as_alone(search, rows, actual, prefix=[5, 7])


@pytest.mark.backend("torch")
@pytest.mark.parametrize(
    "settings",
    [{"decoder_recurrence": "ssru"}, {"positions": "learned", "sequence_length": 24}],
)
def test_recurrent_decoders_and_learned_positions_are_supported(settings):
    search = runtime.Decoder(
        draw_transformer(**settings), decode.Options(beam_size=2, **OPTIONS)
    )
    rows = draw_rows(8, 6)
    with ContinuousDecoder(search, 4, source_buckets=(6, 100)) as continuous:
        assert_as_alone(search, rows, decode_all(continuous, rows))


@pytest.mark.backend("torch")
@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"sampling_topk": 3}, "sampling"),
        (
            {"logits_processors": [lambda logits, history: logits]},
            "logits_processors",
        ),
        ({"beam_size": 4, "num_beam_groups": 2}, "num_beam_groups > 1"),
        ({"return_attention": True}, "return_attention or"),
        ({"num_hypotheses": 2, "return_alternatives": True}, "return_alternatives"),
    ],
)
def test_unsupported_options_are_rejected(settings, fault, transformer):
    search = runtime.Decoder(transformer, decode.Options(**settings, **OPTIONS))
    assert not ContinuousDecoder.supports(search)
    with pytest.raises(ValueError, match=f"got {fault}.*Decoder.bulk"):
        ContinuousDecoder(search)


@pytest.mark.backend("torch")
def test_relative_positions_are_rejected():
    search = runtime.Decoder(
        draw_transformer(positions="rotary"), decode.Options(**OPTIONS)
    )
    with pytest.raises(ValueError, match="a Transformer with supports_row_steps=False"):
        ContinuousDecoder(search)


@pytest.mark.backend("torch")
def test_bad_arguments_are_rejected(transformer):
    search = runtime.Decoder(transformer, decode.Options(**OPTIONS))
    for sizes in ({"batch_size": 0}, {"inter_threads": 0}, {"source_buckets": (0, 4)}):
        with pytest.raises(ValueError, match="must be at least 1; got batch_size="):
            ContinuousDecoder(search, **sizes)
    continuous = ContinuousDecoder(search, 2, source_buckets=(6,))
    with pytest.raises(ValueError, match=r"`source_ids` must hold ids .* got \[14\]"):
        continuous.submit([4, VOCABULARY_SIZE])
    last = continuous.submit([4, 5])
    continuous.close()
    assert last.done()
    with pytest.raises(RuntimeError, match="closed and accepts no more"):
        continuous.submit([4])


@pytest.mark.slow("tensorflow")
def test_padding_is_not_part_of_a_source(transformer):
    limit = {"max_decoding_length": (2, 0)}
    search = runtime.Decoder(
        transformer, decode.Options(beam_size=2, **limit, **OPTIONS)
    )
    rows = [[5, 6, 0, 0, 0, 0, 0], [0, 0], [5, 6]]
    with ContinuousDecoder(search, source_buckets=BUCKETS) as continuous:
        actual = decode_all(continuous, rows)
        with pytest.raises(ValueError, match="padded with 0 at the end"):
            continuous.submit([0, 5])
    assert_as_alone(search, [[5, 6], [], [5, 6]], actual)


@pytest.mark.backend("torch")
def test_an_error_reaches_its_callers_and_the_thread_continues(
    transformer, monkeypatch
):
    search = runtime.Decoder(transformer, decode.Options(**OPTIONS))
    rows = draw_rows(3, 6)
    with ContinuousDecoder(search, 2, source_buckets=(6,)) as continuous:
        with monkeypatch.context() as patched:

            def broken(self):
                raise MemoryError("no room")

            patched.setattr(module.SlotBatch, "_advance", broken)
            with pytest.raises(MemoryError, match="no room"):
                continuous.submit(rows[0]).result(60)
        assert_as_alone(search, rows, decode_all(continuous, rows))


@pytest.mark.backend("torch")
def test_nan_logits_raise_an_error_for_their_row():
    model = draw_transformer()
    weights = model.get_weights()
    model.set_weights([np.full_like(weight, np.nan) for weight in weights])
    search = runtime.Decoder(model, decode.Options(beam_size=2, **OPTIONS))
    with ContinuousDecoder(search, 2, source_buckets=(6,)) as continuous:
        with pytest.raises(FloatingPointError, match="at step 0 of row 0"):
            continuous.submit([4, 5]).result(60)
        redraw(model, 1)  # the new weights are used
        assert_as_alone(search, [[4, 5]], decode_all(continuous, [[4, 5]]))


@pytest.mark.backend("torch")
def test_groups_take_turns(transformer):
    decoder, finished = runtime.Decoder(transformer, decode.Options(**OPTIONS)), []
    with ContinuousDecoder(decoder, batch_size=1) as continuous:
        for n, group in enumerate("a" * 30 + "b"):
            future = continuous.submit([5, 6], group)
            future.add_done_callback(lambda _, n=n: finished.append(n))
    assert sorted(finished) == [*range(31)] and finished != sorted(finished)


@pytest.mark.backend("torch")
def test_groups_of_long_sources_take_turns(transformer):
    decoder, finished = runtime.Decoder(transformer, decode.Options(**OPTIONS)), []
    with ContinuousDecoder(decoder, 1, source_buckets=(6,)) as continuous:
        for n, group in enumerate("a" * 30 + "b"):
            future = continuous.submit([5] * 9, group)
            future.add_done_callback(lambda _, n=n: finished.append(n))
    assert sorted(finished) == [*range(31)] and finished.index(30) < 25


def test_a_cancelled_source_is_not_inserted(transformer, monkeypatch):
    search = runtime.Decoder(transformer, decode.Options(**OPTIONS))
    inserted, may_continue = [], threading.Event()
    insert = module.SlotBatch._insert

    def recorded_insert(self, rows, *arguments):
        inserted.extend(row.ids for row in rows)
        assert may_continue.wait(60)
        insert(self, rows, *arguments)

    monkeypatch.setattr(module.SlotBatch, "_insert", recorded_insert)
    with ContinuousDecoder(search, 1, source_buckets=(6,)) as continuous:
        first, second, third = map(continuous.submit, ([4], [5], [6]))
        while not inserted:
            pass
        assert second.cancel()
        may_continue.set()
        assert first.result(60) and third.result(60)
    assert inserted == [[4], [6]]


@pytest.mark.backend("torch")
def test_a_cancelled_long_source_is_not_decoded(transformer, monkeypatch):
    search = runtime.Decoder(transformer, decode.Options(**OPTIONS))
    resolved, may_continue = [], threading.Event()

    def recorded_resolve(future, function, rows, prefix):
        resolved.append(rows)
        assert may_continue.wait(60)
        future.set_result(rows)

    rows = [[number] * 9 for number in (4, 5, 6)]
    monkeypatch.setattr(continuous_module, "resolve", recorded_resolve)
    with ContinuousDecoder(search, 1, source_buckets=(6,)) as continuous:
        first, second, third = map(continuous.submit, rows)
        while not resolved:
            pass
        assert second.cancel() and not first.cancel()
        may_continue.set()
        assert first.result(60) and third.result(60)
    assert resolved == [[rows[0]], [rows[2]]]


@pytest.mark.backend("torch")
def test_a_source_that_nobody_waits_for_is_not_decoded_again(transformer, monkeypatch):
    search, resolved = runtime.Decoder(transformer, decode.Options(**OPTIONS)), []
    resolve = continuous_module.resolve

    def recorded_resolve(future, function, rows, prefix):
        resolved.append(rows)
        resolve(future, function, rows, prefix)

    monkeypatch.setattr(continuous_module, "resolve", recorded_resolve)
    with ContinuousDecoder(search, 1, source_buckets=(6,)) as continuous:
        futures = [continuous_module._Future(group) for group in "ab"]
        assert all(map(continuous_module._Future.set_running_or_notify_cancel, futures))
        assert not futures[0].cancel()  # it has a slot
        for row, future in zip(([4], [5]), futures, strict=True):
            continuous.decode_alone(row, future)
        assert futures[1].result(60)
        with pytest.raises(concurrent.futures.CancelledError):
            futures[0].result(60)
    assert resolved == [[[5]]]


def record_compilations(monkeypatch):
    """Returns a list of the functions and shapes that are compiled from now."""
    keys, compilations = set(), []

    def compiled(function, *options, **keywords):
        compiled_function = runtime.compiled(function, *options, **keywords)

        def call(*arguments):
            shapes = [tuple(x.shape) for x in keras.tree.flatten(arguments)]
            name = getattr(function, "func", function).__name__
            if name in ("begin", "_take_steps", "extend"):  # for a long sequence alone
                return compiled_function(*arguments)
            key = (
                name,
                getattr(function, "keywords", {}).get("read_length"),
                str(shapes),
            )
            compilations.extend([] if key in keys else [key])
            keys.add(key)
            return compiled_function(*arguments)

        return call

    monkeypatch.setattr(sys.modules["keras_tfm.runtime.compile"], "compiled", compiled)
    return compilations


@pytest.mark.slow("tensorflow")
def test_a_warm_continuous_decoder_compiles_nothing(transformer, monkeypatch):
    compilations = record_compilations(monkeypatch)
    search = runtime.Decoder(transformer, decode.Options(**OPTIONS))
    rows = draw_rows(30, 6, seed=7)
    with ContinuousDecoder(search, 4, 1, source_buckets=(6, 12)) as continuous:
        continuous.warm_up([5])
        assert {key[1] for key in compilations} >= {3, 6}  # read lengths
        assert not any("12" in shapes for *_, shapes in compilations)
        compilations.clear()
        for count in (1, 2, 3, 4, 9):
            decode_all(continuous, rows[:count])
            rows = rows[count:]
    assert not compilations


@pytest.mark.slow("tensorflow")
def test_a_prepared_decoder_decodes_without_further_functions(transformer, monkeypatch):
    """Those that make it fast may be compiled meanwhile."""
    compilations = record_compilations(monkeypatch)
    search = runtime.Decoder(transformer, decode.Options(**OPTIONS))
    rows = draw_rows(12, 12, seed=8)
    with ContinuousDecoder(search, 4, 1, source_buckets=BUCKETS) as continuous:
        continuous.prepare()
        num_prepared = len(compilations)
        assert_as_alone(search, rows, decode_all(continuous, rows))
        assert len(compilations) == num_prepared
        warming = threading.Thread(target=continuous.warm_up, args=([12],))
        warming.start()
        assert_as_alone(search, rows, decode_all(continuous, rows))
        warming.join()
        num_warm = len(compilations)
        assert num_warm > 3 * num_prepared
        assert_as_alone(search, rows, decode_all(continuous, rows))
        assert len(compilations) == num_warm


@pytest.mark.backend("torch")
def test_a_check_ends_the_warm_up(transformer):
    search = runtime.Decoder(transformer, decode.Options(**OPTIONS))
    checks = []

    def check():
        checks.append(1)
        if len(checks) == 3:
            raise KeyError

    with ContinuousDecoder(search, 4, 1, BUCKETS) as continuous:
        continuous.prepare()
        with pytest.raises(KeyError):
            continuous.warm_up([12], check)
        rows = draw_rows(6, 12, seed=9)
        assert_as_alone(search, rows, decode_all(continuous, rows))


@pytest.mark.backend("torch")
def test_slots_are_added_and_removed_with_the_sequences(transformer):
    assert module._compiled_sizes(16) == ([1, 4, 8, 12, 16], [1, 4])
    assert module._compiled_sizes(1) == ([1], [1])
    assert module._compiled_sizes(3) == ([1, 2, 3], [1])
    search = runtime.Decoder(transformer, decode.Options(**OPTIONS))
    continuous = ContinuousDecoder(search, 4, 1, source_buckets=(6,))
    batch = module.SlotBatch(continuous, 6, 4)
    futures = [continuous_module._Future(None) for _ in range(4)]
    rows = [[4] * 6, [5] * 6, [6] * 6, [7] * 6]
    batch.decode_chunk(list(zip(rows[:1], futures, strict=False)))
    assert len(batch.rows) == 1
    batch.decode_chunk(list(zip(rows[1:], futures[1:], strict=True)))
    while batch.num_busy:
        assert len(batch.rows) in (3, 4)
        batch.decode_chunk([])
    assert_as_alone(search, rows, [future.result() for future in futures])
    # Long sequences in a batch that is too large move to a smaller one.
    batch.decode_chunk([(row, continuous_module._Future(None)) for row in rows])
    slow = continuous_module._Future(None)
    batch.rows = [module.Row(rows[0], slow, 99, batch.step), None, None, None]
    batch.idle_chunks = module.MAX_IDLE_CHUNKS
    if not np.all(keras.ops.convert_to_numpy(batch.state.is_done)[0]):
        batch.decode_chunk([])
        assert len(batch.rows) == 1
    continuous.close()
