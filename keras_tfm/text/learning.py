"""Learns a SentencePiece model from text."""

import collections
import functools
import io
import itertools
import logging
import os
import random
import re
from collections.abc import Callable, Iterable, Iterator

import sentencepiece

from keras_tfm.text.checks import check
from keras_tfm.text.files import iterate_lines
from keras_tfm.text.normalization import NORMALIZATIONS, SPACE, normalizer

# SentencePiece leaves out training lines over 4,192 bytes without a word; this
# is the highest limit that it accepts.
_MAX_LINE_BYTES = 2**30 - 1
_MAX_WORDS = 1_000  # of a line that are learned from at once
# SentencePiece also leaves out lines with its own symbols.
_RESERVED = str.maketrans({"\0": " ", "\u2585": " "})
_MODEL_TYPES = ("unigram", "bpe")

_log = logging.getLogger(__name__)


def learn_model(
    texts: Iterable,
    *,
    size: int,
    model_type: str,
    normalization: str,
    split_digits: bool,
    max_texts: int | None,
    exact: bool,
    language_tags: list[str],
    character_coverage: float,
    seed: int,
) -> bytes:
    """Learns a model with byte fallback.

    If the characters to cover are more than `size` allows, the rarest of them
    are left to the bytes too, which is logged as a warning.

    Args:
        texts, size, model_type, normalization, split_digits, max_texts, exact,
        character_coverage, seed: as in `Vocabulary.train`.
        language_tags: strings that are one token wherever they stand.

    Returns:
        bytes of the model.

    Raises:
        ValueError: `size` does not fit the text, an argument is unknown, there
            is no text, or a file cannot be read.
        TypeError: `texts` is one string or holds something else.
    """
    for name, value, choices in (
        ("model_type", model_type, _MODEL_TYPES),
        ("normalization", normalization, NORMALIZATIONS),
    ):
        check(value in choices, f"`{name}` must be one of {choices}", **{name: value})
    check(
        0.98 <= character_coverage <= 1,  # as SentencePiece
        "`character_coverage` must be from 0.98 to 1",
        character_coverage=character_coverage,
    )
    # Special tokens, bytes, tags, the space and a character; SentencePiece ends
    # with an error of its own where not even the first of them fit.
    _check_size(size >= 4 + 256 + len(language_tags) + 2, size)
    if max_texts is not None:
        texts = _sample(_lines(texts), max_texts, seed)
    elif isinstance(texts, Iterator):  # it may be read twice
        texts = list(texts)
    options = {
        "vocab_size": size,
        "model_type": model_type,
        "normalization_rule_name": normalization,
        "split_digits": split_digits,
        "hard_vocab_limit": exact,
        "user_defined_symbols": language_tags,
    }
    lines = functools.partial(training_lines, texts)
    try:
        return _train(lines(), character_coverage=character_coverage, **options)
    except RuntimeError as error:
        excess = _excess_characters(error, size)
    return _train_frequent(lines, character_coverage, excess, options)


def _train_frequent(lines: Callable, coverage: float, excess: int, options) -> bytes:
    """Trains without the rarest characters, which are replaced by spaces.

    Args:
        lines: function that returns an iterable of str.
        coverage: float, the coverage that needs too many characters.
        excess: int, how many are too many.
        options: dict, of SentencePiece, which accepts no coverage below 0.98.
    """
    size = options["vocab_size"]
    normalize = normalizer(options["normalization_rule_name"])
    # SentencePiece does not count the characters of tags.
    symbols = map(re.escape, options["user_defined_symbols"])
    tags = re.compile("|".join(symbols) or r"\Z")

    def untagged():
        return (normalize(tags.sub(" ", line)) for line in lines())

    counts: collections.Counter = collections.Counter()
    for line in untagged():
        counts.update(line)
    characters = _most_frequent(counts, coverage)
    while True:
        characters = characters[: max(0, len(characters) - excess)]
        _check_size(len(characters) > 1, size)
        left_out = counts.keys() - characters
        table = str.maketrans({SPACE: " ", **dict.fromkeys(left_out, " ")})
        frequent = (line.translate(table) for line in untagged())
        try:
            model = _train(frequent, character_coverage=1.0, **options)
            break
        except RuntimeError as error:
            excess = _excess_characters(error, size)
    rate = sum(map(counts.get, left_out)) / counts.total()
    _log.warning(
        f"`size` {size:,} leaves no token for {len(left_out):,} of {len(counts):,} "
        f"characters, {rate:.2%} of the text; they are spelled in bytes."
    )
    return model


