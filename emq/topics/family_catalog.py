"""The families of the catalog: creating, changing and deleting them, and making their topics at the first publish."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec
import sqlalchemy as sa

from emq.runtime import errors, plurals
from emq.topics import changing, families, model, row_codec
from emq.topics.admission import Admission
from emq.topics.catalog_change import CatalogChange
from emq.topics.catalog_rows import TopicRows
from emq.topics.families import Family
from emq.topics.family_rows import AllFamilies, Stored
from emq.topics.model import State, Topic

T = TypeVar("T")

Also = Callable[[sa.Connection, Sequence[Topic]], object]

BURIED_S = 600.0
"""Least seconds for which the catalog keeps the row of a deleted topic. A topic of its name that is created within the
first two seconds needs it for its cap; whoever follows the catalog more slowly than this reads all of it again."""

MOST_DROPPED = 2_000
"""Most such rows read, and dropped, in one transaction."""


class Rows(Protocol):
    """The transactions of the catalog."""

    async def read_rows(self, look: Callable[[TopicRows], T]) -> T: ...

    async def write_rows(self, make: Callable[[CatalogChange], T]) -> T: ...


class Changed(NamedTuple):
    """A family as it is now, and its topics that the change has changed, before and after."""

    family: Family
    before: Sequence[Topic]
    after: Sequence[Topic]


class Made(NamedTuple):
    """What `FamilyCatalog.make` found and made.

    Attributes:
        found: the topics by name, also those that were awake. The error for a name that a family refuses:
            `InvalidTopic` (too long, other characters), `FamilyFull`, `TopicClosed` (the family, or a topic that
            sleeps, drains). Nothing for others.
        version: the catalog's version before: what was found has all changes up to it.
        begun: the topics among them that were made or woken.
        again: those that were there before: the store may have kept their queues sealed.
    """

    found: Mapping[str, Topic | errors.EMQError]
    version: int
    begun: Sequence[Topic] = ()
    again: Sequence[Topic] = ()


class FamilyCatalog:
    """The families of one environment. Topics of different families are never mixed up: the longest prefix counts."""

    def __init__(self, rows: Rows, admission: Admission) -> None:
        self._rows = rows
        self._admission = admission

    async def all(self) -> AllFamilies:
        """Return all families by name, in the order of their names, also those that this version cannot read.

        Raises:
            DatabaseUnavailable: try again later.
        """
        return await self._rows.read_rows(lambda rows: rows.families.all())

    async def get(self, name: str) -> Stored:
        """Return a family. Raises `UnknownTopic` if there is no such family."""
        return await self._rows.read_rows(lambda rows: rows.families.get(name))

    async def topics(self, name: str) -> Sequence[Topic]:
        """Return the topics of a family, in the order of their names."""
        return await self._rows.read_rows(lambda rows: members(rows, name))

    async def create(self, family: Family) -> Family:
        """Create a family. If a family of that name has the same settings, return that family.

        Topics that exist already below the prefix do not join the family.

        Raises:
            InvalidTopic: a setting or bound is out of range; the text says what would be right.
            UnknownTopic: there is no topic of the name that is given as its budget; create that topic first.
            TopicExists: there is a family of that name with other settings.
            DatabaseUnavailable: try again later.
        """
        wanted = self.checked(family)

        def create(change: CatalogChange) -> Family:
            if (there := change.families.get(wanted.name)) is not None:
                if families.same(there.family, wanted):
                    return there.family
                raise errors.TopicExists(
                    f"family {wanted.name!r} exists already with other settings; change it with: emq family set, or "
                    "choose another prefix"
                )
            self._admission.permit(wanted.topic, None)
            change.name_budget(wanted.topic)
            change.rows.families.save(wanted, is_new=True)
            return wanted

        return await self._rows.write_rows(create)

    def checked(self, family: Family) -> Family:
        """Return the family with its groups, and all values of their types. Raises `InvalidTopic` as `create`."""
        families.of_prefix(family.name)
        settings = model.settings_of(msgspec.structs.replace(family.topic, family="", own=()))
        return families.checked(msgspec.structs.replace(family, topic=self._admission.checked(settings)))

    async def make(self, names: Collection[str]) -> Made:
        """Wake topics, and make those that lie below a family and have no row, as the first publish to them does.

        All in one transaction. Names that a family refuses, and names below no family, cause no change. `max_topics`
        refuses no topic that has a row: an operator has given it settings of its own, so strangers cannot make many.

        Raises:
            DatabaseUnavailable: try again later.
        """

        def look(rows: TopicRows) -> tuple[int, Mapping[str, Topic], dict[str, Topic | errors.EMQError]]:
            version, bodies = rows.changes.version(), rows.bodies(names)
            there = rows.families.all() if len(bodies) < len(names) else {}
            return version, *_asked(names, bodies, there)

        version, wanted, awake = await self._rows.read_rows(look)
        if not wanted:
            return Made(awake, version)

        def make(change: CatalogChange) -> Made:
            asked, found = _asked(wanted, change.rows.bodies(wanted), change.families)
            begun, again = list[Topic](), list[Topic]()
            for alike in {(topic.family, topic.options.budget): None for topic in asked.values()}:
                same = [topic for topic in asked.values() if (topic.family, topic.options.budget) == alike]
                topics = [topic for topic in same if topic.name not in found]  # or it woke as another one's budget
                try:
                    new, named, there = change.begun(topics, {})
                except errors.EMQError as exc:  # their budget is gone; the others are made
                    found |= {topic.name: exc for topic in topics}
                    continue
                change.save([*new, *named])
                found |= {topic.name: topic for topic in new}
                begun += new
                again += [topic for topic in new if topic.name in there]
            return Made({**awake, **found}, version, begun, again)

        return await self._rows.write_rows(make)

    async def change(
        self,
        name: str,
        changes: Mapping[str, Any],
        bounds: Mapping[str, Any],
        draining: Mapping[str, Collection[int] | None],
    ) -> Changed:
        """Change settings and bounds of a family, and of its topics those that are not their own, all or none.

        Args:
            changes: as for `Catalog.update`.
            bounds: fields of `Bounds`.
            draining: as for `Catalog.update_many`.

        Raises:
            UnknownTopic: there is no such family.
            InvalidTopic: a setting is unknown, may not change, is out of range, or does not go together with a topic's
                own settings; nothing was changed.
            DatabaseUnavailable: try again later.
        """
        changing.validate(model.called(name), changes)

        def change(change: CatalogChange) -> Changed:
            before = change.rows.families.get(name).family
            settings = model.settings_of(self._admission.changed(before.topic, changes))
            after = self.checked(Family(settings, families.with_bounds(before.bounds, bounds)))
            change.rows.families.save(after, is_new=False)
            if not families.differing(after.topic, before.topic):
                return Changed(after, (), ())
            known = members(change.rows, name)
            made = [
                changing.divided(
                    topic,
                    self._admission.following(topic, before.topic, after.topic),
                    draining.get(topic.name),
                    change.now_s,
                )
                for topic in known
            ]
            pairs = [(old, new) for old, new in zip(known, made, strict=True) if old != new]
            change.save(new for _, new in pairs)
            return Changed(after, [old for old, _ in pairs], [new for _, new in pairs])

        return await self._rows.write_rows(change)

    async def inherit(self, topic: str, names: Collection[str], draining: Collection[int] | None = None) -> Topic:
        """Give a topic its family's values of settings that were its own; return the topic.

        Args:
            names: the settings.
            draining: as for `Catalog.update`.

        Raises:
            UnknownTopic: there is no such topic.
            InvalidTopic: the topic belongs to no family, or a setting is unknown or never changes.
            DatabaseUnavailable: try again later.
        """

        def inherit(change: CatalogChange) -> Topic:
            before = change.rows.topic(topic)
            if not before.family:
                raise errors.InvalidTopic(f"topic {topic!r} belongs to no family, so it has nothing to take back")
            after = self._admission.inherited(before, change.rows.families.get(before.family).family, names)
            after = changing.divided(before, after, draining, change.now_s)
            change.save([after])
            return after

        return await self._rows.write_rows(inherit)

    async def delete(self, name: str) -> None:
        """Delete a family that has no topics.

        Raises:
            UnknownTopic: there is no such family.
            StillConsumed: it has topics.
            DatabaseUnavailable: try again later.
        """

        def delete(change: CatalogChange) -> None:
            live = change.rows.families.get(name).live
            if there := max(live, len(members(change.rows, name))):
                raise errors.StillConsumed(
                    f"family {name!r} has {plurals.count(there, 'topic')}; wait until they are empty and idle, "
                    "delete those with settings of their own, or delete the family with force"
                )
            change.rows.families.delete(name)

        await self._rows.write_rows(delete)

    async def versions(self, names: Collection[str]) -> dict[str, int]:
        """Return numbers that change whenever somebody writes these topics' rows, or wakes the topics; see `sleep`."""
        return await self._rows.read_rows(lambda rows: rows.versions(names))

    async def sleep(self, versions: Mapping[str, int], also: Also) -> set[str]:
        """Put topics to sleep whose rows nobody has written since `versions`; return their names.

        For hosts and producers such a topic is gone. Its row stays if it says something that its family does not say;
        the first publish wakes the topic (`make`).

        Somebody who needs a topic writes its row before he opens its queues (`awaken`). So of him and a host that has
        found the topic empty and sealed it, the one whose change comes first wins.

        Args:
            also: writes more in the same transaction, for the topics that fall asleep.

        Raises:
            DatabaseUnavailable: try again later.
        """
        return await self._end(CatalogChange.sleep, versions, also)

    async def forget(self, versions: Mapping[str, int], also: Also) -> set[str]:
        """Delete topics whose rows nobody has written since `versions`; else as `sleep`."""
        return await self._end(CatalogChange.bury, versions, also)

    async def _end(
        self, end: Callable[[CatalogChange, Sequence[Topic]], None], versions: Mapping[str, int], also: Also
    ) -> set[str]:
        def run(change: CatalogChange) -> set[str]:
            now = change.rows.versions(versions)
            same = [name for name, version in versions.items() if now.get(name) == version]
            topics = row_codec.readable_ones(change.rows.bodies(same).items())
            end(change, [*topics.values()])
            also(change.rows.connection, [*topics.values()])
            return set(topics)

        return await self._rows.write_rows(run) if versions else set()

    async def buried(self, now_s: float) -> dict[str, str]:
        """Return names and rows of topics that were deleted more than `BURIED_S` ago, at most `MOST_DROPPED`."""
        return await self._rows.read_rows(lambda rows: rows.buried_before(_before(now_s), MOST_DROPPED))

    async def drop_buried(self, now_s: float, names: Sequence[str]) -> None:
        """Drop those of these rows that nobody has written since `buried` returned them for the same time."""
        await self._rows.write_rows(lambda change: change.rows.drop_buried(_before(now_s), names))

    async def awaken(self, name: str) -> Topic | None:
        """Let whoever is about to put a topic to sleep know that it is needed; return the topic.

        Returns None, and changes nothing, for a topic that does not sleep, and for one that sleeps or is gone.
        """

        def awaken(change: CatalogChange) -> Topic | None:
            topic = row_codec.readable_ones(change.rows.bodies([name]).items()).get(name)
            if topic is None or topic.asleep_s or not topic.sleeps:
                return None
            change.save([topic])  # the same topic, in a row of a newer version
            return topic

        return await self._rows.write_rows(awaken)


