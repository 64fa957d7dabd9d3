"""Samples tokenizations of text, the same in every process.

SentencePiece samples too, but from 0.2.2 on its generator takes a salt of its
process, so that one seed gives other tokens after a restart.
"""

import bisect
import functools
import heapq
import itertools
import math
import random
import re
from collections.abc import Sequence

import sentencepiece

WORD_START = "\u2581"  # stands for the space before a word
# An unknown character scores this much below the rarest token, as in
# SentencePiece.
UNKNOWN_PENALTY = 10.0
# Lattices that are kept, about 4.4 KB each.
MAX_CACHED_WORDS = 10_000
MAX_CACHED_LENGTH = 20  # characters: a text without spaces is one word


class SubwordSampler:
    """Samples a tokenization of each text.

    No token spans two words. So the lattice of a frequent word is computed
    once, and each of its occurrences costs a few random numbers.

    Args:
        model: bytes of a SentencePiece model, unigram or BPE.
        alpha: float. Unigram: the power to which the probability of a
            segmentation is raised. BPE: the probability that a merge is left
            out.
        units: tuple of strings that are always one token.

    Source: Kudo 2018, section 3, https://arxiv.org/abs/1804.10959; Provilkov et
    al. 2020, section 3, https://arxiv.org/abs/1910.13267

    Example:
        ```python
        from keras_tfm.text import Vocabulary
        from keras_tfm.text.subword_sampling import SubwordSampler

        vocabulary = Vocabulary.train(["a small boat"] * 20, size=269)
        sample = SubwordSampler(vocabulary.model, alpha=0.1)
        [ids] = sample(["a small boat"], seed=1)
        assert vocabulary.decode([ids]) == ["a small boat"]
        ```
    """

    def __init__(self, model: bytes, alpha: float, units: tuple[str, ...] = ()):
        self.alpha = alpha
        self._processor = processor = sentencepiece.SentencePieceProcessor()
        processor.LoadFromSerializedProto(model)
        self._ids, self._scores = _text_tokens(processor)
        self._longest = max(map(len, self._ids), default=1)
        self._unknown_score = min(self._scores.values(), default=0) - UNKNOWN_PENALTY
        # A BPE model scores its tokens by rank: 0, -1, -2, ...
        is_bpe = all(score == int(score) for score in self._scores.values())
        self._sample = self._sample_merges if is_bpe else self._sample_path
        units = (*units, *(_unmergeable(self._ids) if is_bpe else ()))
        self._units = {unit: [processor.piece_to_id(unit)] for unit in units}
        self._split = _word_pattern(self._ids, units).split
        self._cached_lattice = functools.lru_cache(MAX_CACHED_WORDS)(self._lattice)

    def __call__(self, texts: Sequence[str], seed: int) -> list[list[int]]:
        """Samples the tokens of texts.

        Args:
            texts: list of strings.
            seed: int. The same seed and texts have the same tokens, in every
                process and on every machine.

        Returns:
            list of the ids of each text.
        """
        draw = random.Random(seed).random
        return [self._encode(text, draw) for text in texts]

    def _encode(self, text, draw):
        ids = []
        for word in self._split(self._processor.normalize(text)):
            if word:
                ids += self._units.get(word) or self._sample(word, draw)
        # SentencePiece has one unknown token for a sequence of characters.
        unknown = self._processor.unk_id()
        pairs = zip([-1, *ids], ids, strict=False)
        return [index for last, index in pairs if not index == last == unknown]

    def _sample_path(self, word, draw):
        """Samples a path through the lattice of a word, backward."""
        is_short = len(word) <= MAX_CACHED_LENGTH
        choices = self._cached_lattice(word) if is_short else self._lattice(word)
        end, segments = len(word), []
        while end:
            tokens, sums = choices[end - 1]
            number = bisect.bisect(sums, draw() * sums[-1], hi=len(sums) - 1)
            end, ids = tokens[number]
            segments.append(ids)
        return [index for ids in reversed(segments) for index in ids]

    def _lattice(self, word):
        """Returns the tokens that end at each character, with their weights.

        Weights are cumulative. That of a token is the sum, over all paths that
        end with it, of their probabilities to the power of alpha.
        """
        totals, choices = [0.0], []  # log sum over all paths to each character
        for end in range(1, len(word) + 1):
            starts = range(max(0, end - self._longest), end)
            scores = {i: self._scores.get(word[i:end]) for i in starts}
            if scores[end - 1] is None:
                scores[end - 1] = self._unknown_score
            paths = {
                start: totals[start] + self.alpha * score
                for start, score in scores.items()
                if score is not None
            }
            largest = max(paths.values())
            weights = [math.exp(path - largest) for path in paths.values()]
            sums = list(itertools.accumulate(weights))
            totals.append(largest + math.log(sums[-1]))
            tokens = [(start, self._token_ids(word[start:end])) for start in paths]
            choices.append((tokens, sums))
        return choices

    def _sample_merges(self, word, draw):
        """Merges the characters of a word, and leaves out merges at random."""
        pieces = list(word)
        previous = list(range(-1, len(word) - 1))
        following = [*range(1, len(word)), -1]
        queue = []

        def push(left, right):
            if left < 0 or right < 0:
                return
            piece = pieces[left] + pieces[right]
            if piece in self._scores:
                rank = -self._scores[piece]
                heapq.heappush(queue, (rank, left, right, len(piece)))

        for left in range(len(word) - 1):
            push(left, left + 1)
        while queue:
            _, left, right, length = heapq.heappop(queue)
            is_stale = not (pieces[left] and pieces[right])
            is_stale |= len(pieces[left]) + len(pieces[right]) != length
            if is_stale or draw() < self.alpha:
                continue
            pieces[left], pieces[right] = pieces[left] + pieces[right], ""
            following[left] = following[right]
            if following[left] >= 0:
                previous[following[left]] = left
            push(previous[left], left)
            push(left, following[left])
        return [i for piece in pieces if piece for i in self._token_ids(piece)]

    def _token_ids(self, piece):
        """Returns the id of a token, or those of the bytes of a character."""
        if piece in self._ids:
            return [self._ids[piece]]
        names = [f"<0x{byte:02X}>" for byte in piece.encode()]
        ids = [self._processor.piece_to_id(name) for name in names]
        has_bytes = all(self._processor.is_byte(index) for index in ids)
        return ids if has_bytes else [self._processor.unk_id()]


