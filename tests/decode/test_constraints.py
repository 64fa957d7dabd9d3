"""Constraints, groups and coverage against references in Python."""

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from keras_tfm import decode, runtime
from tests.decode.languages import (
    END,
    all_hypotheses,
    assert_hypotheses,
    divisor,
    draw_language,
    examples,
    options_of,
    reference_beam_search,
    tree_cache,
    tree_log_probs,
    tree_step,
)

ROWS, LENGTH = 4, 5
LANGUAGES = {"seed": st.integers(0, 10**6), "sharpness": st.floats(0.2, 4.0)}
some_languages = examples(6)
# Of a row: none, one, one with a repeated start, two that overlap.
PHRASES = [[], [[2, 1]], [[1, 1, 2]], [[0, 1], [1, 2]]]


def padded_phrases(phrases_of_rows):
    phrases = np.zeros((len(phrases_of_rows), 2, 3), "int32")
    for row, row_phrases in zip(phrases, phrases_of_rows, strict=True):
        for ids, phrase in zip(row, row_phrases, strict=False):
            ids[: len(phrase)] = phrase
    return phrases


# 0 is padding in a phrase, so every token is shifted by one.
PADDED = padded_phrases([[[token + 1 for token in p] for p in row] for row in PHRASES])


def shifted_step(table):
    """The drawn language with tokens shifted by one; 0 is impossible."""
    step = tree_step(table)

    def shifted(ids, index, cache):
        logits, cache = step(ids - 1, index, cache)
        return ops.pad(logits, [[0, 0], [0, 0], [1, 0]], constant_values=-np.inf), cache

    return shifted


@functools.cache
def compiled_search(**options):
    def decode_languages(table, phrases, prefix):
        return decode.beam_search(
            shifted_step(table),
            tree_cache(table.shape[0], options["beam_size"]),
            ops.ones((table.shape[0],), "bool"),
            LENGTH,
            options_of(start_id=1, end_id=END + 1, **options),
            prefix=prefix,
            constraints=phrases,
        )

    return runtime.compiled(decode_languages, model=None, jit_compile=False)


