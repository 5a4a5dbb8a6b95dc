"""Topics as a host knows them, for tests of the retirement of groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from emq.topics.model import Topic


class KnownTopics:
    """Knows the topics that it is given, and owns the last group of each."""

    def __init__(self, topics: Iterable[Topic] = ()) -> None:
        self.topics = {topic.name: topic for topic in topics}

    def shrunk(self) -> Iterator[Topic]:
        """Yield the topics with retired groups."""
        return (topic for topic in list(self.topics.values()) if topic.groups > topic.active_groups)

    async def until_some_shrunk(self) -> None:
        """Return at once: the tests change the topics as they like."""
