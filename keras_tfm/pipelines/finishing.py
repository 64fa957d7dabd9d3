"""Undoes the steps around a model, and decodes again where they failed."""

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from keras_tfm.decode.hypotheses import Hypotheses
from keras_tfm.decode.protocol import Capabilities
from keras_tfm.pipelines.alignment import attended_words, token_words
from keras_tfm.pipelines.loops import has_loop
from keras_tfm.pipelines.placing import (
    Alignment,
    join_elements,
    place,
    role_of,
    token_ends,
)
from keras_tfm.pipelines.protection import (
    apply,
    hide_names,
    hide_numbers,
    replace_copies,
)
from keras_tfm.pipelines.segmentation import Segment, SegmentedText
from keras_tfm.pipelines.span_patterns import LEFT_OUT, MARKUP
from keras_tfm.pipelines.text_steps import prepare

if TYPE_CHECKING:
    from keras_tfm.pipelines.translator import Translator

# Other stand-ins, for a span that was lost; at last none.
SPAN_ATTEMPTS = (0, 1, 2, None)
HIDDEN_ATTEMPTS = (0, 1)  # for numbers and names that are hidden, too
NO_REPEAT_NGRAM_SIZE = 4  # for a translation that repeats itself


class Faults(NamedTuple):
    """What is wrong with a translation, the worst first.

    Attributes:
        loops: bool, it repeats itself and its source does not; infinity for the
            empty hypotheses with which a search fills up.
        not_copied: int, number of stand-ins that were not copied once.
        left_out: int, number of spans without a stand-in.
        numbers_differ: bool, its digits are others.
        lost_names: int, number of names that it lacks.
        missed_words: int, number of words of the lexicon without a translation.
    """

    loops: float = False
    not_copied: int = 0
    left_out: int = 0
    numbers_differ: bool = False
    lost_names: int = 0
    missed_words: int = 0


class Finished(NamedTuple):
    """A segment with its translations.

    Attributes:
        segment: `Segment`, as the model read it.
        hypotheses: `Hypotheses` with B = 1.
        texts: list of str, one for each hypothesis.
        faults: list of `Faults`, one for each.
        marked_texts: list of str, the texts that the model wrote, with markers.
    """

    segment: Segment
    hypotheses: Hypotheses
    texts: list[str]
    faults: list[Faults]
    marked_texts: list[str]


def finish(
    translator: "Translator",
    sources: Sequence[SegmentedText],
    decoded: Sequence[Hypotheses],
    fixed: Collection[int] = (),
    options: Mapping[str, Any] | None = None,
    check_time: Callable[[], None] = lambda: None,
) -> list[list[Finished]]:
    """Makes the texts of decoded segments.

    A segment whose best hypothesis lost a protected span, a number, a name or
    a word of the lexicon, or repeats itself, is decoded again, see
    `decode_again`.

    Args:
        translator: `Translator`.
        sources: list of `SegmentedText`.
        decoded: `Hypotheses` with B = 1, one for each segment.
        fixed: ints, indices of texts that are not decoded again and whose words
            stay, since a prefix or constraints decide them.
        options: dict of the options that were changed for this call, or None.
        check_time: function that is called after each batch that is decoded
            again; it may raise.

    Returns:
        One list for each text.
    """
    items = [(n, segment) for n, source in enumerate(sources) for segment in source[1]]
    options = options or {}
    if translator._decoders.get(options).options.samples:
        fixed = range(len(sources))
    finished = [
        finish_segment(translator, segment, hypotheses, text not in fixed)
        for (text, segment), hypotheses in zip(items, decoded, strict=True)
    ]
    faulty = [
        n
        for n, (text, _) in enumerate(items)
        if text not in fixed and _can_improve(translator, finished[n])
    ]
    repaired = decode_again(
        translator, [finished[n] for n in faulty], options, check_time
    )
    for n, item in zip(faulty, repaired, strict=True):
        finished[n] = item
    remaining = iter(finished)
    return [[next(remaining) for _ in source.segments] for source in sources]


