"""Searches in stretches, with rows that come and go, and their company."""

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
FEW = {"jit_compile": False}
LONG = {"max_decoding_length": 40, **FEW}
SHORT = {"max_decoding_length": 12, **FEW}


@pytest.fixture(scope="module")
def wordy():
    """A model whose hypotheses have from few tokens to very many."""
    model = draw_transformer(seed=7)
    kernel = ops.convert_to_numpy(model.projection.kernel)
    kernel[:, END] *= 0.7
    model.projection.kernel.assign(kernel)
    return model


def draw_rows(count, longest=9, seed=0):
    draw = np.random.default_rng(seed)
    lengths = draw.integers(1, longest + 1, count)
    return [draw.integers(4, VOCABULARY_SIZE, n).tolist() for n in lengths]


def as_ids(rows, width=None):
    ids = np.zeros((len(rows), width or max(map(len, rows))), "int32")
    for row, tokens in zip(ids, rows, strict=True):
        row[: len(tokens)] = tokens
    return ids


def assert_same(found, wanted):
    """Holds hypotheses against others that may be padded further."""
    size = min(found.ids.shape[-1], wanted.ids.shape[-1])
    for one, other in ((found, wanted), (wanted, found)):
        assert not one.ids[..., size:].any()
        assert one.ids[..., :size].tolist() == other.ids[..., :size].tolist()
    assert found.lengths.tolist() == wanted.lengths.tolist()
    np.testing.assert_allclose(found.scores, wanted.scores, atol=1e-5)


def in_one_program(search, ids):
    """The whole search without stretches, room for the limit from the first."""
    program = runtime.compiled(search.decode, search.model, jit_compile=False)
    actual = program(ops.convert_to_tensor(ids))
    return decode.Hypotheses(
        *(x if x is None else ops.convert_to_numpy(x) for x in actual)
    )


@pytest.mark.parametrize("beam_size", [1, 3])
def test_chunks_of_steps_do_not_change_the_output(beam_size, wordy):
    options = {"num_hypotheses": beam_size, "return_token_scores": True, **LONG}
    search = runtime.Decoder(wordy, decode.Options(beam_size=beam_size, **options))
    ids = as_ids([*draw_rows(7), []], 16)
    actual, expected = search(ids), in_one_program(search, ids)
    lengths = expected.lengths[:-1, 0]
    assert lengths.min() < 16 < 32 < lengths.max()  # through three rooms
    assert_same(actual, expected)
    np.testing.assert_allclose(
        actual.token_scores, expected.token_scores[..., :40], atol=1e-5
    )


def test_in_bulk_each_source_has_the_hypotheses_that_it_has_alone(wordy):
    search = runtime.Decoder(
        wordy, decode.Options(beam_size=3, num_hypotheses=3, **SHORT)
    )
    rows = [*draw_rows(23, longest=15), []]
    actual = dict(search.bulk(rows, batch_size=7, batch_tokens=5 * 16))
    assert sorted(actual) == list(range(len(rows)))
    width = max(map(len, rows))
    together = search(as_ids(rows, width))
    for number in range(len(rows)):
        alone = decode.Hypotheses(*(x[number : number + 1] for x in together[:3]))
        assert_same(actual[number], alone)


@pytest.mark.backend("jax", "torch")
def test_bulk_compiles_few_shapes(wordy, monkeypatch):
    search, shapes = runtime.Decoder(wordy, decode.Options(**SHORT)), []
    start = search.compiled_search.start

    def recorded(*arguments):
        shapes.append(tuple(arguments[0].shape))
        return start(*arguments)

    monkeypatch.setattr(search.compiled_search, "start", recorded)
    rows = [[5] * 20, *[[5] * 3] * 8]
    list(search.bulk(rows, batch_size=4, inter_threads=1))
    list(search.bulk(rows[:3], batch_size=4, inter_threads=1))
    assert shapes == [(1, 32), (4, 16), (4, 16), (1, 32), (1, 16), (1, 16)]
    shapes.clear()
    list(search.bulk(rows, batch_tokens=64, inter_threads=1))
    assert shapes == [(1, 32), (4, 16), (4, 16)]


