"""Constraints, groups and coverage, by every hypothesis there is."""

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from keras_tfm import decode, runtime
from tests.decode.languages import (
    END,
    assert_found,
    by_hand,
    divisor,
    draw_language,
    drawn,
    every_hypothesis,
    options_of,
    tree_cache,
    tree_gains,
    tree_step,
)

ROWS, LENGTH = 4, 5
LANGUAGES = {"seed": st.integers(0, 10**6), "sharpness": st.floats(0.2, 4.0)}
some_languages = drawn(6)
# Of a row: none, one, one that begins as it ends, two that overlap.
PHRASES = [[], [[2, 1]], [[1, 1, 2]], [[0, 1], [1, 2]]]


def padded(rows):
    phrases = np.zeros((len(rows), 2, 3), "int32")
    for row, given_ones in zip(phrases, rows, strict=True):
        for place, phrase in zip(row, given_ones, strict=False):
            place[: len(phrase)] = phrase
    return phrases


# 0 is padding in a phrase, so that here every token is one more.
PADDED = padded([[[token + 1 for token in p] for p in row] for row in PHRASES])


def shifted_step(table):
    """The drawn language with every token one more; 0 cannot be said."""
    step = tree_step(table)

    def shifted(ids, index, cache):
        logits, cache = step(ids - 1, index, cache)
        return ops.pad(logits, [[0, 0], [0, 0], [1, 0]], constant_values=-np.inf), cache

    return shifted


@functools.cache
def program(**options):
    def decoded(table, phrases, prefix):
        return decode.beam_search(
            shifted_step(table),
            tree_cache(table.shape[0], options["beam_size"]),
            ops.ones((table.shape[0],), "bool"),
            LENGTH,
            options_of(start_id=1, end_id=END + 1, **options),
            prefix=prefix,
            constraints=phrases,
        )

    return runtime.compiled(decoded, model=None, jit_compile=False)


def run(table, phrases=PADDED, prefix=None, **options):
    prefix = np.zeros((len(table), 0)) if prefix is None else prefix
    actual = program(**options)(
        ops.convert_to_tensor(table),
        ops.convert_to_tensor(phrases),
        ops.convert_to_tensor(prefix, "int32"),
    )
    actual = [x if x is None else ops.convert_to_numpy(x) for x in actual]
    return decode.Hypotheses(actual[0] - (actual[0] > 0), *actual[1:])


def contains(ids, phrase):
    size = len(phrase)
    return any(list(ids[i : i + size]) == phrase for i in range(len(ids) - size + 1))


@pytest.mark.backend("torch")
@some_languages
@given(**LANGUAGES)
def test_a_wide_beam_finds_the_best_with_all_phrases(seed, sharpness):
    table = draw_language(seed, ROWS, 4, LENGTH, sharpness)
    options = {"beam_size": 3**4 * 4, "num_hypotheses": 6, "patience": 1e9}
    actual = run(table, **options)
    for row, phrases in enumerate(PHRASES):
        every = every_hypothesis(tree_gains(table[row]), LENGTH)
        expected = [one for one in every if all(contains(one[1], p) for p in phrases)]
        assert_found(actual, row, expected)


@some_languages
@given(**LANGUAGES, beam_size=st.sampled_from([2, 4]))
def test_a_narrow_beam_says_every_phrase(seed, sharpness, beam_size):
    table = draw_language(seed, ROWS, 5, LENGTH, sharpness)
    options = {"beam_size": beam_size, "num_hypotheses": beam_size}
    actual = run(table, **options)
    for row, phrases in enumerate(PHRASES):
        every = every_hypothesis(tree_gains(table[row]), LENGTH)
        scores = {ids: score for score, ids in every}
        count = np.isfinite(actual.scores[row]).sum()
        assert count >= 1
        for i in range(count):
            ids = tuple(actual.ids[row, i, : actual.lengths[row, i]].tolist())
            assert all(contains(ids, phrase) for phrase in phrases)
            assert actual.scores[row, i] == pytest.approx(scores[ids], abs=1e-5)
    # A row that has none is searched as without.
    assert_found(actual, 0, by_hand(tree_gains(table[0]), LENGTH, beam_size, beam_size))


def progress(ids, phrase):
    """Tokens of a phrase that are said; the phrase once is all of them."""
    if contains(ids, phrase):
        return len(phrase)
    sizes = range(len(phrase) - 1, 0, -1)
    return next((n for n in sizes if list(ids[-n:]) == phrase[:n]), 0)


