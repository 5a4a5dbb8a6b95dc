"""A change of the catalog, within one transaction."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from emq.topics import budgets, changing, families
from emq.topics.catalog_rows import TopicRows
from emq.topics.families import Family
from emq.topics.family_rows import Stored
from emq.topics.model import Topic


class Begun(NamedTuple):
    """Topics as a change begins them.

    Attributes:
        topics: those that are new or wake.
        named: the budgets above them that change.
        again: names of topics that were there before: the store may have kept their queues sealed.
    """

    topics: Sequence[Topic]
    named: Sequence[Topic]
    again: Collection[str]


class CatalogChange:
    """A change takes the next version first: its row is the lock that keeps other writers out until the end.

    A version is at least the time of day in milliseconds, so after a loss of the database no change gets the version of
    a lost one. Numbers of layouts are at least the time in seconds, since stores keep them in 32 bits. Each change
    counts both up.

    Attributes:
        rows: the rows of the transaction.
        version: the catalog's version from this change on.
        layout: the number of the layouts of topics that this change creates.
    """

    def __init__(self, rows: TopicRows, now_s: Callable[[], float]) -> None:
        self.rows = rows
        self._read_now_s = now_s
        self.version = rows.next_version(int(now_s() * 1000))
        self.layout = rows.next_layout(int(now_s()))

    @functools.cached_property
    def now_s(self) -> float:
        """The time of the change, read when the other writers are done."""
        return self._read_now_s()

    @functools.cached_property
    def families(self) -> Mapping[str, Stored]:
        """The families by name, read when the other writers are done."""
        return self.rows.families.all()

    def begun(self, topics: Sequence[Topic], known: Mapping[str, Topic]) -> Begun:
        """Return new topics with their first layouts and divisions, kept apart from deleted topics of the same names.

        A topic that sleeps becomes a new one; so do budgets above the topics that sleep, which follow the topics.

        The database may have lost a former topic whose messages and queues still have layouts. These are lower than any
        new layout, since its number is at least the time of day.

        Args:
            topics: to be created, or to wake.
            known: topics that this change has changed already, by name.
        """
        above = self.rows.budgets_above(topics)
        asleep = [known.get(name, topic) for name, topic in above.items() if topic.asleep_s]  # hosts must know them now
        topics = [*{topic.name: topic for topic in (*topics, *asleep)}.values()]
        there = {name: topic for name, topic in {**above, **known}.items() if not topic.asleep_s}
        ended_s = self.rows.buried(topic.name for topic in topics)
        ended_s |= {topic.name: topic.asleep_s for topic in topics if topic.asleep_s}
        timely = ended_s or above or any(t.options.budget or t.qps < 1 for t in topics)
        now_s = self.now_s if timely else 0.0
        new = [msgspec.structs.replace(t, layout=0 if t.is_sorted else self.layout, asleep_s=0.0) for t in topics]
        new = [changing.again(t, self.layout, ended_s[t.name], now_s) if t.name in ended_s else t for t in new]
        new, named = budgets.begun(new, there, now_s)
        self.rows.families.count(new, 1)
        return Begun([changing.created(topic, now_s) for topic in new], named, ended_s)

    def bury(self, topics: Sequence[Topic]) -> None:
        """Delete topics; see `TopicRows.bury`."""
        self.rows.bury(self.version, topics, self.now_s)
        self.rows.families.count([topic for topic in topics if not topic.asleep_s], -1)

    def sleep(self, topics: Sequence[Topic]) -> None:
        """Put topics to sleep, for which the store holds nothing."""
        self.rows.drop_passages([topic.name for topic in topics])
        self.rows.families.count(topics, -1)
        self.save([msgspec.structs.replace(topic, asleep_s=self.now_s) for topic in topics])

    def name_budget(self, topic: Topic) -> None:
        """Mark the budgets above a family's topics as named, so that they neither sleep nor are deleted.

        Raises:
            UnknownTopic, InvalidTopic: as `budgets.begun`.
        """
        if topic.options.budget is not None:
            begun = self.begun([topic], {})
            self.save([*begun.topics[1:], *begun.named])

    def family_of(self, name: str, present: Mapping[str, Topic]) -> Family | None:
        """Return the family of a topic that is among those present, or to which a new topic will belong."""
        topic = present.get(name)
        family = families.above(name, self.families) if topic is None else topic.family
        return self.families[family].family if family else None

    def followed(self, topic: Topic) -> Topic:
        """Return the topic; see `families.settled`."""
        if "state" not in topic.own:
            return topic
        return families.settled(topic, self.families[topic.family].family.topic)

    def save(self, topics: Iterable[Topic]) -> None:
        """Write topics; a topic that sleeps goes if its row would say nothing that its family does not say.

        Raises as `TopicRows.save`.
        """
        saved = [changing.at_rest(topic) if topic.asleep_s else topic for topic in topics]
        needless = {topic.name: topic for topic in saved if topic.asleep_s and topic.family and not topic.own}
        if needless:
            self.bury([*needless.values()])
        self.rows.save(self.version, [topic for topic in saved if topic.name not in needless])
