"""Beam search against all hypotheses, and against a reference in Python."""

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
    all_hypotheses,
    assert_hypotheses,
    draw_language,
    examples,
    log_softmax,
    loop_step,
    options_of,
    reference_beam_search,
    tree_cache,
    tree_log_probs,
    tree_step,
)

ROWS = 6
SUPPRESS = (decode.logits_processors.suppress((0, 1, 2)),)
PENALTIES = [(0.0, "mean"), (0.6, "mean"), (1.0, "mean"), (0.6, "gnmt")]
LANGUAGES = {"seed": st.integers(0, 10**6), "sharpness": st.floats(0.2, 4.0)}
# One compiled function serves many languages: the table is its argument.
many_languages = examples(10)
some_languages = examples(6)


@functools.cache
def compiled_search(search, max_length, **options):
    """Compiles a search over drawn languages."""

    def decode_languages(table, active, limits):
        cache = tree_cache(table.shape[0], options.get("beam_size", 1))
        step = tree_step(table)
        return search(step, cache, active, max_length, options_of(**options), limits)

    return runtime.compiled(decode_languages, model=None, jit_compile=False)


def run(
    table, max_length, active=None, limits=None, search=decode.beam_search, **options
):
    active = np.ones(len(table), "bool") if active is None else active
    limits = np.full(len(table), max_length) if limits is None else limits
    return compiled_search(search, max_length, **options)(
        ops.convert_to_tensor(table),
        ops.convert_to_tensor(active),
        ops.convert_to_tensor(limits, "int32"),
    )


@pytest.mark.parametrize(("length_penalty", "form"), PENALTIES)
@many_languages
@given(**LANGUAGES)
def test_a_beam_as_wide_as_the_language_finds_the_best_hypotheses(
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
        expected = all_hypotheses(tree_log_probs(table[row]), 5, length_penalty, form)
        assert len(expected) == 3**5 + 1 + 3 + 9 + 27 + 81
        assert_hypotheses(actual, row, expected)


@some_languages
@given(**LANGUAGES)
def test_a_wide_beam_finds_every_hypothesis_of_allowed_tokens(seed, sharpness):
    table = draw_language(seed, 1, 6, 6, sharpness)
    actual = run(
        table, 6, beam_size=140, num_hypotheses=140, logits_processors=SUPPRESS
    )
    expected = all_hypotheses(tree_log_probs(table[0], suppress_ids=(0, 1, 2)), 6)
    # 4 5 or 5 4 or ..., each live or finished: 127 in all.
    assert len(expected) == 127
    assert_hypotheses(actual, 0, expected)


@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 1, "num_hypotheses": 1},
        {"beam_size": 2, "num_hypotheses": 2, "patience": 2.0},
        {"beam_size": 3, "num_hypotheses": 1, "length_penalty": 0.6},
        {"beam_size": 3, "num_hypotheses": 3, "length_penalty": 0.0},
        {"beam_size": 4, "num_hypotheses": 2, "patience": 0.5},
        {"beam_size": 3, "num_hypotheses": 2, "early_stopping": True},
        {"beam_size": 3, "num_hypotheses": 2, "late_stopping": True},
        {
            "beam_size": 4,
            "num_hypotheses": 2,
            "early_stopping": True,
            "patience": 0.5,
        },
        {"beam_size": 4, "num_hypotheses": 3, "length_penalty_form": "gnmt"},
    ],
    ids=lambda options: ",".join(f"{k}={v}" for k, v in options.items()),
)
@many_languages
@given(**LANGUAGES)
def test_a_narrow_beam_equals_the_reference_search(options, seed, sharpness):
    table = draw_language(seed, ROWS, 5, 5, sharpness)
    actual = run(table, 5, **options)
    reference_options = dict(options)
    reference_options["form"] = reference_options.pop("length_penalty_form", "mean")
    for row in range(ROWS):
        assert_hypotheses(
            actual,
            row,
            reference_beam_search(tree_log_probs(table[row]), 5, **reference_options),
        )


@pytest.mark.backend("torch")
@pytest.mark.parametrize(
    "options",
    [{}, {"early_stopping": True}, {"late_stopping": True}, {"num_beam_groups": 2}],
    ids=str,
)
@many_languages
@given(**LANGUAGES)
def test_the_best_hypothesis_does_not_depend_on_their_number(options, seed, sharpness):
    table = draw_language(seed, ROWS, 5, 7, sharpness)
    single, *several = (
        run(table, 7, beam_size=4, num_hypotheses=n, **options) for n in (1, 2, 4)
    )
    for hypotheses in several:
        for expected, actual in zip(single[:2], hypotheses[:2], strict=True):
            expected, actual = (
                ops.convert_to_numpy(x)[:, 0] for x in (expected, actual)
            )
            np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("num_hypotheses", [1, 3])
