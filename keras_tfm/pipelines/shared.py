"""A translator that many ask at once."""

import asyncio

from keras_tfm.runtime.continuous import SOURCE_BUCKETS, ContinuousDecoder


class SharedTranslator:
    """Translates what many ask at once, each as soon as it is done.

    What comes while others are translated goes with them, and waits for none.

    Args:
        translator: `Translator`, whose search `supports` takes.
        batch_size: int >= 1: sentences that are decoded at once.

    Raises:
        ValueError: a search of another kind, see `ContinuousDecoder`.
    """

    def __init__(self, translator, batch_size=32):
        self.translator = translator
        self._search = ContinuousDecoder(
            translator.search,
            batch_size,
            target_prefix=translator.settings["target_prefix"],
        )

    @staticmethod
    def supports(translator) -> bool:
        """Tells whether a translator may be shared.

        Args:
            translator: `Translator`.
        """
        return ContinuousDecoder.supports(translator.search)

    async def translate(self, texts, seconds=None):
        """Translates, and waits for what is asked alone.

        Args:
            texts: list of str.
            seconds: float > 0 or None: give up after so many.

        Returns:
            list of `Translation`, in the order of the texts; as of
            `Translator.translate`.

        Raises:
            ValueError, TypeError: as of `Translator.translate`.
            TimeoutError: it took more than `seconds`.
        """
        rows, places = self.translator.rows_of(texts)
        futures = [asyncio.wrap_future(self._search.submit(row)) for row in rows]
        try:
            found = await asyncio.wait_for(asyncio.gather(*futures), seconds)
        finally:  # where nobody waits any more, what has no place gets none
            for future in futures:
                future.cancel()
        return self.translator.translations_of(texts, rows, places, found)

    def warm_up(self, lengths=SOURCE_BUCKETS[:-1]):
        """Compiles what texts of usual lengths need, few or many.

        Args:
            lengths: ints >= 1, in source tokens, with marks.
        """
        self._search.warm_up(lengths)

    def close(self):
        """Takes no more texts, and waits for those that it has."""
        self._search.close()