def _train(lines: Iterable[str], **options) -> bytes:
    errors = []
    lines = _recording(filter(str.strip, lines), errors)
    first = next(lines, None)
    check(
        first is not None,
        "`texts` must hold a text that is not blank",
        "Pass sentences, or files as `pathlib.Path`.",
        first=first,
    )
    writer = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=itertools.chain([first], lines),
            model_writer=writer,
            byte_fallback=True,
            max_sentence_length=_MAX_LINE_BYTES,
            minloglevel=2,
            **{"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3},
            **options,
        )
    except RuntimeError:
        if errors:  # SentencePiece passes on the message of an error alone
            raise errors[0] from None
        raise
    return writer.getvalue()


def training_lines(texts: Iterable) -> Iterator[str]:
    """Yields the lines of texts or files that are not blank, in segments.

    Args:
        texts: strings or `pathlib.Path`s, as in `Vocabulary.train`.

    Raises:
        TypeError: `texts` is one string or holds something else.
    """
    for line in _lines(texts):
        # SentencePiece takes quadratic time for a long line that repeats
        # itself; the tokens of its segments are the same.
        words = line.translate(_RESERVED).split(" ")
        for start in range(0, len(words), _MAX_WORDS):
            segment = " ".join(words[start : start + _MAX_WORDS])
            if segment.strip():
                yield segment


def _lines(texts: Iterable) -> Iterator[str]:
    if isinstance(texts, str):
        raise TypeError(
            f"`texts` must be a list; got one string: {texts[:40]!r}. Pass a list of "
            "sentences, or a file as `pathlib.Path`."
        )
    for item in [texts] if isinstance(texts, os.PathLike) else texts:
        if not isinstance(item, str | os.PathLike):
            raise TypeError(
                "`texts` must hold strings or paths; got "
                f"{item!r} of type {type(item).__name__}."
            )
        lines = [item] if isinstance(item, str) else iterate_lines(item)
        yield from (line for line in lines if line.strip())


def _sample(lines: Iterable[str], count: int, seed: int) -> list[str]:
    """Draws lines, each with the same probability, in one pass."""
    check(count >= 1, "`max_texts` must be at least 1", max_texts=count)
    draw, sample = random.Random(seed), []
    for number, line in enumerate(lines):
        if number < count:
            sample.append(line)
        elif (index := draw.randrange(number + 1)) < count:
            sample[index] = line
    return sample


def _most_frequent(counts: collections.Counter, coverage: float) -> list[str]:
    """Returns the space, and the characters that a coverage needs, by count."""
    total, covered, characters = counts.total(), 0, [SPACE]
    for character, count in counts.most_common():
        if covered >= coverage * total:
            break
        covered += count
        characters += [character] * (character != SPACE)
    return characters


def _check_size(fits: bool, size: int) -> None:
    """Raises an error that says what a vocabulary of any size holds."""
    check(
        fits,
        "`size` must hold 4 special tokens, 256 bytes, the language tags, the space "
        "and a character",
        "Raise `size`.",
        size=size,
    )


def _recording(lines: Iterable[str], errors: list) -> Iterator[str]:
    """Yields the lines, and records the error that ends them, if any."""
    try:
        yield from lines
    except Exception as error:
        errors.append(error)
        raise


def _excess_characters(error: RuntimeError, size: int) -> int:
    """Returns how many characters to cover are too many for a size.

    Raises:
        ValueError: the error has another reason.
    """
    match = re.search(r"required_chars\. \d+ vs (\d+)", str(error))
    if not match:
        raise _explain(error, size) from error
    return int(match[1]) - size


def _explain(error: RuntimeError, size: int) -> ValueError:
    """Turns SentencePiece's internal error into one that names the limit."""
    largest = re.search(r"too high \(\d+\).*<= (\d+)", str(error))
    if largest:
        return ValueError(
            f"`size` is too large for the text; got size={size}, the largest possible "
            f"is {largest[1]}. Lower `size`, add text, or pass `exact=False`."
        )
    return ValueError(f"SentencePiece could not learn a vocabulary: {error}")
