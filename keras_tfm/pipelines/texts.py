"""Checks of texts before any of them is processed."""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from keras_tfm.text.files import is_unicode
from keras_tfm.zoo.imported import AnyVocabulary


def check_texts(texts: Iterable[str]) -> list[str]:
    """Returns texts as a list, or raises if one is not text.

    Args:
        texts: iterable of str.

    Raises:
        TypeError: `texts` is not an iterable of str.
        ValueError: a text has a lone surrogate.
    """
    types = {type(texts).__name__}
    strings = []
    if isinstance(texts, Iterable) and not isinstance(texts, bytes | Mapping):
        strings = list(texts)
        types = {type(text).__name__ for text in strings if not isinstance(text, str)}
    if types:
        raise TypeError(
            f"`texts` must be a str or a list of str; got {sorted(types)}. Decode "
            "bytes, and pass '' for a missing text."
        )
    for number, text in enumerate(strings):
        check_unicode(text, number)
    return strings


def check_vocabulary_size(vocabulary: AnyVocabulary, model: Any, name: str) -> None:
    """Raises a ValueError if a vocabulary is larger than that of its model.

    Args:
        vocabulary: `Vocabulary` or `TokenizersVocabulary`.
        model: a model whose attribute `name` is its vocabulary size, if any.
        name: str.
    """
    size = getattr(model, name, None)
    if size is not None and vocabulary.size > size:
        raise ValueError(
            "The vocabulary must not have more tokens than the model; got "
            f"{vocabulary.size} tokens, {name}={size}. Load the vocabulary the model "
            "was trained with."
        )


def check_encoder_vocabulary(vocabulary: AnyVocabulary, encoder: Any) -> None:
    """Raises a ValueError if a vocabulary does not fit an encoder.

    Args:
        vocabulary: `Vocabulary` or `TokenizersVocabulary`.
        encoder: `Encoder`.
    """
    check_vocabulary_size(vocabulary, encoder, "vocabulary_size")
    if vocabulary.pad_id != encoder.config["pad_id"]:
        raise ValueError(
            "The vocabulary must pad with the id that the encoder masks; got "
            f"{vocabulary.pad_id}, and pad_id={encoder.config['pad_id']}. Create the "
            "encoder with the vocabulary's `pad_id`."
        )


def check_unicode(text: str, number: int) -> None:
    """Raises a ValueError if a text has a lone surrogate.

    Args:
        text: str.
        number: int, its index, for the error.
    """
    if not is_unicode(text):
        raise ValueError(
            f"Text {number} has a lone surrogate, half of a character; got "
            f"{text[:60]!r}. Correct its decoding."
        )


def compose(text: str) -> tuple[str, Sequence[int]]:
    """Composes letters and their accents (NFC), which are one in `\\w`.

    Files from macOS often have them decomposed.

    Args:
        text: str.

    Returns:
        str, and for each of its characters, and its end, the index in the text.
    """
    if unicodedata.is_normalized("NFC", text):
        return text, range(len(text) + 1)
    begins = [i for i, c in enumerate(text) if not (i and _joins(c))]
    parts, places = [], []
    for begin, end in zip(begins, [*begins[1:], len(text)], strict=True):
        parts.append(unicodedata.normalize("NFC", text[begin:end]))
        places += [begin] * len(parts[-1])
    return "".join(parts), [*places, len(text)]


def _joins(char):
    """Whether a character may join the one before: an accent, or a Jamo."""
    return unicodedata.category(char)[0] == "M" or "\u1160" <= char <= "\u11ff"
