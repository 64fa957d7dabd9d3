"""The steps around a model: before text is encoded, and after it is decoded."""

import itertools
import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from keras_tfm.pipelines import letter_case, protection
from keras_tfm.pipelines.alignment import Alignment, realign, word_ranges
from keras_tfm.pipelines.digits import numbers_differ
from keras_tfm.pipelines.protection import Span
from keras_tfm.pipelines.segmentation import Segment, SegmentedText
from keras_tfm.pipelines.sentences import SEPARATOR
from keras_tfm.pipelines.span_patterns import MARKER
from keras_tfm.pipelines.text_config import TextConfig

if TYPE_CHECKING:
    from keras_tfm.pipelines.translator import Translator

WORD = "Tom"
RESERVE = 16  # tokens
# A lone soft hyphen is a word, and words are counted. Edges keep their spaces.
SOFT_HYPHENS = re.compile(r"(?<=\S)\xad+")
CONTROL_SPACES = re.compile(r"(?<=\S)[\v\x1c-\x1f\x85]+(?=\S)")


class Steps(NamedTuple):
    """What was done to a segment, so that it can be undone.

    Attributes:
        text: str, the segment in the source, with a marker for each protected
            span.
        spans: dict from its markers to `Span`.
        stand_ins: dict from markers to what the model reads in their place;
            nothing for the others.
        model_text: str that the model reads.
        offsets: dict from markers to their index in `model_text`.
        is_raised: bool. The segment was in capitals.
        final_mark: str that the segment lacked.
    """

    text: str
    spans: Mapping[str, Span]
    stand_ins: Mapping[str, str]
    model_text: str
    offsets: Mapping[str, int]
    is_raised: bool
    final_mark: str

    def numbers_differ(self, target: str) -> bool:
        """Returns whether the numbers of a translation are others.

        Args:
            target: str, with markers.
        """
        return numbers_differ(re.sub(MARKER, "", self.text), re.sub(MARKER, "", target))

    def lost_names(self, target: str, config: TextConfig) -> list[str]:
        """Lists the names that a translation lacks.

        Args:
            target: str, with markers.
            config: `TextConfig`.
        """
        if self.is_raised or not config.known_words:
            return []
        source = re.sub(MARKER, "\ufffd", self.text)
        return config.names.lost(source, re.sub(MARKER, "", target))

    def restore(self, target: str) -> str:
        """Returns the text of a translation in the end.

        Args:
            target: str, with markers.
        """
        if self.final_mark:
            target = letter_case.without_final_mark(target)
        target = target.upper() if self.is_raised else target
        return protection.expand(target, self.spans)

    @property
    def source(self) -> str:
        """The segment in the source."""
        return protection.expand(self.text, self.spans)

    def align(self, alignment: Alignment, target: str) -> Alignment:
        """Returns the alignment of the words of source and translation.

        Args:
            alignment: that of the words that the model read and wrote.
            target: str, the translation with markers.
        """
        keys = [*alignment, *((marker, marker) for marker in self.spans)]
        return realign(keys, self._words(self.text), self._words(target))

    def _words(self, marked_text):
        """Indices of words, by index of the model's word and by marker."""
        ranges = word_ranges(
            marked_text, lambda word: protection.expand(word, self.spans)
        )
        indices: dict[Any, range] = {}
        num_model_words = 0
        for word, words in zip(marked_text.split(), ranges.values(), strict=True):
            indices |= dict.fromkeys(re.findall(MARKER, word), words)
            model_word = re.sub(MARKER, lambda m: self.stand_ins.get(m[0], ""), word)
            if model_word == word or re.search(r"\w", model_word):
                indices[num_model_words] = words
                num_model_words += 1
        return indices

    def restore_beginning(self, target: str) -> str:
        """Returns the text of a translation that is not complete.

        Args:
            target: str, as the model has written it so far. A last word that
                may become a stand-in is left out.
        """
        last = re.match(r"\w*", target[::-1])[0][::-1].lower()
        stand_ins = [stand_in.lower() for stand_in in self.stand_ins.values()]
        if last and any(s.startswith(last) or last.startswith(s) for s in stand_ins):
            target = target[: -len(last)].rstrip()
        edits, _ = protection.replace_copies(target, self.stand_ins)
        return self.restore(protection.apply(target, edits))