@many_languages
@given(**LANGUAGES)
def test_early_stopping_with_patience_changes_nothing(num_hypotheses, seed, sharpness):
    table = draw_language(seed, ROWS, 5, 5, sharpness)
    options = {"beam_size": 3, "num_hypotheses": num_hypotheses, "patience": 1e9}
    actual = run(table, 5, **options)
    for row in range(ROWS):
        whole = reference_beam_search(
            tree_log_probs(table[row]), 5, **options, stop_early=False
        )
        assert_hypotheses(actual, row, whole)


def test_improbable_ends_do_not_end_the_search():
    # A confident language, 2 -> 4 -> 5 -> 6 -> end: at each step the end is
    # second best, so that two poor hypotheses end before the best one does.
    def step(ids, index, cache):
        following = ops.take(np.array([0, 0, 4, 0, 5, 6, END], "int32"), ids)
        end = ops.one_hot(ops.full_like(ids, END), 7)
        return 10.0 * ops.one_hot(following, 7) + 4.0 * end, cache

    options = options_of(beam_size=2)
    actual = decode.beam_search(step, {}, np.array([True]), 8, options)
    assert ops.convert_to_numpy(actual.ids)[0, 0].tolist()[:4] == [4, 5, 6, END]


@some_languages
@given(**LANGUAGES)
def test_greedy_search_is_a_beam_of_size_1(seed, sharpness):
    table = draw_language(seed, ROWS, 5, 5, sharpness)
    active = np.arange(ROWS) != 2
    beam = run(table, 5, active, beam_size=1, length_penalty=0.6)
    greedy = run(table, 5, active, search=decode.greedy_search, length_penalty=0.6)
    for actual, expected in zip(greedy[:3], beam[:3], strict=True):
        np.testing.assert_allclose(
            ops.convert_to_numpy(actual), ops.convert_to_numpy(expected), atol=1e-6
        )


@some_languages
@given(**LANGUAGES, active=st.lists(st.booleans(), min_size=ROWS, max_size=ROWS))
def test_inactive_rows_have_empty_hypotheses(seed, sharpness, active):
    table = draw_language(seed, ROWS, 5, 5, sharpness)
    options = {"beam_size": 3, "num_hypotheses": 3}
    actual = run(table, 5, np.array(active), **options)
    for row in range(ROWS):
        expected = (
            reference_beam_search(tree_log_probs(table[row]), 5, **options)
            if active[row]
            else []
        )
        assert_hypotheses(actual, row, expected)


LOOP = {"suppress_ids": (), "disable_unk": False, "start_id": 1, "end_id": 2}


def loop(search, max_length, **options):
    def decode_loop(active):
        options_ = decode.Options(**LOOP, **options)
        return search(loop_step, {}, active, max_length, options_)

    compiled = runtime.compiled(decode_loop, model=None, jit_compile=False)
    return compiled(ops.convert_to_tensor([True, False]))


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_finished_hypothesis_is_not_extended_and_keeps_its_score(beam_size):
    options = {"max_length": 10, "beam_size": beam_size, "patience": 1e9}
    actual = loop(decode.beam_search, **options)
    log_prob = log_softmax([0, 0, 0, 0, 0, 5.0])[-1]
    assert_hypotheses(actual, 0, [(log_prob, (3, 4, 5, 2))])
    actual = loop(decode.beam_search, length_penalty=0.0, **options)
    assert_hypotheses(actual, 0, [(4 * log_prob, (3, 4, 5, 2))])


def test_hypotheses_truncated_at_the_maximum_length_are_returned():
    actual = loop(decode.beam_search, max_length=3, beam_size=2, num_hypotheses=2)
    log_probs = np.sort(log_softmax([0, 0, 0, 0, 0, 5.0]))
    ids, scores, lengths = map(ops.convert_to_numpy, actual[:3])
    assert ids[0, 0].tolist() == [3, 4, 5]
    assert lengths[0].tolist() == [3, 3]
    expected = [log_probs[-1], (2 * log_probs[-1] + log_probs[0]) / 3]
    np.testing.assert_allclose(scores[0], expected, atol=1e-6)
    assert_hypotheses(actual, 1, [])


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
            for result, expected in zip(actual[:3], alone[:3], strict=True):
                result, expected = (
                    ops.convert_to_numpy(x)[row] for x in (result, expected)
                )
                if result.ndim == 2:  # ids
                    assert not result[:, limit:].any()
                    result = result[:, :limit]
                np.testing.assert_allclose(result, expected, atol=1e-6)


