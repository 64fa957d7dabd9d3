"""How many jobs may be in flight, and whose turn it is."""

import asyncio
import contextlib
from collections.abc import Hashable, Iterator

from keras_tfm.runtime.round_robin import RoundRobin
from keras_tfm.server.errors import FULL, Unavailable


class Places:
    """Places of the jobs in flight.

    Args:
        count: int >= 1.
    """

    def __init__(self, count: int):
        self.count, self._in_flight = count, 0

    @contextlib.contextmanager
    def take(self) -> Iterator[None]:
        """Takes a place for the time of a `with` block.

        Raises:
            Unavailable: all are taken.
        """
        if self._in_flight >= self.count:
            raise Unavailable(FULL)
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1


class Turns:
    """Turns of requests on one event loop.

    While the texts of a job are tokenized, for up to a second, nothing else
    happens on the loop. So the jobs of a large request let others go first.
    """

    def __init__(self):
        self._waiting, self._is_giving = RoundRobin(), False

    async def wait(self, request: Hashable = None) -> None:
        """Waits for the turn of a request, which lasts until the next `await`.

        Args:
            request: hashable, the same for all its jobs; None for one of its
                own.
        """
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.append(turn, turn if request is None else request)
        if not self._is_giving:
            self._is_giving = True
            loop.call_soon(self._give, loop)
        await turn

    def _give(self, loop):
        """Lets one job go on, and another one when the loop has run it."""
        self._is_giving = bool(self._waiting)
        if self._waiting:
            turn = self._waiting.pop()
            if not turn.done():  # else its client has gone
                turn.set_result(None)
            loop.call_soon(self._give, loop)
