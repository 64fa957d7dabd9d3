"""A translator that many requests share."""

import asyncio
import concurrent.futures
import functools
import os
from collections.abc import Callable, Hashable, Sequence

from keras_tfm.pipelines.finishing import time_check, warm_up
from keras_tfm.pipelines.segmentation import SegmentedText
from keras_tfm.pipelines.translation import Translation
from keras_tfm.pipelines.translator import Translator
from keras_tfm.runtime.continuous import SOURCE_BUCKETS, ContinuousDecoder
from keras_tfm.runtime.decoder import Decoder

SECOND_PASS = 2  # lengths
LONG = 32  # segments of a request, above which other threads assemble it


class SharedTranslator:
    """Translates concurrent requests by continuous batching.

    A request joins the requests that are being decoded, and returns as soon as
    its own texts are done.

    Args:
        translator: `Translator` whose options `supports` accepts.
        batch_size: int >= 1, the most sentences decoded at once.

    Raises:
        ValueError: options that `ContinuousDecoder` does not support.

    Example:
        ```python
        import asyncio

        from keras_tfm.pipelines import SharedTranslator, Translator

        shared = SharedTranslator(Translator.from_preset("en-de"), batch_size=4)


        async def translate_concurrently():
            requests = ["Good morning!"], ["Good night!"]
            return await asyncio.gather(*map(shared.translate, requests))


        [morning], [night] = asyncio.run(translate_concurrently())
        assert (morning.text, night.text) == ("Guten Morgen!", "Gute Nacht!")
        shared.close()
        ```
    """

    def __init__(self, translator: Translator, batch_size: int = 32):
        self.translator = translator
        self._decoder = ContinuousDecoder(
            translator.decoder,
            batch_size,
            target_prefix=translator.config.target_prefix,
        )
        # Their second pass may take a minute, and other requests need a thread.
        threads = max(1, (os.cpu_count() or 1) // 2)
        self._long = concurrent.futures.ThreadPoolExecutor(threads, "long requests")

    def __repr__(self) -> str:
        return f"<SharedTranslator: {self.translator!r}>"

    @staticmethod
    def supports(translator: Translator) -> bool:
        """Returns whether a translator can be shared.

        Args:
            translator: `Translator`.
        """
        decoder = translator.decoder
        return isinstance(decoder, Decoder) and ContinuousDecoder.supports(decoder)

    async def translate(
        self,
        texts: Sequence[str],
        timeout: float | None = None,
        group: Hashable = None,
    ) -> list[Translation]:
        """Translates the texts of one request.

        Args:
            texts: list of str.
            timeout: float > 0, in seconds; or None.
            group: hashable. Groups of calls take turns; None for a group of its
                own.

        Returns:
            list of `Translation`, in the order of the texts.

        Raises:
            ValueError, TypeError: see `Translator.translate`.
            TimeoutError: translating took longer than `timeout`.
        """
        return await self.decode(self.translator.encode(texts), timeout, group)

    async def decode(
        self,
        sources: Sequence[SegmentedText],
        timeout: float | None = None,
        group: Hashable = None,
    ) -> list[Translation]:
        """Translates the encoded texts of one request.

        Args:
            sources: list of `SegmentedText`, from `Translator.encode`.
            timeout, group: see `translate`.

        Returns:
            list of `Translation`, in the order of the texts.

        Raises:
            TimeoutError: see `translate`.
        """
        check_time = time_check(timeout, len(sources))
        group = object() if group is None else group
        futures = [
            asyncio.wrap_future(self._decoder.submit(segment.ids, group))
            for source in sources
            for segment in source.segments
        ]
        try:
            # Not `wait_for`, which logs an error if this is canceled.
            async with asyncio.timeout(timeout):
                decoded = await asyncio.gather(*futures)
        finally:  # a source that still waits leaves the queue
            for future in futures:
                future.cancel()
        # It may decode again, and must not block the event loop.
        assemble = functools.partial(
            self.translator.assemble, sources, decoded, check_time=check_time
        )
        threads = self._long if len(futures) > LONG else None
        return await asyncio.get_running_loop().run_in_executor(threads, assemble)

    def prepare(self) -> None:
        """Compiles the functions that are needed to translate any text.

        Translating is slower until `warm_up` has ended, see
        `ContinuousDecoder.prepare`.
        """
        self._decoder.prepare()

    def warm_up(
        self,
        lengths: Sequence[int] = SOURCE_BUCKETS[:-1],
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Compiles the functions that texts of some lengths need.

        It may run in a thread while texts are translated.

        Args:
            lengths: ints >= 1, in source tokens, with prefix and suffix,
                ascending. Functions that decode a faulty segment again are
                compiled for the first two lengths only.
            check: see `Decoder.warm_up`.
        """
        self._decoder.warm_up(lengths, check)
        warm_up(self.translator, lengths[:SECOND_PASS], {}, check)

    def close(self) -> None:
        """Rejects further texts, and waits for those that are being decoded."""
        self._decoder.close()
        self._long.shutdown()