def _text_tokens(processor):
    """Returns the ids and the scores of the tokens that text may have."""
    ids, scores = {}, {}
    for index in range(processor.get_piece_size()):
        is_special = (
            processor.is_control(index)
            or processor.is_unknown(index)
            or processor.is_byte(index)
            or processor.is_unused(index)
        )
        if not is_special:
            piece = processor.id_to_piece(index)
            ids[piece], scores[piece] = index, processor.get_score(index)
    return ids, scores


def _unmergeable(ids):
    """Returns the tokens that no merge makes: those that a user has defined."""
    return [
        piece
        for piece in ids
        if len(piece) > 1
        and not any(piece[:i] in ids and piece[i:] in ids for i in range(1, len(piece)))
    ]


def _word_pattern(ids, units):
    """Returns a pattern that splits normalized text into words and units."""
    longest_first = sorted(units, key=len, reverse=True)
    pattern = "|".join(map(re.escape, longest_first))
    pattern = f"({pattern})" if pattern else ""
    if not any(WORD_START in piece[1:] for piece in ids):
        pattern += "|" * bool(pattern) + f"(?={WORD_START})"
    return re.compile(pattern or "(?!)")


@functools.lru_cache(maxsize=8)
def sampler(model: bytes, alpha: float, units: tuple[str, ...]) -> SubwordSampler:
    """Returns a `SubwordSampler`, the same for the same arguments."""
    return SubwordSampler(model, alpha, units)