def test_compiled_lengths_read_no_more_than_sources_have(wordy, monkeypatch):
    search, read = (
        runtime.Decoder(wordy, decode.Options(beam_size=3, num_hypotheses=2, **SHORT)),
        [],
    )
    rows = [*draw_rows(14, longest=20), []]
    expected = dict(search.bulk(rows, batch_size=4))
    encode = wordy.encode

    def recorded(source_ids):
        read.append(tuple(source_ids.shape))
        return encode(source_ids)

    monkeypatch.setattr(wordy, "encode", recorded)
    actual = dict(search.bulk(rows, batch_size=4, compile_lengths=True))
    assert {(4, 4), (4, 20)} <= set(read)
    assert {width for count, width in read if count < 4} <= {16, 32}
    for number in range(len(rows)):
        assert_same(actual[number], expected[number])


@pytest.mark.backend("torch")
def test_frequent_lengths_are_compiled(wordy, monkeypatch):
    monkeypatch.setattr(offline, "FREQUENT", 2)
    for few_buckets in (False, True):
        search, read = (
            runtime.Decoder(wordy, decode.Options(few_buckets=few_buckets, **SHORT)),
            [],
        )
        encode = type(wordy).encode

        def recorded(source_ids, read=read, encode=encode):
            read.append(source_ids.shape[1])
            return encode(wordy, source_ids)

        monkeypatch.setattr(wordy, "encode", recorded)
        rows = [[5] * 6] * 4
        for _ in range(2):
            list(search.bulk(rows, batch_size=2))
        list(search.bulk(rows, batch_size=2, compile_lengths=False))
        assert read == ([36] * 6 if few_buckets else [16, 16, 8, 8, 16, 16])


@pytest.mark.backend("torch")  # the test above is of all
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_hypotheses": 3, "return_token_scores": True},
        {"no_repeat_ngram_size": 2, "min_decoding_length": 2},
        {"num_hypotheses": 2, "beam_size": 4, "num_beam_groups": 2},
        {"return_attention": True},
        {"coverage_penalty": 0.2, "length_penalty_form": "gnmt"},
        {"beam_size": 8},  # of 14 tokens, less than two for each
    ],
)
def test_compiled_lengths_take_a_first_step_of_one_hypothesis(
    options, wordy, monkeypatch
):
    search = runtime.Decoder(
        wordy, decode.Options(**{"beam_size": 3, **options, **SHORT})
    )
    rows = [*draw_rows(12, longest=20), []]
    prefixes = [[], [5, 6], *[[]] * 11]
    expected = dict(search.bulk(rows, batch_size=4, target_prefix=prefixes))
    new = count_compilations(monkeypatch)
    given = {"target_prefix": prefixes, "compile_lengths": True}
    actual = dict(search.bulk(rows, batch_size=4, **given))
    alone = not {*options} & {
        "num_beam_groups",
        "return_attention",
        "coverage_penalty",
        "beam_size",
    }
    assert ("_take_first_step" in new) == alone
    for number in range(len(rows)):
        assert_same(actual[number], expected[number])


@pytest.mark.parametrize("few_buckets", [False, True])
def test_a_warm_decoder_compiles_nothing(few_buckets, wordy, monkeypatch):
    new = count_compilations(monkeypatch)
    options = {"max_decoding_length": (1, 10), **FEW, "few_buckets": few_buckets}
    search = runtime.Decoder(wordy, decode.Options(beam_size=2, **options))
    sizes = {"batch_size": 8, "batch_tokens": 8 * 40}
    search.warm_up([5, 30], **sizes)
    # 1, 2 and 8 rows; of 16 tokens 2 rooms and of 32 3, or of 36 alone 2.
    counts = collections.Counter(new)
    rooms = [2] if few_buckets else [2, 3]
    assert counts["_take_steps"] == 3 * sum(rooms)
    assert counts["extend"] == 3 * (sum(rooms) - len(rooms))
    assert counts["begin"] == 3 * len(rooms)
    new.clear()
    for number, count in enumerate([1, 2, 3, 8, 9, 20, 33]):
        rows = draw_rows(count, longest=9 if number % 2 else 32, seed=number)
        list(search.bulk(rows, **sizes))
    assert not new
    list(search.bulk([[5] * 70]))
    assert new


@pytest.mark.backend("tensorflow", "torch")
@pytest.mark.parametrize("inter_threads", [1, 3])
def test_threads_do_not_change_the_output(inter_threads, wordy):
    search = runtime.Decoder(wordy, decode.Options(beam_size=2, **SHORT))
    rows = draw_rows(30, longest=20)
    expected = dict(search.bulk(rows, batch_size=4, inter_threads=2))
    actual = dict(search.bulk(rows, batch_size=4, inter_threads=inter_threads))
    assert sorted(actual) == list(range(30))
    for number in range(30):
        assert_same(actual[number], expected[number])