def _before(now_s: float) -> int:
    """Return a version that was not yet given out `BURIED_S` ago, or was the last one then.

    Versions are at least the time in milliseconds; changes may count them up faster, which makes rows look younger.
    """
    return int((now_s - BURIED_S) * 1000)


def members(rows: TopicRows, name: str) -> list[Topic]:
    """Return the topics of a family, without those that this version cannot read."""
    return [topic for topic in rows.matching(name) if topic.family == name]


def _asked(
    names: Iterable[str], bodies: Mapping[str, str], there: Mapping[str, Stored]
) -> tuple[dict[str, Topic], dict[str, Topic | errors.EMQError]]:
    """Return the topics that are to wake, or that families make, and the others, which are awake or refused.

    `bodies` are the rows of the names that have one, `there` the families.
    """
    live: dict[str, int] = {}
    made: dict[str, Topic] = {}
    others: dict[str, Topic | errors.EMQError] = {}
    for name in names:
        try:
            topic = _woken(name, bodies[name]) if name in bodies else _new(name, there, live)
        except errors.EMQError as exc:
            others[name] = exc
            continue
        if topic is not None:
            (made if topic.asleep_s or name not in bodies else others)[name] = topic
    return made, others


def _woken(name: str, body: str) -> Topic | None:
    topic = row_codec.readable(name, body)
    if topic is not None and topic.asleep_s and topic.state is State.DRAINING:
        raise errors.TopicClosed(f"topic {name!r} is draining and takes no new messages; resume it first")
    return topic


def _new(name: str, there: Mapping[str, Stored], live: dict[str, int]) -> Topic | None:
    """Return the topic that a family makes for a name, and count it in `live`; None below no family."""
    if (found := families.above(name, there)) is None:
        return None
    family = there[found].family
    family.check(name)
    if family.topic.state is State.DRAINING:
        raise errors.TopicClosed(
            f"topic {name!r} cannot be made: its family {family.name!r} is draining; resume it first"
        )
    if live.setdefault(found, there[found].live) >= family.bounds.max_topics:
        raise family.full(name)
    live[found] += 1
    return family.made(name)
