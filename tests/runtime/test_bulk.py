"""Offline batch decoding: chunks of steps, batches that change, threads."""

import collections
import threading
import time
from typing import NamedTuple

import numpy as np
import pytest
from keras import ops

from keras_tfm import decode, runtime
from keras_tfm.runtime import offline
from keras_tfm.runtime.scheduler import OfflineBatch, decode_offline
from tests.decode.conftest import VOCABULARY_SIZE, draw_transformer
from tests.runtime.conftest import count_compilations

START, END = 2, 3
OPTIONS = {"jit_compile": False}
LONG = {"max_decoding_length": 40, **OPTIONS}
SHORT = {"max_decoding_length": 12, **OPTIONS}


@pytest.fixture(scope="module")
def wordy():
    """A model whose hypotheses have between few and very many tokens."""
    model = draw_transformer(seed=7)
    kernel = ops.convert_to_numpy(model.projection.kernel)
    kernel[:, END] *= 0.7
    model.projection.kernel.assign(kernel)
    return model


def draw_rows(count, longest=9, seed=0):
    draw = np.random.default_rng(seed)
    lengths = draw.integers(1, longest + 1, count)
    return [draw.integers(4, VOCABULARY_SIZE, n).tolist() for n in lengths]


def as_ids(rows, length=None):
    ids = np.zeros((len(rows), length or max(map(len, rows))), "int32")
    for row, tokens in zip(ids, rows, strict=True):
        row[: len(tokens)] = tokens
    return ids


def assert_same(actual, expected):
    """Compares hypotheses, which may have padding of different lengths."""
    size = min(actual.ids.shape[-1], expected.ids.shape[-1])
    for first, second in ((actual, expected), (expected, actual)):
        assert not first.ids[..., size:].any()
        assert first.ids[..., :size].tolist() == second.ids[..., :size].tolist()
    assert actual.lengths.tolist() == expected.lengths.tolist()
    np.testing.assert_allclose(actual.scores, expected.scores, atol=1e-5)


def decode_in_one_function(search, ids):
    """Runs the whole search at once, with a cache for the maximum length."""
    compiled_decode = runtime.compiled(search.decode, search.model, jit_compile=False)
    actual = compiled_decode(ops.convert_to_tensor(ids))
    return decode.Hypotheses(
        *(x if x is None else ops.convert_to_numpy(x) for x in actual)
    )


@pytest.mark.slow("tensorflow")
@pytest.mark.parametrize("beam_size", [1, 3])
def test_chunks_of_steps_do_not_change_the_output(beam_size, wordy):
    options = {"num_hypotheses": beam_size, "return_token_scores": True, **LONG}
    search = runtime.Decoder(wordy, decode.Options(beam_size=beam_size, **options))
    ids = as_ids([*draw_rows(7), []], 16)
    actual, expected = search(ids), decode_in_one_function(search, ids)
    lengths = expected.lengths[:-1, 0]
    assert lengths.min() < 16 < 32 < lengths.max()  # three capacities of the cache
    assert_same(actual, expected)
    np.testing.assert_allclose(
        actual.token_scores, expected.token_scores[..., :40], atol=1e-5
    )


def test_bulk_hypotheses_equal_those_of_a_call(wordy):
    search = runtime.Decoder(
        wordy, decode.Options(beam_size=3, num_hypotheses=3, **SHORT)
    )
    rows = [*draw_rows(23, longest=15), []]
    actual = dict(search.bulk(rows, batch_size=7, batch_tokens=5 * 16))
    assert sorted(actual) == list(range(len(rows)))
    length = max(map(len, rows))
    together = search(as_ids(rows, length))
    for i in range(len(rows)):
        alone = decode.Hypotheses(*(x[i : i + 1] for x in together[:3]))
        assert_same(actual[i], alone)


@pytest.mark.backend("jax", "torch")
def test_bulk_compiles_few_shapes(wordy, monkeypatch):
    search, shapes = runtime.Decoder(wordy, decode.Options(**SHORT)), []
    start = search.compiled_search.start

    def recorded_start(*arguments):
        shapes.append(tuple(arguments[0].shape))
        return start(*arguments)

    monkeypatch.setattr(search.compiled_search, "start", recorded_start)
    rows = [[5] * 20, *[[5] * 3] * 8]
    list(search.bulk(rows, batch_size=4, inter_threads=1))
    list(search.bulk(rows[:3], batch_size=4, inter_threads=1))
    assert shapes == [(1, 32), (4, 16), (4, 16), (1, 32), (1, 16), (1, 16)]
    shapes.clear()
    list(search.bulk(rows, batch_tokens=64, inter_threads=1))
    assert shapes == [(1, 32), (4, 16), (4, 16)]