def constrained_by_hand(ask, phrases, max_length, beam_size):
    """Dynamic beam allocation, one row, in Python."""
    pool, ended, opened = [], 0, [((), 0.0)]
    for length in range(1, max_length + 1):
        candidates = []
        gains = ask([ids for ids, _ in opened])
        for (ids, total), row in zip(opened, gains, strict=True):
            tokens = np.argsort(-row, kind="stable")[: 2 * beam_size].tolist()
            lacking = [p for p in phrases if not contains(ids, p)]
            tokens += [p[progress(ids, p)] for p in lacking]
            for token in dict.fromkeys(tokens):
                longer = (*ids, token)
                if token != END or not lacking:
                    candidates.append((total + row[token], longer))
        candidates.sort(reverse=True)
        turns, keys = {}, []
        for _, ids in candidates:
            said = [len(p) for p in phrases if contains(ids, p)]
            begun = [progress(ids, p) for p in phrases if not contains(ids, p)]
            bank = sum(said) + max(begun, default=0)
            turns[bank] = turns.get(bank, 0) + 1
            keys.append((turns[bank], -bank))
        order = sorted(range(len(keys)), key=keys.__getitem__)
        best = [candidates[i] for i in order][: 2 * beam_size]
        ends = [one for one in best[:beam_size] if one[1][-1] == END]
        ended += len(ends)
        pool += [(total / length, ids) for total, ids in ends]
        opened = [(i, t) for t, i in best if i[-1] != END][:beam_size]
        if length == max_length:
            full = [(i, t) for i, t in opened if all(contains(i, p) for p in phrases)]
            pool += [(total / length, ids) for ids, total in full]
        pool = sorted(pool, reverse=True)[:beam_size]
        if not opened:
            return pool
        top = max(total for _, total in opened)
        if len(pool) == beam_size:
            worst = pool[-1][0]
            enough = ended >= beam_size and top / length <= worst
            if enough or top / max_length <= worst:
                return pool
    return pool


@some_languages
@given(**LANGUAGES, beam_size=st.sampled_from([2, 3]))
def test_a_narrow_beam_goes_as_one_by_hand(seed, sharpness, beam_size):
    table = draw_language(seed, ROWS, 5, LENGTH, sharpness)
    actual = run(table, beam_size=beam_size, num_hypotheses=beam_size)
    for row, phrases in enumerate(PHRASES):
        ask = tree_gains(table[row])
        assert_found(actual, row, constrained_by_hand(ask, phrases, LENGTH, beam_size))


@some_languages
@given(**LANGUAGES, beam_size=st.sampled_from([2, 3]))
def test_phrases_that_begin_alike_are_all_said(seed, sharpness, beam_size):
    """Each step one of them comes further, whatever the language likes."""
    table = draw_language(seed, ROWS, 5, LENGTH, sharpness)
    alike = [[[2, 1], [2, 4]], [[0, 1], [0, 2]], [[1, 2], [1, 4]], [[4, 0], [4, 1]]]
    phrases = padded([[[token + 1 for token in p] for p in row] for row in alike])
    actual = run(table, phrases, beam_size=beam_size, num_hypotheses=1)
    assert np.isfinite(actual.scores).all()
    for row, both in enumerate(alike):
        ids = actual.ids[row, 0, : actual.lengths[row, 0]]
        assert all(contains(ids.tolist(), phrase) for phrase in both)


@pytest.mark.backend("torch")
@some_languages
@given(**LANGUAGES)
def test_phrases_may_stand_in_a_prefix_or_after_it(seed, sharpness):
    table = draw_language(seed, 2, 4, LENGTH, sharpness)
    prefix = np.array([[2, 1], [1, 0]])
    phrases = padded([[[3, 2]], [[2, 3]]])  # [2, 1] and [1, 2]
    prefixes = [(2, 1), (1,)]
    options = {"beam_size": 3**4 * 4, "num_hypotheses": 4, "patience": 1e9}
    given_prefix = np.where(prefix > 0, prefix + 1, 0)
    actual = run(table, phrases, given_prefix, **options)
    for row, phrase in enumerate([[2, 1], [1, 2]]):
        ask = tree_gains(table[row], prefix=prefixes[row])
        expected = [w for w in every_hypothesis(ask, LENGTH) if contains(w[1], phrase)]
        assert_found(actual, row, expected)


