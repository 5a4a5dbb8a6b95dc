"""The topics that are changing: those with retired groups, those whose keys move, and those that may sleep."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

from emq.groups.owned import OwnedGroup, OwnedTopic
from emq.topics.model import State, Topic


class _Names:
    """Names of topics of a kind, and a wait until there are some."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._some = asyncio.Event()

    def note(self, name: str, *, is_one: bool) -> None:
        (self.names.add if is_one else self.names.discard)(name)
        if self.names:
            self._some.set()

    def end_wait(self) -> None:
        """End the wait once, although there may be none."""
        self._some.set()

    async def wait(self) -> None:
        if not self.names:
            self._some.clear()
        await self._some.wait()


def may_sleep(topic: Topic) -> bool:
    """Return True if a topic falls asleep when it is empty and idle; see `emq.host.sleeping`."""
    if topic.options.idle_s is None or topic.shared_s:
        return False
    if topic.state is not State.ACTIVE and (not topic.family or "state" in topic.own):  # not with its family
        return False
    return not topic.is_sorted or topic.options.merge == "key"


class ChangingTopics:
    """Knows which topics are changing, so that loops for these look at no others.

    Args:
        topics: every topic of the catalog, by name; `Ownership` changes them.
        owned: topics with a group here, by name.
        groups: the groups of this host, by name.
    """

    def __init__(
        self, topics: Mapping[str, Topic], owned: Mapping[str, OwnedTopic], groups: Mapping[str, OwnedGroup]
    ) -> None:
        self.topics = topics
        self._owned = owned
        self._groups = groups
        self._shrunk, self._moving, self._sleepy = _Names(), _Names(), _Names()

    def follow(self, topic: Topic) -> None:
        """Note whether a new or changed topic is changing now."""
        self._shrunk.note(topic.name, is_one=topic.groups > topic.active_groups)
        self._moving.note(topic.name, is_one=bool(topic.earlier))
        self._sleepy.note(topic.name, is_one=may_sleep(topic))

    def forget(self, name: str) -> None:
        """Forget a deleted topic."""
        for names in (self._shrunk, self._moving, self._sleepy):
            names.note(name, is_one=False)

    def shrunk(self) -> Iterator[Topic]:
        """Yield the topics with retired groups whose last group this host owns."""
        for name in self._shrunk.names:
            topic = self.topics.get(name)
            if topic is not None and topic.group(topic.groups - 1) in self._groups:
                yield topic

    async def until_some_shrunk(self) -> None:
        """Wait until some topic has retired groups, wherever they are."""
        await self._shrunk.wait()

    def moving(self) -> list[OwnedTopic]:
        """Return the topics with groups here whose keys may be moving between groups."""
        return [owner for name in self._moving.names if (owner := self._owned.get(name)) is not None]

    def sleepy(self) -> Iterator[OwnedTopic]:
        """Yield the topics that may sleep and whose groups this host owns all, as they are when they are reached."""
        for name in [*self._sleepy.names]:
            owner = self._owned.get(name)
            if owner is not None and name in self._sleepy.names and len(owner.groups) == owner.topic.groups:
                yield owner

    async def until_some_sleep(self) -> None:
        """Wait until some topic may sleep, wherever its groups are."""
        await self._sleepy.wait()

    def look(self) -> None:
        """End a wait for moving keys once, although none may be moving."""
        self._moving.end_wait()

    async def until_something_moves(self) -> None:
        """Wait until keys of some topic may be moving between groups on any hosts, or until `look` is called."""
        await self._moving.wait()
