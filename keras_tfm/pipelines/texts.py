"""Checks of texts before any of them is processed."""

from collections.abc import Iterable, Mapping

from keras_tfm.text.files import is_unicode


def check_texts(texts: Iterable[str]) -> list[str]:
    """Returns texts as a list, or raises if one is not text.

    Args:
        texts: iterable of str.

    Raises:
        TypeError: `texts` is not an iterable of str.
        ValueError: a text has a lone surrogate.
    """
    types = {type(texts).__name__}
    if isinstance(texts, Iterable) and not isinstance(texts, bytes | Mapping):
        texts = list(texts)
        types = {type(text).__name__ for text in texts if not isinstance(text, str)}
    if types:
        raise TypeError(
            f"`texts` must be a str or a list of str; got {sorted(types)}. Decode "
            "bytes, and pass '' for a missing text."
        )
    for number, text in enumerate(texts):
        check_unicode(text, number)
    return texts


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