@pytest.mark.backend("torch")
def test_bulk_samples_what_a_call_samples(wordy):
    options = {"num_hypotheses": 2, "sampling_topk": 0, **FEW}
    options["max_decoding_length"] = (1, 4)  # so that noise is as wide as padding
    search = runtime.Decoder(wordy, decode.Options(**options))
    rows = draw_rows(9)
    actual = dict(search.bulk(rows, batch_size=9, seed=5))
    call = search(as_ids(rows), seed=5)
    for number in range(len(rows)):
        expected = decode.Hypotheses(*(x[number : number + 1] for x in call[:3]))
        assert_same(actual[number], expected)
    alone = search(as_ids(rows[:3], 20), seed=5)  # other padding, fewer rows
    assert_same(alone, decode.Hypotheses(*(x[:3] for x in call[:3])))


@pytest.mark.parametrize(
    ("wrong", "message"),
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
def test_bulk_rejects_bad_arguments(wrong, message, wordy):
    arguments = {"source_ids": [[5]], **wrong}
    with pytest.raises(ValueError, match=message):
        list(runtime.Decoder(wordy, decode.Options(**FEW)).bulk(**arguments))


def test_bulk_takes_padded_rows_in_any_order_and_names_them_by_number(wordy):
    search = runtime.Decoder(wordy, decode.Options(**SHORT))
    rows = [[5, 6, 0], [7, 0, 0]]
    actual = dict(search.bulk(rows))
    for number, row in enumerate(rows):
        assert_same(actual[number], search([row]))
    with pytest.raises(ValueError, match="padded with 0 at the end; got .* at index 1"):
        list(search.bulk([[5, 6], [7, 0, 8]]))
    prefixes = [[], [5], [6] * 12]  # of which the longest source comes first
    with pytest.raises(ValueError, match="got 12 tokens at index 2"):
        list(search.bulk([[5] * 3, [6] * 9, [7]], target_prefix=prefixes))


def test_bulk_of_nothing_is_nothing(wordy):
    assert list(runtime.Decoder(wordy, decode.Options(**FEW)).bulk([])) == []


@pytest.mark.backend("torch")
def test_a_stream_gives_the_tokens_of_the_search(wordy):
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
        runtime.Decoder(wordy, decode.Options(beam_size=2, **FEW)).stream(ids)


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
    for one in (actual, greedy):
        for n in range(one.ids.shape[1]):
            best = one.ids[:, n]
            said = np.concatenate([np.full((4, 1), START), best[:, :-1]], axis=1)
            maps = wordy.attention_maps(
                ops.convert_to_tensor(ids), ops.convert_to_tensor(said, "int32")
            )
            expected = ops.convert_to_numpy(maps["cross"][-1]).mean(axis=1)
            for row in range(4):
                length = one.lengths[row, n]
                np.testing.assert_allclose(
                    one.attention[row, n, :length], expected[row, :length], atol=1e-5
                )
                assert not one.attention[row, n, length:].any()
                assert not one.attention[row, n, :, len(rows[row]) :].any()


@pytest.mark.backend("tensorflow", "torch")  # many programs, for NumPy's work
def test_alternatives_are_the_likeliest_tokens_after_a_prefix(wordy):
    options = {"beam_size": 2, "num_hypotheses": 4, **SHORT}
    search = runtime.Decoder(
        wordy,
        decode.Options(return_alternatives=True, return_token_scores=True, **options),
    )
    ids = as_ids([*draw_rows(2), []])
    prefixes, ended = [[7, 8], [], []], 0
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
        gains = logits - np.log(np.exp(logits).sum())
        likeliest = np.argsort(-logits)[:4]
        length = len(prefixes[row])
        assert actual.ids[row, :, length].tolist() == likeliest.tolist()
        # Each has its probability among those that it was chosen of, as what
        # follows has; one that ends at once too.
        own = actual.token_scores[row, :, length]
        np.testing.assert_allclose(own, gains[likeliest], atol=1e-4)
        means = actual.token_scores[row].sum(axis=-1) / actual.lengths[row]
        np.testing.assert_allclose(actual.scores[row], means, atol=1e-5)
        ended += END in likeliest
        assert set(actual.lengths[row, likeliest == END]) <= {length + 1}
    assert ended
    assert actual.scores[2].tolist() == [-np.inf] * 4
    assert not actual.ids[2].any()


@pytest.mark.backend("torch")
def test_constraints_are_kept_by_the_search(wordy):
    search = runtime.Decoder(
        wordy, decode.Options(beam_size=6, num_hypotheses=2, **SHORT)
    )
    ids = as_ids(draw_rows(4))
    phrases = [[[9, 4, 9]], [], [[5, 6], [13]], [[8]]]
    actual, free = search(ids, constraints=phrases), search(ids)
    for row, expected in enumerate(phrases):
        for n in range(2):
            said = " ".join(map(str, actual.ids[row, n, : actual.lengths[row, n]]))
            assert all(f" {' '.join(map(str, p))} " in f" {said} " for p in expected)
    assert actual.ids[1].tolist() == free.ids[1].tolist()
    assert actual.ids.tolist() != free.ids.tolist()
    order = [2, 0, 3, 1]
    arrays = [np.array(phrases[i]) if i < 2 else phrases[i] for i in order]
    turned = search(ids[order], constraints=arrays)
    assert_same(turned, decode.Hypotheses(*(x[order] for x in actual[:3])))


@pytest.mark.backend("torch")
def test_constraints_that_a_prefix_holds_need_no_room(wordy):
    options = {"max_decoding_length": 5, **FEW}
    search = runtime.Decoder(wordy, decode.Options(beam_size=3, **options))
    ids, phrase = np.array([[5, 6]]), [[[7, 8, 9]]]
    actual = search(ids, target_prefix=[[7, 8]], constraints=phrase)
    assert actual.ids[0, 0, :3].tolist() == [7, 8, 9]
    assert np.isfinite(actual.scores[0, 0])
    # After this prefix there is no room for the end.
    actual = search(ids, target_prefix=[[7, 9]], constraints=phrase)
    assert actual.ids[0, 0].tolist() == [7, 9, 7, 8, 9]


@pytest.mark.backend("torch")
def test_score_needs_a_model_that_can_be_called(wordy):
    class Steps:
        begin, step = wordy.begin, wordy.step

    with pytest.raises(ValueError, match="got Steps, which has `begin`"):
        runtime.Decoder(Steps(), decode.Options(**SHORT)).score([[5]], [[6]])


@pytest.mark.backend("torch")
def test_alternatives_after_a_prefix_as_long_as_can_be(wordy):
    options = {"num_hypotheses": 3, "max_decoding_length": 3, **FEW}
    search = runtime.Decoder(wordy, decode.Options(return_alternatives=True, **options))
    ids = np.array([[5, 6], [7, 0]])
    actual = search(ids, target_prefix=[[7, 8], []])
    assert actual.lengths[0].tolist() == [3] * 3
    assert len(set(actual.ids[0, :, 2].tolist())) == 3
    assert (np.diff(actual.scores[0]) < 0).all()
    with pytest.raises(ValueError, match="got 3 tokens at index 0, and a limit of 3"):
        search(ids, target_prefix=[[7, 8, 9], []])
    for refused in (lambda: next(search.bulk([[5]])), lambda: search.stream(ids)):
        with pytest.raises(ValueError, match="lternatives"):
            refused()
    with pytest.raises(ValueError, match="`return_alternatives` is not supported"):
        search.decode(ops.convert_to_tensor(ids))
    with pytest.raises(ValueError, match="`constraints` must be None"):
        search(ids, constraints=[[[5]], []])


class CountingState(NamedTuple):
    step: object
    left: object
    is_done: object


class Counting:
    """Rows that are done after a number of steps of their own."""

    def __init__(self, stretch):
        self.stretch, self.sizes, self.work = stretch, [], 0

    def start(self, lengths, kind=None):
        """Begins rows of so many steps; batches of one kind may be joined."""
        size = len(lengths)
        step = ops.convert_to_tensor(0, "int32")
        return CountingState(step, lengths, ops.zeros((size, 1), "bool"))

    def carry_on(self, state):
        step, left, done = map(ops.convert_to_numpy, state)
        self.sizes.append((int(step), len(left)))
        self.work += self.stretch * len(left)
        step = step + self.stretch
        done = done | (left <= step)[:, None]
        state = CountingState(*map(ops.convert_to_tensor, (step, left, done)))
        scores = ops.cast(ops.convert_to_tensor(left)[:, None], "float32")
        return state, decode.Hypotheses(state.is_done, scores, state.is_done)


def test_waiting_rows_share_batches():
    draw = np.random.default_rng(0)
    lengths = draw.integers(1, 40, 200).astype("int32")
    toy = Counting(stretch=4)
    batches = [
        OfflineBatch(
            np.arange(i, i + 20),
            toy.start,
            (ops.convert_to_tensor(lengths[i : i + 20]),),
        )
        for i in range(0, 200, 20)
    ]
    actual = {}
    for numbers, hypotheses in decode_offline(batches, toy.carry_on):
        for number, score in zip(numbers, hypotheses.scores[:, 0], strict=True):
            assert number not in actual
            actual[number] = score
    assert actual == dict(enumerate(lengths))
    # Each row needs its own steps, rounded up; waiting for the longest of the
    # batch would be 10 batches of 40 steps.
    least = (-(-lengths // 4) * 4).sum()
    assert least <= toy.work < 0.8 * 200 * 40
    assert toy.work < 1.35 * least
    assert {size for _, size in toy.sizes} <= {20, 5, 1}


def test_batches_do_not_depend_on_time():
    draw = np.random.default_rng(0)
    lengths = draw.integers(1, 40, 120).astype("int32")
    shapes = [(120 // 10, 1), (120 // 10, 2)]  # of two kinds, one after the other
    work, orders = [], []
    for slow in (0, 1):
        toy = Counting(stretch=4)
        carry_on = toy.carry_on

        def dawdling(state, carry_on=carry_on, slow=slow):
            time.sleep(0.002 * (len(state.left) + slow * int(state.step)) % 0.007)
            return carry_on(state)

        batches = []
        for i in range(0, 120, 12):
            part = ops.convert_to_tensor(lengths[i : i + 12])
            kind = ops.zeros(shapes[i >= 60])
            batches.append(OfflineBatch(np.arange(i, i + 12), toy.start, (part, kind)))
        actual = decode_offline(batches, dawdling, 2)
        orders.append([numbers.tolist() for numbers, _ in actual])
        work.append(sorted(toy.sizes))
    assert work[0] == work[1]
    assert orders[0] == orders[1]
    assert sorted(sum(orders[0], [])) == list(range(120))


def test_no_thread_waits_for_the_other_at_the_end():
    toy, both = Counting(stretch=4), threading.Barrier(2, timeout=10)

    def carry_on(state):
        if int(state.step):
            both.wait()  # breaks where one works alone
        return toy.carry_on(state)

    part = ops.convert_to_tensor([1, 9, 9, 9], "int32")
    batches = [
        OfflineBatch(np.arange(4) + 4 * i, toy.start, (part, ops.zeros((4, i + 1))))
        for i in range(2)
    ]
    actual = [n for numbers, _ in decode_offline(batches, carry_on, 2) for n in numbers]
    assert sorted(actual) == list(range(8))


def test_an_error_in_a_chunk_is_raised():
    def start(lengths):
        raise ValueError("a chunk that fails")

    batches = [OfflineBatch(np.arange(2), start, (ops.zeros((2,), "int32"),))] * 3
    with pytest.raises(ValueError, match="a chunk that fails"):
        list(decode_offline(batches, None, 2))


def test_a_fill_row_is_not_returned():
    toy = Counting(stretch=2)
    lengths = ops.convert_to_tensor(np.array([3, 9, 5], "int32"))
    batches = [OfflineBatch(np.array([7, -1, 8]), toy.start, (lengths,))]
    actual = [n for n, _ in decode_offline(batches, toy.carry_on)]
    assert [n.tolist() for n in actual] == [[7], [8]]
    assert max(index for index, _ in toy.sizes) == 4  # not on to 9


def test_groups_take_what_is_suppressed_only_where_it_is_forced(wordy):
    options = {"num_beam_groups": 2, "diversity_penalty": 1.0, **SHORT}
    search = runtime.Decoder(
        wordy, decode.Options(beam_size=4, suppress_ids=(0, 2, 5, 6, 7), **options)
    )
    actual = search(as_ids(draw_rows(2)), target_prefix=[[5], []])
    assert (actual.ids[0, :, 0] == 5).all()
    assert np.isfinite(actual.scores).all()
    assert not np.isin(actual.ids[0, :, 1:], (2, 5, 6, 7)).any()
    assert not np.isin(actual.ids[1], (2, 5, 6, 7)).any()