def prepare(
    translator: "Translator",
    text: str,
    spans: Mapping[str, Span],
    attempt: int | None = 0,
    keeps_case: bool = False,
) -> Steps:
    """Makes the text that a model reads of a segment.

    Args:
        translator: `Translator`.
        text: str, with markers.
        spans: dict from markers to `Span`, of the whole text.
        attempt: see `choose_stand_ins`; None leaves all spans out.
        keeps_case: bool. Do not lower capitals.
    """
    config = translator.config
    words = re.sub(MARKER, "", text)
    spans = {marker: spans[marker] for marker in re.findall(MARKER, text)}
    vocabulary, case_text, is_raised = translator.vocabulary, text, False
    if config.lower_capitals and not keeps_case:
        is_raised = letter_case.is_capitals(words, vocabulary)
        case_text = letter_case.lower_emphasis(text, vocabulary)
    if is_raised:
        case_text = letter_case.lower_capitals(text, vocabulary)
    case_text = translator.segmenter.spelling.lower_unknown(case_text)
    is_marked = config.add_final_mark and len(text.split()) >= config.final_mark_words
    final_mark = letter_case.missing_mark(text) if is_marked else ""
    stand_ins = {}
    if attempt is not None:
        stand_ins = protection.choose_stand_ins(
            case_text, spans, config.stand_ins, attempt
        )
    result, offsets = "", {}
    for part in re.split(f"({MARKER})", case_text + final_mark):
        if part in spans:
            offsets[part] = len(result)
            result += stand_ins.get(part, "")
        elif not result or result.endswith(" "):  # after a span that is left out
            is_mark = part.lstrip(" ")[:1] in tuple(".,!?;:\u2026)")
            result = (result.rstrip(" ") if is_mark else result) + part.lstrip(" ")
        else:
            result += part
    return Steps(text, spans, stand_ins, result, offsets, is_raised, final_mark)