def diverse_by_hand(ask, max_length, width, groups, strength):
    """Groups that avoid each other's tokens, one row, in Python."""
    pools = [[] for _ in range(groups)]
    ended, done = [0] * groups, [False] * groups
    opened = [[((), 0.0)] for _ in range(groups)]
    for length in range(1, max_length + 1):
        said = []
        for g in range(groups):
            if done[g]:
                continue
            candidates = []
            if opened[g]:
                gains = ask([ids for ids, _ in opened[g]])
                for (ids, total), row in zip(opened[g], gains, strict=True):
                    for token, gain in enumerate(row):
                        if np.isfinite(gain):
                            key = total + gain - strength * said.count(token)
                            candidates.append((key, total + gain, (*ids, token)))
            candidates.sort(key=lambda one: -one[0])
            best = [(total, ids) for _, total, ids in candidates[: 2 * width]]
            said += [ids[-1] for _, ids in best[:width]]
            ends = [one for one in best[:width] if one[1][-1] == END]
            opened[g] = [(i, t) for t, i in best if i[-1] != END][:width]
            pools[g] += [(t / divisor(length, 1, "mean"), i) for t, i in ends]
            ended[g] += len(ends)
            if length == max_length:
                pools[g] += [(t / length, i) for i, t in opened[g]]
            pools[g] = sorted(pools[g], reverse=True)[:width]
            if len(pools[g]) == width and opened[g]:
                top = max(total for _, total in opened[g])
                worst = pools[g][-1][0]
                enough = ended[g] >= width and top / length <= worst
                done[g] = enough or top / max_length <= worst
    return sorted((one for pool in pools for one in pool), reverse=True)


@pytest.mark.parametrize("strength", [0.0, 0.7, 3.0])
@some_languages
@given(**LANGUAGES)
def test_groups_avoid_the_tokens_of_those_before(strength, seed, sharpness):
    table = draw_language(seed, ROWS, 5, LENGTH, sharpness)
    options = {"num_beam_groups": 3, "diversity_penalty": strength}
    actual = run(
        table, padded([[]] * ROWS)[:, :0], beam_size=6, num_hypotheses=6, **options
    )
    for row in range(ROWS):
        expected = diverse_by_hand(tree_gains(table[row]), LENGTH, 2, 3, strength)
        assert_found(actual, row, expected[:6])


@pytest.mark.backend("torch")
@some_languages
@given(**LANGUAGES)
def test_coverage_raises_what_has_attended_to_all(seed, sharpness):
    table = draw_language(seed, ROWS, 4, 4, sharpness)
    nodes = table.shape[1]
    rng = np.random.default_rng(seed)
    attention = rng.dirichlet([0.3] * 3, (ROWS, nodes)).astype("float32")
    attention[:, :, 2] = 0  # as padding has it
    beta, beam_size = 0.5, 3**3 * 4
    given_attention = ops.convert_to_tensor(attention)

    def step(ids, index, cache):
        logits, after = tree_step(ops.convert_to_tensor(table))(ids, index, cache)
        node = after["beams"]["node"][:, :, None]
        seen = ops.take_along_axis(given_attention, node, axis=1)
        return logits, {**after, "attention": seen}

    cache = tree_cache(ROWS, beam_size)
    cache["attention"] = ops.zeros((ROWS, beam_size, 3))
    options = options_of(
        beam_size=beam_size,
        num_hypotheses=5,
        patience=1e9,
        coverage_penalty=beta,
        return_attention=True,
    )
    actual = decode.beam_search(step, cache, ops.ones((ROWS,), "bool"), 4, options)
    for row in range(ROWS):

        def attended(ids, row=row):
            node, parts = 0, []
            for token in ids:
                parts.append(attention[row, node])
                node = node * 4 + token + 1
            return np.array(parts)

        expected = []
        for score, ids in every_hypothesis(tree_gains(table[row]), 4):
            had = attended(ids).sum(0)
            logs = np.log(np.minimum(had[had > 0], 1))
            expected.append((score + beta * logs.sum(), ids))
        expected.sort(reverse=True)
        assert_found(actual, row, expected, tolerance=1e-4)
        given_out = ops.convert_to_numpy(actual.attention)[row]
        for i, (_, ids) in enumerate(expected[:5]):
            np.testing.assert_allclose(
                given_out[i, : len(ids)][np.array(ids) > 0],
                attended(ids)[np.array(ids) > 0],
                atol=1e-6,
            )


def test_constraints_exclude_groups():
    strategy = decode.BeamSearch(decode.Options(beam_size=4, num_beam_groups=2))
    ones = ops.ones((1, 1, 1), "int32")
    with pytest.raises(ValueError, match="without groups; got num_beam_groups=2"):
        strategy.start({}, ops.ones((1,), "bool"), 4, constraints=ones)
