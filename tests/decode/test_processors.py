"""Logits processors, alone and inside every search."""

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from keras_tfm import decode, runtime
from keras_tfm.decode import logits_processors as processors
from keras_tfm.decode import next_tokens
from tests.decode.languages import (
    END,
    all_hypotheses,
    assert_hypotheses,
    draw_language,
    examples,
    log_softmax,
    options_of,
    reference_beam_search,
    tree_cache,
    tree_log_probs,
    tree_step,
)

ROWS = 4
LANGUAGES = {"seed": st.integers(0, 10**6), "sharpness": st.floats(0.2, 4.0)}
some_languages = examples(6)
FORBIDDEN = -np.inf


def penalized(logits, history):
    for token in set(history):
        logits[token] *= 1.5 if logits[token] < 0 else 1 / 1.5
    return logits


def without_repeats(size, logits, history):
    last = history[len(history) - size + 1 :] if size > 1 else []
    for i in range(len(history) - size + 1):
        if history[i : i + size - 1] == last:
            logits[history[i + size - 1]] = FORBIDDEN
    return logits


def not_before(length, logits, history):
    if len(history) < length:
        logits[END] = FORBIDDEN
    return logits


SEQUENCES = [[1], [0, 2], [2, 0, 2]]


def without_sequences(logits, history):
    for *prefix, last in SEQUENCES:
        if not prefix or history[-len(prefix) :] == prefix:
            logits[last] = FORBIDDEN
    return logits


PROCESSORS = {
    "penalty": (processors.repetition_penalty(1.5), penalized),
    "unigram": (processors.no_repeat_ngram(1), functools.partial(without_repeats, 1)),
    "bigram": (processors.no_repeat_ngram(2), functools.partial(without_repeats, 2)),
    "trigram": (processors.no_repeat_ngram(3), functools.partial(without_repeats, 3)),
    "minimum": (processors.minimum_length(3, END), functools.partial(not_before, 3)),
    "sequences": (processors.suppress_sequences(SEQUENCES), without_sequences),
}


@functools.cache
def compiled_search(search, names, **options):
    """Compiles a search over drawn languages with named processors."""
    selected = [PROCESSORS[name][0] for name in names]

    def decode_languages(table, prefix, noise):
        beam_size = noise.shape[1] or options.get("beam_size", 1)
        cache = tree_cache(table.shape[0], beam_size)
        active = ops.ones((table.shape[0],), "bool")
        arguments = tree_step(table), cache, active, 5
        samples = search is decode.sample
        topk = {"sampling_topk": 0} if samples else {}
        search_options = options_of(logits_processors=selected, **topk, **options)
        if samples:
            return search(*arguments, noise, search_options, prefix=prefix)
        return search(*arguments, search_options, prefix=prefix)

    return runtime.compiled(decode_languages, model=None, jit_compile=False)


def run(table, names=(), prefix=None, noise=None, search=decode.beam_search, **options):
    prefix = np.zeros((len(table), 0)) if prefix is None else prefix
    noise = np.zeros((len(table), 0, 0)) if noise is None else noise
    return compiled_search(search, tuple(names), **options)(
        ops.convert_to_tensor(table),
        ops.convert_to_tensor(prefix, "int32"),
        ops.convert_to_tensor(noise, "float32"),
    )


def changed_by(names):
    def change(logits, history):
        for name in names:
            logits = PROCESSORS[name][1](logits, history)
        return logits

    return change


@pytest.mark.parametrize("name", PROCESSORS)
@some_languages
@given(**LANGUAGES)
def test_a_wide_beam_finds_the_best_allowed_hypotheses(name, seed, sharpness):
    table = draw_language(seed, ROWS, 4, 5, sharpness)
    options = {"beam_size": 3**4 * 4, "num_hypotheses": 5, "patience": 1e9}
    actual = run(table, [name], **options)
    for row in range(ROWS):
        expected = all_hypotheses(
            tree_log_probs(table[row], change=changed_by([name])), 5
        )
        assert_hypotheses(actual, row, expected)


