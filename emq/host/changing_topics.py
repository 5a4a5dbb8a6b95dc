"""The topics whose groups or keys are changing: those with retired groups, and those whose keys move between groups."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

from emq.groups.owned import OwnedGroup, OwnedTopic
from emq.topics.model import Topic


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
        self._shrunk: set[str] = set()
        self._moving: set[str] = set()
        self._wake = asyncio.Event()
        self._some_shrunk = asyncio.Event()

    def follow(self, topic: Topic) -> None:
        """Note whether a new or changed topic is changing now."""
        (self._shrunk.add if topic.groups > topic.active_groups else self._shrunk.discard)(topic.name)
        if self._shrunk:
            self._some_shrunk.set()
        (self._moving.add if topic.earlier else self._moving.discard)(topic.name)
        if self._moving:
            self._wake.set()

    def forget(self, name: str) -> None:
        """Forget a deleted topic."""
        self._shrunk.discard(name)
        self._moving.discard(name)

    def shrunk(self) -> Iterator[Topic]:
        """Yield the topics with retired groups whose last group this host owns."""
        for name in self._shrunk:
            topic = self.topics.get(name)
            if topic is not None and topic.group(topic.groups - 1) in self._groups:
                yield topic

    async def until_some_shrunk(self) -> None:
        """Wait until some topic has retired groups, wherever they are."""
        if not self._shrunk:
            self._some_shrunk.clear()
        await self._some_shrunk.wait()

    def moving(self) -> list[OwnedTopic]:
        """Return the topics with groups here whose keys may be moving between groups."""
        return [owner for name in self._moving if (owner := self._owned.get(name)) is not None]

    def look(self) -> None:
        """End a wait for moving keys once, although none may be moving."""
        self._wake.set()

    async def until_something_moves(self) -> None:
        """Wait until keys of some topic may be moving between groups on any hosts, or until `look` is called."""
        if not self._moving:
            self._wake.clear()
        await self._wake.wait()
