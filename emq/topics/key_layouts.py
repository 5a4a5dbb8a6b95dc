"""Keys that move: how the order of a key survives a change of its topic's number of groups.

A key belongs to the group that its checksum modulo the number of groups names. When that number changes, most keys come
to another group, often on another host, while their last messages still lie in the old one. Promise K says that
messages of one key run one at a time and in order. So:

- Each number of groups is a *layout* with a number of its own. A producer writes into each keyed message the layout by
  which it chose the group.
- When the number changes, the queues of all groups are *raised* to the new layout: the store refuses what a producer
  appends by an older one, and the producer reads the catalog and routes the message again. So nothing old can come any
  more, and the queues' tails at that moment are noted. Who changes the topic does this, and the owners of the groups,
  should that process have died.
- An old group has *passed* a layout when its owner has read up to those tails and nothing of that layout, or of an
  older one, runs or waits there any more. The owner notes that in the database.
- Until all old groups of a key have passed, the key's new group holds its messages back (`KeyGate`), and theirs alone.
- What is due in a lane of a key that has moved is handed on to the lane of the key's group (`emq.fetcher.forwarder`).

`emq.host.passage_loop` raises and notes. The layouts that some group has not passed yet stand in the topic (`earlier`).
A layout waits for older ones only, so no two groups ever wait for each other.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from emq.message import Message
    from emq.topics.model import Topic


def group_of_key(key: str, groups: int) -> int:
    """The group that a key comes to among so many."""
    return zlib.crc32(key.encode()) % groups


class KeyGate:
    """Tells which messages of a topic have to wait, because a former group of their key has not passed yet.

    Closed for all keys that have moved until `passed` is known.

    Attributes:
        passed: of each group, the newest layout of which nothing is left in it, nor of older ones.
    """

    __slots__ = ("_topic", "passed")

    def __init__(self, topic: Topic, passed: Mapping[int, int] | None = None) -> None:
        self._topic = topic
        self.passed = dict(passed or {})

    def holds(self, message: Message, group: int) -> bool:
        """Whether a message with a key has to wait in this group."""
        if message.layout > self._topic.layout:
            return True  # a producer has seen a change of the catalog that this host has not
        number = zlib.crc32((message.key or "").encode())
        for layout in self._topic.earlier:
            if layout.number >= message.layout:
                break
            if not self.is_past(number % layout.groups, layout.number, beside=group):
                return True
        return False

    def is_past(self, group: int, layout: int, beside: int = -1) -> bool:
        """Whether nothing of that layout, or of an older one, is left in a group.

        Args:
            beside: the group that asks: what is left in it comes before, since each queue is in order.
        """
        return group == beside or group >= self._topic.groups or self.passed.get(group, -1) >= layout
