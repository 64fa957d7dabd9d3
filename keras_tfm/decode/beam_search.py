"""Beam search: the best few hypotheses at once."""

from collections.abc import Callable
from numbers import Real

import keras
from keras import ops

from keras_tfm.decode import logits_processors as processing
from keras_tfm.decode import search_state as states
from keras_tfm.decode.constraints import Constraints
from keras_tfm.decode.hypotheses import Hypotheses, best_tokens, normalized, penalty
from keras_tfm.decode.strategy import Way, attention_of

# What a token of a source has had of attention before the first step.
LEAST_SEEN = 1e-9


def beam(
    step: Callable,
    cache,
    active,
    max_length: int,
    limits=None,
    prefix=None,
    constraints=None,
    **options,
) -> Hypotheses:
    """Decodes by keeping the likeliest `beam_size` hypotheses at every step.

    Args:
        step: `(ids (B, K), index, cache) -> (logits (B, K, V), cache)`.
        cache: what `step` wants first, a structure of tensors with the batch
            first. Where it is a dictionary with a `"beams"`, every tensor in
            that is `(B, K, ...)` and follows its hypothesis; everything else
            stays where it is. `"attention"`, float `(B, K, S)`, is what the
            last step attended to.
        active: bool `(B,)`. Rows to decode; the others come back empty.
        max_length: int >= 1, or scalar int tensor, in tokens, the end token
            included.
        limits: int32 `(B,)` from 1 to `max_length`, in tokens: the most that
            each row may have; or None for `max_length`.
        prefix: int32 `(B, P)` padded with 0 at the end, or None: tokens that
            every hypothesis begins with.
        constraints: int32 `(B, J, P)` padded with 0 at the end, or None:
            phrases that every hypothesis must contain, see `Constraints`.
        **options: of `Beam`.

    Returns:
        `Hypotheses`, n for each row, best first. Where logits were NaN the
        best score is NaN, and its length that of the step.

    Raises:
        ValueError: a size or a number that is out of its range.

    Cost: at most `max_length` calls of `step` on K tokens a row.

    Source: Wu et al. 2016, section 7, https://arxiv.org/abs/1609.08144
    """
    search = Beam(**options)
    check_beam(search.beam_size, search.num_hypotheses, search.patience, max_length)
    rows = {"prefix": prefix, "limits": limits, "constraints": constraints}
    state = search.start(cache, active, max_length, **rows)
    return search.finish(search.advance(step, state))


