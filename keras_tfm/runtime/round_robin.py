"""A queue in which those that wait take turns."""

import collections
from collections.abc import Hashable
from typing import Any


class RoundRobin:
    """A queue that takes one item of each group in turn.

    So a group of many items does not delay the others. The items of a group
    keep their order.

    Example:
        ```python
        from keras_tfm.runtime.round_robin import RoundRobin

        queue = RoundRobin()
        for item in ("a1", "a2", "a3", "b1"):
            queue.append(item, group=item[0])
        assert [queue.pop() for _ in range(4)] == ["a1", "b1", "a2", "a3"]
        ```
    """

    def __init__(self):
        # In the order of their turns; none is empty.
        self._groups: dict[Hashable, collections.deque] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, item: Any, group: Hashable) -> None:
        """Adds an item.

        Args:
            item: of any type.
            group: hashable, such as the number of a request.
        """
        self._groups.setdefault(group, collections.deque()).append(item)
        self._count += 1

    def remove(self, item: Any, group: Hashable) -> None:
        """Removes an item, unless `pop` has returned it.

        Args:
            item, group: of `append`.
        """
        items = self._groups.get(group, ())
        if item in items:
            items.remove(item)
            self._count -= 1
            if not items:
                del self._groups[group]

    def first(self) -> Any:
        """Returns the item that `pop` removes next."""
        return next(iter(self._groups.values()))[0]

    def pop(self) -> Any:
        """Removes and returns the first item of the group whose turn it is."""
        group, items = next(iter(self._groups.items()))
        del self._groups[group]  # its next turn is the last
        item = items.popleft()
        if items:
            self._groups[group] = items
        self._count -= 1
        return item
