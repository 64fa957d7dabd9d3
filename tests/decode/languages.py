"""Languages small enough to enumerate, and reference searches in Python."""

import math
import os

import hypothesis
import numpy as np
from keras import ops

from keras_tfm import decode

START, END = 2, 3

# A language of one loop, 3 -> 4 -> 5 -> 2 -> 3; 1 starts, 2 ends. It runs
# on past the end, so a search that does not stop a finished row is caught.
NEXT = np.array([0, 3, 3, 4, 5, 2], "int32")


def examples(count):
    """Limits a test to `count` examples, times the variable EXAMPLES."""
    count *= int(os.environ.get("EXAMPLES", 1))
    return hypothesis.settings(max_examples=count, derandomize=True, deadline=None)


def options_of(**options):
    """Makes options that suppress no token by default."""
    return decode.Options(**{"suppress_ids": (), "disable_unk": False, **options})


def loop_step(ids, index, cache):
    """Returns a logit of 5 for the next token of the loop, 0 for others."""
    return 5.0 * ops.one_hot(ops.take(NEXT, ids), len(NEXT)), cache


def draw_language(seed, rows, vocabulary_size, max_length, sharpness=1.0):
    """Draws logits that depend on all previous tokens: `(rows, nodes, V)`.

    Histories are the nodes of a tree with V branches: node 0 is the empty
    history, and token t leads from node n to node `n * V + t + 1`.
    """
    nodes = (vocabulary_size**max_length - 1) // (vocabulary_size - 1)
    draw = np.random.default_rng(seed)
    logits = sharpness * draw.normal(size=(rows, nodes, vocabulary_size))
    return logits.astype("float32")


def tree_step(table):
    """The step function of a drawn language; the cache has each beam's node."""
    size = table.shape[-1]

    def step(ids, index, cache):
        child = cache["beams"]["node"] * size + ids + 1
        node = ops.where(ops.equal(index, 0), 0, child)
        logits = ops.take_along_axis(table, node[:, :, None], axis=1)
        return logits, {"beams": {"node": node}}

    return step


def tree_cache(rows, beam_size):
    return {"beams": {"node": ops.zeros((rows, beam_size), "int32")}}


def tree_log_probs(table, suppress_ids=(), change=None, prefix=()):
    """Returns a function from histories to `(M, V)` log-probabilities.

    Args:
        table: `(nodes, V)`, one language of `draw_language`.
        suppress_ids: tokens that are never generated.
        change: None, or `(logits, history) -> logits` in float64, in place.
        prefix: tokens that are forced.
    """
    size = table.shape[-1]

    def log_probs_after(history):
        node = 0
        for token in history:
            node = node * size + token + 1
        logits = table[node].astype("float64")
        if len(history) < len(prefix):
            log_probs = log_softmax(logits)
            allowed = np.arange(size) == prefix[len(history)]
            return np.where(allowed, log_probs, -np.inf)
        if change is not None:
            logits = change(logits, list(history))
        return log_softmax(logits, suppress_ids)

    return lambda histories: np.array(
        [log_probs_after(history) for history in histories]
    )


def log_softmax(logits, suppress_ids=()):
    logits = np.asarray(logits, "float64").copy()
    logits[..., list(suppress_ids)] = -np.inf
    if np.isneginf(logits).all():
        return logits
    logits -= logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def divisor(length, length_penalty, form):
    base = length if form == "mean" else (5 + length) / 6
    return base**length_penalty


def all_hypotheses(
    next_log_probs, max_length, length_penalty=1.0, form="mean", end_id=END
):
    """Lists `(score, ids)` of all hypotheses, best first."""
    hypotheses, live = [], [((), 0.0)]
    for length in range(1, max_length + 1):
        candidates = _continuations(live, next_log_probs)
        live = [c for c in candidates if c[0][-1] != end_id]
        hypotheses += [
            (total / divisor(length, length_penalty, form), ids)
            for ids, total in candidates
            if ids[-1] == end_id or length == max_length
        ]
    return sorted(hypotheses, reverse=True)


def reference_beam_search(
    next_log_probs,
    max_length,
    beam_size,
    num_hypotheses,
    length_penalty=1.0,
    form="mean",
    patience=1.0,
    early_stopping=False,
    late_stopping=False,
    stop_early=True,
    end_id=END,
):
    """Beam search as in the docstring of `beam`, for one source, in Python.

    Args:
        next_log_probs: `histories -> (M, V)`, for the next token.
        stop_early: bool. Stop when no live hypothesis can still win.
    """
    finished, num_finished, live = [], 0, [((), 0.0)]
    for length in range(1, max_length + 1):
        best = _continuations(live, next_log_probs)[: 2 * beam_size]
        ends = [c for c in best[:beam_size] if c[0][-1] == end_id]
        num_finished += len(ends)
        finished += [
            (s / divisor(length, length_penalty, form), ids) for ids, s in ends
        ]
        finished.sort(reverse=True)
        live = [c for c in best if c[0][-1] != end_id][:beam_size]
        if not live:
            return finished[:num_hypotheses]
        num_kept = beam_size if late_stopping else num_hypotheses
        if len(finished) < num_kept:
            continue
        worst = finished[num_kept - 1][0]
        to_beat = worst if late_stopping else finished[0][0]
        looks_worse = live[0][1] / divisor(length, length_penalty, form) <= to_beat
        if num_finished >= beam_size * patience and (
            early_stopping or (looks_worse and length < max_length)
        ):
            return finished[:num_hypotheses]
        reachable = live[0][1] / divisor(max_length, length_penalty, form)
        if stop_early and reachable <= worst:
            return finished[:num_hypotheses]
    final_divisor = divisor(max_length, length_penalty, form)
    finished += [(total / final_divisor, ids) for ids, total in live]
    return sorted(finished, reverse=True)[:num_hypotheses]


def _continuations(live, next_log_probs):
    log_probs = next_log_probs([ids for ids, _ in live])
    candidates = [
        ((*ids, token), total + log_prob)
        for (ids, total), token_log_probs in zip(live, log_probs, strict=True)
        for token, log_prob in enumerate(token_log_probs)
        if not math.isinf(log_prob)
    ]
    return sorted(candidates, key=lambda candidate: -candidate[1])


def assert_hypotheses(hypotheses, row, expected, tolerance=1e-5):
    """Compares the hypotheses of a row with `(score, ids)`, best first."""
    ids, scores, lengths = (ops.convert_to_numpy(x)[row] for x in hypotheses[:3])
    size, max_length = ids.shape
    expected = expected[:size]
    padded = [(*tokens, *[0] * (max_length - len(tokens))) for _, tokens in expected]
    padded += [(0,) * max_length] * (size - len(expected))
    assert ids.tolist() == [list(tokens) for tokens in padded]
    assert lengths.tolist() == [
        *(len(tokens) for _, tokens in expected),
        *[0] * (size - len(expected)),
    ]
    expected_scores = [score for score, _ in expected]
    expected_scores += [-np.inf] * (size - len(expected))
    np.testing.assert_allclose(scores, expected_scores, atol=tolerance)