def run(table, phrases=PADDED, prefix=None, **options):
    prefix = np.zeros((len(table), 0)) if prefix is None else prefix
    actual = compiled_search(**options)(
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
def test_a_wide_beam_finds_the_best_hypotheses_with_all_phrases(seed, sharpness):
    table = draw_language(seed, ROWS, 4, LENGTH, sharpness)
    options = {"beam_size": 3**4 * 4, "num_hypotheses": 6, "patience": 1e9}
    actual = run(table, **options)
    for row, phrases in enumerate(PHRASES):
        hypotheses = all_hypotheses(tree_log_probs(table[row]), LENGTH)
        expected = [
            hypothesis
            for hypothesis in hypotheses
            if all(contains(hypothesis[1], p) for p in phrases)
        ]
        assert_hypotheses(actual, row, expected)


@some_languages
@given(**LANGUAGES, beam_size=st.sampled_from([2, 4]))
def test_a_narrow_beam_contains_every_phrase(seed, sharpness, beam_size):
    table = draw_language(seed, ROWS, 5, LENGTH, sharpness)
    options = {"beam_size": beam_size, "num_hypotheses": beam_size}
    actual = run(table, **options)
    for row, phrases in enumerate(PHRASES):
        hypotheses = all_hypotheses(tree_log_probs(table[row]), LENGTH)
        scores = {ids: score for score, ids in hypotheses}
        count = np.isfinite(actual.scores[row]).sum()
        assert count >= 1
        for i in range(count):
            ids = tuple(actual.ids[row, i, : actual.lengths[row, i]].tolist())
            assert all(contains(ids, phrase) for phrase in phrases)
            assert actual.scores[row, i] == pytest.approx(scores[ids], abs=1e-5)
    # A row without phrases equals a search without constraints.
    assert_hypotheses(
        actual,
        0,
        reference_beam_search(tree_log_probs(table[0]), LENGTH, beam_size, beam_size),
    )


def progress(ids, phrase):
    """Counts the first tokens of a phrase that `ids` end with or contain."""
    if contains(ids, phrase):
        return len(phrase)
    sizes = range(len(phrase) - 1, 0, -1)
    return next((n for n in sizes if list(ids[-n:]) == phrase[:n]), 0)


def reference_constrained_search(next_log_probs, phrases, max_length, beam_size):
    """Dynamic beam allocation for one source, in Python."""
    finished, num_finished, live = [], 0, [((), 0.0)]
    for length in range(1, max_length + 1):
        candidates = []
        log_probs = next_log_probs([ids for ids, _ in live])
        for (ids, total), row in zip(live, log_probs, strict=True):
            tokens = np.argsort(-row, kind="stable")[: 2 * beam_size].tolist()
            missing = [p for p in phrases if not contains(ids, p)]
            tokens += [p[progress(ids, p)] for p in missing]
            for token in dict.fromkeys(tokens):
                extended = (*ids, token)
                if token != END or not missing:
                    candidates.append((total + row[token], extended))
        candidates.sort(reverse=True)
        ranks, keys = {}, []
        for _, ids in candidates:
            met = [len(p) for p in phrases if contains(ids, p)]
            partial = [progress(ids, p) for p in phrases if not contains(ids, p)]
            bank = sum(met) + max(partial, default=0)
            ranks[bank] = ranks.get(bank, 0) + 1
            keys.append((ranks[bank], -bank))
        order = sorted(range(len(keys)), key=keys.__getitem__)
        best = [candidates[i] for i in order][: 2 * beam_size]
        ends = [
            hypothesis for hypothesis in best[:beam_size] if hypothesis[1][-1] == END
        ]
        num_finished += len(ends)
        finished += [(total / length, ids) for total, ids in ends]
        live = [(i, t) for t, i in best if i[-1] != END][:beam_size]
        if length == max_length:
            full = [(i, t) for i, t in live if all(contains(i, p) for p in phrases)]
            finished += [(total / length, ids) for ids, total in full]
        finished = sorted(finished, reverse=True)[:beam_size]
        if not live:
            return finished
        top = max(total for _, total in live)
        if len(finished) == beam_size:
            worst = finished[-1][0]
            enough = num_finished >= beam_size and top / length <= worst
            if enough or top / max_length <= worst:
                return finished
    return finished


@some_languages
@given(**LANGUAGES, beam_size=st.sampled_from([2, 3]))
def test_a_narrow_beam_equals_the_reference_search(seed, sharpness, beam_size):
    table = draw_language(seed, ROWS, 5, LENGTH, sharpness)
    actual = run(table, beam_size=beam_size, num_hypotheses=beam_size)
    for row, phrases in enumerate(PHRASES):
        next_log_probs = tree_log_probs(table[row])
        assert_hypotheses(
            actual,
            row,
            reference_constrained_search(next_log_probs, phrases, LENGTH, beam_size),
        )


@some_languages
@given(**LANGUAGES, beam_size=st.sampled_from([2, 3]))
def test_phrases_with_a_common_first_token_are_all_generated(
    seed, sharpness, beam_size
):
    """Each step extends one of them, even if its tokens are improbable."""
    table = draw_language(seed, ROWS, 5, LENGTH, sharpness)
    phrases_of_rows = [
        [[2, 1], [2, 4]],
        [[0, 1], [0, 2]],
        [[1, 2], [1, 4]],
        [[4, 0], [4, 1]],
    ]
    phrases = padded_phrases(
        [[[token + 1 for token in p] for p in row] for row in phrases_of_rows]
    )
    actual = run(table, phrases, beam_size=beam_size, num_hypotheses=1)
    assert np.isfinite(actual.scores).all()
    for row, row_phrases in enumerate(phrases_of_rows):
        ids = actual.ids[row, 0, : actual.lengths[row, 0]]
        assert all(contains(ids.tolist(), phrase) for phrase in row_phrases)


@pytest.mark.backend("torch")
@some_languages
@given(**LANGUAGES)
def test_phrases_may_be_in_a_prefix_or_after_it(seed, sharpness):
    table = draw_language(seed, 2, 4, LENGTH, sharpness)
    prefix = np.array([[2, 1], [1, 0]])
    phrases = padded_phrases([[[3, 2]], [[2, 3]]])  # [2, 1] and [1, 2]
    prefixes = [(2, 1), (1,)]
    options = {"beam_size": 3**4 * 4, "num_hypotheses": 4, "patience": 1e9}
    shifted_prefix = np.where(prefix > 0, prefix + 1, 0)
    actual = run(table, phrases, shifted_prefix, **options)
    for row, phrase in enumerate([[2, 1], [1, 2]]):
        next_log_probs = tree_log_probs(table[row], prefix=prefixes[row])
        expected = [
            w for w in all_hypotheses(next_log_probs, LENGTH) if contains(w[1], phrase)
        ]
        assert_hypotheses(actual, row, expected)


def reference_diverse_search(next_log_probs, max_length, group_size, groups, penalty):
    """Diverse beam search for one source, in Python."""
    finished = [[] for _ in range(groups)]
    num_finished, is_done = [0] * groups, [False] * groups
    live = [[((), 0.0)] for _ in range(groups)]
    for length in range(1, max_length + 1):
        tokens = []
        for g in range(groups):
            if is_done[g]:
                continue
            candidates = []
            if live[g]:
                log_probs = next_log_probs([ids for ids, _ in live[g]])
                for (ids, total), row in zip(live[g], log_probs, strict=True):
                    for token, log_prob in enumerate(row):
                        if np.isfinite(log_prob):
                            key = total + log_prob - penalty * tokens.count(token)
                            candidates.append((key, total + log_prob, (*ids, token)))
            candidates.sort(key=lambda hypothesis: -hypothesis[0])
            best = [(total, ids) for _, total, ids in candidates[: 2 * group_size]]
            tokens += [ids[-1] for _, ids in best[:group_size]]
            ends = [
                hypothesis
                for hypothesis in best[:group_size]
                if hypothesis[1][-1] == END
            ]
            live[g] = [(i, t) for t, i in best if i[-1] != END][:group_size]
            finished[g] += [(t / divisor(length, 1, "mean"), i) for t, i in ends]
            num_finished[g] += len(ends)
            if length == max_length:
                finished[g] += [(t / length, i) for i, t in live[g]]
            finished[g] = sorted(finished[g], reverse=True)[:group_size]
            if len(finished[g]) == group_size and live[g]:
                top = max(total for _, total in live[g])
                (best_score, _), (worst, _) = finished[g][0], finished[g][-1]
                enough = num_finished[g] >= group_size and top / length <= best_score
                is_done[g] = enough or top / max_length <= worst
    return sorted(
        (hypothesis for group in finished for hypothesis in group), reverse=True
    )


@pytest.mark.parametrize("penalty", [0.0, 0.7, 3.0])
@some_languages
@given(**LANGUAGES)
def test_groups_avoid_the_tokens_of_previous_groups(penalty, seed, sharpness):
    table = draw_language(seed, ROWS, 5, LENGTH, sharpness)
    options = {"num_beam_groups": 3, "diversity_penalty": penalty}
    actual = run(
        table,
        padded_phrases([[]] * ROWS)[:, :0],
        beam_size=6,
        num_hypotheses=6,
        **options,
    )
    for row in range(ROWS):
        expected = reference_diverse_search(
            tree_log_probs(table[row]), LENGTH, 2, 3, penalty
        )
        assert_hypotheses(actual, row, expected[:6])


@pytest.mark.backend("torch")
@some_languages
@given(**LANGUAGES)
def test_coverage_prefers_hypotheses_that_attend_to_all_of_the_source(seed, sharpness):
    table = draw_language(seed, ROWS, 4, 4, sharpness)
    nodes = table.shape[1]
    rng = np.random.default_rng(seed)
    attention = rng.dirichlet([0.3] * 3, (ROWS, nodes)).astype("float32")
    attention[:, :, 2] = 0  # as at padding
    beta, beam_size = 0.5, 3**3 * 4
    attention_tensor = ops.convert_to_tensor(attention)

    def step(ids, index, cache):
        logits, new_cache = tree_step(ops.convert_to_tensor(table))(ids, index, cache)
        node = new_cache["beams"]["node"][:, :, None]
        weights = ops.take_along_axis(attention_tensor, node, axis=1)
        return logits, {**new_cache, "attention": weights}

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

        def attention_of(ids, row=row):
            node, weights = 0, []
            for token in ids:
                weights.append(attention[row, node])
                node = node * 4 + token + 1
            return np.array(weights)

        expected = []
        for score, ids in all_hypotheses(tree_log_probs(table[row]), 4):
            coverage = attention_of(ids).sum(0)
            logs = np.log(np.minimum(coverage[coverage > 0], 1))
            expected.append((score + beta * logs.sum(), ids))
        expected.sort(reverse=True)
        assert_hypotheses(actual, row, expected, tolerance=1e-4)
        actual_attention = ops.convert_to_numpy(actual.attention)[row]
        for i, (_, ids) in enumerate(expected[:5]):
            np.testing.assert_allclose(
                actual_attention[i, : len(ids)][np.array(ids) > 0],
                attention_of(ids)[np.array(ids) > 0],
                atol=1e-6,
            )


def test_constraints_exclude_groups():
    strategy = decode.BeamSearch(decode.Options(beam_size=4, num_beam_groups=2))
    ones = ops.ones((1, 1, 1), "int32")
    with pytest.raises(ValueError, match="without groups; got num_beam_groups=2"):
        strategy.start({}, ops.ones((1,), "bool"), 4, constraints=ones)