def finish_segment(
    translator: "Translator",
    segment: Segment,
    hypotheses: Hypotheses,
    corrects: bool = True,
) -> Finished:
    """Makes the texts of the hypotheses of a segment.

    Args:
        translator: `Translator`.
        segment: `Segment`.
        hypotheses: `Hypotheses` with B = 1.
        corrects: bool. Correct words by the lexicon.
    """
    texts, faults, marked_texts = [], [], []
    for n, (length, score) in enumerate(
        zip(hypotheses.lengths[0], hypotheses.scores[0], strict=True)
    ):
        ids = hypotheses.ids[0, n, :length].tolist()
        [text] = decode_ids(translator, [ids], [segment.ids])
        fault = Faults()
        marked_texts.append(text)
        if segment.steps is not None:
            attention = hypotheses.attention
            weights = None if attention is None else attention[0, n]
            corrected = text, [], 0
            if corrects:
                corrected = _correct(translator, segment, ids, text, weights, not n)
            marked_texts[-1], fault = _mark(
                translator, segment, ids, *corrected, weights
            )
            text = segment.steps.restore(marked_texts[-1])
            if translator.config.avoid_loops and has_loop(text):
                fault = fault._replace(loops=not has_loop(segment.steps.source))
        texts.append(text)
        # A search that has fewer hypotheses fills up with empty ones.
        faults.append(fault if math.isfinite(score) else Faults(math.inf))
    return Finished(segment, hypotheses, texts, faults, marked_texts)


def _mark(translator, segment, ids, text, corrections, missed, attention):
    """The text of one hypothesis with markers, and its faults."""
    steps = segment.steps
    edits, faults = replace_copies(text, steps.stand_ins)
    # A word may have a stand-in as a part, such as "Anna-Ferry".
    corrections = [c for c in corrections if not _overlaps(c, edits)]
    copied = {edit.text for edit in edits}
    offsets = {m: index for m, index in steps.offsets.items() if m not in copied}
    edits, offsets = join_elements(steps.text, steps.spans, edits, offsets)
    if offsets:
        alignment = None
        if attention is not None:
            alignment = _align(translator, segment, ids, attention)
        roles = {
            marker: role_of(marker, steps.text, steps.spans[marker].text)
            for marker in offsets
            if len(marker) == 1 and steps.spans[marker].kind in MARKUP
        }
        edits += place(offsets, steps.model_text, text, alignment, roles)
    marked_text = apply(text, [*edits, *corrections])
    left_out = sum(
        marker not in steps.stand_ins and span.kind not in LEFT_OUT
        for marker, span in steps.spans.items()
    )
    differ = translator.config.match_numbers and steps.numbers_differ(marked_text)
    lost = steps.lost_names(marked_text, translator.config)
    counts = len(faults), left_out, differ, len(lost), missed
    return marked_text, Faults(False, *counts)


def _correct(translator, segment, ids, text, attention, is_best):
    """A translation by the lexicon: the text, its corrections as edits, and the
    number of words that it lacked before."""
    config, steps = translator.config, segment.steps
    if config.lexicon is None:
        return text, [], 0
    source = steps.model_text
    if not steps.spans:
        whole = config.lexicon.whole(source, text)
        if whole is not None:  # further hypotheses stay as they are
            return whole if is_best else text, [], 0
    stand_ins = set(steps.stand_ins.values())

    def is_name(word):
        return word in stand_ins or not config.names.knows(word)

    missing = config.lexicon.missing(source, text, is_name)
    if not missing or attention is None:
        return text, [], len(missing)
    begin, row = len(config.source_prefix), config.without_affixes(segment.ids)
    links = attended_words(
        attention[:, begin : begin + len(row)],
        token_words(translator.vocabulary, row),
        token_words(translator.target_vocabulary, ids),
    )
    edits = config.lexicon.corrections(missing, source, text, links)
    return text, edits, len(missing)


