"""What a server takes at most, and by which status it refuses more."""

import asyncio
import contextlib
import dataclasses
import json
import math

# A request takes a quarter of a batch at a time: what does not fit into one
# waits behind all others, and what is as large as a batch never fits.
PARTS = 4


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a server takes at most.

    Args:
        body_bytes: int >= 1, of a request; 413.
        text_length: int >= 1, characters of a text; 413.
        texts: int >= 1, of a request; 413.
        seconds: float > 0, until a request is there as a whole; 408. And from
            then until its answer; 504.
        waiting: int >= 1, requests that wait in a worker, and as many before
            it; one of many texts counts for each quarter of a batch; 503, and
            413 for one that has more of them than may wait.
        attention_tokens: int >= 1, of a text whose attention is asked for; 413.
        batch_size: int >= 1, texts that a model gets at once where more wait. 1
            is no batching.
    """

    body_bytes: int = 1_000_000
    text_length: int = 20_000
    texts: int = 256
    seconds: float = 60.0
    waiting: int = 256
    attention_tokens: int = 400
    batch_size: int = 32

    def __post_init__(self):
        numbers = dataclasses.astuple(self)
        if not all(number > 0 and math.isfinite(number) for number in numbers):
            raise ValueError(f"Limits are above 0, and finite. Received: {self}.")

    @property
    def part(self):
        """Texts of a request that go to a worker together, at most."""
        return max(1, self.batch_size // PARTS)

    def within(self, parts):
        """Gives limits by which each request has room in a queue.

        Args:
            parts: int >= 1, what the queue holds, see `part`.
        """
        return dataclasses.replace(self, texts=min(self.texts, parts * self.part))

    def fault(self, texts):
        """Says which limit texts exceed, or gives None.

        Args:
            texts: list of str.
        """
        if len(texts) > self.texts:
            return f"A request has {self.texts} texts at most. Received: {len(texts)}."
        longest = max(map(len, texts), default=0)
        if longest > self.text_length:
            return (
                f"A text has {self.text_length} characters at most. Received: "
                f"{longest}. Send its paragraphs one by one."
            )
        return None


class BodyLimit:
    """Refuses bodies that are too large, before they are read, or too slow.

    Args:
        app: ASGI application.
        body_bytes: int >= 1; 413.
        seconds: float > 0, until a body is there as a whole; 408.
    """

    def __init__(self, app, body_bytes, seconds):
        self.app, self.body_bytes, self.seconds = app, body_bytes, seconds

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self.body_bytes:
            await _refuse(send, *self._large())
            return
        read, begun, fault, whole = 0, False, None, False
        end = asyncio.get_running_loop().time() + self.seconds

        async def counted():
            nonlocal read, fault, whole
            try:
                # After its end a client that goes away is waited for.
                async with asyncio.timeout_at(None if whole else end):
                    message = await receive()
            except TimeoutError:
                fault = (408, f"A body is there within {self.seconds:g} seconds.")
                raise _Refused from None
            read += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if read > self.body_bytes:
                fault = self._large()
                raise _Refused
            return message

        async def watched(message):
            nonlocal begun
            if begun or fault is None:
                begun = True
                await send(message)
            # Else the application answers what it could not read.

        with contextlib.suppress(_Refused):
            await self.app(scope, counted, watched)
        if not begun:
            await _refuse(send, *(fault or self._large()))

    def _large(self):
        return 413, f"A body has {self.body_bytes} bytes at most."


class _Refused(Exception):
    """More came than the limit, or less in its time."""


async def _refuse(send, status, message):
    body = json.dumps({"error": message}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