def segment_texts(
    translator: "Translator", texts: Sequence[str], unsplit: Collection[int]
) -> list[SegmentedText]:
    """Splits texts into segments, with the ids of what the model reads.

    Args:
        translator: `Translator`.
        texts: list of str.
        unsplit: ints, indices of texts that are not split.
    """
    config, segmenter = translator.config, translator.segmenter
    split_tokens, max_tokens = config.segment_tokens
    if not config.has_steps or translator.decoder.continues_source:
        return segmenter.segment(texts, split_tokens, max_tokens, unsplit)
    patterns = segmenter.spelling.patterns_of(config.protect, texts)
    hidden = [_hidden(text, patterns) for text in texts]
    # While sentences are split, one word stands for every span.
    words = [
        _new_word(text, config.stand_ins) if spans else WORD
        for text, (_, spans) in zip(texts, hidden, strict=True)
    ]
    plain = [
        _with_words(text, word) for (text, _), word in zip(hidden, words, strict=True)
    ]
    # A stand-in or a final mark may make a segment longer.
    max_tokens = max(max_tokens - RESERVE, max_tokens // 2, 1)
    limits = min(split_tokens, max_tokens), max_tokens
    sources = segmenter.segment(plain, *limits, unsplit)
    results = [
        _prepared_text(translator, texts[n], *hidden[n], words[n], source, n in unsplit)
        for n, source in enumerate(sources)
    ]
    segments = [s for result in results for s in result.segments if not s.ids]
    rows = translator.vocabulary.encode([s.steps.model_text for s in segments])
    for segment, row in zip(segments, rows, strict=True):
        segment.ids.extend(row)
    return list(map(_without_empty, results))


def _hidden(text, patterns):
    """`protection.hide`, without characters that split words for a vocabulary
    (soft hyphens) or join them (spaces that are control characters)."""
    text, spans = protection.hide(text.replace(SEPARATOR, "\ufffd"), patterns)
    return CONTROL_SPACES.sub(" ", SOFT_HYPHENS.sub("", text)), spans


def _new_word(text, stand_ins):
    """A word that a text does not have in any form."""
    text = "".join(char for char in text if unicodedata.category(char)[0] != "C")
    text = unicodedata.normalize("NFKC", text).lower()
    longer = (WORD + "o" * count for count in itertools.count())
    words = itertools.chain(stand_ins, longer)
    return next(word for word in words if word.lower() not in text)


def _with_words(text, word):
    """A text with a word for each marker, apart from the words beside it."""
    parts, position = [], 0
    for match in re.finditer(MARKER, text):
        begin, end = match.span()
        # A marker before it has added the space.
        left = begin > position and _may_join(text[begin - 1], -1)
        right = end < len(text) and _may_join(text[end], 0)
        parts += [text[position:begin], " " * left, word, " " * right]
        position = end
    return "".join([*parts, text[position:]])


def _may_join(char, side):
    """Whether a character becomes, before it is encoded, a letter or digit
    at one of its sides, or nothing."""
    if char in " \t\r\n":
        return False
    normalized = unicodedata.normalize("NFKC", char)[side]
    is_word = re.match(r"\w", normalized) is not None
    return is_word or unicodedata.category(char)[0] in "CM"


def _prepared_text(translator, text, hidden, spans, word, source, is_whole):
    """A text with prepared segments; those that must be encoded have no ids."""
    segments, separator, config = [], "", translator.config
    for gap, part, ids in _marked_parts(translator, source, hidden, word):
        separator += gap
        for index, piece in enumerate(
            protection.cut_edges(part, spans, config.add_final_mark)
        ):
            bare = re.sub(MARKER, "", piece)
            stays = not re.search(r"\w", bare)
            if config.lower_capitals:
                stays |= letter_case.is_acronym(piece, translator.vocabulary)
            if index % 2 or stays or not piece:
                separator += piece
                continue
            steps = prepare(translator, piece, spans, keeps_case=is_whole)
            row = list(ids) if steps.model_text == piece == part else []
            gap = protection.expand(separator, spans)
            segments.append(Segment(row, gap, steps))
            separator = ""
    return SegmentedText(text, segments, protection.expand(separator, spans))


def _marked_parts(translator, source, text, word):
    """The separator, the text with markers, and the ids of each segment."""
    rows = [segment.ids for segment in source.segments]
    if len(rows) == 1:
        leading, trailing = source.segments[0].separator, source.trailing
        body = text[len(leading) : len(text) - len(trailing)]
        if f"{leading}{body}{trailing}" == text and body == body.strip():
            return [(leading, body, rows[0]), (trailing, "", [])]
    markers = iter(re.findall(MARKER, text))
    pattern = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)", re.IGNORECASE)
    texts = [
        _respace(pattern.sub(lambda match: next(markers, match[0]), part), text)
        for part in translator.vocabulary.decode(rows)
    ]
    separators = [segment.separator for segment in source.segments]
    for n, separator in enumerate(separators):
        if separator == " " and n and not _is_spaced(texts[n - 1], texts[n], text):
            separators[n] = ""
    parts = list(zip(separators, texts, rows, strict=True))
    # A word that was split is not found.
    return [*parts, (source.trailing + "".join(markers), "", [])]


def _is_spaced(left, right, text):
    """Whether a text has a space between two parts, if it has a marker there.

    The words that stand for markers have spaces around them.
    """
    if re.fullmatch(MARKER, left[-1:]):
        return text[text.index(left[-1]) + 1 :][:1].isspace()
    if re.fullmatch(MARKER, right[:1]):
        return text[: text.index(right[0])][-1:].isspace()
    return True


def _respace(part, text):
    """A part of a text, whose markers have spaces where the text has them."""

    def respace(match):
        index = text.index(match[1])
        left, right = text[max(index - 1, 0) : index], text[index + 1 : index + 2]
        leading = " " * (match[0][0] == " " and not left.strip())
        return leading + match[1] + " " * (match[0][-1] == " " and not right.strip())

    return re.sub(f" ?({MARKER}) ?", respace, part)


def _without_empty(source):
    """A text whose segments all have tokens; others are not translated."""
    segments, separator = [], ""
    for segment in source.segments:
        separator += segment.separator
        if segment.ids:
            segments.append(segment._replace(separator=separator))
            separator = ""
        else:
            separator += segment.steps.restore(segment.steps.text)
    return source._replace(segments=segments, trailing=separator + source.trailing)
