"""Beam search against every hypothesis there is, and against one by hand."""

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from keras_tfm import decode, runtime
from keras_tfm.decode import next_tokens
from tests.decode.languages import (
    END,
    assert_found,
    by_hand,
    draw_language,
    drawn,
    every_hypothesis,
    log_softmax,
    loop_step,
    options_of,
    tree_cache,
    tree_gains,
    tree_step,
)

ROWS = 6
SUPPRESS = (decode.logits_processors.suppress((0, 1, 2)),)
PENALTIES = [(0.0, "mean"), (0.6, "mean"), (1.0, "mean"), (0.6, "gnmt")]
LANGUAGES = {"seed": st.integers(0, 10**6), "sharpness": st.floats(0.2, 4.0)}
# One compiled program serves many languages: the table is its argument.
many_languages = drawn(10)
some_languages = drawn(6)


@functools.cache
def program(search, max_length, **options):
    """Compiles a search over drawn languages."""

    def decoded(table, active, limits):
        cache = tree_cache(table.shape[0], options.get("beam_size", 1))
        step = tree_step(table)
        return search(step, cache, active, max_length, options_of(**options), limits)

    return runtime.compiled(decoded, model=None, jit_compile=False)


def run(
    table, max_length, active=None, limits=None, search=decode.beam_search, **options
):
    active = np.ones(len(table), "bool") if active is None else active
    limits = np.full(len(table), max_length) if limits is None else limits
    return program(search, max_length, **options)(
        ops.convert_to_tensor(table),
        ops.convert_to_tensor(active),
        ops.convert_to_tensor(limits, "int32"),
    )


@pytest.mark.parametrize(("length_penalty", "form"), PENALTIES)
@many_languages
@given(**LANGUAGES)
def test_a_beam_as_wide_as_the_language_finds_the_best(
    length_penalty, form, seed, sharpness
):
    table = draw_language(seed, ROWS, 4, 5, sharpness)
    actual = run(
        table,
        5,
        beam_size=3**4 * 4,
        num_hypotheses=5,
        length_penalty=length_penalty,
        length_penalty_form=form,
        patience=1e9,
    )
    for row in range(ROWS):
        expected = every_hypothesis(tree_gains(table[row]), 5, length_penalty, form)
        assert len(expected) == 3**5 + 1 + 3 + 9 + 27 + 81
        assert_found(actual, row, expected)


@some_languages
@given(**LANGUAGES)
def test_a_wide_beam_finds_every_hypothesis_of_allowed_tokens(seed, sharpness):
    table = draw_language(seed, 1, 6, 6, sharpness)
    actual = run(
        table, 6, beam_size=140, num_hypotheses=140, logits_processors=SUPPRESS
    )
    expected = every_hypothesis(tree_gains(table[0], suppress_ids=(0, 1, 2)), 6)
    # 4 5 or 5 4 or ..., each open or ended: 127 in all, and no more come.
    assert len(expected) == 127
    assert_found(actual, 0, expected)


@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 1, "num_hypotheses": 1},
        {"beam_size": 2, "num_hypotheses": 2, "patience": 2.0},
        {"beam_size": 3, "num_hypotheses": 1, "length_penalty": 0.6},
        {"beam_size": 3, "num_hypotheses": 3, "length_penalty": 0.0},
        {"beam_size": 4, "num_hypotheses": 2, "patience": 0.5},
        {"beam_size": 3, "num_hypotheses": 2, "early_stopping": True},
        {
            "beam_size": 4,
            "num_hypotheses": 4,
            "early_stopping": True,
            "patience": 0.5,
        },
        {"beam_size": 4, "num_hypotheses": 3, "length_penalty_form": "gnmt"},
    ],
    ids=lambda options: ",".join(f"{k}={v}" for k, v in options.items()),
)
@many_languages
@given(**LANGUAGES)
def test_a_narrow_beam_goes_as_one_by_hand(options, seed, sharpness):
    table = draw_language(seed, ROWS, 5, 5, sharpness)
    actual = run(table, 5, **options)
    renamed = dict(options)
    renamed["form"] = renamed.pop("length_penalty_form", "mean")
    for row in range(ROWS):
        assert_found(actual, row, by_hand(tree_gains(table[row]), 5, **renamed))


@pytest.mark.parametrize("num_hypotheses", [1, 3])
@many_languages
@given(**LANGUAGES)
def test_with_patience_stopping_early_changes_nothing(num_hypotheses, seed, sharpness):
    table = draw_language(seed, ROWS, 5, 5, sharpness)
    options = {"beam_size": 3, "num_hypotheses": num_hypotheses, "patience": 1e9}
    actual = run(table, 5, **options)
    for row in range(ROWS):
        whole = by_hand(tree_gains(table[row]), 5, **options, stop_early=False)
        assert_found(actual, row, whole)


