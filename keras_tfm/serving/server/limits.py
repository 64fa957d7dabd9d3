"""What a server takes at most, and by which status it refuses more."""

import contextlib
import dataclasses
import json


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a server takes at most.

    Args:
        body_bytes: int >= 1, of a request; 413.
        text_length: int >= 1, characters of a text; 413.
        texts: int >= 1, of a request; 413.
        seconds: float > 0, until an answer; 504.
        waiting: int >= 1, requests that wait in a worker, and as many before
            it; one of many texts counts for each quarter of a batch; 503.
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
        if min(dataclasses.astuple(self)) <= 0:
            raise ValueError(f"Limits are above 0. Received: {self}.")

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
    """Refuses bodies that are too large before they are read whole.

    Args:
        app: ASGI application.
        body_bytes: int >= 1.
    """

    def __init__(self, app, body_bytes):
        self.app, self.body_bytes = app, body_bytes

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self.body_bytes:
            await _refuse(send, self.body_bytes)
            return
        read, begun = 0, False

        async def counted():
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self.body_bytes:
                raise _TooLarge
            return message

        async def watched(message):
            nonlocal begun
            if begun or read <= self.body_bytes:
                begun = True
                await send(message)
            # Else the application answers what it could not read.

        with contextlib.suppress(_TooLarge):
            await self.app(scope, counted, watched)
        if not begun:
            await _refuse(send, self.body_bytes)


class _TooLarge(Exception):
    """More came than the limit."""


async def _refuse(send, most):
    body = json.dumps({"error": f"A body has {most} bytes at most."}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": body})
