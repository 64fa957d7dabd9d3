"""Results of a translator."""

import base64
import html
import io
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from keras_tfm.pipelines.alignment import (
    Alignment,
    align_words,
    join_alignments,
    token_words,
)
from keras_tfm.pipelines.finishing import Finished
from keras_tfm.pipelines.segmentation import SegmentedText
from keras_tfm.pipelines.span_patterns import MARKER

if TYPE_CHECKING:
    from keras_tfm.pipelines.translator import Translator


class Hypothesis(NamedTuple):
    """One translation of a text.

    Attributes:
        text: str.
        score: float, log-probability divided by the length penalty; minus
            infinity for an empty source. The score of a text in several
            segments is the mean of their scores, weighted by their numbers of
            tokens. None if scores were not requested.
        tokens: list of T str, subword tokens with the end token, as the model
            wrote them, before the steps around the model.
        attention: float32 `(T, S)`, cross-attention of each target token to
            each source token, 0 between segments; or None if not requested.
        truncated: bool. True if decoding stopped at `max_decoding_length`
            before the end token.
        alignment: sorted list of pairs of int, the indices of a word of the
            source and of a word of `text`, both as `split()` separates words;
            or None if attention was not requested.
        number_mismatch: bool. True if digits differ from those of the source,
            with the option `match_numbers`.

    Example:
        ```python
        from keras_tfm.pipelines import Translator

        translator = Translator.from_preset("en-de", return_attention=True)
        [hypothesis] = translator.translate("Good morning!").hypotheses
        num_tokens = len(hypothesis.tokens)
        assert hypothesis.attention.shape[0] == num_tokens
        assert hypothesis.alignment == [(0, 0), (1, 1)]
        ```
    """

    text: str
    score: float | None
    tokens: list[str]
    attention: np.ndarray | None
    truncated: bool
    alignment: Alignment | None = None
    number_mismatch: bool = False


class Translation(NamedTuple):
    """A text and its translations, the best first.

    If a text has several segments, its hypothesis n joins hypothesis n of each
    segment. So the first hypothesis is what a call returns, and the scores may
    be in another order.

    Hypotheses differ in their texts. A vocabulary can tokenize one text in two
    ways; of hypotheses with equal text, only the best is kept, so there may be
    fewer than `num_hypotheses`. With sampling, all are kept.

    `str(translation)` is the best translation. A notebook shows all hypotheses,
    and the attention of the best one if it was requested.

    Attributes:
        source: str, the text.
        source_tokens: list of S str, subword tokens with prefix and suffix.
        hypotheses: list of `Hypothesis`.
        unmet_terms: dict from terms of a glossary to translations that the best
            translation lacks, see `GlossaryTranslator`.

    Example:
        ```python
        from keras_tfm.pipelines import Translator

        translation = Translator.from_preset("en-de").translate("Good morning!")
        assert translation.text == str(translation) == "Guten Morgen!"
        assert not translation.truncated and translation.score < 0
        ```
    """

    source: str
    source_tokens: list[str]
    hypotheses: list[Hypothesis]
    unmet_terms: dict[str, str] = {}  # noqa: RUF012 (never changed)

    @property
    def text(self) -> str:
        """The best translation."""
        return self.hypotheses[0].text

    @property
    def score(self) -> float | None:
        """The score of the best translation, see `Hypothesis`."""
        return self.hypotheses[0].score

    @property
    def truncated(self) -> bool:
        """Whether the best translation is truncated, see `Hypothesis`."""
        return self.hypotheses[0].truncated

    @property
    def number_mismatch(self) -> bool:
        """Whether the best translation has other numbers, see `Hypothesis`."""
        return self.hypotheses[0].number_mismatch

    def __str__(self):
        return self.text

    def _repr_html_(self):
        rows = [f"<tr><td></td><td><i>{html.escape(self.source)}</i></td></tr>"]
        for hypothesis in self.hypotheses:
            score = "" if hypothesis.score is None else f"{hypothesis.score:.2f}"
            text = html.escape(hypothesis.text)
            rows.append(f"<tr><td>{score}</td><td>{text}</td></tr>")
        return f'<table dir="auto">{"".join(rows)}</table>' + self._attention_html()

    def _attention_html(self):
        best = self.hypotheses[0]
        if best.attention is None or not best.attention.size:
            return ""
        from keras_tfm import plot

        figure = plot.attention_map(best.attention, self.source_tokens, best.tokens)
        image = io.BytesIO()
        figure.savefig(image, format="png", bbox_inches="tight")
        content = base64.b64encode(image.getvalue()).decode()
        return f'<img alt="attention" src="data:image/png;base64,{content}">'


