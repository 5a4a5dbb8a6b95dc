"""Looks at the layouts of stored messages that a group cannot read yet, because its buffers are full of held ones.

A group has passed an earlier layout once no message of it is left there (`emq.topics.key_layouts`). The messages of the
layout may all be finished while newer ones fill the group's buffers: their keys wait for other groups, and these may
wait for this group in turn. So the passage loop must not wait until the group has read on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from emq.groups.owned import OwnedQueue
from emq.runtime.slicing import in_slices
from emq.storage import message
from emq.storage.answers import of_each
from emq.storage.log_store import Batch, LogStore, Read

MESSAGES = 2_000
BYTES = 1 << 20
"""Most messages of one queue, and most bytes over all queues, that one look reads."""

TOGETHER = 200
"""Messages decoded in one step; then the event loop may run other tasks."""


class Unread(NamedTuple):
    """The part of a queue that its group has not read yet, before the offset `upto`; asked for the layout `number`."""

    queue: OwnedQueue
    upto: int
    number: int


class UnreadLayouts:
    """Remembers how far the queues hold no message of a layout or of an older one; reads on at each look.

    It reads as an observer, so neither fences nor wake-ups change.
    """

    def __init__(self, log_store: LogStore) -> None:
        self._log = log_store
        self._clear: dict[OwnedQueue, tuple[int, int]] = {}

    def clear_until(self, queue: OwnedQueue, number: int) -> int:
        """Return the offset before which the queue holds no unread message of that layout or of an older one."""
        known, offset = self._clear.get(queue, (-1, 0))
        return max(queue.position, offset) if known == number else queue.position

    async def look(self, parts: Sequence[Unread]) -> None:
        """Read on in these queues, and forget all others."""
        starts = [self.clear_until(queue, number) for queue, _, number in parts]
        self._clear = {part.queue: (part.number, start) for part, start in zip(parts, starts, strict=True)}
        if not parts:
            return
        reads = [
            Read(part.queue.name, start, min(MESSAGES, max(1, part.upto - start)), None)
            for part, start in zip(parts, starts, strict=True)
        ]
        for part, batch in zip(parts, await of_each(self._log.read(reads, BYTES), len(reads)), strict=True):
            if isinstance(batch, Batch):
                self._clear[part.queue] = part.number, await _first(batch, part)


async def _first(batch: Batch, part: Unread) -> int:
    """Return the offset of the first message of the layout or of an older one, or the end of the batch."""
    async for offset, body in in_slices(list(zip(batch.offsets, batch.bodies, strict=True)), TOGETHER):
        try:
            m = message.decode(body)
        except message.UNREADABLE:  # no message of EMQ, so it has no key
            continue
        if m.key is not None and m.group <= part.number:  # a log queue stores the layout in this field
            return offset
    return part.upto if batch.exhausted else batch.next
