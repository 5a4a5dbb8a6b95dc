"""A look ahead in queues that a group cannot read on: how far they hold no message of an earlier layout."""

from __future__ import annotations

from typing import cast

from emq.groups.owned import OwnedQueue
from emq.host import unread_layouts
from emq.host.unread_layouts import Unread, UnreadLayouts
from emq.storage import message
from emq.storage.log_store import Put
from emq_stores.memory import MemoryStore, World


class Queue:
    """What a look ahead needs of an `OwnedQueue`."""

    def __init__(self, name: str, position: int) -> None:
        self.name = name
        self.position = position


async def filled(*layouts: int | None) -> tuple[UnreadLayouts, OwnedQueue]:
    """Return a queue with a message of each layout; None stands for one without a key, -1 for a stranger's."""
    store = MemoryStore(World())
    bodies = [
        b"stranger" if n == -1 else message.encode("id", b"x", None if n is None else "k", 1, None, n or 0)
        for n in layouts
    ]
    await store.log.put([Put("t/0/high", bodies)])
    return UnreadLayouts(store.log), cast(OwnedQueue, Queue("t/0/high", store.log.first_offset))


async def test_a_look_ahead_stops_at_a_message_of_the_layout_or_of_an_older_one() -> None:
    unread, queue = await filled(7, 6, None, -1, 5, 7, 4)
    first = queue.position
    assert unread.clear_until(queue, 5) == first
    for number, stop in ((5, 4), (4, 6), (6, 1), (3, 7)):
        await unread.look([Unread(queue, first + 7, number)])
        assert unread.clear_until(queue, number) == first + stop
    queue.position = first + 2
    assert unread.clear_until(queue, 6) == first + 2  # what another layout was asked for says nothing


async def test_a_long_queue_is_looked_at_in_parts_and_forgotten_when_nobody_asks() -> None:
    count = 2 * unread_layouts.MESSAGES + 10
    unread, queue = await filled(*[9] * count)
    first = queue.position
    for seen in (unread_layouts.MESSAGES, 2 * unread_layouts.MESSAGES, count):
        await unread.look([Unread(queue, first + count, 8)])
        assert unread.clear_until(queue, 8) == first + seen
    await unread.look([])
    assert unread.clear_until(queue, 8) == first
