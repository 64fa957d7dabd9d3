"""The few target tokens that a source can give: less to choose from."""

import os
from collections.abc import Iterable, Sequence

import numpy as np
from keras import ops

SIZES = 64  # a row has a multiple of it, so that few programs are compiled
STORED = 32  # translations that are kept of a source token


class Shortlist:
    """Which target tokens each source token can give.

    A search with a shortlist projects only to the tokens that the source can
    give, those that are always frequent, and those that a prefix or a phrase
    forces. Each row has its own, as many as it has tokens for, whatever else is
    in the batch; the best translations of every source token come before the
    second best of any. What is not among them is never generated, and
    probabilities are those among them.

    Args:
        translations: int `(V', M)`: target ids that each source id can give,
            best first, padded with 0.
        order: int `(V,)`: all target ids, the most frequent first.
        frequent: int >= 0: how many of the most frequent every row has.
        each: int >= 1: more tokens for each source token.
        shared: bool. Source and target have one vocabulary, and what stands
            in the source may stand in the target.

    Raises:
        ValueError: a number out of its range, ids outside the vocabulary, or
            an order that does not name each id once.

    Source: Junczys-Dowmunt et al. 2018, section 3.1,
    https://arxiv.org/abs/1804.00344; Jean et al. 2015, section 3.2,
    https://arxiv.org/abs/1412.2007
    """

    def __init__(self, translations, order, frequent=100, each=16, shared=False):
        if frequent < 0 or each < 1:
            raise ValueError(
                "A shortlist has 0 or more frequent tokens and 1 or more for each "
                f"source token. Received: frequent={frequent}, each={each}."
            )
        self.translations = np.asarray(translations, "int32")
        self.order = np.asarray(order, "int32")
        size = self.vocabulary_size = len(self.order)
        if not np.array_equal(np.sort(self.order), np.arange(size)):
            raise ValueError(
                "`order` names each target id from 0 to V - 1 once. Received: "
                f"{size} ids from {self.order.min(initial=0)} to "
                f"{self.order.max(initial=0)}."
            )
        low, high = self.translations.min(initial=0), self.translations.max(initial=0)
        if self.translations.ndim != 2 or low < 0 or high >= size:
            raise ValueError(
                "`translations` are target ids for each source id. Received: shape="
                f"{self.translations.shape}, ids from {low} to {high}, and a target "
                f"vocabulary of {size}."
            )
        if shared and len(self.translations) != size:
            raise ValueError(
                "A shortlist that is shared is of one vocabulary. Received: "
                f"{len(self.translations)} source ids, {size} target ids, shared=True."
            )
        self.frequent = frequent
        self.each = each
        self.shared = shared

    @classmethod
    def from_pairs(
        cls,
        pairs: Iterable[tuple[Sequence[int], Sequence[int]]],
        vocabulary_size: int,
        target_vocabulary_size: int | None = None,
        iterations: int = 5,
        **options,
    ) -> "Shortlist":
        """Learns a shortlist from translated sentences.

        Args:
            pairs: source ids and target ids of each, without padding.
            vocabulary_size: int, V'.
            target_vocabulary_size: int, V; or None for that of the source.
            iterations: int >= 1, of expectation maximisation.
            **options: of `Shortlist`.

        Returns:
            `Shortlist`.

        Raises:
            ValueError: no pairs, or an id outside its vocabulary.

        Cost: memory by the number of pairs of a source and a target token in
        one sentence. Where it is too much, give a part of the sentences.

        Source: Brown et al. 1993, model 1. https://aclanthology.org/J93-2003
        """
        target_size = target_vocabulary_size or vocabulary_size
        counts, parts, said = np.zeros(target_size, "int64"), [], 0
        for source, target in pairs:
            source = np.unique(np.asarray(source, "int64"))
            target = np.asarray(target, "int64")
            if not source.size or not target.size:
                continue
            _check_ids("source", source, vocabulary_size)
            _check_ids("target", target, target_size)
            counts += np.bincount(target, minlength=target_size)
            source = np.concatenate([[0], source])  # 0: what comes from no word
            keys = source[None] * target_size + target[:, None]
            words = np.broadcast_to(said + np.arange(len(target))[:, None], keys.shape)
            parts.append((keys.ravel(), words.ravel().astype("int32")))
            said += len(target)
        if not parts:
            raise ValueError("A shortlist is learned from pairs. Received: none.")
        keys, words = (np.concatenate(part) for part in zip(*parts, strict=True))
        del parts
        keys, which = np.unique(keys, return_inverse=True)
        which = which.astype("int32")
        sources, targets = np.divmod(keys, target_size)
        probability = np.ones(len(keys))
        for _ in range(iterations):
            share = probability[which]
            share /= np.bincount(words, share, minlength=said)[words]
            probability = np.bincount(which, share, minlength=len(keys))
            probability /= np.bincount(sources, probability)[sources]
        translations = _best(sources, targets, probability, vocabulary_size)
        return cls(translations, np.argsort(-counts, kind="stable"), **options)

    @classmethod
    def read(
        cls,
        path: str | os.PathLike,
        pieces: Sequence[str],
        target_tokens: Sequence[str] | None = None,
        **options,
    ) -> "Shortlist":
        """Reads a file of lexical probabilities, as Marian's `--shortlist`.

        Each line has a target piece, a source piece and a probability. Of
        pieces that it does not name, the first ids are the most frequent.

        Args:
            path: file of text.
            pieces: the source vocabulary, by id.
            target_tokens: the target vocabulary, by id; or None for the same.
            **options: of `Shortlist`.

        Returns:
            `Shortlist`.

        Raises:
            ValueError: a line that is none, or no line of known pieces.
        """
        target_tokens = pieces if target_tokens is None else target_tokens
        from_source = {piece: i for i, piece in enumerate(pieces)}
        from_target = {piece: i for i, piece in enumerate(target_tokens)}
        found = []
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                try:
                    target, source, probability = line.split()
                    probability = float(probability)
                except ValueError:
                    raise ValueError(
                        "A line has a target piece, a source piece and a probability. "
                        f"Received: {line.rstrip()[:80]!r}, line {number} of "
                        f"{os.fspath(path)!r}."
                    ) from None
                if source in from_source and target in from_target:
                    ids = from_source[source], from_target[target]
                    found.append((*ids, probability))
        if not found:
            raise ValueError(
                "A shortlist names pieces of both vocabularies. Received: none of "
                f"them in {os.fspath(path)!r}. Pass the vocabularies it was made with."
            )
        sources, targets, probabilities = map(np.array, zip(*found, strict=True))
        translations = _best(sources, targets, probabilities, len(pieces))
        return cls(translations, np.arange(len(target_tokens)), **options)

    def save(self, path: str | os.PathLike):
        """Writes it to a file.

        Args:
            path: file, its name ending in `.npz`.
        """
        settings = [self.frequent, self.each, self.shared]
        np.savez_compressed(
            path, translations=self.translations, order=self.order, settings=settings
        )

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Shortlist":
        """Reads what `save` wrote.

        Args:
            path: file.

        Returns:
            `Shortlist`.
        """
        with np.load(path, allow_pickle=False) as file:
            frequent, each, shared = map(int, file["settings"])
            return cls(
                file["translations"], file["order"], frequent, each, bool(shared)
            )

    def rows(
        self, source_ids, first: int, forced=None, suppressed: Sequence[int] = ()
    ) -> np.ndarray:
        """Gives the tokens that each source may give.

        Args:
            source_ids: int `(B, S)`, padded with 0.
            first: int: tokens from 0 that all have, the special ones.
            forced: B lists of tokens that a row must have; or None.
            suppressed: ints. Tokens from `first` on that no row has.

        Returns:
            int32 `(B, C)`, rising: a token below `first` stands in its own
            place. What is left of a row that has fewer than another is its
            last token again, see `is_repeated`.

        Raises:
            ValueError: a source id that it does not know, or a token that is
                both forced and suppressed.
        """
        source_ids = np.asarray(source_ids)
        top = source_ids.max(initial=0)
        if top >= len(self.translations):
            raise ValueError(
                "A shortlist knows each token of the source vocabulary. Received: id "
                f"{top}; it knows {len(self.translations)}. Use the vocabulary it was "
                "made with."
            )
        forced = [[]] * len(source_ids) if forced is None else forced
        allowed = np.ones(self.vocabulary_size, bool)
        allowed[[token for token in suppressed if token >= first]] = False
        never = sorted({int(t) for row in forced for t in row if not allowed[t]})
        if never:
            raise ValueError(
                "With a shortlist no token is both suppressed and forced by a prefix. "
                f"Received: {never}."
            )
        wanted = first + self.frequent + self.each * (source_ids > 0).sum(axis=1)
        wanted = wanted + [np.count_nonzero(row) for row in forced]
        counts = np.minimum(-(-wanted // SIZES) * SIZES, int(allowed.sum()))
        most = int(counts.max(initial=0))
        order = self.order[allowed[self.order]][: most + first]
        rows = np.zeros((len(source_ids), most), "int32")
        for row, source, more, count in zip(
            rows, source_ids, forced, counts, strict=True
        ):
            source = np.unique(source[source > 0])
            parts = [np.arange(first), np.array(more, "int32"), order[: self.frequent]]
            parts += [source] if self.shared else []
            given = self.translations[source].T.ravel()  # by rank, then by word
            tokens = np.concatenate([*parts, given, order])
            tokens = tokens[allowed[tokens] & (tokens > 0)]
            tokens, places = np.unique(tokens, return_index=True)
            kept = tokens[np.argsort(places)][: count - 1]
            row[1:count] = np.sort(kept)
            row[count:] = row[count - 1]
        return rows


def is_repeated(candidates):
    """Tells which places of a row are only there because another has more.

    Args:
        candidates: int32 tensor `(B, C)` of `Shortlist.rows`.

    Returns:
        bool `(B, C)`.
    """
    again = ops.equal(candidates[:, 1:], candidates[:, :-1])
    return ops.pad(again, [[0, 0], [1, 0]], constant_values=False)


def _check_ids(side, ids, size):
    if ids.min() < 1 or ids.max() >= size:
        raise ValueError(
            "Ids are from 1 to the vocabulary size - 1. Received: "
            f"{side} ids from {ids.min()} to {ids.max()}; a vocabulary of {size}."
        )


def _best(sources, targets, probabilities, vocabulary_size):
    """The likeliest translations `(V', M)` of each source id."""
    known = (sources > 0) & (targets > 0) & (probabilities > 1e-4)
    sources, targets = sources[known], targets[known]
    order = np.lexsort((targets, -probabilities[known], sources))
    sources, targets = sources[order], targets[order]
    place = np.arange(len(sources)) - np.searchsorted(sources, sources)
    best = np.zeros((vocabulary_size, STORED), "int32")
    kept = place < STORED
    best[sources[kept], place[kept]] = targets[kept]
    return best
