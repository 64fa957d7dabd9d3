"""Encodes the target prefixes and the constraints of single texts."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from keras_tfm.pipelines.segmentation import SegmentedText
from keras_tfm.pipelines.texts import AnyVocabulary, check_texts
from keras_tfm.runtime.decoder import Decoder

if TYPE_CHECKING:
    from keras_tfm.pipelines.translator import Translator


def encode_prefixes(
    target_prefix: str | Sequence[str | None] | None,
    sources: Sequence[SegmentedText],
    translator: "Translator",
    decoder: Decoder,
) -> list[list[int]] | None:
    """Encodes the target prefix of each segment.

    Args:
        target_prefix: str; or one str or None for each text; or None.
        sources: `SegmentedText`; the prefix of a text is that of its first
            segment.
        translator: `Translator`.
        decoder: `Decoder`, whose limits a prefix must respect.

    Returns:
        list of lists of int, one for each segment; or None without prefixes.

    Raises:
        ValueError: another number of prefixes than of texts, or a prefix that
            reaches the limit of its segment.
    """
    if target_prefix is None or isinstance(target_prefix, str):
        target_prefix = [target_prefix] * len(sources)
    if len(target_prefix) != len(sources):
        raise ValueError(
            "`target_prefix` must have one prefix for each text; got "
            f"{len(target_prefix)} prefixes for {len(sources)} texts."
        )
    encoded = translator.target_vocabulary.encode(
        check_texts(prefix or "" for prefix in target_prefix)
    )
    prefixes = []
    for number, (source, ids) in enumerate(zip(sources, encoded, strict=True)):
        prefixes += [list(translator.config.target_prefix) for _ in source.segments]
        if not source.segments or not ids:
            continue
        prefix = prefixes[-len(source.segments)]
        prefix += ids
        limit = decoder.length_limit(len(source.segments[0].ids))
        if len(prefix) >= limit:
            raise ValueError(
                f"`target_prefix` of text {number} must be shorter than its limit; "
                f"got {len(prefix)} tokens, and a limit of {limit}. Increase "
                "`max_decoding_length`, or shorten the prefix."
            )
    return prefixes if any(prefixes) else None


def encode_constraints(
    constraints: Sequence[Sequence[str] | None] | None,
    texts: list[str],
    vocabulary: AnyVocabulary,
) -> list[list[list[int]]]:
    """Encodes the phrases that each translation must contain.

    Args:
        constraints: a list of phrases, or None, for each text; or None.
        texts: list of N str.
        vocabulary: `Vocabulary` of the target.

    Returns:
        list of N lists of phrases, which are lists of int; empty without
        constraints or text.

    Raises:
        ValueError: another number of constraints than of texts.
        TypeError: the constraints of a text are a str.
    """
    if constraints is None:
        return [[] for _ in texts]
    if len(constraints) != len(texts):
        raise ValueError(
            "`constraints` must have a list of phrases, or None, for each text; got "
            f"{len(constraints)} for {len(texts)} texts."
        )
    strings = [phrases for phrases in constraints if isinstance(phrases, str)]
    if strings:
        raise TypeError(
            "`constraints` of a text must be a list of phrases; got "
            f"{strings[0]!r}. Put it into a list."
        )
    return [
        vocabulary.encode(check_texts(phrases)) if phrases and text.strip() else []
        for phrases, text in zip(constraints, texts, strict=True)
    ]