@pytest.mark.backend("tensorflow", "torch")  # JAX traces the step once
@pytest.mark.parametrize("beam_size", [1, 4])
def test_no_step_is_computed_once_all_rows_are_done(beam_size):
    steps = []

    def step(ids, index, cache):
        steps.append(int(index))
        return loop_step(ids, index, cache)

    options = decode.Options(**LOOP, beam_size=beam_size, length_penalty=0.0)
    active = ops.convert_to_tensor([True, False])
    decode.beam_search(step, {}, active, 30, options)
    assert steps == [0, 1, 2, 3]
    decode.beam_search(step, {}, ops.convert_to_tensor([False]), 30, options)
    assert steps == [0, 1, 2, 3]


@pytest.mark.backend("tensorflow", "torch")  # on JAX the step sees tracers
def test_only_beams_in_the_cache_are_reordered_with_the_hypotheses():
    logits = np.array([[[0, 0, 0, 0, 2, 1]] * 2], "float32")
    caches = []

    def step(ids, index, cache):
        caches.append(
            {k: ops.convert_to_numpy(cache[k]["x"]) for k in ("beams", "past")}
        )
        return ops.convert_to_tensor(logits), cache

    values = {"x": ops.convert_to_tensor([[[7.0, 70.0], [8.0, 80.0]]])}
    decode.beam_search(
        step,
        {"beams": values, "past": dict(values)},
        ops.convert_to_tensor([True]),
        2,
        options_of(beam_size=2),
    )
    # Both hypotheses of the second step come from the first beam.
    assert caches[1]["beams"].tolist() == [[[7.0, 70.0], [7.0, 70.0]]]
    assert caches[1]["past"].tolist() == [[[7.0, 70.0], [8.0, 80.0]]]


@pytest.mark.parametrize("size", [300, 1000, 1024])
@pytest.mark.parametrize("count", [1, 4])
def test_the_best_tokens_equal_those_of_a_full_sort(size, count):
    rng = np.random.default_rng(size)
    logits = rng.normal(size=(2, 3, size)).astype("float32")
    logits[0, 0] = np.round(logits[0, 0])  # many equal values
    logits[0, 1, 2:] = -np.inf  # only two allowed
    logits[0, 2] = -np.inf
    actual = next_tokens.best_tokens(ops.convert_to_tensor(logits), count)
    best, token = map(ops.convert_to_numpy, actual[:2])
    np.testing.assert_array_equal(best, -np.sort(-logits, axis=-1)[..., :count])
    assert (token < size).all()
    token_logits = np.take_along_axis(logits, token, axis=-1)
    np.testing.assert_array_equal(token_logits, best)
    for row in token.reshape(-1, count)[[0, 3, 4, 5]]:
        assert len(set(row.tolist())) == count


def test_infinite_logits_are_reported_like_nan():
    logits = np.zeros((1, 3, 5), "float32")
    logits[0, 0, 1], logits[0, 1, 1], logits[0, 2] = np.inf, np.nan, -np.inf
    actual = next_tokens.best_tokens(ops.convert_to_tensor(logits), 2)
    _, _, normalizer, broken = actual
    assert ops.convert_to_numpy(broken).tolist() == [[True, True, False]]
    assert ops.convert_to_numpy(normalizer)[0, 2, 0] == 0.0


def test_the_best_hypothesis_is_found_where_keras_hub_misses_it():
    keras_hub = pytest.importorskip("keras_hub")
    # After 4 the end follows, and tokens after an end must not count; 5 repeats
    # itself, and its first token is less likely.
    table = np.full((6, 6), 1e-6, "float32")
    table[2, [4, 5]] = 0.6, 0.4
    table[4, END], table[5, 5], table[END] = 1.0, 0.95, 1 / 6
    log_probs = np.log(table / table.sum(-1, keepdims=True))

    def next_log_probs(histories):
        return np.array([log_probs[[2, *ids][-1]] for ids in histories])

    def hub_step(prompt, cache, index):
        last = ops.take(prompt, ops.reshape(index - 1, (1,)), axis=1)[:, 0]
        return ops.take(ops.convert_to_tensor(log_probs), last, axis=0), None, cache

    def step(ids, index, cache):
        return ops.take(ops.convert_to_tensor(log_probs), ids, axis=0), cache

    best_score, best = all_hypotheses(next_log_probs, 5, length_penalty=0.0)[0]
    assert best == (4, END)
    options = options_of(beam_size=2, length_penalty=0.0)
    actual = decode.beam_search(step, {}, ops.convert_to_tensor([True]), 5, options)
    assert_hypotheses(actual, 0, [(best_score, best)])

    prompt = ops.convert_to_tensor([[2, 0, 0, 0, 0, 0]], "int32")
    hub_ids = keras_hub.samplers.BeamSampler(num_beams=2)(
        next=hub_step,
        prompt=prompt,
        index=1,
        mask=ops.convert_to_tensor([[True, *[False] * 5]]),
        stop_token_ids=(END,),
    )
    assert ops.convert_to_numpy(hub_ids)[0, 1:].tolist() == [5] * 5