@some_languages
@given(**LANGUAGES)
def test_several_processors_are_applied_in_order_in_a_narrow_beam(seed, sharpness):
    names = ("penalty", "bigram", "minimum", "sequences")
    table = draw_language(seed, ROWS, 5, 5, sharpness)
    actual = run(table, names, beam_size=3, num_hypotheses=2)
    greedy = run(table, names, search=decode.greedy_search)
    for row in range(ROWS):
        next_log_probs = tree_log_probs(table[row], change=changed_by(names))
        assert_hypotheses(actual, row, reference_beam_search(next_log_probs, 5, 3, 2))
        assert_hypotheses(greedy, row, reference_beam_search(next_log_probs, 5, 1, 1))


PREFIX = np.array([[0, 0, 0], [2, 0, 0], [0, 0, 0], [1, 2, 1]], "int32")


@some_languages
@given(**LANGUAGES)
def test_a_wide_beam_finds_the_best_with_all_processors_and_a_prefix(seed, sharpness):
    names = ("penalty", "bigram", "minimum", "sequences")
    table = draw_language(seed, ROWS, 4, 5, sharpness)
    form = {"length_penalty": 0.6, "length_penalty_form": "gnmt"}
    options = {"beam_size": 3**4 * 4, "num_hypotheses": 5, "patience": 1e9}
    actual = run(table, names, PREFIX, **options, **form)
    for row in range(ROWS):
        prefix = tuple(PREFIX[row][PREFIX[row] > 0])
        next_log_probs = tree_log_probs(
            table[row], change=changed_by(names), prefix=prefix
        )
        assert_hypotheses(actual, row, all_hypotheses(next_log_probs, 5, 0.6, "gnmt"))


@pytest.mark.parametrize("search", [decode.beam_search, decode.greedy_search])
@some_languages
@given(**LANGUAGES)
def test_a_prefix_is_forced_and_scored_by_its_tokens(search, seed, sharpness):
    table = draw_language(seed, ROWS, 5, 5, sharpness)
    options = {"return_token_scores": True}
    if search is decode.beam_search:
        options |= {"beam_size": 3, "num_hypotheses": 3}
    actual = run(table, ["sequences"], PREFIX, search=search, **options)
    for row in range(ROWS):
        prefix = tuple(PREFIX[row][PREFIX[row] > 0])
        next_log_probs = tree_log_probs(
            table[row], change=changed_by(["sequences"]), prefix=prefix
        )
        count = options.get("num_hypotheses", 1)
        expected = reference_beam_search(
            next_log_probs, 5, options.get("beam_size", 1), count
        )
        assert_hypotheses(actual, row, expected)
        assert all(ids[: len(prefix)] == prefix for _, ids in expected)
        for i, (score, ids) in enumerate(expected):
            log_probs = ops.convert_to_numpy(actual.token_scores)[row, i]
            expected_log_probs = [
                next_log_probs([ids[:t]])[0][token] for t, token in enumerate(ids)
            ]
            np.testing.assert_allclose(
                log_probs[: len(ids)], expected_log_probs, atol=1e-5
            )
            assert not log_probs[len(ids) :].any()
            assert score == pytest.approx(np.mean(expected_log_probs))


@some_languages
@given(**LANGUAGES)
def test_sampling_draws_by_the_cumulative_probability(seed, sharpness):
    table = draw_language(seed, ROWS, 5, 5, sharpness)
    noise = np.random.default_rng(seed).random((ROWS, 3, 5), "float32")
    actual = run(table, ["minimum"], PREFIX, noise, decode.sample)
    for row in range(ROWS):
        prefix = tuple(PREFIX[row][PREFIX[row] > 0])
        next_log_probs = tree_log_probs(
            table[row], change=changed_by(["minimum"]), prefix=prefix
        )
        expected = []
        for sample_noise in noise[row]:
            ids, total = (), 0.0
            while len(ids) < 5 and END not in ids:
                log_probs = next_log_probs([ids])[0]
                cumulative = np.cumsum(np.exp(log_probs))
                # The sum is less than 1 where a token is forced.
                threshold = sample_noise[len(ids)] * cumulative[-1]
                token = int(np.searchsorted(cumulative, threshold, side="right"))
                ids, total = (*ids, token), total + log_probs[token]
            expected.append((total / len(ids), ids))
        assert_hypotheses(actual, row, sorted(expected, reverse=True))