def test_improbable_ends_do_not_end_the_search():
    # A sure language, 2 -> 4 -> 5 -> 6 -> end: at each step the end is second
    # best, so that two poor hypotheses end before the good one does.
    def step(ids, index, cache):
        following = ops.take(np.array([0, 0, 4, 0, 5, 6, END], "int32"), ids)
        end = ops.one_hot(ops.full_like(ids, END), 7)
        return 10.0 * ops.one_hot(following, 7) + 4.0 * end, cache

    options = options_of(beam_size=2)
    actual = decode.beam_search(step, {}, np.array([True]), 8, options)
    assert ops.convert_to_numpy(actual.ids)[0, 0].tolist()[:4] == [4, 5, 6, END]


@some_languages
@given(**LANGUAGES)
def test_greedy_is_a_beam_of_one(seed, sharpness):
    table = draw_language(seed, ROWS, 5, 5, sharpness)
    active = np.arange(ROWS) != 2
    one = run(table, 5, active, beam_size=1, length_penalty=0.6)
    greedy = run(table, 5, active, search=decode.greedy_search, length_penalty=0.6)
    for of_greedy, of_beam in zip(greedy[:3], one[:3], strict=True):
        np.testing.assert_allclose(
            ops.convert_to_numpy(of_greedy), ops.convert_to_numpy(of_beam), atol=1e-6
        )


@some_languages
@given(**LANGUAGES, active=st.lists(st.booleans(), min_size=ROWS, max_size=ROWS))
def test_rows_that_are_not_active_come_back_empty(seed, sharpness, active):
    table = draw_language(seed, ROWS, 5, 5, sharpness)
    options = {"beam_size": 3, "num_hypotheses": 3}
    actual = run(table, 5, np.array(active), **options)
    for row in range(ROWS):
        expected = by_hand(tree_gains(table[row]), 5, **options) if active[row] else []
        assert_found(actual, row, expected)


LOOP = {"suppress_ids": (), "disable_unk": False, "start_id": 1, "end_id": 2}


def loop(search, max_length, **options):
    def decoded(active):
        options_ = decode.Options(**LOOP, **options)
        return search(loop_step, {}, active, max_length, options_)

    program = runtime.compiled(decoded, model=None, jit_compile=False)
    return program(ops.convert_to_tensor([True, False]))


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_finished_hypothesis_is_neither_extended_nor_charged(beam_size):
    options = {"max_length": 10, "beam_size": beam_size, "patience": 1e9}
    actual = loop(decode.beam_search, **options)
    a_token = log_softmax([0, 0, 0, 0, 0, 5.0])[-1]
    assert_found(actual, 0, [(a_token, (3, 4, 5, 2))])
    actual = loop(decode.beam_search, length_penalty=0.0, **options)
    assert_found(actual, 0, [(4 * a_token, (3, 4, 5, 2))])


def test_what_is_cut_at_the_greatest_length_is_kept_as_it_is():
    actual = loop(decode.beam_search, max_length=3, beam_size=2, num_hypotheses=2)
    gains = np.sort(log_softmax([0, 0, 0, 0, 0, 5.0]))
    ids, scores, lengths = map(ops.convert_to_numpy, actual[:3])
    assert ids[0, 0].tolist() == [3, 4, 5]
    assert lengths[0].tolist() == [3, 3]
    expected = [gains[-1], (2 * gains[-1] + gains[0]) / 3]
    np.testing.assert_allclose(scores[0], expected, atol=1e-6)
    assert_found(actual, 1, [])


@some_languages
@given(**LANGUAGES)
@pytest.mark.parametrize("search", [decode.greedy_search, decode.beam_search])
def test_each_row_ends_at_its_own_limit(search, seed, sharpness):
    table = draw_language(seed, ROWS, 5, 5, sharpness)
    limits = np.arange(ROWS) % 5 + 1
    options = {"search": search, "length_penalty": 0.6}
    if search is decode.beam_search:
        options |= {"beam_size": 3, "num_hypotheses": 3}
    actual = run(table, 5, limits=limits, **options)
    for limit in sorted(set(limits.tolist())):
        alone = run(table, limit, **options)
        for row in np.flatnonzero(limits == limit):
            for one, other in zip(actual[:3], alone[:3], strict=True):
                one, other = (ops.convert_to_numpy(x)[row] for x in (one, other))
                if one.ndim == 2:  # ids
                    assert not one[:, limit:].any()
                    one = one[:, :limit]
                np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.backend("tensorflow", "torch")  # JAX traces the step once