@pytest.mark.slow("tensorflow")
def test_compiled_lengths_encode_only_the_lengths_of_the_sources(wordy, monkeypatch):
    search, shapes = (
        runtime.Decoder(wordy, decode.Options(beam_size=3, num_hypotheses=2, **SHORT)),
        [],
    )
    rows = [*draw_rows(14, longest=20), []]
    expected = dict(search.bulk(rows, batch_size=4))
    encode = wordy.encode

    def recorded_encode(source_ids):
        shapes.append(tuple(source_ids.shape))
        return encode(source_ids)

    monkeypatch.setattr(wordy, "encode", recorded_encode)
    actual = dict(search.bulk(rows, batch_size=4, compile_lengths=True))
    assert {(4, 4), (4, 20)} <= set(shapes)
    assert {length for count, length in shapes if count < 4} <= {16, 32}
    for i in range(len(rows)):
        assert_same(actual[i], expected[i])


@pytest.mark.backend("torch")
def test_frequent_lengths_are_compiled(wordy, monkeypatch):
    monkeypatch.setattr(offline, "FREQUENT", 2)
    for few_buckets in (False, True):
        search, lengths = (
            runtime.Decoder(wordy, decode.Options(few_buckets=few_buckets, **SHORT)),
            [],
        )
        encode = type(wordy).encode

        def recorded_encode(source_ids, lengths=lengths, encode=encode):
            lengths.append(source_ids.shape[1])
            return encode(wordy, source_ids)

        monkeypatch.setattr(wordy, "encode", recorded_encode)
        rows = [[5] * 6] * 4
        for _ in range(2):
            list(search.bulk(rows, batch_size=2))
        list(search.bulk(rows, batch_size=2, compile_lengths=False))
        assert lengths == ([36] * 6 if few_buckets else [16, 16, 8, 8, 16, 16])


@pytest.mark.backend("torch")  # the test above runs on all backends
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_hypotheses": 3, "return_token_scores": True},
        {"no_repeat_ngram_size": 2, "min_decoding_length": 2},
        {"num_hypotheses": 2, "beam_size": 4, "num_beam_groups": 2},
        {"return_attention": True},
        {"coverage_penalty": 0.2, "length_penalty_form": "gnmt"},
        {"beam_size": 8},  # less than two of 14 tokens for each beam
    ],
)
def test_compiled_lengths_start_with_a_step_of_one_hypothesis(
    options, wordy, monkeypatch
):
    search = runtime.Decoder(
        wordy, decode.Options(**{"beam_size": 3, **options, **SHORT})
    )
    rows = [*draw_rows(12, longest=20), []]
    prefixes = [[], [5, 6], *[[]] * 11]
    expected = dict(search.bulk(rows, batch_size=4, target_prefix=prefixes))
    compilations = count_compilations(monkeypatch)
    bulk_options = {"target_prefix": prefixes, "compile_lengths": True}
    actual = dict(search.bulk(rows, batch_size=4, **bulk_options))
    is_supported = not {*options} & {
        "num_beam_groups",
        "return_attention",
        "coverage_penalty",
        "beam_size",
    }
    assert ("_take_first_step" in compilations) == is_supported
    for i in range(len(rows)):
        assert_same(actual[i], expected[i])


@pytest.mark.slow("tensorflow", "jax")
@pytest.mark.parametrize("few_buckets", [False, True])
def test_a_warm_decoder_compiles_nothing(few_buckets, wordy, monkeypatch):
    compilations = count_compilations(monkeypatch)
    options = {"max_decoding_length": (1, 10), **OPTIONS, "few_buckets": few_buckets}
    search = runtime.Decoder(wordy, decode.Options(beam_size=2, **options))
    sizes = {"batch_size": 8, "batch_tokens": 8 * 40}
    search.warm_up([5, 30], **sizes)
    # Batches of 1, 2 and 8; a cache has 2 capacities for sources of 16 tokens,
    # and 3 for 32; with few buckets, it has 2 for 36.
    counts = collections.Counter(compilations)
    capacities = [2] if few_buckets else [2, 3]
    assert counts["_take_steps"] == 3 * sum(capacities)
    assert counts["extend"] == 3 * (sum(capacities) - len(capacities))
    assert counts["begin"] == 3 * len(capacities)
    compilations.clear()
    for seed, count in enumerate([1, 2, 3, 8, 9, 20, 33]):
        rows = draw_rows(count, longest=9 if seed % 2 else 32, seed=seed)
        list(search.bulk(rows, **sizes))
    assert not compilations
    list(search.bulk([[5] * 70]))
    assert compilations


