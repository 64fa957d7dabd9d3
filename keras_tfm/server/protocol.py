"""HTTP/1.1 of uvicorn, with time limits for slow clients."""

import asyncio
import sys

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from keras_tfm.server.access import HEADER_BYTES, SECURITY_HEADERS, error_bytes

# A body may arrive in so many pieces (chunks, or packets), and in one more for
# each so many bytes.
FREE_PIECES, PIECE_BYTES = 10_000, 64


class _Connection(h11.Connection):
    """Rejects bodies in very many pieces; each takes 20 microseconds."""

    _pieces = _size = 0  # of the body that is read

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._pieces = self._size = 0
        elif isinstance(event, h11.Data):
            self._pieces, self._size = self._pieces + 1, self._size + len(event.data)
            if self._pieces > FREE_PIECES + self._size // PIECE_BYTES:
                raise h11.RemoteProtocolError("too many pieces", 413)
        return event


class LimitedProtocol(H11Protocol):
    """Closes connections of clients that do not send headers or read answers.

    uvicorn waits for them without limit, so that idle clients could use up the
    file descriptors of the server.

    Args:
        header_timeout: float > 0, in seconds, from the connection or from the
            first byte after a response to the end of the headers. Past it a
            client that has sent something gets status 408. A client that does
            not read for as long while an answer waits is cut off.
        max_connections: int >= 1. Connections beyond it are closed at once.
        *args, **kwargs: of uvicorn's protocol.
    """

    def __init__(self, header_timeout: float, max_connections: int, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.header_timeout = header_timeout
        self.max_connections = max_connections
        self.conn = _Connection(h11.SERVER, self.config.h11_max_incomplete_event_size)
        self._header_timer: asyncio.TimerHandle | None = None
        self._reading_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            transport.close()
            return
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        abort = self.transport.abort
        self._reading_timer = self.loop.call_later(self.header_timeout, abort)

    def resume_writing(self) -> None:
        if self._reading_timer is not None:
            self._reading_timer.cancel()
            self._reading_timer = None
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._waits_for_client():
            self._stop_timer()
        elif self._header_timer is None:  # more bytes do not prolong it
            self._start_timer()

    def send_400_response(self, msg: str) -> None:
        """Answers a request that is not HTTP, or whose headers are too long, or
        whose body is in too many pieces."""
        status = getattr(sys.exception(), "error_status_hint", 400)
        if status == 431:
            msg = f"A request must have at most {HEADER_BYTES} bytes of headers."
        elif status == 413:
            msg = f"A body must arrive in at most {FREE_PIECES} pieces, and one more "
            msg += f"for each {PIECE_BYTES} bytes. Send larger chunks."
        self._send_error(status, msg)

    def _waits_for_client(self):
        """Returns whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _start_timer(self):
        self._header_timer = self.loop.call_later(self.header_timeout, self._end)

    def _stop_timer(self):
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _end(self):
        self._header_timer = None
        if self.transport.is_closing() or not self._waits_for_client():
            return
        has_begun = bool(self.conn.trailing_data[0])
        if has_begun and self.conn.our_state is h11.IDLE:
            message = f"The headers must arrive within {self.header_timeout:g} seconds."
            self._send_error(408, message)
        self.transport.close()
        # What the client does not read would keep the connection open.
        self.loop.call_later(self.header_timeout, self.transport.abort)

    def _send_error(self, status, message):
        """Answers with an error unless an answer has begun, and closes."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        body, headers = error_bytes(status, message)
        headers = {**headers, **SECURITY_HEADERS}
        events = (
            h11.Response(status_code=status, headers=list(headers.items())),
            h11.Data(data=body),
            h11.EndOfMessage(),
        )
        for event in events:
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
