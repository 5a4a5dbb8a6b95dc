"""Names: a group is `<topic>/<index>`, a queue `<topic>/<index>/<priority>`. Only this module takes names apart."""

from __future__ import annotations

from typing import NamedTuple


def group_of(queue: str) -> str:
    """The name of a queue's group."""
    return queue[: queue.rindex("/")]


def priority_of(queue: str) -> str:
    """The name of a queue's priority."""
    return queue[queue.rindex("/") + 1 :]


def topic_of(group: str) -> str:
    """The name of a group's topic."""
    return group[: group.rindex("/")]


def index_of(group: str) -> int:
    """A group's number in its topic, from 0."""
    return int(group[group.rindex("/") + 1 :])


def parts_of(group: str) -> tuple[str, int]:
    """The name of a group's topic, and the group's number in it."""
    topic, _, index = group.rpartition("/")
    return topic, int(index)


class QueueName(NamedTuple):
    """The parts of a queue's name."""

    topic: str
    group: int
    priority: str

    @classmethod
    def parse(cls, queue: str) -> QueueName:
        """Take a queue's name apart."""
        return cls(*parts_of(group_of(queue)), priority_of(queue))