@pytest.mark.backend("tensorflow", "torch")
@pytest.mark.parametrize("inter_threads", [1, 3])
def test_threads_do_not_change_the_output(inter_threads, wordy):
    search = runtime.Decoder(wordy, decode.Options(beam_size=2, **SHORT))
    rows = draw_rows(30, longest=20)
    expected = dict(search.bulk(rows, batch_size=4, inter_threads=2))
    actual = dict(search.bulk(rows, batch_size=4, inter_threads=inter_threads))
    assert sorted(actual) == list(range(30))
    for i in range(30):
        assert_same(actual[i], expected[i])


@pytest.mark.backend("torch")
@pytest.mark.parametrize("seed", [-1, 1.5, "5"])
def test_a_wrong_seed_is_rejected_by_name(wordy, seed):
    search = runtime.Decoder(wordy, decode.Options(sampling_topk=0, **OPTIONS))
    with pytest.raises(ValueError, match=f"`seed` must be .* at least 0; got {seed!r}"):
        search(as_ids(draw_rows(2)), seed=seed)
    with pytest.raises(ValueError, match="`seed` must be"):
        list(search.bulk(draw_rows(2), seed=seed))


@pytest.mark.backend("torch")
def test_bulk_draws_the_same_samples_as_a_call(wordy):
    options = {"num_hypotheses": 2, "sampling_topk": 0, **OPTIONS}
    # So that the size of the noise depends on padding.
    options["max_decoding_length"] = (1, 4)
    search = runtime.Decoder(wordy, decode.Options(**options))
    rows = draw_rows(9)
    actual = dict(search.bulk(rows, batch_size=9, seed=5))
    call = search(as_ids(rows), seed=5)
    for i in range(len(rows)):
        expected = decode.Hypotheses(*(x[i : i + 1] for x in call[:3]))
        assert_same(actual[i], expected)
    alone = search(as_ids(rows[:3], 20), seed=5)  # other padding, fewer sources
    assert_same(alone, decode.Hypotheses(*(x[:3] for x in call[:3])))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"batch_size": 0}, "must be at least 1; got batch_tokens=2048, batch_size=0"),
        ({"batch_tokens": 0}, "batch_tokens=0"),
        ({"inter_threads": 0}, "inter_threads=0"),
        (
            {"source_ids": [[5], [99]]},
            r"`source_ids` must hold ids .* got \[99\] at index 1, vocabulary_size=14",
        ),
    ],
)
def test_bulk_rejects_bad_arguments(changed, message, wordy):
    arguments = {"source_ids": [[5]], **changed}
    with pytest.raises(ValueError, match=message):
        list(runtime.Decoder(wordy, decode.Options(**OPTIONS)).bulk(**arguments))


def test_bulk_accepts_padded_sources_and_returns_their_indices(wordy):
    search = runtime.Decoder(wordy, decode.Options(**SHORT))
    rows = [[5, 6, 0], [7, 0, 0]]
    actual = dict(search.bulk(rows))
    for i, row in enumerate(rows):
        assert_same(actual[i], search([row]))
    with pytest.raises(ValueError, match="padded with 0 at the end; got .* at index 1"):
        list(search.bulk([[5, 6], [7, 0, 8]]))
    prefixes = [[], [5], [6] * 12]  # longer sources are decoded first
    with pytest.raises(ValueError, match="got 12 tokens at index 2"):
        list(search.bulk([[5] * 3, [6] * 9, [7]], target_prefix=prefixes))


def test_bulk_of_no_sources_returns_nothing(wordy):
    assert list(runtime.Decoder(wordy, decode.Options(**OPTIONS)).bulk([])) == []


