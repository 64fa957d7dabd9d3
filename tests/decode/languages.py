"""Languages small enough to know every sentence of, and searches by hand."""

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


def drawn(count):
    """Lets a test draw so many examples, or EXAMPLES times as many."""
    count *= int(os.environ.get("EXAMPLES", 1))
    return hypothesis.settings(max_examples=count, derandomize=True, deadline=None)


def options_of(**options):
    """Makes options that suppress no token unless told to."""
    return decode.Options(**{"suppress_ids": (), "disable_unk": False, **options})


def loop_step(ids, index, cache):
    """Gives the next token of the loop a logit of 5, and 0 to the others."""
    return 5.0 * ops.one_hot(ops.take(NEXT, ids), len(NEXT)), cache


def draw_language(seed, rows, vocabulary_size, max_length, sharpness=1.0):
    """Draws logits that hang on every token before: `(rows, nodes, V)`.

    The histories are the nodes of a tree with V branches: node 0 is the empty
    one, and token t leads from node n to node `n * V + t + 1`.
    """
    nodes = (vocabulary_size**max_length - 1) // (vocabulary_size - 1)
    draw = np.random.default_rng(seed)
    logits = sharpness * draw.normal(size=(rows, nodes, vocabulary_size))
    return logits.astype("float32")


def tree_step(table):
    """The step of a drawn language; the cache holds where each beam stands."""
    size = table.shape[-1]

    def step(ids, index, cache):
        child = cache["beams"]["node"] * size + ids + 1
        node = ops.where(ops.equal(index, 0), 0, child)
        logits = ops.take_along_axis(table, node[:, :, None], axis=1)
        return logits, {"beams": {"node": node}}

    return step


def tree_cache(rows, beam_size):
    return {"beams": {"node": ops.zeros((rows, beam_size), "int32")}}


def tree_gains(table, suppress_ids=(), change=None, prefix=()):
    """Gives `ask(histories)`: `(M, V)` log-probabilities of what comes next.

    Args:
        table: of `draw_language`, one row.
        suppress_ids: tokens that are never generated.
        change: None, or `(logits, history) -> logits` in float64, in place.
        prefix: tokens that are forced.
    """
    size = table.shape[-1]

    def gains_after(history):
        node = 0
        for token in history:
            node = node * size + token + 1
        logits = table[node].astype("float64")
        if len(history) < len(prefix):
            gains = log_softmax(logits)
            allowed = np.arange(size) == prefix[len(history)]
            return np.where(allowed, gains, -np.inf)
        if change is not None:
            logits = change(logits, list(history))
        return log_softmax(logits, suppress_ids)

    return lambda histories: np.array([gains_after(one) for one in histories])


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


def every_hypothesis(ask, max_length, length_penalty=1.0, form="mean", end_id=END):
    """Lists `(score, ids)` of all there are, best first."""
    actual, open_ones = [], [((), 0.0)]
    for length in range(1, max_length + 1):
        candidates = _continuations(open_ones, ask)
        open_ones = [c for c in candidates if c[0][-1] != end_id]
        actual += [
            (total / divisor(length, length_penalty, form), ids)
            for ids, total in candidates
            if ids[-1] == end_id or length == max_length
        ]
    return sorted(actual, reverse=True)


def by_hand(
    ask,
    max_length,
    beam_size,
    num_hypotheses,
    length_penalty=1.0,
    form="mean",
    patience=1.0,
    early_stopping=False,
    stop_early=True,
    end_id=END,
):
    """Beam search as the docstring of `beam` tells it, one row, in Python.

    Args:
        ask: `histories -> (M, V)` log-probabilities of the next token.
        stop_early: bool. Stop when no open hypothesis can still win.
    """
    pool, ended, open_ones = [], 0, [((), 0.0)]
    for length in range(1, max_length + 1):
        best = _continuations(open_ones, ask)[: 2 * beam_size]
        ends = [c for c in best[:beam_size] if c[0][-1] == end_id]
        ended += len(ends)
        pool += [(s / divisor(length, length_penalty, form), ids) for ids, s in ends]
        pool.sort(reverse=True)
        open_ones = [c for c in best if c[0][-1] != end_id][:beam_size]
        if not open_ones:
            return pool[:num_hypotheses]
        if len(pool) < num_hypotheses:
            continue
        worst = pool[num_hypotheses - 1][0]
        present = open_ones[0][1] / divisor(length, length_penalty, form)
        if ended >= beam_size * patience and (early_stopping or present <= worst):
            return pool[:num_hypotheses]
        reachable = open_ones[0][1] / divisor(max_length, length_penalty, form)
        if stop_early and reachable <= worst:
            return pool[:num_hypotheses]
    last = divisor(max_length, length_penalty, form)
    pool += [(total / last, ids) for ids, total in open_ones]
    return sorted(pool, reverse=True)[:num_hypotheses]


def _continuations(open_ones, ask):
    gains = ask([ids for ids, _ in open_ones])
    candidates = [
        ((*ids, token), total + gain)
        for (ids, total), row in zip(open_ones, gains, strict=True)
        for token, gain in enumerate(row)
        if not math.isinf(gain)
    ]
    return sorted(candidates, key=lambda candidate: -candidate[1])


def assert_found(hypotheses, row, wanted, tolerance=1e-5):
    """Holds one row of a search's result against `(score, ids)`, best first."""
    ids, scores, lengths = (ops.convert_to_numpy(x)[row] for x in hypotheses[:3])
    size, max_length = ids.shape
    wanted = wanted[:size]
    padded = [(*tokens, *[0] * (max_length - len(tokens))) for _, tokens in wanted]
    padded += [(0,) * max_length] * (size - len(wanted))
    assert ids.tolist() == [list(tokens) for tokens in padded]
    assert lengths.tolist() == [
        *(len(tokens) for _, tokens in wanted),
        *[0] * (size - len(wanted)),
    ]
    expected = [score for score, _ in wanted] + [-np.inf] * (size - len(wanted))
    np.testing.assert_allclose(scores, expected, atol=tolerance)