def _overlaps(edit, edits):
    return any(edit.begin < e.end and e.begin < edit.end for e in edits)


def _align(translator, segment, ids, attention):
    config = translator.config
    begin, row = len(config.source_prefix), config.without_affixes(segment.ids)
    if ids[-1:] == [translator.decoder.options.end_id]:
        ids = ids[:-1]
    return Alignment(
        token_ends(translator.vocabulary, row),
        token_ends(translator.target_vocabulary, ids),
        attention[: len(ids), begin : begin + len(row)],
    )


def _can_improve(translator, finished):
    """Whether another pass may place spans better or keep numbers and names."""
    steps, fault = finished.segment.steps, finished.faults[0]
    if steps is None or fault.loops == math.inf:
        return False
    needs_attention = (
        len(steps.stand_ins) < len(steps.spans)
        and finished.hypotheses.attention is None
        and _has_attention(translator)
    )
    return needs_attention or any(fault._replace(left_out=0))


def _has_attention(translator):
    return "return_attention" in Capabilities.of(translator.model).begin_options


def time_check(timeout: float | None, num_texts: int) -> Callable[[], None]:
    """Returns a function that raises a TimeoutError after some time.

    Args:
        timeout: float > 0, in seconds, from now; or None.
        num_texts: int, for the error.
    """
    deadline = math.inf if timeout is None else time.monotonic() + timeout

    def check():
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"`timeout` must allow for all texts; got {timeout} seconds for "
                f"{num_texts} texts. Increase it, or pass fewer texts."
            )

    return check


def time_left(timeout: float | None) -> Callable[[], float | None]:
    """Returns a function of the seconds that are left, for several calls.

    Args:
        timeout: float > 0, in seconds, from now; or None.
    """
    end = time.monotonic() + (timeout or 0)
    # A timeout must be above 0.
    return lambda: None if timeout is None else max(end - time.monotonic(), 1e-9)


def decode_again(
    translator: "Translator",
    finished: Sequence[Finished],
    options: Mapping[str, Any],
    check_time: Callable[[], None] = lambda: None,
) -> list[Finished]:
    """Decodes segments with other stand-ins, all hypotheses and attention.

    Those that repeated themselves are decoded without repeated n-grams.

    Args:
        translator: `Translator`.
        finished: list of `Finished`.
        options: dict of changed options.
        check_time: see `finish`.

    Returns:
        list of `Finished`, with as many hypotheses as before: those with the
        fewest faults, the best first.
    """
    results: list[Any] = [None] * len(finished)
    for loops in (False, True):
        indices = [n for n, f in enumerate(finished) if f.faults[0].loops == loops]
        if indices:
            items = [finished[n] for n in indices]
            decoder = _second_decoder(translator, options, loops)
            repaired = _decode_variants(translator, items, decoder, check_time)
            for n, item in zip(indices, repaired, strict=True):
                results[n] = item
    return results


def _decode_variants(translator, finished, decoder, check_time):
    variants = [_variants(translator, item) for item in finished]
    config = translator.config
    rows = [segment.ids for segments in variants for segment in segments]
    prefix = list(config.target_prefix)
    decoded: list = [None] * len(rows)
    for n, hypotheses in decoder.bulk(
        rows,
        config.batch_tokens,
        config.batch_size,
        target_prefix=[prefix] * len(rows) if prefix else None,
    ):
        decoded[n] = hypotheses
        check_time()
    remaining = iter(decoded)
    results = []
    for item, segments in zip(finished, variants, strict=True):
        candidates = [
            finish_segment(translator, segment, next(remaining)) for segment in segments
        ]
        best = min(candidates, key=lambda c: min(c.faults))
        is_worse = min(best.faults) > item.faults[0]
        results.append(item if is_worse else _best(best, item))
    return results