@pytest.mark.backend("torch")
def test_a_stream_has_the_tokens_of_the_search(wordy):
    search = runtime.Decoder(wordy, decode.Options(**LONG))
    ids = as_ids([*draw_rows(3), []])
    tokens = np.stack(list(search.stream(ids)), axis=1)
    expected = search(ids)
    assert tokens.shape[1] == expected.lengths.max() > 16
    assert tokens.tolist() == expected.ids[:, 0, : tokens.shape[1]].tolist()
    prefixed = search.stream(ids, target_prefix=[[7, 8], [], [9], []])
    assert next(prefixed)[[0, 2]].tolist() == [7, 9]
    assert next(prefixed)[0] == 8
    with pytest.raises(
        ValueError, match="`stream` needs greedy search; got beam_size=2"
    ):
        runtime.Decoder(wordy, decode.Options(beam_size=2, **OPTIONS)).stream(ids)


@pytest.mark.backend("torch")
def test_attention_is_that_of_the_model_on_the_hypothesis(wordy):
    search = runtime.Decoder(
        wordy,
        decode.Options(beam_size=3, num_hypotheses=2, return_attention=True, **SHORT),
    )
    rows = draw_rows(4)
    ids = as_ids(rows)
    actual = search(ids)
    assert actual.attention.shape == (4, 2, 12, ids.shape[1])
    greedy = runtime.Decoder(wordy, decode.Options(return_attention=True, **SHORT))(ids)
    for hypotheses in (actual, greedy):
        for n in range(hypotheses.ids.shape[1]):
            best = hypotheses.ids[:, n]
            target_ids = np.concatenate([np.full((4, 1), START), best[:, :-1]], axis=1)
            maps = wordy.attention_maps(
                ops.convert_to_tensor(ids), ops.convert_to_tensor(target_ids, "int32")
            )
            expected = ops.convert_to_numpy(maps["cross"][-1]).mean(axis=1)
            for row in range(4):
                length = hypotheses.lengths[row, n]
                np.testing.assert_allclose(
                    hypotheses.attention[row, n, :length],
                    expected[row, :length],
                    atol=1e-5,
                )
                assert not hypotheses.attention[row, n, length:].any()
                assert not hypotheses.attention[row, n, :, len(rows[row]) :].any()


@pytest.mark.slow("tensorflow")
@pytest.mark.backend("tensorflow", "torch")  # JAX would compile many functions
def test_alternatives_are_the_likeliest_tokens_after_a_prefix(wordy):
    options = {"beam_size": 2, "num_hypotheses": 4, **SHORT}
    search = runtime.Decoder(
        wordy,
        decode.Options(return_alternatives=True, return_token_scores=True, **options),
    )
    ids = as_ids([*draw_rows(2), []])
    prefixes, num_ended = [[7, 8], [], []], 0
    actual = search(ids, target_prefix=prefixes)
    assert actual.ids.shape == (3, 4, 12)
    for row in (0, 1):
        start = [2, *prefixes[row]]
        inputs = {"source_ids": ids[row : row + 1], "target_ids": np.array([start])}
        logits = wordy(
            {k: ops.convert_to_tensor(x, "int32") for k, x in inputs.items()}
        )
        logits = ops.convert_to_numpy(logits)[0, -1].astype("float64")
        logits[:3] = -np.inf
        log_probs = logits - np.log(np.exp(logits).sum())
        likeliest = np.argsort(-logits)[:4]
        length = len(prefixes[row])
        assert actual.ids[row, :, length].tolist() == likeliest.tolist()
        # Each token is normalized over the allowed tokens, as later tokens are,
        # also if the hypothesis ends at once.
        token_scores = actual.token_scores[row, :, length]
        np.testing.assert_allclose(token_scores, log_probs[likeliest], atol=1e-4)
        means = actual.token_scores[row].sum(axis=-1) / actual.lengths[row]
        np.testing.assert_allclose(actual.scores[row], means, atol=1e-5)
        num_ended += END in likeliest
        assert set(actual.lengths[row, likeliest == END]) <= {length + 1}
    assert num_ended
    assert actual.scores[2].tolist() == [-np.inf] * 4
    assert not actual.ids[2].any()


