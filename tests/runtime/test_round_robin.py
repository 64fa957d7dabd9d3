"""A queue in which groups take turns."""

import pytest

from keras_tfm.runtime.round_robin import RoundRobin

pytestmark = pytest.mark.backend("torch")


def test_groups_take_turns_and_keep_their_order():
    queue = RoundRobin()
    for item in ("a1", "a2", "a3", "b1", "c1", "b2"):
        queue.append(item, item[0])
    items = [queue.pop() for _ in range(3)]
    queue.append("d1", "d")
    assert len(queue) == 4 and queue.first() == "a2"
    items += [queue.pop() for _ in range(4)]
    assert items == ["a1", "b1", "c1", "a2", "b2", "d1", "a3"]
    assert not queue


def test_a_removed_item_leaves_nothing_behind():
    queue = RoundRobin()
    for item in ("a1", "a2", "b1"):
        queue.append(item, item[0])
    assert queue.pop() == "a1"
    for item in ("a1", "b1", "c1", "b1"):  # some are not in the queue
        queue.remove(item, item[0])
    assert len(queue) == 1 and queue.pop() == "a2" and not queue
    assert not queue._groups
