"""The catalog: every topic of an environment, with its settings, in the database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa

from emq.database import Database, environment_time
from emq.runtime import errors
from emq.runtime.clock import Clock
from emq.topics import asking, changing, families, model, row_codec, secret_attributes
from emq.topics.admission import Admission
from emq.topics.catalog_change import CatalogChange
from emq.topics.catalog_reading import CatalogReading
from emq.topics.catalog_rows import TopicRows
from emq.topics.family_catalog import FamilyCatalog
from emq.topics.model import Topic

T = TypeVar("T")

Also = Callable[[sa.Connection], object]
"""Writes more in the transaction of a change; if it raises, nothing is changed."""


class Catalog(CatalogReading):
    """The topics of one environment. Any number of processes may share it.

    Every change takes the next catalog version inside its transaction, so that writers wait for each other: two updates
    of one topic at the same time are applied one after the other, and a process that polls `version` misses none.

    **Growing and shrinking lose no message.** When a topic shrinks, `active_groups` falls and `groups` stays: new
    messages go to the remaining groups while hosts go on consuming the retired ones. A producer that has not read
    the catalog yet may still write to a retired group, and hosts consume that message, too. Once a retired group is
    empty, its owner seals each of its queues. The store does not seal a queue that holds a message. It refuses every
    put to a sealed queue with `QueueSealed`, and the producer then reads the catalog again. Once all queues are sealed,
    `changing.retired` drops the groups from `groups`, provided that the topic has not changed meanwhile. When a topic
    grows, the process that changes it opens the groups that come back, and so does the host that sealed them. Until
    then the store refuses puts to them, so no message is lost.

    **A change of qps or of the groups** takes effect some seconds later, when every host has read it, so that the sum
    of the groups keeps the topic's cap; see `emq.topics.shares`. So does a topic that is created soon after one of its
    name was deleted.

    Args:
        db: an open database with the catalog's tables.
        environment: "online" or "sandbox".
        max_queue_qps: operations a second that one queue of the store can take, which bounds group_qps; None for no
            limit.
        place: names the store and the database in the error for an unknown topic; empty to name neither.
        lua_folds: True if topics may get a Lua chunk of their own as fold; topics that have one keep it either way.
        clock: the clock for the times of changes, instead of the environment's time; for tests and simulations.

    Attributes:
        families: the families, and their topics.
        written: set after each change by this object, for hosts in the same process. They look at once and clear it.
    """

    def __init__(
        self,
        db: Database,
        environment: str,
        max_queue_qps: float | None,
        clock: Clock | None = None,
        *,
        lua_folds: bool = False,
        place: str = "",
    ) -> None:
        super().__init__(db, environment, place)
        self.written = asyncio.Event()
        self._clock = clock
        self._admission = Admission(max_queue_qps, lua_folds)
        self.families = FamilyCatalog(self, self._admission)

    async def create(self, topic: Topic) -> Topic:
        """Create a topic and compute its groups. If a topic of that name has the same settings, return that topic.

        Raises:
            InvalidTopic: a setting is out of range; the text says what would be right.
            UnknownTopic: there is no topic of the name that is given as its budget; create that topic first.
            TopicExists: the name is taken by a topic with other settings.
            DatabaseUnavailable: try again later.
        """
        return (await self.create_many([topic]))[0]

    async def create_many(self, topics: Sequence[Topic], exist_ok: bool = False) -> list[Topic]:
        """Create topics, all or none, in one transaction; return them in order.

        Args:
            topics: any number.
            exist_ok: leave topics that exist as they are, whatever their settings, instead of raising.

        Raises:
            InvalidTopic: a setting is out of range; nothing was created.
            UnknownTopic: a topic names a budget that is neither there nor among `topics`; nothing was created.
            TopicExists: a name is taken by a topic with other settings; nothing was created.
            DatabaseUnavailable: try again later.
        """
        names = {topic.name: topic for topic in map(self._admission.checked, topics)}

        def create(change: CatalogChange) -> list[Topic]:
            present = row_codec.decoded(change.rows.bodies(names))
            wanted = {n: self._admission.adopted(t, change.family_of(n, present)) for n, t in names.items()}
            for name in () if exist_ok else present:
                if model.settings_of(present[name]) != model.settings_of(wanted[name]):
                    other = ", ".join(asking.differences(wanted[name], present[name]).values())
                    raise errors.TopicExists(
                        f"topic {name!r} exists already with other settings{other and f' ({other})'}; update it, or "
                        "choose another name"
                    )
            absent = [self._admission.permit(topic, None) for name, topic in wanted.items() if name not in present]
            new, named, _ = change.begun(absent, {})
            change.save([*new, *named])
            both = {**present, **{topic.name: topic for topic in (*new, *named)}}
            return [both[topic.name] for topic in topics]

        return await self.write_rows(create)

    async def update(
        self,
        name: str,
        *,
        draining: Collection[int] | None = None,
        expected_attributes: Mapping[str, str] | None = None,
        also: Also | None = None,
        **changes: Any,
    ) -> Topic:
        """Change settings of a topic, atomically; return the topic as it is now.

        A change of `qps` or `group_qps` splits the topic again; the class explains why no message is lost. Priorities
        may not change.

        Args:
            name: the topic's name.
            draining: the retired groups that still hold messages and so share the quota; None for all that had a share.
            expected_attributes: change nothing unless the topic has exactly these; None for any.
            also: written in the same transaction; None for nothing.
            changes: `qps`, `group_qps`, `state`, `options` (all of them), or single options by their names.

        Raises:
            UnknownTopic: there is no such topic.
            InvalidTopic: a setting is unknown, may not change, or is out of range; nothing was changed.
            ChangedMeanwhile: the topic has other attributes than those expected; nothing was changed.
            DatabaseUnavailable: try again later.
        """
        changing.validate(model.called(name), changes)  # before the database is asked

        def updated(topic: Topic) -> Topic:
            if expected_attributes is not None and topic.options.attributes != expected_attributes:
                raise errors.ChangedMeanwhile(f"topic {name!r} has got other attributes meanwhile; read it again")
            return self._admission.set_for(topic, changes)

        return await self.change(name, updated, draining=draining, also=also)

    async def set_attributes(
        self, name: str, changes: Mapping[str, str], given: Mapping[str, str], *, also: Also | None = None
    ) -> Topic:
        """Set single attributes, atomically; return the topic as it is now.

        Args:
            name: the topic's name.
            changes: attributes to set; an empty text takes one away.
            given: nothing changes unless the topic has these attributes; an empty text stands for none.
            also: written in the same transaction if the attributes are set; None for nothing.

        Raises:
            UnknownTopic: there is no such topic.
            DatabaseUnavailable: try again later.
        """

        def changed(topic: Topic) -> Topic:
            there = topic.options.attributes
            if any(there.get(attribute, "") != value for attribute, value in given.items()):
                return topic
            both = {**there, **changes}
            attributes = {attribute: value for attribute, value in both.items() if value}
            after = self._admission.checked(changing.merged(topic, {"attributes": attributes}))
            own = families.ordered({*topic.own, "attributes"}) if topic.family else ()
            return msgspec.structs.replace(after, own=own)

        return await self.change(name, changed, also=also)

    async def update_many(
        self,
        choose: Callable[[sa.Connection], Iterable[str]],
        changes: Callable[[Topic], Mapping[str, Any]],
        draining: Mapping[str, Collection[int] | None],
    ) -> Sequence[Topic]:
        """Change settings of several topics, all or none, in one transaction; return the topics as they are now.

        Args:
            choose: called within the transaction, in which it may write, too; returns the names of the topics. Those
                that do not exist, or that this version cannot read, are left as they are.
            changes: returns the changes of a topic, as for `update`; an empty result leaves the topic alone.
            draining: as for `update`, by topic.

        Raises:
            InvalidTopic: a setting is out of range; nothing was changed.
            DatabaseUnavailable: try again later.
        """

        def run(change: CatalogChange) -> list[Topic]:
            bodies = change.rows.bodies(choose(change.rows.connection))
            found: list[Topic] = []
            for name, topic in row_codec.readable_ones(bodies.items()).items():
                if wanted := changes(topic):
                    after = change.followed(self._admission.set_for(topic, wanted))
                    found.append(changing.divided(topic, after, draining.get(name), change.now_s))
            change.save(found)
            return found

        return await self.write_rows(run)

    async def change(
        self,
        name: str,
        changed: Callable[[Topic], Topic],
        *,
        expected: Topic | None = None,
        draining: Collection[int] | None = None,
        also: Also | None = None,
    ) -> Topic:
        """Replace a topic by the result of a function, such as those of `changing`; return the topic as it is now.

        Args:
            name: the topic's name.
            changed: returns the topic as it is to be; called in the transaction.
            expected: change nothing unless the topic is exactly this one (compare-and-set); None for any.
            draining: as for `update`.
            also: written in the same transaction if `changed` returned another topic; None for nothing.

        Raises:
            UnknownTopic: there is no such topic.
            DatabaseUnavailable: try again later.
        """
        if expected is not None and (now := await self.get(name)) != expected:
            return now  # without a new version, which all hosts would read

        def run(change: CatalogChange) -> Topic:
            before = change.rows.topic(name)
            if expected is not None and before != expected:
                return before
            wanted = change.followed(changed(before))
            topic = changing.divided(before, wanted, draining, change.now_s)
            change.save([topic])
            if also is not None and wanted is not before:
                also(change.rows.connection)
            return topic

        return await self.write_rows(run)

    async def delete(self, *names: str) -> None:
        """Delete topics, in one transaction. The caller must drop their messages and checkpoints.

        Raises:
            UnknownTopic: there is no such topic; nothing was deleted.
            StillNamed: other topics name one of them as their budget; delete those first.
            DatabaseUnavailable: try again later.
        """

        def delete(change: CatalogChange) -> None:
            topics = [change.rows.topic(name) for name in names]
            for topic in topics:
                change.rows.check_unnamed(topic)
            change.bury(topics)

        await self.write_rows(delete)

    async def put_many(self, topics: Iterable[Topic]) -> Sequence[Topic]:
        """Create topics, or replace all settings of those that exist; return them in order.

        Every topic is checked before the first is written, and all are written in one transaction. Masked secrets stay
        those that the topics have.

        Args:
            topics: of different names.

        Raises:
            InvalidTopic: a setting is out of range, or priorities would change; nothing was changed.
            UnknownTopic: a topic names a budget that is neither there nor among `topics`; nothing was changed.
            DatabaseUnavailable: try again later.
        """
        checked = [self._admission.checked(topic) for topic in topics]

        def put(change: CatalogChange) -> list[Topic]:
            present = row_codec.decoded(change.rows.bodies(topic.name for topic in checked))
            unmasked = {t.name: secret_attributes.unmasked(t, present.get(t.name)) for t in checked}
            wanted = {n: self._admission.adopted(t, change.family_of(n, present)) for n, t in unmasked.items()}
            for name, topic in wanted.items():
                self._admission.permit(topic, present.get(name))
            known = {
                name: changing.divided(old, changing.replaced(old, wanted[name]), None, change.now_s)
                for name, old in present.items()
            }
            new, named, _ = change.begun([topic for name, topic in wanted.items() if name not in known], known)
            saved = {**known, **{topic.name: topic for topic in (*new, *named)}}
            change.save(saved.values())
            return [saved[name] for name in wanted]

        return await self.write_rows(put)

    async def write_rows(self, make: Callable[[CatalogChange], T]) -> T:
        """Make a change in one transaction; other changes wait for its end."""

        def run(connection: sa.Connection) -> T:
            def now_s() -> float:
                if self._clock is not None:
                    return self._clock.now()
                return environment_time.now_us(connection, self._db, self._environment) / 1e6

            return make(CatalogChange(TopicRows(connection, self._environment, self._place), now_s))

        try:
            return await self._db.run(run)
        finally:
            self.written.set()