@pytest.mark.backend("torch")
def test_hypotheses_contain_their_constraints(wordy):
    search = runtime.Decoder(
        wordy, decode.Options(beam_size=6, num_hypotheses=2, **SHORT)
    )
    ids = as_ids(draw_rows(4))
    phrases = [[[9, 4, 9]], [], [[5, 6], [13]], [[8]]]
    actual, free = search(ids, constraints=phrases), search(ids)
    for row, expected in enumerate(phrases):
        for n in range(2):
            text = " ".join(map(str, actual.ids[row, n, : actual.lengths[row, n]]))
            assert all(f" {' '.join(map(str, p))} " in f" {text} " for p in expected)
    assert actual.ids[1].tolist() == free.ids[1].tolist()
    assert actual.ids.tolist() != free.ids.tolist()
    order = [2, 0, 3, 1]
    arrays = [np.array(phrases[i]) if i < 2 else phrases[i] for i in order]
    reordered = search(ids[order], constraints=arrays)
    assert_same(reordered, decode.Hypotheses(*(x[order] for x in actual[:3])))


@pytest.mark.backend("torch")
def test_constraints_inside_a_prefix_need_no_further_tokens(wordy):
    options = {"max_decoding_length": 5, **OPTIONS}
    search = runtime.Decoder(wordy, decode.Options(beam_size=3, **options))
    ids, phrase = np.array([[5, 6]]), [[[7, 8, 9]]]
    actual = search(ids, target_prefix=[[7, 8]], constraints=phrase)
    assert actual.ids[0, 0, :3].tolist() == [7, 8, 9]
    assert np.isfinite(actual.scores[0, 0])
    # After this prefix, no position is left for the end.
    actual = search(ids, target_prefix=[[7, 9]], constraints=phrase)
    assert actual.ids[0, 0].tolist() == [7, 9, 7, 8, 9]


@pytest.mark.backend("torch")
def test_score_needs_a_model_that_can_be_called(wordy):
    class Steps:
        begin, step = wordy.begin, wordy.step

    with pytest.raises(ValueError, match="got Steps, which has `begin`"):
        runtime.Decoder(Steps(), decode.Options(**SHORT)).score([[5]], [[6]])


@pytest.mark.backend("torch")
def test_alternatives_after_a_prefix_of_the_maximum_length(wordy):
    options = {"num_hypotheses": 3, "max_decoding_length": 3, **OPTIONS}
    search = runtime.Decoder(wordy, decode.Options(return_alternatives=True, **options))
    ids = np.array([[5, 6], [7, 0]])
    actual = search(ids, target_prefix=[[7, 8], []])
    assert actual.lengths[0].tolist() == [3] * 3
    assert len(set(actual.ids[0, :, 2].tolist())) == 3
    assert (np.diff(actual.scores[0]) < 0).all()
    with pytest.raises(ValueError, match="got 3 tokens at index 0, and a limit of 3"):
        search(ids, target_prefix=[[7, 8, 9], []])
    for rejected in (lambda: next(search.bulk([[5]])), lambda: search.stream(ids)):
        with pytest.raises(ValueError, match="lternatives"):
            rejected()
    with pytest.raises(ValueError, match="`return_alternatives` is not supported"):
        search.decode(ops.convert_to_tensor(ids))
    with pytest.raises(ValueError, match="`constraints` must be None"):
        search(ids, constraints=[[[5]], []])


class CountingState(NamedTuple):
    step: object
    left: object
    is_done: object


class Counting:
    """A decoder whose sequences finish after the numbers of steps passed in."""

    def __init__(self, chunk_steps):
        self.chunk_steps, self.sizes, self.work = chunk_steps, [], 0

    def start(self, lengths, kind=None):
        """Begins sequences of `lengths` steps; batches of a kind may merge."""
        size = len(lengths)
        step = ops.convert_to_tensor(0, "int32")
        return CountingState(step, lengths, ops.zeros((size, 1), "bool"))

    def carry_on(self, state):
        step, left, is_done = map(ops.convert_to_numpy, state)
        self.sizes.append((int(step), len(left)))
        self.work += self.chunk_steps * len(left)
        step = step + self.chunk_steps
        is_done = is_done | (left <= step)[:, None]
        state = CountingState(*map(ops.convert_to_tensor, (step, left, is_done)))
        scores = ops.cast(ops.convert_to_tensor(left)[:, None], "float32")
        return state, decode.Hypotheses(state.is_done, scores, state.is_done)


