"""Phrases that a hypothesis must contain, by dynamic beam allocation."""

from keras import ops

from keras_tfm.decode.search_state import follow


class Constraints:
    """Lexically constrained decoding by dynamic beam allocation.

    Beside its best tokens each hypothesis is continued by the next token of
    every phrase that it lacks. Candidates are sorted into banks by how many
    tokens they contain of the phrases that are said and of the one that is
    furthest under way. The banks are served in turn, the fullest first: its
    best, the best of the next, and when all have had their turn the second best
    of each. So some hypothesis comes further with every step, and a bank that
    is empty leaves its place to the others. A hypothesis may end only with all
    phrases in it; scores are the model's own.

    Args:
        end_id: int. The token that ends a hypothesis.

    Source: Post and Vilar 2018, section 3. https://arxiv.org/abs/1804.06609
    """

    def __init__(self, end_id: int):
        self.end_id = end_id

    def candidates(self, state, gain, token, logits, normalizer, forced=None):
        """Finds the continuations of a step in the order to keep them.

        Args:
            state: of `Beam`, with `"constraints"`, int32 `(B, J, P)` padded
                with 0.
            gain: float32 `(B, K, M)`: log-probabilities of the best tokens.
            token: int32 `(B, K, M)`: these tokens.
            logits: float32 `(B, K, V)`.
            normalizer: float32 `(B, K, 1)`: logits less log-probabilities.
            forced: int32 `(B,)` or None, see `best_tokens`.

        Returns:
            A dictionary of `"total"`, `"parent"`, `"token"`, each `(B, 2K)`,
            and `"met"`, bool `(B, 2K, J)`.
        """
        opened, phrases = state["open"], state["constraints"]
        beam_size = logits.shape[1]
        tail = _tail(opened["ids"], state["index"], phrases.shape[2])  # (B, K, P)
        progress = _progress(tail, phrases)  # (B, K, J)
        lengths = ops.sum(ops.cast(phrases > 0, "int32"), axis=-1)[:, None]
        following = ops.take_along_axis(
            phrases[:, None], ops.minimum(progress, lengths - 1)[..., None], axis=-1
        )[..., 0]
        wanted = ops.logical_not(ops.logical_or(opened["met"], lengths == 0))
        if forced is not None:
            wanted = ops.logical_and(wanted, (forced == 0)[:, None, None])
        logit = ops.take_along_axis(logits, ops.where(wanted, following, 0), axis=-1)
        logit = ops.where(wanted, logit, -float("inf"))
        there = ops.where(ops.isfinite(gain), token, -1)
        logit = ops.where(_there_before(following, wanted, there), -float("inf"), logit)
        token = ops.concatenate([token, following], axis=-1)  # (B, K, M)
        gain = ops.concatenate([gain, logit - normalizer], axis=-1)

        each = token.shape[2]
        flat = (-1, beam_size * each)
        total = ops.reshape(opened["totals"][:, :, None] + gain, flat)
        token = ops.reshape(token, flat)
        parent = ops.repeat(ops.arange(beam_size, dtype="int32"), each)
        parent = ops.broadcast_to(parent[None], ops.shape(token))
        tail = ops.concatenate([follow(tail, parent)[..., 1:], token[..., None]], -1)
        progress = _progress(tail, phrases)
        complete = ops.logical_and(progress == lengths, lengths > 0)
        met = ops.logical_or(follow(opened["met"], parent), complete)
        met = ops.logical_or(met, lengths == 0)
        # An end before all is said is no candidate.
        early = ops.logical_and(token == self.end_id, ops.logical_not(ops.all(met, -1)))
        total = ops.where(early, -float("inf"), total)
        # One phrase is under way: others that begin alike would count as one.
        said = ops.sum(ops.where(met, lengths, 0), axis=-1)
        bank = said + ops.max(ops.where(met, 0, progress), axis=-1)
        found = {"total": total, "parent": parent, "token": token, "met": met}
        return _in_turn(found, bank, 2 * beam_size)


def _tail(ids, index, size):
    """The last `size` tokens of `(B, K, T)`, 0 before the first."""
    places = ops.arange(size) + index - size
    tokens = ops.take(ids, ops.maximum(places, 0), axis=-1)
    return ops.where(places >= 0, tokens, 0)


def _progress(tail, phrases):
    """How much of each phrase `(B, J, P)` stands at the end: `(B, M, J)`."""
    size = phrases.shape[2]
    length = ops.sum(ops.cast(phrases > 0, "int32"), axis=-1)[:, None]
    progress = ops.zeros_like(tail[:, :, :1] * phrases[:, None, :, 0])
    for count in range(1, size + 1):
        end, begin = tail[:, :, None, size - count :], phrases[:, None, :, :count]
        same = ops.logical_and(ops.all(end == begin, axis=-1), count <= length)
        progress = ops.where(same, count, progress)
    return progress


def _there_before(following, wanted, token):
    """True where a token is among the best, or that of a phrase before."""
    there = ops.any(following[..., None] == token[:, :, None], axis=-1)
    same = ops.logical_and(
        following[..., None] == following[:, :, None], wanted[:, :, None]
    )
    size = following.shape[2]
    before = ops.arange(size)[:, None] > ops.arange(size)[None]
    return ops.logical_or(there, ops.any(ops.logical_and(same, before), axis=-1))


def _in_turn(found, bank, count):
    """Serves the banks in turn, the fullest first; their best come first."""
    order = ops.argsort(-found["total"], axis=-1)
    found = {name: follow(x, order) for name, x in found.items()}
    bank = follow(bank, order)
    size = bank.shape[1]
    before = ops.arange(size)[:, None] > ops.arange(size)[None]
    same = ops.logical_and(bank[:, :, None] == bank[:, None], before)
    turn = ops.sum(ops.cast(same, "int32"), axis=-1)  # (B, M)
    key = turn * (ops.max(bank) + 1) + ops.max(bank) - bank
    dead = ops.equal(found["total"], -float("inf"))
    key = ops.where(dead, ops.max(key) + 1, key)
    chosen = ops.top_k(-key, min(count, size))[1]
    return {name: follow(x, chosen) for name, x in found.items()}
