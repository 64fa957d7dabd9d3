"""The few target tokens that a source can produce: fewer logits to compute."""

import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_tfm.file_reading import reading
from keras_tfm.types import Tensor

BUCKET = 64  # A source has a multiple of it, so that few functions are compiled.
MAX_TRANSLATIONS = 32  # that are stored of each source token
MIN_PROBABILITY = 1e-4  # of a translation that is stored


class Shortlist:
    """Stores which target tokens each source token can produce.

    A search with a shortlist computes only the logits of tokens that the source
    can produce, of those that are always frequent, and of those that a prefix
    or a constraint forces. Each source has its own list, whatever else is in
    the batch; the best translations of all its tokens come before the second
    best of any. Other tokens are never generated, and probabilities are those
    among the list.

    Args:
        translations: int `(V', M)`: target ids that each source id can produce,
            best first, padded with 0.
        order: int `(V,)`: all target ids, the most frequent first.
        frequent: int >= 0. Number of most frequent target tokens, which every
            source gets.
        best: int >= 1. Number of further candidates for each source token.
        shared: bool. Source and target have one vocabulary, and what occurs in
            the source may occur in the target.

    Raises:
        ValueError: a number out of its range, ids outside the vocabulary, or an
            order that does not name each id once.

    Source: Junczys-Dowmunt et al. 2018, section 3.1,
    https://arxiv.org/abs/1804.00344; Jean et al. 2015, section 3.2,
    https://arxiv.org/abs/1412.2007

    Example:
        ```python
        from keras_tfm import decode

        pairs = [([4, 5], [7, 8]), ([4], [7]), ([5], [8])]
        shortlist = decode.Shortlist.from_pairs(pairs, vocabulary_size=10)
        assert shortlist.translations[4, 0] == 7
        options = decode.Options(shortlist=shortlist)
        ```
    """

    def __init__(
        self,
        translations: Any,
        order: Any,
        frequent: int = 100,
        best: int = 16,
        shared: bool = False,
    ):
        if frequent < 0 or best < 1:
            raise ValueError(
                "`frequent` must be at least 0 and `best` at least 1; got "
                f"frequent={frequent}, best={best}."
            )
        self.translations = np.asarray(translations, "int32")
        self.order = np.asarray(order, "int32")
        size = self.vocabulary_size = len(self.order)
        if not np.array_equal(np.sort(self.order), np.arange(size)):
            raise ValueError(
                "`order` must hold each target id once; got "
                f"{size} ids from {self.order.min(initial=0)} to "
                f"{self.order.max(initial=0)}."
            )
        low, high = self.translations.min(initial=0), self.translations.max(initial=0)
        if self.translations.ndim != 2 or low < 0 or high >= size:
            raise ValueError(
                "`translations` must be target ids (source vocabulary, any number); "
                f"got shape={self.translations.shape}, ids from {low} to {high}, and a "
                f"target vocabulary of {size}."
            )
        if shared and len(self.translations) != size:
            raise ValueError(
                "`shared` requires one vocabulary; got "
                f"{len(self.translations)} source ids, {size} target ids, shared=True."
            )
        self.frequent = frequent
        self.best = best
        self.shared = shared

    def __repr__(self) -> str:
        rows, columns = self.translations.shape
        return f"<Shortlist: {columns} translations of {rows:,} tokens>"

    @classmethod
    def from_pairs(
        cls,
        pairs: Iterable[tuple[Sequence[int], Sequence[int]]],
        vocabulary_size: int,
        target_vocabulary_size: int | None = None,
        iterations: int = 5,
        **options: Any,
    ) -> "Shortlist":
        """Learns a shortlist from translated sentences.

        Args:
            pairs: source ids and target ids of each sentence, without padding.
            vocabulary_size: int, V'.
            target_vocabulary_size: int, V; or None for that of the source.
            iterations: int >= 1, of expectation maximization.
            **options: arguments of `Shortlist`.

        Raises:
            ValueError: no pairs, or an id outside its vocabulary.

        Cost: memory proportional to the number of pairs of a source and a
        target token within sentences. Pass a sample of a large corpus.

        Source: Brown et al. 1993, model 1. https://aclanthology.org/J93-2003
        """
        target_size = target_vocabulary_size or vocabulary_size
        counts, keys, words, num_words = np.zeros(target_size, "int64"), [], [], 0
        for source, target in pairs:
            source = np.unique(np.asarray(source, "int64"))
            target = np.asarray(target, "int64")
            if not source.size or not target.size:
                continue
            _check_ids("source", source, vocabulary_size)
            _check_ids("target", target, target_size)
            counts += np.bincount(target, minlength=target_size)
            source = np.concatenate([[0], source])  # 0: words without a source
            key = source[None] * target_size + target[:, None]  # (T, S + 1)
            word = num_words + np.arange(len(target))[:, None]
            keys.append(key.ravel())
            words.append(np.broadcast_to(word, key.shape).ravel().astype("int32"))
            num_words += len(target)
        if not keys:
            raise ValueError("`pairs` must hold one pair or more; got none.")
        keys, words = np.concatenate(keys), np.concatenate(words)
        keys, index = np.unique(keys, return_inverse=True)
        sources, targets = np.divmod(keys, target_size)
        probability = np.ones(len(keys))
        for _ in range(iterations):
            # Expectation: how far a target word comes from each source token.
            fraction = probability[index]
            fraction /= np.bincount(words, fraction, minlength=num_words)[words]
            # Maximization: the translations of a source token sum to 1.
            probability = np.bincount(index, fraction, minlength=len(keys))
            probability /= np.bincount(sources, probability)[sources]
        translations = _best(sources, targets, probability, vocabulary_size)
        return cls(translations, np.argsort(-counts, kind="stable"), **options)

    @classmethod
    def read(
        cls,
        path: str | os.PathLike,
        tokens: Sequence[str],
        target_tokens: Sequence[str] | None = None,
        **options: Any,
    ) -> "Shortlist":
        """Reads a file of lexical probabilities, as Marian's `--shortlist`.

        Each line has a target token, a source token and a probability. Since
        the file has no frequencies, the first ids count as the most frequent.

        Args:
            path: text file.
            tokens: the source vocabulary, by id.
            target_tokens: the target vocabulary, by id; or None for the same.
            **options: arguments of `Shortlist`.

        Raises:
            ValueError: the file is no UTF-8, has a line of another form, or no
                line with tokens of both vocabularies.
        """
        target_tokens = tokens if target_tokens is None else target_tokens
        source_ids = {token: i for i, token in enumerate(tokens)}
        target_ids = {token: i for i, token in enumerate(target_tokens)}
        entries = []
        with (
            reading(path, "lexical probabilities"),
            open(path, encoding="utf-8") as file,
        ):
            for number, line in enumerate(file, 1):
                try:
                    target, source, probability = line.split()
                    probability = float(probability)
                except ValueError:
                    raise ValueError(
                        "`path` must hold lines of a target token, a source token and "
                        f"a probability; got {line.rstrip()[:80]!r} in line {number} "
                        f"of {os.fspath(path)!r}."
                    ) from None
                if source in source_ids and target in target_ids:
                    ids = source_ids[source], target_ids[target]
                    entries.append((*ids, probability))
        if not entries:
            raise ValueError(
                "`tokens` must be the vocabularies that the file was made with; got no "
                f"line of {os.fspath(path)!r} with tokens of both."
            )
        sources, targets, probabilities = map(np.array, zip(*entries, strict=True))
        translations = _best(sources, targets, probabilities, len(tokens))
        return cls(translations, np.arange(len(target_tokens)), **options)

    def save(self, path: str | os.PathLike) -> None:
        """Writes the shortlist to a file.

        Args:
            path: file, its name ending in `.npz`.
        """
        np.savez_compressed(
            path,
            translations=self.translations,
            order=self.order,
            options=[self.frequent, self.best, self.shared],
        )

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Shortlist":
        """Reads what `save` wrote.

        Args:
            path: file.

        Raises:
            ValueError: the file is damaged.
        """
        with (
            reading(path, "a shortlist"),
            np.load(path, allow_pickle=False) as file,
        ):
            frequent, best, shared = map(int, file["options"])
            return cls(
                file["translations"], file["order"], frequent, best, bool(shared)
            )

    def rows(
        self,
        source_ids: Any,
        num_special: int,
        forced: Sequence[Sequence[int]] | None = None,
        suppressed: Iterable[int] = (),
    ) -> np.ndarray:
        """Returns the candidate tokens of each source.

        Args:
            source_ids: int `(B, S)`, padded with 0.
            num_special: int: all sources have the ids below it.
            forced: B lists of tokens that a source must have; or None.
            suppressed: ints. Tokens from `num_special` on that no source has.

        Returns:
            int32 `(B, C)`, ascending: a token below `num_special` is at its own
            index. A row that is shorter than another is filled with its last
            token, see `is_repeated`.

        Raises:
            ValueError: an unknown source id, or a token that is both forced and
                suppressed.
        """
        source_ids = np.asarray(source_ids)
        highest = source_ids.max(initial=0)
        if highest >= len(self.translations):
            raise ValueError(
                "`shortlist` must be of the model's source vocabulary; got source id "
                f"{highest}, and a shortlist of {len(self.translations)} source ids."
            )
        forced = [[]] * len(source_ids) if forced is None else forced
        allowed = np.ones(self.vocabulary_size, bool)  # (V,)
        allowed[[token for token in suppressed if token >= num_special]] = False
        never = sorted({int(t) for row in forced for t in row if not allowed[t]})
        if never:
            raise ValueError(
                "`target_prefix` and `constraints` must not hold suppressed tokens if "
                f"there is a shortlist; got {never}."
            )
        sizes = num_special + self.frequent + self.best * (source_ids > 0).sum(axis=1)
        sizes = sizes + [np.count_nonzero(row) for row in forced]
        # Each source has its own size, whatever else is in the batch.
        sizes = np.minimum(-(-sizes // BUCKET) * BUCKET, int(allowed.sum()))
        longest = int(sizes.max(initial=0))
        order = self.order[allowed[self.order]][: longest + num_special]
        rows = np.zeros((len(source_ids), longest), "int32")
        for i, size in enumerate(sizes):
            tokens = self._by_priority(source_ids[i], num_special, forced[i], order)
            tokens = tokens[allowed[tokens] & (tokens > 0)]
            tokens, indices = np.unique(tokens, return_index=True)
            tokens = tokens[np.argsort(indices)][: size - 1]
            rows[i, 1:size] = np.sort(tokens)  # The first is padding, 0.
            rows[i, size:] = rows[i, size - 1]
        return rows

    def _by_priority(self, source, num_special, forced, order):
        """Returns candidates of one source by priority, with repeats."""
        source = np.unique(source[source > 0])
        # (M, number of source tokens), flattened
        by_rank = self.translations[source].T.ravel()  # all best, all second best
        return np.concatenate(
            [
                np.arange(num_special),
                np.array(forced, "int32"),
                order[: self.frequent],
                source if self.shared else np.zeros(0, "int32"),
                by_rank,
                order,
            ]
        )


def is_repeated(candidates: Tensor) -> Tensor:
    """Returns which candidates only fill up a row, bool `(B, C)`.

    Args:
        candidates: int32 tensor `(B, C)` from `Shortlist.rows`.
    """
    repeated = candidates[:, 1:] == candidates[:, :-1]
    return ops.pad(repeated, [[0, 0], [1, 0]], constant_values=False)


def _check_ids(side, ids, size):
    if ids.min() < 1 or ids.max() >= size:
        raise ValueError(
            "`pairs` must hold ids from 1 to the vocabulary size - 1; got "
            f"{side} ids from {ids.min()} to {ids.max()}, and a vocabulary of {size}."
        )


def _best(sources, targets, probabilities, vocabulary_size):
    """Returns the likeliest translations `(V', M)` of each source id."""
    is_likely = (sources > 0) & (targets > 0) & (probabilities > MIN_PROBABILITY)
    sources, targets = sources[is_likely], targets[is_likely]
    # By source id, then by falling probability; of equal ones by target id.
    order = np.lexsort((targets, -probabilities[is_likely], sources))
    sources, targets = sources[order], targets[order]
    rank = np.arange(len(sources)) - np.searchsorted(sources, sources)
    best = np.zeros((vocabulary_size, MAX_TRANSLATIONS), "int32")
    is_stored = rank < MAX_TRANSLATIONS
    best[sources[is_stored], rank[is_stored]] = targets[is_stored]
    return best