class ScoredTranslation(NamedTuple):
    """The score of a translation that was passed to `Translator.score`.

    Attributes:
        score: float, as of a `Hypothesis`.
        tokens: list of T str, subword tokens with the end token.
        token_scores: list of T float, the log-probability of each token.

    Example:
        ```python
        from keras_tfm.pipelines import Translator

        translator = Translator.from_preset("en-de")
        [result] = translator.score([("Good morning!", "Guten Morgen!")])
        assert len(result.tokens) == len(result.token_scores)
        ```
    """

    score: float
    tokens: list[str]
    token_scores: list[float]


def join_segments(
    translator: "Translator",
    source: SegmentedText,
    finished: Sequence[Finished],
    return_scores: bool,
    merge: bool = True,
) -> Translation:
    """Joins the hypotheses of the segments of a text.

    Args:
        translator: `Translator`.
        source: `SegmentedText`.
        finished: `Finished`, one for each segment.
        return_scores: bool. False: each score is None.
        merge: bool. Keep one hypothesis of each text.
    """
    rows = [part.segment.ids for part in finished]
    decoded = [part.hypotheses for part in finished]
    tokens = translator.vocabulary.tokens([token for row in rows for token in row])
    hypotheses = []
    if not rows:
        score = -math.inf if return_scores else None
        hypotheses.append(Hypothesis(source.trailing, score, [], None, False))
    end_id = translator.decoder.options.end_id
    for n in range(decoded[0].ids.shape[1] if decoded else 0):
        ids = [part.ids[0, n, : part.lengths[0, n]].tolist() for part in decoded]
        texts, attention, alignment = [part.texts[n] for part in finished], None, None
        if decoded[0].attention is not None:
            weights = [part.attention[0, n] for part in decoded]
            attention = _block_diagonal(weights, list(map(len, ids)), rows)
            alignment = _align(translator, source, finished, n)
        hypotheses.append(
            Hypothesis(
                source.join(texts),
                _mean_score(decoded, n, ids) if return_scores else None,
                translator.target_vocabulary.tokens(sum(ids, [])),
                attention,
                any(row and end_id not in row for row in ids),
                alignment,
                any(part.faults[n].numbers_differ for part in finished),
            )
        )
    if merge:
        hypotheses = merge_equal(hypotheses)
    return Translation(source.text, tokens, hypotheses)


def _align(translator, source, finished, n):
    """The alignment of the words of a text in segments, of hypothesis n."""
    sides, alignments = (translator.vocabulary, translator.target_vocabulary), []
    rows = [translator.config.without_affixes(part.segment.ids) for part in finished]
    sources, begin = sides[0].decode(rows), len(translator.config.source_prefix)
    for number, (segment, decoded, *_, marked_texts) in enumerate(finished):
        target = decoded.ids[0, n, : decoded.lengths[0, n]].tolist()
        row = rows[number]
        words = list(map(token_words, sides, (row, target)))
        weights = decoded.attention[0, n, :, begin : begin + len(row)]
        links = align_words(weights, *words)
        if segment.steps is not None:
            links = _of_corrected_words(links, words[1], marked_texts[n])
            links = segment.steps.align(links, marked_texts[n])
            sources[number] = segment.steps.source
        alignments.append(links)
    texts = [part.texts[n] for part in finished]
    separators = [part.segment.separator for part in finished] + [source.trailing]
    return join_alignments(alignments, (sources, texts), separators)


def _of_corrected_words(links, target_words, marked_text):
    """The links of a translation that the lexicon may have replaced as a whole,
    by another number of words: then each word is linked to each."""
    count = len(re.sub(MARKER, "", marked_text).split())
    if count == max(target_words, default=-1) + 1 or re.search(MARKER, marked_text):
        return links
    return [(i, j) for i in {i for i, _ in links} for j in range(count)]


def merge_equal(hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
    """Returns the best-scored hypothesis of each text, in their order.

    Args:
        hypotheses: list of `Hypothesis`.
    """
    best: dict[str, Hypothesis] = {}
    for hypothesis in hypotheses:
        rival = best.setdefault(hypothesis.text, hypothesis)
        if (hypothesis.score or 0.0) > (rival.score or 0.0):
            best[hypothesis.text] = hypothesis
    return list(best.values())


def _mean_score(decoded, n, ids):
    """The mean of the segments' scores, weighted by their tokens."""
    scores = [float(part.scores[0, n]) for part in decoded]
    lengths = [len(row) for row in ids]
    if not all(map(math.isfinite, scores)) or not any(lengths):
        return sum(scores) / len(scores)
    weighted = (s * length for s, length in zip(scores, lengths, strict=True))
    return sum(weighted) / sum(lengths)


def _block_diagonal(weights, lengths, rows):
    """The attention of segments `(T, S)`, each to its own source."""
    whole = np.zeros((sum(lengths), sum(map(len, rows))), "float32")
    top = left = 0
    for block, length, row in zip(weights, lengths, rows, strict=True):
        bottom, right = top + length, left + len(row)
        whole[top:bottom, left:right] = block[:length, : len(row)]
        top, left = bottom, right
    return whole
