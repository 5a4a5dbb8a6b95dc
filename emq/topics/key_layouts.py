"""Keys that move: a key's messages stay in order when its topic's number of groups changes.

A key belongs to the group with the number checksum modulo number of groups. When the number of groups changes, most
keys come to another group, often on another host, while their last messages are still in the old group. Promise K says
that messages of one key run one at a time and in order. So:

- Each change of the number of groups makes a *layout* with a number of its own. Each keyed message carries the layout
  by which its producer chose the group.
- After the change, the queues of all groups are *raised* to the new layout: the store refuses messages that a producer
  routed by an older one, and the producer reads the catalog and routes them again. So no further message of an older
  layout comes. The queues' tails at that moment are noted. The process that changes the topic does both, or the owners
  of the groups if it has died.
- An old group has *passed* a layout when its owner has read up to those tails, and no message of that layout or of an
  older one runs or waits there. The owner notes this in the database.
- Until all old groups of a key have passed, the key's new group holds back the key's messages, and no others
  (`KeyGate`). A message that was held back counts as ready only from then on (`Message.ready_us`), also in the trail,
  so lower priorities that started meanwhile have not overtaken it.
- If a message is due in a lane and its key has moved, the host hands it on to the lane of the key's group
  (`emq.fetcher.forwarder`).

`emq.host.passage_loop` raises and notes. The topic lists the layouts that some group has not passed yet (`earlier`).
A layout waits for older ones only, so no two groups ever wait for each other.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from emq.storage.message import Message
    from emq.topics.model import Topic


def group_of_key(key: str, groups: int) -> int:
    """The group of a key among `groups` groups."""
    return zlib.crc32(key.encode()) % groups


class KeyGate:
    """Decides which messages of a topic have to wait, because a former group of their key has not passed yet.

    Until `passed` is known, the messages of all keys that have moved wait.

    Attributes:
        passed: for each group, the newest layout that it has passed: the group holds no message of that layout or of
            older ones.
    """

    __slots__ = ("_topic", "passed")

    def __init__(self, topic: Topic, passed: Mapping[int, int] | None = None) -> None:
        self._topic = topic
        self.passed = dict(passed or {})

    def holds(self, message: Message, group: int) -> bool:
        """Return True if a message with a key has to wait in this group."""
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
        """Return True if a group has no message of that layout, or of an older one, left.

        Args:
            beside: the group that asks. Its own older messages come first anyway, since each queue is in order.
        """
        return group == beside or group >= self._topic.groups or self.passed.get(group, -1) >= layout
