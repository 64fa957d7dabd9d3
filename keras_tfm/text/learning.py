"""Learns a SentencePiece model from text."""

import io
import itertools
import os
import re
from collections.abc import Iterable

import sentencepiece

from keras_tfm.text.files import iterate_lines

# SentencePiece leaves out training lines over 4,192 bytes and says so nowhere;
# this is the highest limit it accepts.
_LONGEST_LINE = 2**30 - 1
_WORDS = 1_000  # of a line that are learned from at once
# Its own marks: a line that holds one of them would be left out as well.
_RESERVED = str.maketrans({"\0": " ", "\u2585": " "})
_MODEL_TYPES = ("unigram", "bpe")
_NORMALIZATIONS = ("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity")


def learn_model(
    texts,
    size: int,
    model_type: str,
    normalization: str,
    split_digits: bool,
    max_texts,
    special,
    exact: bool,
    marks=(),
) -> bytes:
    """Learns a model with byte fallback and a piece for every character.

    Args:
        texts: strings or `pathlib.Path`s, as in `Vocabulary.train`.
        size: int, V.
        model_type: `"unigram"` or `"bpe"`.
        normalization: a rule of SentencePiece.
        split_digits: bool. Each digit is a piece of its own.
        max_texts: int or None, texts at most.
        special: ids of pad, unknown, start and end.
        exact: bool. False takes fewer pieces where the text has no more.
        marks: strings that are one piece wherever they stand.

    Returns:
        bytes of the model.

    Raises:
        ValueError: `size` does not fit the text, an argument is unknown, there
            is no text, or a file cannot be read.
        TypeError: `texts` is one string or holds something else.
    """
    _check_known("model_type", model_type, _MODEL_TYPES)
    _check_known("normalization", normalization, _NORMALIZATIONS)
    faults = []
    lines = _remembering(training_lines(texts), faults)
    lines = itertools.islice(lines, max_texts)
    first = next(lines, None)
    if first is None:
        raise ValueError(
            "A vocabulary is learned from text. Received: no text that is not "
            "blank. Give sentences, or files as `pathlib.Path`."
        )
    writer = io.BytesIO()
    names = ("pad_id", "unk_id", "bos_id", "eos_id")
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
            max_sentence_length=_LONGEST_LINE,
            minloglevel=2,
            hard_vocab_limit=exact,
            user_defined_symbols=list(marks),
            **dict(zip(names, special, strict=True)),
        )
    except RuntimeError as error:
        if faults:  # SentencePiece keeps only the words of an error
            raise faults[0] from None
        raise _explained(error, size) from error
    return writer.getvalue()


def training_lines(texts) -> Iterable[str]:
    """Yields the lines of texts or files that are not blank.

    Args:
        texts: strings or `pathlib.Path`s, as in `Vocabulary.train`.

    Raises:
        TypeError: `texts` is one string or holds something else.
    """
    if isinstance(texts, str):
        raise TypeError(
            f"`texts` must be a list. Received one string: {texts[:40]!r}. Give a "
            "list of sentences, or a file as `pathlib.Path`."
        )
    for item in [texts] if isinstance(texts, os.PathLike) else texts:
        if not isinstance(item, (str, os.PathLike)):
            raise TypeError(
                "`texts` must hold strings or paths. Received: "
                f"{item!r} of type {type(item).__name__}."
            )
        for line in [item] if isinstance(item, str) else iterate_lines(item):
            if line.strip():
                yield from _cut(line.translate(_RESERVED))


def _cut(line):
    """A line in parts of so many words, whose pieces are the same.

    For one that says the same again and again SentencePiece takes a time that
    grows with the square of its length.
    """
    words = line.split(" ")
    for start in range(0, len(words), _WORDS):
        part = " ".join(words[start : start + _WORDS])
        if part.strip():
            yield part


def _remembering(lines: Iterable[str], faults: list) -> Iterable[str]:
    """Yields the lines, and notes the error that ends them, if one does."""
    try:
        yield from lines
    except Exception as error:
        faults.append(error)
        raise


def _explained(error: RuntimeError, size: int) -> ValueError:
    """Turns SentencePiece's internal error into one that says what to do."""
    message = str(error)
    largest = re.search(r"too high \(\d+\).*<= (\d+)", message)
    smallest = re.search(r"required_chars\. \d+ vs (\d+)", message)
    if largest:
        return ValueError(
            f"The text is too small for so many pieces. Received: size={size}; the "
            f"largest possible is {largest[1]}. Lower `size` or give more text."
        )
    if smallest:
        return ValueError(
            "Pad, unknown, start, end, the 256 bytes and every character of the "
            f"text need a piece each. Received: size={size}; the smallest possible "
            f"is {smallest[1]}. Raise `size`."
        )
    return ValueError(f"SentencePiece could not learn a vocabulary: {message}")


def _check_known(name: str, value: str, known: tuple[str, ...]):
    if value not in known:
        raise ValueError(
            f"`{name}` must be one of {known}. Received: {name}={value!r}."
        )
