"""A change of the catalog, within one transaction."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from emq.topics import budgets, changing, families
from emq.topics.catalog_rows import TopicRows
from emq.topics.families import Family
from emq.topics.family_rows import Stored, counts
from emq.topics.model import Topic


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

    def begun(self, topics: Sequence[Topic], known: Mapping[str, Topic]) -> tuple[Sequence[Topic], Sequence[Topic]]:
        """Return new topics with their first layouts and divisions, kept apart from deleted topics of the same names.

        Also returns the budgets above them that change.

        The database may have lost a former topic whose messages and queues still have layouts. These are lower than any
        new layout, since its number is at least the time of day.

        Args:
            topics: to be created.
            known: topics that this change has changed already, by name.
        """
        buried = self.rows.buried(topic.name for topic in topics)
        above = self.rows.budgets_above(topics)
        timely = buried or above or any(t.options.budget or t.qps < 1 for t in topics)
        now_s = self.now_s if timely else 0.0
        new = [t if t.is_sorted else msgspec.structs.replace(t, layout=self.layout) for t in topics]
        new = [changing.again(t, self.layout, buried[t.name], now_s) if t.name in buried else t for t in new]
        new, named = budgets.begun(new, {**above, **known}, now_s)
        for family, more in counts(new).items():
            self.rows.families.count(family, more)
        return [changing.created(topic, now_s) for topic in new], named

    def before_ms(self, age_s: float) -> int:
        """Return a version that was not yet given out `age_s` seconds ago, or was the last one then.

        Versions are at least the time in milliseconds; changes may count them up faster, which makes rows look younger.
        """
        return int((self.now_s - age_s) * 1000)

    def bury(self, topics: Sequence[Topic]) -> None:
        """Delete topics; see `TopicRows.bury`."""
        self.rows.bury(self.version, [topic.name for topic in topics], self.now_s)
        for family, fewer in counts(topics).items():
            self.rows.families.count(family, -fewer)

    def name_budget(self, topic: Topic) -> None:
        """Mark the budgets above a family's topics as named, so that they neither sleep nor are deleted.

        Raises:
            UnknownTopic, InvalidTopic: as `budgets.begun`.
        """
        if topic.options.budget is not None:
            _, named = budgets.begun([topic], self.rows.budgets_above([topic]), self.now_s)
            self.save(named)

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
        """Write topics; raises as `TopicRows.save`."""
        self.rows.save(self.version, topics)