@pytest.mark.parametrize("beam_size", [1, 4])
def test_no_step_is_taken_once_nothing_can_change(beam_size):
    taken = []

    def step(ids, index, cache):
        taken.append(int(index))
        return loop_step(ids, index, cache)

    options = decode.Options(**LOOP, beam_size=beam_size, length_penalty=0.0)
    active = ops.convert_to_tensor([True, False])
    decode.beam_search(step, {}, active, 30, options)
    assert taken == [0, 1, 2, 3]
    decode.beam_search(step, {}, ops.convert_to_tensor([False]), 30, options)
    assert taken == [0, 1, 2, 3]


@pytest.mark.backend("tensorflow", "torch")  # on JAX the step sees no numbers
def test_only_what_the_cache_calls_beams_follows_the_hypotheses():
    logits = np.array([[[0, 0, 0, 0, 2, 1]] * 2], "float32")
    seen = []

    def step(ids, index, cache):
        seen.append({k: ops.convert_to_numpy(cache[k]["x"]) for k in ("beams", "past")})
        return ops.convert_to_tensor(logits), cache

    marks = {"x": ops.convert_to_tensor([[[7.0, 70.0], [8.0, 80.0]]])}
    decode.beam_search(
        step,
        {"beams": marks, "past": dict(marks)},
        ops.convert_to_tensor([True]),
        2,
        options_of(beam_size=2),
    )
    # Both hypotheses of the second step come from the first beam.
    assert seen[1]["beams"].tolist() == [[[7.0, 70.0], [7.0, 70.0]]]
    assert seen[1]["past"].tolist() == [[[7.0, 70.0], [8.0, 80.0]]]


@pytest.mark.parametrize("size", [300, 1000, 1024])
@pytest.mark.parametrize("count", [1, 4])
def test_the_best_tokens_are_those_of_a_whole_sort(size, count):
    rng = np.random.default_rng(size)
    logits = rng.normal(size=(2, 3, size)).astype("float32")
    logits[0, 0] = np.round(logits[0, 0])  # many alike
    logits[0, 1, 2:] = -np.inf  # only two allowed
    logits[0, 2] = -np.inf
    actual = next_tokens.best_tokens(ops.convert_to_tensor(logits), count)
    best, token = map(ops.convert_to_numpy, actual[:2])
    np.testing.assert_array_equal(best, -np.sort(-logits, axis=-1)[..., :count])
    assert (token < size).all()
    taken = np.take_along_axis(logits, token, axis=-1)
    np.testing.assert_array_equal(taken, best)
    for row in token.reshape(-1, count)[[0, 3, 4, 5]]:
        assert len(set(row.tolist())) == count


def test_infinite_logits_are_as_bad_as_nan():
    logits = np.zeros((1, 3, 5), "float32")
    logits[0, 0, 1], logits[0, 1, 1], logits[0, 2] = np.inf, np.nan, -np.inf
    actual = next_tokens.best_tokens(ops.convert_to_tensor(logits), 2)
    _, _, normalizer, broken = actual
    assert ops.convert_to_numpy(broken).tolist() == [[True, True, False]]
    assert ops.convert_to_numpy(normalizer)[0, 2, 0] == 0.0


def test_a_language_in_which_the_search_of_keras_hub_goes_wrong():
    keras_hub = pytest.importorskip("keras_hub")
    # 4 ends at once, and what a model says after an end is worth nothing; 5
    # goes on and on, and is less likely from its first token.
    table = np.full((6, 6), 1e-6, "float32")
    table[2, [4, 5]] = 0.6, 0.4
    table[4, END], table[5, 5], table[END] = 1.0, 0.95, 1 / 6
    gains = np.log(table / table.sum(-1, keepdims=True))

    def ask(histories):
        return np.array([gains[[2, *ids][-1]] for ids in histories])

    def follow(prompt, cache, index):
        last = ops.take(prompt, ops.reshape(index - 1, (1,)), axis=1)[:, 0]
        return ops.take(ops.convert_to_tensor(gains), last, axis=0), None, cache

    def step(ids, index, cache):
        return ops.take(ops.convert_to_tensor(gains), ids, axis=0), cache

    best_score, best = every_hypothesis(ask, 5, length_penalty=0.0)[0]
    assert best == (4, END)
    options = options_of(beam_size=2, length_penalty=0.0)
    actual = decode.beam_search(step, {}, ops.convert_to_tensor([True]), 5, options)
    assert_found(actual, 0, [(best_score, best)])

    prompt = ops.convert_to_tensor([[2, 0, 0, 0, 0, 0]], "int32")
    theirs = keras_hub.samplers.BeamSampler(num_beams=2)(
        next=follow,
        prompt=prompt,
        index=1,
        mask=ops.convert_to_tensor([[True, *[False] * 5]]),
        stop_token_ids=(END,),
    )
    assert ops.convert_to_numpy(theirs)[0, 1:].tolist() == [5] * 5
