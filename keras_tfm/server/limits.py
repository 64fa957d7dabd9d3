"""Limits of a server, and the status of a request that exceeds one."""

import asyncio
import contextlib
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from keras_tfm.server.access import Access, reject

if TYPE_CHECKING:  # the command line reads the limits without Starlette
    from starlette.types import ASGIApp, Receive, Scope, Send

# A request is decoded in quarters of a batch: a request as large as a batch
# would wait behind all others, since there is never room for it.
QUARTERS = 4
PAGE = 500  # characters that weigh as much as a text
MAX_TOKENS = 5_000  # of a text: 40 s at worst, on a core with 8 million weights

UNFINISHED_BODIES = 256  # of the largest size, whose ends have not arrived

# Characters of the translations of a request, if its texts were nothing but
# terms of its glossary.
GLOSSARY_CHARACTERS = 10_000_000
# A text is compared with each length of the terms that begin with its words.
TERM_CHARACTERS = 200  # of a term, and of its translation


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a server.

    Attributes:
        max_body_bytes: int >= 1, size of a request body; status 413.
        max_characters: int >= 1, length of a text; 413.
        max_texts: int >= 1, texts of a request; 413.
        timeout: float > 0, seconds until a request body is complete (408), and
            from then until its answer (504).
        max_waiting: int >= 1, requests that wait; a request of many texts
            counts once for each quarter of a batch; 503.
        max_attention_tokens: int >= 1, tokens of a text whose attention is
            requested; a quarter of a batch has together as much attention as
            one such text; 413.
        batch_size: int >= 1, texts that are decoded at once; 1 disables
            batching.
        header_timeout: float > 0, seconds until the headers of a request are
            complete; 408.
        access: `Access`.

    Raises:
        ValueError: a limit is not positive and finite.
    """

    max_body_bytes: int = 1_000_000
    max_characters: int = 20_000
    max_texts: int = 256
    timeout: float = 60.0
    max_waiting: int = 256
    max_attention_tokens: int = 400
    batch_size: int = 32
    header_timeout: float = 10.0
    access: Access = Access()

    def __post_init__(self):
        for name in self.numbers():
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"`{name}` must be positive and finite; got {value}.")

    @classmethod
    def numbers(cls) -> tuple[str, ...]:
        """Returns the names of the limits, which are all but `access`."""
        names = (field.name for field in dataclasses.fields(cls))
        return tuple(name for name in names if name != "access")

    @property
    def chunk_size(self) -> int:
        """The most texts of a request that the engine gets at once."""
        return max(1, self.batch_size // QUARTERS)

    def for_queue(self, size: int) -> "Limits":
        """Returns limits under which every request fits into a queue.

        Args:
            size: int >= 1, chunks that the queue holds.
        """
        max_texts = min(self.max_texts, size * self.chunk_size)
        return dataclasses.replace(self, max_texts=max_texts)

    def exceeded(
        self,
        texts: Sequence[str],
        prefix: str = "",
        glossary: Mapping[str, str] | None = None,
    ) -> str | None:
        """Returns an error message if texts, a prefix or a glossary exceed a
        limit."""
        if len(texts) > self.max_texts:
            return (
                f"A request must have at most {self.max_texts} texts; got {len(texts)}."
            )
        if len(prefix) > self.max_characters:
            return (
                f"`target_prefix` must have at most {self.max_characters} characters; "
                f"got {len(prefix)}. Shorten it."
            )
        longest = max(map(len, texts), default=0)
        if longest > self.max_characters:
            return (
                f"A text must have at most {self.max_characters} characters; got "
                f"{longest}. Send its paragraphs one by one."
            )
        terms = glossary or {}
        growth = max(
            (len(v) / max(1, len(k.strip())) for k, v in terms.items()), default=0
        )
        size = int(growth * sum(map(len, texts)))
        if size > GLOSSARY_CHARACTERS:
            return (
                f"`glossary` must not make translations of more than "
                f"{GLOSSARY_CHARACTERS} characters; these could have {size}. Shorten "
                "its translations, or send fewer texts."
            )
        longest = max((len(x) for pair in terms.items() for x in pair), default=0)
        if longest > TERM_CHARACTERS:
            return (
                f"`glossary` must have terms and translations of at most "
                f"{TERM_CHARACTERS} characters; got {longest}. Shorten them."
            )
        return None


class BodyLimit:
    """ASGI middleware that rejects large bodies, unread, and slow ones.

    So that thousands of bodies whose ends do not come cannot use up the memory,
    there is a limit for all of them; status 503.

    Args:
        app: ASGI application.
        max_body_bytes: int >= 1; status 413.
        timeout: float > 0, seconds until the body is complete; status 408.
    """

    def __init__(self, app: "ASGIApp", max_body_bytes: int, timeout: float):
        self.app, self.max_body_bytes, self.timeout = app, max_body_bytes, timeout
        self.unfinished = 0  # bytes of bodies that are not complete

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self.max_body_bytes:
            await reject(send, *self._too_large())
            return
        size, responding, error, complete = 0, False, None, False
        unfinished = 0
        deadline = asyncio.get_running_loop().time() + self.timeout

        def hold(count):
            nonlocal unfinished
            self.unfinished += count - unfinished
            unfinished = count

        async def limited_receive():
            nonlocal size, error, complete
            try:
                # After the body, `receive` waits for the client to disconnect.
                async with asyncio.timeout_at(None if complete else deadline):
                    message = await receive()
            except TimeoutError:
                error = 408, f"The body must arrive within {self.timeout:g} seconds."
                raise _LimitExceeded from None
            size += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            hold(0 if complete else size)
            if size > self.max_body_bytes:
                error = self._too_large()
            elif self.unfinished > UNFINISHED_BODIES * self.max_body_bytes:
                error = 503, "Too many bodies are arriving. Try again."
            if error is not None:
                raise _LimitExceeded
            return message

        async def watched_send(message):
            nonlocal responding
            # After an error the application answers what it could not read.
            if responding or error is None:
                responding = True
                await send(message)

        try:
            with contextlib.suppress(_LimitExceeded):
                await self.app(scope, limited_receive, watched_send)
        finally:
            hold(0)
        if not responding:
            await reject(send, *(error or self._too_large()))

    def _too_large(self):
        return 413, f"A body must have at most {self.max_body_bytes} bytes."


class Departures:
    """ASGI middleware that cancels the work for a client that has gone.

    A stream is not canceled, since its response watches the client itself.

    Args:
        app: ASGI application.
    """

    def __init__(self, app: "ASGIApp"):
        self.app = app

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        body_end, responding = asyncio.Event(), False

        async def wait_until_gone():
            await body_end.wait()
            while (await receive())["type"] != "http.disconnect":
                pass

        async def watched_receive():
            if body_end.is_set():
                await asyncio.shield(departure)
                return {"type": "http.disconnect"}
            message = await receive()
            if not message.get("more_body", False):
                body_end.set()
            return message

        async def watched_send(message):
            nonlocal responding
            responding = True
            await send(message)

        departure = asyncio.ensure_future(wait_until_gone())
        work = asyncio.ensure_future(self.app(scope, watched_receive, watched_send))
        try:
            await asyncio.wait([work, departure], return_when=asyncio.FIRST_COMPLETED)
            if not responding:
                work.cancel()  # unless it has ended
            await work
        except asyncio.CancelledError:
            if not departure.done():
                raise  # the server ends
        finally:
            departure.cancel()
            work.cancel()


class _LimitExceeded(Exception):
    """The body is larger or slower than its limit."""