class Beam(Way):
    """The way of beam search, apart from what it searches.

    A hypothesis that takes the end token leaves the beam for a pool of its
    own, where it is scored and never extended. A row is done when no open
    hypothesis can still enter the pool; or when `beam_size * patience`, and as
    many as are to be returned, have ended and the best open one scores, at its
    present length, no better than the worst that would be returned; with
    `early_stopping` whatever it scores. At the row's limit open ones enter the
    pool as they are.

    With groups the beam is so many smaller ones, each of which avoids the
    tokens that those before it have taken at the same step. That decides
    what is kept, not how it is scored; two groups may end with one hypothesis.

    Args:
        beam_size: int >= 1, K.
        num_hypotheses: int from 1 to K, n: how many to give.
        coverage_penalty: float >= 0, beta: a score is raised by beta times the
            sum, over source tokens, of the logarithm of the attention that
            each has had from the whole hypothesis, at most 1. Needs
            `cache["attention"]`. What has had exactly none is padding here; a
            `Decoder` knows a source's tokens, and counts 1e-9 for such.
        patience: float > 0, see above.
        early_stopping: bool, see above.
        num_beam_groups: int >= 1 that divides K.
        diversity_penalty: float >= 0, taken from the log-probability of a
            token for every hypothesis of the groups before that has it.
        **options: of `Sample`, with the same meaning.

    Raises:
        ValueError: a size or a number that is out of its range.

    Source: Wu et al. 2016, section 7, https://arxiv.org/abs/1609.08144;
    patience: Kasai et al. 2022, https://arxiv.org/abs/2204.05424; groups:
    Vijayakumar et al. 2016, https://arxiv.org/abs/1610.02424
    """

    def __init__(
        self,
        beam_size: int = 4,
        num_hypotheses: int = 1,
        coverage_penalty: float = 0.0,
        patience: float = 1.0,
        early_stopping: bool = False,
        num_beam_groups: int = 1,
        diversity_penalty: float = 0.0,
        **options,
    ):
        super().__init__(**options)
        check_beam(beam_size, num_hypotheses, patience)
        check_groups(beam_size, num_beam_groups, diversity_penalty)
        if not coverage_penalty >= 0:
            raise ValueError(
                f"`coverage_penalty` must be 0 or more. Received: {coverage_penalty}."
            )
        self.beam_size = beam_size
        self.num_hypotheses = num_hypotheses
        self.coverage_penalty = coverage_penalty
        self.patience = patience
        self.early_stopping = early_stopping
        self.groups = num_beam_groups
        self.width = beam_size // num_beam_groups  # of a group
        self.kept = num_hypotheses if self.groups == 1 else self.width
        self.diversity_penalty = diversity_penalty
        if self.groups > 1:  # which read all tokens whatever is suppressed
            self.processors += (processing.suppress(self.suppress_ids),)

    def start(
        self, cache, active, room, limits=None, prefix=None, constraints=None
    ) -> dict:
        """Makes the state before the first step.

        Args:
            cache, active, limits, prefix, constraints: of `beam`.
            room: int, or scalar int tensor: tokens that there is room for.

        Returns:
            A dictionary of tensors: `"index"` is a scalar, and every other
            has the batch first.
        """
        size, beam_size = ops.shape(active)[0], self.beam_size
        pooled = self.kept * self.groups
        first = ops.equal(ops.arange(beam_size) % self.width, 0)
        never = ops.full((beam_size,), -float("inf"), "float32")
        first = ops.where(first, ops.zeros_like(never), never)
        opened = {
            "ids": ops.zeros((size, beam_size, room), "int32"),
            "totals": ops.broadcast_to(first[None], (size, beam_size)),
        }
        pool = {
            "ids": ops.zeros((size, pooled, room), "int32"),
            "scores": ops.full((size, pooled), -float("inf"), "float32"),
            "lengths": ops.zeros((size, pooled), "int32"),
        }
        inactive = ops.logical_not(active)
        state = {
            **self._begin(cache, active, beam_size, room, limits, prefix),
            "open": opened,
            "pool": pool,
            "ended": ops.zeros((size, self.groups), "int32"),
            "broken": ops.zeros((size,), "int32"),
            "done": ops.broadcast_to(inactive[:, None], (size, self.groups)),
        }
        if self.return_token_scores:
            for part in (opened, pool):
                part["gains"] = ops.zeros_like(part["ids"], "float32")
        if self.coverage_penalty:
            opened["coverage"] = ops.zeros_like(attention_of(cache), "float32")
        if self.return_attention:
            for part in (opened, pool):
                part["beams"] = ops.zeros_like(part["ids"])
        if constraints is not None and constraints.shape[1]:
            if self.groups > 1:
                raise ValueError(
                    "Constraints are of a whole beam, and have no groups. Received: "
                    f"constraints, and num_beam_groups={self.groups}."
                )
            state["constraints"] = constraints
            met = ops.zeros((size, beam_size, constraints.shape[1]), "bool")
            opened["met"] = met
        return state

    def as_one(self, state: dict) -> dict:
        """Puts one hypothesis in the place of all, which are empty yet.

        A step then costs a part of what it would, and gives as many as ever,
        if there are twice as many tokens.

        Args:
            state: of `start`, without groups, constraints or attention.

        Returns:
            The state, of beam size 1, for one `take_step`.
        """

        def first(x):
            return x[:, :1]

        cache = dict(state["cache"])
        if "beams" in cache:
            cache["beams"] = keras.tree.map_structure(first, cache["beams"])
        return {
            **state,
            "last": first(state["last"]),
            "open": {name: first(x) for name, x in state["open"].items()},
            "cache": cache,
        }

    def finish(self, state: dict) -> Hypotheses:
        """Gives the hypotheses of the rows that are done.

        Args:
            state: of `advance`.

        Returns:
            `Hypotheses`. For rows that are not done, what they have so far.
        """
        pool = state["pool"]
        if self.groups > 1:
            pool = states.best(pool, pool["scores"], self.num_hypotheses)
        # Among scores of minus infinity PyTorch's top-k takes any ids.
        found = ops.isfinite(pool["scores"])
        ids = ops.where(found[:, :, None], pool["ids"], 0)
        gains = attention = None
        if self.return_token_scores:
            gains = ops.where(found[:, :, None], pool["gains"], 0.0)
        if self.return_attention:
            beams = ops.transpose(pool["beams"], (0, 2, 1))[..., None]
            attention = ops.take_along_axis(state["attention"], beams, axis=2)
            attention = ops.transpose(attention, (0, 2, 1, 3))  # (B, n, T, S)
            attention = ops.where(ops.equal(ids, 0)[..., None], 0.0, attention)
        lengths = ops.where(found, pool["lengths"], 0)
        broken = state["broken"][:, None]
        scores = ops.where(ops.greater(broken, 0), float("nan"), pool["scores"])
        lengths = ops.where(ops.greater(broken, 0), broken, lengths)
        return Hypotheses(ids, scores, lengths, gains, attention)

    def take_step(self, step, state):
        logits, forced, state = self._logits(step, state, self.processors)
        opened = state["open"]
        best, is_nan = self._candidates(state, logits, forced)
        parent, token = best["parent"], best["token"]  # (B, 2K), best first
        here = self._here(state)

        def with_new(name, new):
            return states.write(states.follow(opened[name], parent), here, new)

        continued = {
            "ids": with_new("ids", token),
            "totals": best["total"],
            "last": token,
            "parent": parent,
        }
        if "gains" in opened:
            gain = best["total"] - states.follow(opened["totals"], parent)
            continued["gains"] = with_new("gains", gain)
        if "beams" in opened:
            continued["beams"] = with_new("beams", parent)
        if "coverage" in opened:
            heard = ops.cast(state["cache"]["attention"], "float32")
            coverage = opened["coverage"] + heard
            continued["coverage"] = states.follow(coverage, parent)
        if "met" in opened:
            continued["met"] = best["met"]
        return self._select(state, continued, is_nan)

    def _candidates(self, state, logits, forced):
        """The best continuations of each group, in their order.

        Returns:
            A dictionary of `(B, G * 2k)` `"total"`, `"parent"` and `"token"`,
            where k is the width of a group; and bool `(B,)`, True where logits
            were NaN.
        """
        count = min(2 * self.width, logits.shape[-1])
        totals = state["open"]["totals"]
        if self.groups == 1:
            found = best_tokens(logits, count, forced, self.suppress_ids)
            best, token, normalizer, broken = found
            gain = self._counted(best - normalizer, forced)
            broken = ops.any(broken, axis=-1)
            if "constraints" in state:
                found = Constraints(self.end_id).candidates(
                    state, gain, token, logits, normalizer, forced
                )
                return found, broken
            return _best_of(totals, gain, token, 2 * self.width), broken
        logits, broken = normalized(logits)
        said = ops.zeros_like(logits[:, :1])  # (B, 1, V)
        groups = []
        for i in range(self.groups):
            own = slice(i * self.width, (i + 1) * self.width)
            wanted = logits[:, own] - self.diversity_penalty * said
            best, token = best_tokens(wanted, count, forced)[:2]
            best = self._counted(best, forced)
            found = _best_of(totals[:, own], best, token, 2 * self.width)
            # What it lost to the groups before decides, but is no score.
            lost = ops.take_along_axis(said[:, 0], found["token"], axis=-1)
            lost = self.diversity_penalty * lost
            dead = ops.equal(found["total"], -float("inf"))
            found["total"] = ops.where(dead, -float("inf"), found["total"] + lost)
            found["parent"] = found["parent"] + i * self.width
            taken = found["token"][:, : self.width]
            alive = ops.isfinite(found["total"][:, : self.width])
            alive = ops.logical_and(alive, ops.logical_not(state["done"])[:, i, None])
            if forced is not None:  # what all have to say none is to avoid
                alive = ops.logical_and(alive, ops.equal(forced, 0)[:, None])
            new = ops.one_hot(taken, logits.shape[-1])
            new = new * ops.cast(alive, new.dtype)[..., None]
            said = said + ops.sum(new, axis=1, keepdims=True)
            groups.append(found)
        joined = {
            name: ops.concatenate([group[name] for group in groups], axis=1)
            for name in groups[0]
        }
        return joined, ops.any(broken, axis=-1)

    def _select(self, state, continued, is_nan):
        """Sends candidates to the pool, keeps others open, and ends rows.

        Those that end among the k best of a group go to the pool; the k best
        of the others stay open. At the limit these leave too, as they are.
        """
        index, limits = state["index"], state["limits"]
        merge, split = self._merge, self._split
        total, token = merge(continued["totals"]), merge(continued["last"])
        done = ops.reshape(state["done"], (-1,))  # (B G,)
        length = ops.reshape(index + 1, (-1, 1))  # of all rows, or of each
        ends = ops.equal(token, self.end_id)
        allowed = ops.isfinite(total)
        if "met" in continued:
            met = ops.all(continued["met"], axis=-1)
            allowed = ops.logical_and(allowed, merge(met))
        limited = ops.greater_equal(length[:, 0], limits)
        limited = ops.repeat(limited, self.groups)
        rank = ops.arange(total.shape[1])[None]
        open_rank = ops.cumsum(ops.cast(ops.logical_not(ends), "int32"), axis=-1)
        may = ops.logical_and(allowed, ops.logical_not(done)[:, None])
        ending = ops.logical_and(ops.logical_and(ends, rank < self.width), may)
        ended = ops.reshape(state["ended"], (-1,))
        ended = ended + ops.sum(ops.cast(ending, "int32"), axis=-1)
        wanted = -(-self.num_hypotheses // self.groups)
        enough = ops.cast(ended, "float32") >= max(wanted, self.width * self.patience)
        cut = ops.logical_and(limited[:, None], open_rank <= self.width)
        if self.early_stopping:
            cut = ops.logical_and(cut, ops.logical_not(enough)[:, None])
        cut = ops.logical_and(ops.logical_and(cut, ops.logical_not(ends)), may)
        leaves = ops.logical_or(ending, cut)

        divisor = penalty(length, *self.length_penalty)
        score = total / divisor
        if "coverage" in continued:
            score = score + merge(self._coverage(continued["coverage"]))
        finished = {name: merge(x) for name, x in continued.items()}
        finished["scores"] = ops.where(leaves, score, -float("inf"))
        finished["lengths"] = ops.broadcast_to(length, ops.shape(token))
        pool = {name: merge(x) for name, x in state["pool"].items()}
        pool = {n: ops.concatenate([x, finished[n]], 1) for n, x in pool.items()}
        pool = states.best(pool, pool["scores"], self.kept)
        finished["totals"] = ops.where(ends, -float("inf"), total)
        gone = ops.isinf(finished["totals"])
        order = ops.where(gone, -rank - 2 * rank.shape[1], -rank)
        del finished["scores"], finished["lengths"]
        opened = states.best(finished, order, self.width)
        # Log-probabilities only fall, so an open hypothesis ends at best with
        # its present one, over the largest divisor there can be.
        best, worst = ops.max(opened["totals"], axis=-1), pool["scores"][:, -1]
        largest = ops.repeat(penalty(limits, *self.length_penalty), self.groups)
        beaten = ops.less_equal(best / largest, worst)
        # Enough have ended only if none that is open looks better: where the
        # model is sure of itself, those that end early are the improbable.
        if not self.early_stopping:
            beats = ops.less_equal(best / divisor[:, 0], worst)
            enough = ops.logical_and(enough, beats)
        newly = ops.logical_and(is_nan, ops.logical_not(ops.all(state["done"], -1)))
        for reason in (beaten, enough, limited, ops.repeat(newly, self.groups)):
            done = ops.logical_or(done, reason)
        opened = {name: split(x) for name, x in opened.items()}
        last, parent = opened.pop("last"), opened.pop("parent")
        return {
            **state,
            "index": index + 1,
            "last": last,
            "open": opened,
            "pool": {name: split(x) for name, x in pool.items()},
            "ended": ops.reshape(ended, (-1, self.groups)),
            "broken": ops.where(newly, length[:, 0], state["broken"]),
            "done": ops.reshape(done, (-1, self.groups)),
            "cache": states.reorder(state["cache"], parent),
        }

    def seen(self, source_ids):
        """Gives each token of a source a beginning of attention, padding none.

        Without it a token that no step attends to would pass for padding.

        Args:
            source_ids: int32 `(B, S)`, padded with 0.

        Returns:
            float32 `(B, 1, S)`.
        """
        return ops.where(ops.equal(source_ids, 0), 0.0, LEAST_SEEN)[:, None]

    def _coverage(self, coverage):
        """`(B, M)` from what each source token has had, `(B, M, S)`."""
        least = ops.where(ops.greater(coverage, 0), ops.minimum(coverage, 1.0), 1.0)
        return self.coverage_penalty * ops.sum(ops.log(least), axis=-1)

    def _merge(self, x):
        """Groups as rows: `(B, G M, ...)` to `(B G, M, ...)`."""
        if self.groups == 1:
            return x
        return ops.reshape(x, (-1, x.shape[1] // self.groups, *ops.shape(x)[2:]))

    def _split(self, x):
        if self.groups == 1:
            return x
        return ops.reshape(x, (-1, x.shape[1] * self.groups, *ops.shape(x)[2:]))


def _best_of(totals, gains, token, count):
    """The best `count` of all continuations `(B, K, M)` of a row."""
    beam_size, each = gains.shape[1:]
    flat = ops.reshape(totals[:, :, None] + gains, (-1, beam_size * each))
    total, place = ops.top_k(flat, min(count, beam_size * each))
    place = ops.cast(place, "int32")
    token = ops.reshape(token, (-1, beam_size * each))
    token = ops.take_along_axis(token, place, axis=1)
    return {"total": total, "parent": place // each, "token": token}


def check_beam(beam_size, num_hypotheses, patience, max_length=1):
    """Refuses what no beam search can do.

    Args:
        beam_size: int, K.
        num_hypotheses: int, n.
        patience: float.
        max_length: int, in tokens; a tensor is not checked.

    Raises:
        ValueError: one of them is out of its range.
    """
    if beam_size < 1 or (isinstance(max_length, int) and max_length < 1):
        raise ValueError(
            "A beam holds at least one hypothesis of at least one token. "
            f"Received: beam_size={beam_size}, max_length={max_length}."
        )
    if not 1 <= num_hypotheses <= beam_size:
        raise ValueError(
            "`num_hypotheses` is from 1 to `beam_size`. Received: num_hypotheses="
            f"{num_hypotheses}, beam_size={beam_size}. Ask for fewer, or give a "
            "larger beam."
        )
    if not isinstance(patience, Real) or not patience > 0:
        raise ValueError(f"`patience` must be above 0. Received: {patience!r}.")


def check_groups(beam_size, num_beam_groups, diversity_penalty):
    """Refuses groups that a beam cannot be divided into.

    Args:
        beam_size: int, K.
        num_beam_groups: int.
        diversity_penalty: float.

    Raises:
        ValueError: one of them is out of its range.
    """
    if num_beam_groups < 1 or beam_size % num_beam_groups:
        raise ValueError(
            "`num_beam_groups` is 1 or more and divides `beam_size`. Received: "
            f"num_beam_groups={num_beam_groups}, beam_size={beam_size}."
        )
    if not diversity_penalty >= 0:
        raise ValueError(
            f"`diversity_penalty` must be 0 or more. Received: {diversity_penalty}."
        )
    if diversity_penalty and num_beam_groups == 1:
        raise ValueError(
            "Diversity is of groups. Received: diversity_penalty="
            f"{diversity_penalty}, and num_beam_groups=1. Set num_beam_groups too."
        )
