"""Learns a SentencePiece model from text."""

import io
import itertools
import os
import re
from collections.abc import Iterable, Iterator

import sentencepiece

from keras_tfm.text.checks import check
from keras_tfm.text.files import iterate_lines

# SentencePiece leaves out training lines over 4,192 bytes without a word; this
# is the highest limit that it accepts.
_MAX_LINE_BYTES = 2**30 - 1
_MAX_WORDS = 1_000  # of a line that are learned from at once
# SentencePiece also leaves out lines with its own symbols.
_RESERVED = str.maketrans({"\0": " ", "\u2585": " "})
_MODEL_TYPES = ("unigram", "bpe")
_NORMALIZATIONS = ("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity")


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
) -> bytes:
    """Learns a model with byte fallback and a token for every character.

    Args:
        texts, size, model_type, normalization, split_digits, max_texts, exact:
            as in `Vocabulary.train`.
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
        ("normalization", normalization, _NORMALIZATIONS),
    ):
        check(value in choices, f"`{name}` must be one of {choices}", **{name: value})
    errors = []
    lines = _recording(training_lines(texts), errors)
    lines = itertools.islice(lines, max_texts)
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
            vocab_size=size,
            model_type=model_type,
            normalization_rule_name=normalization,
            byte_fallback=True,
            character_coverage=1.0,
            split_digits=split_digits,
            max_sentence_length=_MAX_LINE_BYTES,
            minloglevel=2,
            hard_vocab_limit=exact,
            user_defined_symbols=language_tags,
            **{"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3},
        )
    except RuntimeError as error:
        if errors:  # SentencePiece passes on the message of an error alone
            raise errors[0] from None
        raise _explain(error, size) from error
    return writer.getvalue()


def training_lines(texts: Iterable) -> Iterator[str]:
    """Yields the lines of texts or files that are not blank.

    Args:
        texts: strings or `pathlib.Path`s, as in `Vocabulary.train`.

    Raises:
        TypeError: `texts` is one string or holds something else.
    """
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
        for line in [item] if isinstance(item, str) else iterate_lines(item):
            # SentencePiece takes quadratic time for a long line that repeats
            # itself; the tokens of its segments are the same.
            words = line.translate(_RESERVED).split(" ")
            for start in range(0, len(words), _MAX_WORDS):
                segment = " ".join(words[start : start + _MAX_WORDS])
                if segment.strip():
                    yield segment


def _recording(lines: Iterable[str], errors: list) -> Iterator[str]:
    """Yields the lines, and records the error that ends them, if any."""
    try:
        yield from lines
    except Exception as error:
        errors.append(error)
        raise


def _explain(error: RuntimeError, size: int) -> ValueError:
    """Turns SentencePiece's internal error into one that names the limit."""
    message = str(error)
    largest = re.search(r"too high \(\d+\).*<= (\d+)", message)
    smallest = re.search(r"required_chars\. \d+ vs (\d+)", message)
    if largest:
        return ValueError(
            f"`size` is too large for the text; got size={size}, the largest possible "
            f"is {largest[1]}. Lower `size`, add text, or pass `exact=False`."
        )
    if smallest:
        return ValueError(
            f"`size` must hold 4 special tokens, 256 bytes and every character of the "
            f"text; got size={size}, the smallest possible is {smallest[1]}. Raise "
            "`size`."
        )
    return ValueError(f"SentencePiece could not learn a vocabulary: {message}")