@pytest.mark.parametrize("search", [decode.beam_search, decode.greedy_search])
def test_rows_without_an_allowed_token_have_no_hypothesis(search):
    table = draw_language(1, ROWS, 5, 5)
    prefix = np.array([[4], [1], [1], [4]])  # no token is allowed after a 4

    def forbid(logits, history):
        is_after_4 = ops.any(ops.equal(history.ids, 4), axis=-1)[:, :, None]
        return ops.where(
            is_after_4, FORBIDDEN, ops.where(ops.arange(5) == 4, -1e9, logits)
        )

    beam = {"beam_size": 4} if search is decode.beam_search else {}
    actual = search(
        tree_step(ops.convert_to_tensor(table)),
        tree_cache(ROWS, beam.get("beam_size", 1)),
        ops.convert_to_tensor([True] * ROWS),
        5,
        options_of(logits_processors=[forbid], return_token_scores=True, **beam),
        prefix=ops.convert_to_tensor(prefix, "int32"),
    )
    ids, scores, lengths, log_probs = map(ops.convert_to_numpy, actual[:4])
    for row in (0, 3):
        assert scores[row, 0] == -np.inf
        assert not (ids[row].any() or lengths[row].any() or log_probs[row].any())
    for row in (1, 2):
        assert np.isfinite(scores[row, 0]) and lengths[row, 0] > 0


def probabilities(process, logits):
    history = decode.History(np.zeros((1, 1, 3), "int32"), 0)
    actual = process(ops.convert_to_tensor(logits[None, None]), history)
    return np.exp(log_softmax(ops.convert_to_numpy(actual)[0, 0]))


@pytest.mark.parametrize("seed", range(3))
def test_sampling_processors_keep_the_specified_tokens(seed):
    logits = np.random.default_rng(seed).normal(0, 2, 12).astype("float32")
    p = np.exp(log_softmax(logits))
    order = np.argsort(-p)
    cumulative_before = np.empty(12)
    cumulative_before[order] = np.cumsum(p[order]) - p[order]
    for process, is_kept in [
        (processors.top_k(3), p >= np.sort(p)[-3]),
        (processors.top_k(50), p > 0),
        (processors.top_p(0.7), cumulative_before < 0.7),
        (processors.top_p(1.0), p > 0),
        (processors.minimum_p(0.2), p >= 0.2 * p.max()),
        (processors.epsilon(0.05), p >= 0.05),
        (processors.epsilon(0.999), p == p.max()),
        (processors.temperature(1.0), p > 0),
    ]:
        expected = np.where(is_kept, p, 0) / p[is_kept].sum()
        np.testing.assert_allclose(probabilities(process, logits), expected, atol=1e-6)
    sharper = np.exp(log_softmax(logits / 0.5))
    actual = probabilities(processors.temperature(0.5), logits)
    np.testing.assert_allclose(actual, sharper, atol=1e-6)


@pytest.mark.parametrize("suppressed", [(1,), (1, 1), (3, 0, 1, 0), range(4)])
def test_suppressed_tokens_are_left_out_unless_a_token_is_forced(suppressed):
    logits = np.log(np.array([0.1, 0.2, 0.3, 0.4], "float32"))
    logits = ops.convert_to_tensor(np.tile(logits, (2, 1, 1)))
    forced = ops.convert_to_tensor([1, 0], "int32")
    best, token, normalizer, broken = next_tokens.best_tokens(
        logits, 4, forced, tuple(suppressed)
    )
    log_probs = ops.convert_to_numpy(best - normalizer)
    assert int(token[0, 0, 0]) == 1
    assert log_probs[0, 0, 0] == pytest.approx(np.log(0.2), abs=1e-6)
    allowed = sorted({0, 1, 2, 3} - set(suppressed), reverse=True)
    probabilities = np.array([0.1, 0.2, 0.3, 0.4])[allowed]
    actual = log_probs[1, 0][: len(allowed)]
    np.testing.assert_allclose(
        actual, np.log(probabilities / probabilities.sum()), atol=1e-6
    )
    assert np.isneginf(log_probs[1, 0][len(allowed) :]).all()
    assert not ops.convert_to_numpy(broken).any()
