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

BURIED_S = 600.0
"""Least seconds for which the catalog keeps the row of a deleted topic. A topic of its name that is created within the
first two seconds needs it for its cap; whoever follows the catalog more slowly than this reads all of it again."""

MOST_DROPPED = 2_000
"""Most such rows dropped in one transaction."""


class Rows(Protocol):
    """The transactions of the catalog."""

    async def read_rows(self, look: Callable[[TopicRows], T]) -> T: ...

    async def write_rows(self, make: Callable[[CatalogChange], T]) -> T: ...


class Changed(NamedTuple):
    """A family as it is now, and its topics that the change has changed, before and after."""

    family: Family
    before: Sequence[Topic]
    after: Sequence[Topic]


class FamilyCatalog:
    """The families of one environment. Topics of different families are never mixed up: the longest prefix counts."""

    def __init__(self, rows: Rows, admission: Admission) -> None:
        self._rows = rows
        self._admission = admission

    async def list(self) -> Sequence[Stored]:
        """Return all families, in the order of their names, each with the number of its topics.

        Raises:
            InvalidTopic: this version cannot read one of them.
            DatabaseUnavailable: try again later.
        """
        return [*(await self.all()).values()]

    async def all(self) -> AllFamilies:
        """Return all families by name, also those that this version cannot read.

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

    async def make(self, names: Collection[str]) -> dict[str, Topic | errors.EMQError]:
        """Make the topics of these names that lie below a family, as the first publish to them does.

        All in one transaction. Names that a family refuses, and names below no family, cause no change.

        Returns:
            The topics by name, also those that exist by now. The error for a name that a family refuses: `InvalidTopic`
            (too long, other characters), `FamilyFull`, `TopicClosed` (the family drains). Nothing for others.

        Raises:
            DatabaseUnavailable: try again later.
        """

        def look(rows: TopicRows) -> tuple[dict[str, Topic], dict[str, Topic | errors.EMQError]]:
            wanted, refused = _asked(names, rows.families.all())
            # Another process may have made a topic just now, and with it the family may have become full.
            there = row_codec.readable_ones(rows.bodies(refused).items()) if refused else {}
            return wanted, {**refused, **there}

        wanted, refused = await self._rows.read_rows(look)
        if not wanted:
            return refused

        def make(change: CatalogChange) -> dict[str, Topic | errors.EMQError]:
            bodies = change.rows.bodies(wanted)
            asked, found = _asked([name for name in wanted if name not in bodies], change.families)
            found |= row_codec.readable_ones(bodies.items())
            for family in {topic.family: None for topic in asked.values()}:
                topics = [topic for topic in asked.values() if topic.family == family]
                try:
                    new, named = change.begun(topics, {})
                except errors.EMQError as exc:  # its budget is gone; the others are made
                    found |= {topic.name: exc for topic in topics}
                    continue
                change.save([*new, *named])
                found |= {topic.name: topic for topic in new}
            return found

        return {**refused, **await self._rows.write_rows(make)}

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
            if live := change.rows.families.get(name).live:
                raise errors.StillConsumed(
                    f"family {name!r} has {plurals.count(live, 'topic')}; wait until they are empty and idle, or "
                    "delete the family with force"
                )
            change.rows.families.delete(name)

        await self._rows.write_rows(delete)

    async def versions(self, names: Collection[str]) -> dict[str, int]:
        """Return numbers that change whenever somebody writes these topics' rows; see `forget`."""
        return await self._rows.read_rows(lambda rows: rows.versions(names))

    async def forget(
        self, versions: Mapping[str, int], also: Callable[[sa.Connection, Sequence[Topic]], object]
    ) -> set[str]:
        """Delete topics whose rows nobody has written since `versions`; return their names.

        Somebody who needs a topic writes its row before he opens its queues (`awaken`). So of him and a host that has
        found the topic empty and sealed it, the one whose change comes first wins.

        Args:
            also: writes more in the same transaction, for the topics that are deleted.

        Raises:
            DatabaseUnavailable: try again later.
        """

        def forget(change: CatalogChange) -> set[str]:
            now = change.rows.versions(versions)
            same = [name for name, version in versions.items() if now.get(name) == version]
            topics = row_codec.readable_ones(change.rows.bodies(same).items())
            change.bury([*topics.values()])
            also(change.rows.connection, [*topics.values()])
            change.rows.drop_buried(change.before_ms(BURIED_S), MOST_DROPPED)
            return set(topics)

        return await self._rows.write_rows(forget) if versions else set()

    async def drop_buried(self) -> int:
        """Drop rows of topics that were deleted more than `BURIED_S` ago; return their number."""
        return await self._rows.write_rows(
            lambda change: change.rows.drop_buried(change.before_ms(BURIED_S), MOST_DROPPED)
        )

    async def awaken(self, name: str) -> Topic | None:
        """Let whoever is about to delete an empty topic of a family know that it is needed; return the topic.

        Returns None, and changes nothing, for a topic of no family and for one that is gone.
        """

        def awaken(change: CatalogChange) -> Topic | None:
            topic = row_codec.readable_ones(change.rows.bodies([name]).items()).get(name)
            if topic is None or not topic.family:
                return None
            change.save([topic])  # the same topic, in a row of a newer version
            return topic

        return await self._rows.write_rows(awaken)


def members(rows: TopicRows, name: str) -> list[Topic]:
    """Return the topics of a family, without those that this version cannot read."""
    return [topic for topic in rows.matching(name) if topic.family == name]


def _asked(
    names: Iterable[str], there: Mapping[str, Stored]
) -> tuple[dict[str, Topic], dict[str, Topic | errors.EMQError]]:
    """Return the topics that families make for names, and the errors for those that they refuse."""
    live: dict[str, int] = {}
    made: dict[str, Topic] = {}
    refused: dict[str, Topic | errors.EMQError] = {}
    for name in names:
        if (found := families.above(name, there)) is None:
            continue
        try:
            family = there[found].family
            family.check(name)
        except errors.InvalidTopic as exc:
            refused[name] = exc
            continue
        if family.topic.state is State.DRAINING:
            refused[name] = errors.TopicClosed(
                f"topic {name!r} cannot be made: its family {family.name!r} is draining; resume it first"
            )
        elif live.setdefault(found, there[found].live) >= family.bounds.max_topics:
            refused[name] = family.full(name)
        else:
            live[found] += 1
            made[name] = family.made(name)
    return made, refused
