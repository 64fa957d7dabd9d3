"""How many jobs may be in flight."""

import contextlib
from collections.abc import Iterator

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
