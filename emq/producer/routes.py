"""A topic as the producer needs it: its queues or slots, and the group of each message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from emq.storage import message
from emq.storage.slot_store import Slot
from emq.topics.key_layouts import group_of_key
from emq.topics.model import Topic


class Memory:
    """All that a process remembers of its publishes to a topic; it goes when the producer drops the topic's route.

    Attributes:
        turn: counts the messages without a key, which go to the groups in turn.
        tails: see `emq.producer.queue_tails`; by group and priority.
    """

    __slots__ = ("tails", "turn")

    def __init__(self) -> None:
        self.turn = 0
        self.tails: dict[tuple[int, int], int] = {}


class Route(NamedTuple):
    """A topic as the producer needs it.

    Attributes:
        queues: names of a log topic's queues, by group and priority.
        slots: a sorted topic's slots.
        max_length: most messages that one group may hold; None for no limit.
        memory: the same in all routes of a topic, until the topic is deleted.
    """

    topic: Topic
    queues: list[list[str]]
    slots: list[Slot]
    max_length: int | None
    memory: Memory

    def group(self, key: str | None, uid: str | None = None) -> int:
        """Return the group of the key; without a key, the next group in turn.

        Where the topic remembers ids, a message without a key goes to the group of its id, which remembers it.
        """
        groups = self.topic.active_groups
        if groups == 1:
            return 0
        if key is None and uid is not None and self.topic.options.dedupe_s:
            key = message.label(uid)
        if key is not None:
            return group_of_key(key, groups)
        turn = self.memory.turn
        self.memory.turn = turn + 1
        return turn % groups

    def places(
        self, keys: Sequence[str | None], uids: Sequence[str], chosen: Sequence[int]
    ) -> dict[int, Sequence[int]]:
        """Deal the chosen messages, given by their places in `keys` and `uids`, out to groups.

        This does what `group` does for each message, in a third of the time. If no message has a key, there is no step
        for each message at all.
        """
        groups, by_id = self.topic.active_groups, self.topic.options.dedupe_s
        if groups == 1:
            return {0: chosen}
        turn = self.memory.turn
        if not by_id and keys.count(None) == len(keys):
            self.memory.turn = turn + len(chosen)
            return {(turn + i) % groups: chosen[i::groups] for i in range(min(groups, len(chosen)))}
        places: dict[int, list[int]] = {}
        for i in chosen:
            key = message.label(uids[i]) if by_id and keys[i] is None else keys[i]
            if key is None:
                group = turn % groups
                turn += 1
            else:
                group = group_of_key(key, groups)
            places.setdefault(group, []).append(i)
        self.memory.turn = turn
        return {**places}


def route_of(topic: Topic, memory: Memory) -> Route:
    """Return the topic's route."""
    length, groups = topic.options.max_length, range(topic.active_groups)
    share = None if length is None else max(1, length // topic.active_groups)
    if topic.is_sorted:
        return Route(topic, [], [topic.slot(i) for i in range(topic.slots)], share, memory)
    return Route(topic, [topic.queues(g) for g in groups], [], share, memory)