def warm_up(
    translator: "Translator",
    lengths: Sequence[int],
    options: Mapping[str, Any],
    check: Callable[[], None],
) -> None:
    """Compiles the functions of `decode_again`, if text steps may need it.

    Args:
        translator: `Translator`.
        lengths: ints >= 1, in source tokens, with prefix and suffix.
        options: dict of changed options.
        check: see `Decoder.warm_up`.
    """
    config = translator.config
    if config.has_steps and not translator.decoder.options.samples:
        _second_decoder(translator, options).warm_up(
            [min(length, config.max_source_length) for length in lengths],
            config.batch_tokens,
            config.batch_size,
            config.target_prefix,
            check,
        )


def _second_decoder(translator, options, loops=False):
    """The decoder of all hypotheses, with attention if the model has some."""
    usual = translator.decoder.options
    beam_size = options.get("beam_size", usual.beam_size)
    count = int(beam_size * options.get("patience", usual.patience))
    options = {**options, "num_hypotheses": min(beam_size, max(1, count))}
    if loops and not options.get("no_repeat_ngram_size", usual.no_repeat_ngram_size):
        options["no_repeat_ngram_size"] = NO_REPEAT_NGRAM_SIZE
    if _has_attention(translator):
        options["return_attention"] = True
    return translator._decoders.get(options)


def _variants(translator, finished):
    """The segment; and with other stand-ins, if something was lost."""
    segment, config = finished.segment, translator.config
    steps, faults = segment.steps, finished.faults[0]
    prepared = []
    if faults.not_copied:
        prepared += [
            prepare(translator, steps.text, steps.spans, n) for n in SPAN_ATTEMPTS
        ]
    hidden = [(steps.text, steps.spans)]
    if faults.lost_names:
        lost = steps.lost_names(finished.marked_texts[0], config)
        hidden.append(hide_names(steps.text, steps.spans, lost))
    if faults.numbers_differ:
        hidden += [hide_numbers(text, spans) for text, spans in hidden]
    for text, spans in hidden[1:]:
        prepared += [prepare(translator, text, spans, n) for n in HIDDEN_ATTEMPTS]
    rows = translator.vocabulary.encode([steps.model_text for steps in prepared])
    variants = [segment]
    for steps, row in zip(prepared, rows, strict=True):
        ids = [*config.source_prefix, *row, *config.source_suffix]
        if row and len(ids) <= config.max_source_length:
            variants.append(Segment(ids, segment.separator, steps))
    return variants


def _best(candidate, replaced_item):
    """A candidate with its best hypotheses first, as many as before."""
    faults = candidate.faults
    count = len(replaced_item.texts)
    order = sorted(range(len(faults)), key=faults.__getitem__)[:count]
    hypotheses = candidate.hypotheses._replace(
        **{} if replaced_item.hypotheses.attention is not None else {"attention": None}
    )
    hypotheses = Hypotheses(*(a if a is None else a[:, order] for a in hypotheses))
    return Finished(
        candidate.segment,
        hypotheses,
        [candidate.texts[n] for n in order],
        [faults[n] for n in order],
        [candidate.marked_texts[n] for n in order],
    )


def decode_ids(
    translator: "Translator", ids: Sequence[list[int]], rows: Sequence[list[int]]
) -> list[str]:
    """Returns the text of each segment.

    Args:
        translator: `Translator`.
        ids: lists of target ids.
        rows: lists of source ids.
    """
    decode = translator.target_vocabulary.decode
    if not translator.decoder.continues_source:
        return [decode([row])[0] for row in ids]
    # With the space, if any, between a prompt and its continuation.
    texts = [decode([[*row, *new]])[0] for row, new in zip(rows, ids, strict=True)]
    prompts = [decode([row])[0] for row in rows]
    return [text[len(p) :] for p, text in zip(prompts, texts, strict=True)]
