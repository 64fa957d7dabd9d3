"""What all translators share: calls, and any number of texts."""

import abc
from collections.abc import Iterable, Iterator
from typing import Any

from keras_tfm.pipelines.translation import Translation
from keras_tfm.text.files import chunks


class BaseTranslator(abc.ABC):
    """Makes a call and bulk translation of the method `translate`.

    Call arguments:
        texts: str, or list of str.
        progress: bool. Show a progress bar.

    Returns:
        str, or list of str in the same order.

    Example:
        ```python
        from keras_tfm.pipelines import Translator
        from keras_tfm.pipelines.base_translator import BaseTranslator

        assert issubclass(Translator, BaseTranslator)
        ```
    """

    def __call__(
        self, texts: str | Iterable[str], progress: bool = False
    ) -> str | list[str]:
        if isinstance(texts, str):
            return self([texts], progress)[0]
        results: Any = self.translate(texts, return_scores=False, progress=progress)
        return [translation.text for translation in results]

    @abc.abstractmethod
    def translate(
        self, texts: str | Iterable[str], **options: Any
    ) -> Translation | list[Translation]:
        """Translates, and returns scores and n-best lists."""

    def bulk(
        self, texts: Iterable[str], window: int = 10_000, **options: Any
    ) -> Iterator[Translation]:
        """Translates any number of texts in bounded memory.

        Args:
            texts: iterable of str, such as an open file of lines.
            window: int >= 1: texts that are read at once and translated in the
                order of their lengths.
            **options: see `translate`.

        Yields:
            `Translation`, in the order of the texts.

        Raises:
            ValueError: `window` is below 1; or as `translate`.
            TypeError: `texts` is a str; or as `translate`.

        Example:
            ```python
            from keras_tfm.pipelines import Translator

            lines = iter(["Good morning!", "Good night!"])
            results = Translator.from_preset("en-de").bulk(lines)
            assert list(map(str, results)) == ["Guten Morgen!", "Gute Nacht!"]
            ```
        """
        if window < 1:
            raise ValueError(f"`window` must be at least 1; got {window}.")
        if isinstance(texts, str | bytes):
            raise TypeError(
                "`texts` must be an iterable of str; got one "
                f"{type(texts).__name__}. Call the translator with it."
            )
        for window_texts in chunks(texts, window):
            results: Any = self.translate(window_texts, **options)
            yield from results