def test_remaining_sequences_share_batches():
    draw = np.random.default_rng(0)
    lengths = draw.integers(1, 40, 200).astype("int32")
    decoder = Counting(chunk_steps=4)
    batches = [
        OfflineBatch(
            np.arange(i, i + 20),
            decoder.start,
            (ops.convert_to_tensor(lengths[i : i + 20]),),
        )
        for i in range(0, 200, 20)
    ]
    actual = {}
    for indices, hypotheses in decode_offline(batches, decoder.carry_on):
        for index, score in zip(indices, hypotheses.scores[:, 0], strict=True):
            assert index not in actual
            actual[index] = score
    assert actual == dict(enumerate(lengths))
    # Each sequence needs its own steps, rounded up; waiting for the longest of
    # each batch would be 10 batches of 40 steps.
    least = (-(-lengths // 4) * 4).sum()
    assert least <= decoder.work < 0.8 * 200 * 40
    assert decoder.work < 1.35 * least
    assert {size for _, size in decoder.sizes} <= {20, 5, 1}


def test_batches_do_not_depend_on_time():
    draw = np.random.default_rng(0)
    lengths = draw.integers(1, 40, 120).astype("int32")
    shapes = [(120 // 10, 1), (120 // 10, 2)]  # two kinds of batches
    work, orders = [], []
    for slow in (0, 1):
        decoder = Counting(chunk_steps=4)
        carry_on = decoder.carry_on

        def delayed(state, carry_on=carry_on, slow=slow):
            time.sleep(0.002 * (len(state.left) + slow * int(state.step)) % 0.007)
            return carry_on(state)

        batches = []
        for i in range(0, 120, 12):
            batch_lengths = ops.convert_to_tensor(lengths[i : i + 12])
            kind = ops.zeros(shapes[i >= 60])
            batches.append(
                OfflineBatch(np.arange(i, i + 12), decoder.start, (batch_lengths, kind))
            )
        actual = decode_offline(batches, delayed, 2)
        orders.append([indices.tolist() for indices, _ in actual])
        work.append(sorted(decoder.sizes))
    assert work[0] == work[1]
    assert orders[0] == orders[1]
    assert sorted(sum(orders[0], [])) == list(range(120))


def test_both_threads_work_at_the_end():
    decoder, barrier = Counting(chunk_steps=4), threading.Barrier(2, timeout=10)

    def carry_on(state):
        if int(state.step):
            barrier.wait()  # raises if only one thread works
        return decoder.carry_on(state)

    batch_lengths = ops.convert_to_tensor([1, 9, 9, 9], "int32")
    batches = [
        OfflineBatch(
            np.arange(4) + 4 * i, decoder.start, (batch_lengths, ops.zeros((4, i + 1)))
        )
        for i in range(2)
    ]
    actual = [n for indices, _ in decode_offline(batches, carry_on, 2) for n in indices]
    assert sorted(actual) == list(range(8))


def test_an_error_in_a_chunk_is_raised():
    def start(lengths):
        raise ValueError("a chunk that fails")

    batches = [OfflineBatch(np.arange(2), start, (ops.zeros((2,), "int32"),))] * 3
    with pytest.raises(ValueError, match="a chunk that fails"):
        list(decode_offline(batches, None, 2))


def test_an_empty_sequence_that_fills_a_batch_is_not_returned():
    decoder = Counting(chunk_steps=2)
    lengths = ops.convert_to_tensor(np.array([3, 9, 5], "int32"))
    batches = [OfflineBatch(np.array([7, -1, 8]), decoder.start, (lengths,))]
    actual = [indices for indices, _ in decode_offline(batches, decoder.carry_on)]
    assert [indices.tolist() for indices in actual] == [[7], [8]]
    assert max(index for index, _ in decoder.sizes) == 4  # not continued to 9


def test_groups_contain_suppressed_tokens_only_where_they_are_forced(wordy):
    options = {"num_beam_groups": 2, "diversity_penalty": 1.0, **SHORT}
    search = runtime.Decoder(
        wordy, decode.Options(beam_size=4, suppress_ids=(0, 2, 5, 6, 7), **options)
    )
    actual = search(as_ids(draw_rows(2)), target_prefix=[[5], []])
    assert (actual.ids[0, :, 0] == 5).all()
    assert np.isfinite(actual.scores).all()
    assert not np.isin(actual.ids[0, :, 1:], (2, 5, 6, 7)).any()
    assert not np.isin(actual.ids[1], (2, 5, 6, 7)).any()
