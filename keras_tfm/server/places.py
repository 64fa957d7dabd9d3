"""How many jobs may be in flight, and whose turn it is."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Hashable, Iterator

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

    To tokenize the texts of a job takes up to a second. So one job does so at a
    time, and the jobs of a large request let others go first.
    """

    def __init__(self):
        self._waiting, self._is_taken = RoundRobin(), False

    @contextlib.asynccontextmanager
    async def take(self, request: Hashable = None) -> AsyncIterator[None]:
        """Waits for a turn, which lasts as long as a `with` block.

        Args:
            request: hashable, the same for all its jobs; None for one of its
                own.
        """
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.append(turn, turn if request is None else request)
        if not self._is_taken:
            self._is_taken = True
            loop.call_soon(self._give)
        try:
            await turn
            yield
        finally:
            if not turn.cancelled():  # else its client left before its turn
                loop.call_soon(self._give)

    def _give(self):
        while self._waiting:
            turn = self._waiting.pop()
            if not turn.done():
                turn.set_result(None)
                return
        self._is_taken = False
