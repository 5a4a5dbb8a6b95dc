"""The catalog: every topic of an environment, with its settings, in the database."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
import sqlalchemy as sa

from emq import errors, extending, plurals
from emq.clock import Clock
from emq.database import Database, database, environment_time, tables
from emq.storage import folds
from emq.topics import (
    asking,
    budgets,
    catalog_file,
    catalog_rows,
    changing,
    model,
    rules,
    secret_attributes,
)
from emq.topics.catalog_rows import TopicRows
from emq.topics.model import DEFAULT_PRIORITIES, Topic

_table = tables.topics

Also = Callable[[sa.Connection], object]
"""Writes something else in the transaction of a change; if it raises, nothing is changed."""


class Changes(NamedTuple):
    """The changes of the catalog since a version. Apply `deleted` first, then `changed`.

    Attributes:
        version: the version to ask from next time.
        changed: topics created or updated since, as they are now, without those that this version of EMQ cannot read.
        deleted: names of topics deleted since, or changed to what this version cannot read; a topic that was created
            again is in `changed`, too.
        all: True if the database has lost changes up to the version asked from; `changed` then has all existing topics.
    """

    version: int
    changed: list[Topic]
    deleted: list[str]
    all: bool = False

    def gone(self, known: Iterable[str]) -> Sequence[str]:
        """Return the names among `known` that are to be dropped."""
        if not self.all:
            return self.deleted
        there = {topic.name for topic in self.changed}
        return [name for name in known if name not in there]


class Catalog:
    """The topics of one environment. Any number of processes may share it.

    Every change takes the next catalog version inside its transaction, so that writers wait for each other: two updates
    of one topic at the same time are applied one after the other, and a process that polls `version` misses none.

    **Growing and shrinking lose no message.** When a topic shrinks, `active_groups` falls and `groups` stays: new
    messages go to the remaining groups while hosts go on consuming the retired ones. A producer that has not read
    the catalog yet may still write to a retired group, and hosts consume that message, too. Once a retired group is
    empty, its owner seals each of its queues. The store does not seal a queue that holds a message. It refuses every
    put to a sealed queue with `QueueSealed`, and the producer then reads the catalog again. Once all queues are sealed,
    `retire` drops the groups from `groups`, provided that the topic has not changed meanwhile. When a topic grows,
    whoever grows it opens the groups that come back, and so does the host that sealed them; until then the store
    refuses a put to them, so no message is lost.

    **A change of qps or of the groups** takes effect some seconds later, when every host has read it, so that the
    groups' sum keeps the topic's cap while hosts learn of the change one by one; see `emq.topics.shares`. A topic that
    is created soon after one of its name was deleted takes effect as late.

    Args:
        db: an open database with the catalog's tables.
        environment: "online" or "sandbox".
        max_queue_qps: operations a second that one queue of the store can take, the bound on group_qps; None if the
            store names no such limit.
        place: names the store and the database in the error for an unknown topic; empty to name neither.
        lua_folds: True if topics may get a Lua chunk of their own as fold; topics that have one keep it either way.
        clock: the clock for the times of changes, instead of the environment's time; for tests and simulations.
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
        self._db = db
        self._environment = str(environment)
        self._max_queue_qps = max_queue_qps
        self._clock = clock
        self._lua_folds = lua_folds
        self._rows = TopicRows(self._environment, f" ({place})" if place else "")

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
        wanted = {topic.name: topic for topic in map(self._checked, topics)}

        def create(connection: sa.Connection) -> list[Topic]:
            version = self._next_version(connection)
            present = catalog_rows.decoded(self._rows.bodies(connection, wanted))
            for name in () if exist_ok else present:
                if model.settings_of(present[name]) != model.settings_of(wanted[name]):
                    other = ", ".join(asking.differences(wanted[name], present[name]).values())
                    raise errors.TopicExists(
                        f"topic {name!r} exists already with other settings{other and f' ({other})'}; update it, or "
                        "choose another name"
                    )
            absent = [topic for name, topic in wanted.items() if name not in present]
            new, named = self._begun(connection, version, [self._permit(topic, None) for topic in absent], {})
            self._rows.save(connection, version, [*new, *named])
            present |= {topic.name: topic for topic in named if topic.name in present}
            both = {topic.name: topic for topic in new} | present
            return [both[topic.name] for topic in topics]

        return await self._db.run(create)

    async def get(self, name: str) -> Topic:
        """Return the topic of that name.

        Raises:
            UnknownTopic: there is no such topic; the text names topics that are spelt alike.
            InvalidTopic: no topic can have that name.
            DatabaseUnavailable: try again later.
        """
        rules.validate_text(name)
        return await self._db.run(lambda c: self._rows.topic(c, name), read_only=True)

    async def some(self, names: Iterable[str]) -> dict[str, Topic]:
        """Return those of the topics that exist, by name, in time proportional to the number of names.

        Raises:
            DatabaseUnavailable: try again later.
        """
        wanted = list(names)

        def select(connection: sa.Connection) -> dict[str, Topic]:
            rows = self._rows.bodies(connection, wanted)
            read = ((name, catalog_rows.readable(name, body)) for name, body in rows.items())
            return {name: topic for name, topic in read if topic is not None}

        return await self._db.run(select, read_only=True)

    async def list(self, pattern: str = "*") -> list[Topic]:
        """Return the topics whose names match a shell pattern (`*`, `?`, `[abc]`), in the order of their names.

        Raises:
            InvalidTopic: `pattern` is not text.
            DatabaseUnavailable: try again later.
        """

        rules.validate_text(pattern)

        def select(connection: sa.Connection) -> list[Topic]:
            query = sa.select(_table.c.name, _table.c.body).where(self._rows.live()).order_by(_table.c.name)
            rows = connection.execute(query).all()
            if pattern != "*":
                matching = set(fnmatch.filter([name for name, _ in rows], pattern))
                rows = [row for row in rows if row[0] in matching]
            return [topic for name, body in rows if (topic := catalog_rows.readable(name, body)) is not None]

        return await self._db.run(select, read_only=True)

    async def matching(self, pattern: str) -> Sequence[Topic]:
        """Return the topics that match a name or a shell pattern, as `list` does.

        Raises:
            UnknownTopic: the pattern has no wildcard, and there is no topic of this name.
            InvalidTopic: no topic can have that name.
            DatabaseUnavailable: try again later.
        """
        topics = await self.list(pattern)
        return topics if topics or is_pattern(pattern) else [await self.get(pattern)]

    async def names(self, pattern: str = "*") -> Sequence[str]:
        """Return the names of the topics that match a shell pattern, in order; needs far less memory than `list`.

        Raises:
            InvalidTopic: `pattern` is not text.
            DatabaseUnavailable: try again later.
        """
        rules.validate_text(pattern)

        def select(connection: sa.Connection) -> list[str]:
            query = sa.select(_table.c.name).where(self._rows.live()).order_by(_table.c.name)
            return fnmatch.filter(connection.execute(query).scalars(), pattern)

        return await self._db.run(select, read_only=True)

    async def beginning(self, start: str, limit: int) -> Sequence[str]:
        """Return at most `limit` names of topics that begin with a text, in no order.

        Raises:
            DatabaseUnavailable: try again later.
        """
        alike = sa.func.substr(_table.c.name, 1, len(start)) == start  # upper and lower case differ, unlike in LIKE
        query = sa.select(_table.c.name).where(self._rows.live(), alike).limit(limit)
        return await self._db.run(lambda c: list(c.execute(query).scalars()), read_only=True)

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
            draining: the retired groups that still hold messages and so share the quota; None for all retired groups
                that had a share before.
            expected_attributes: change nothing unless the topic has exactly these; None for any.
            also: written in the same transaction; None for nothing.
            changes: `qps`, `group_qps`, `state`, `options` (all of them), or single options by their names.

        Raises:
            UnknownTopic: there is no such topic.
            InvalidTopic: a setting is unknown, may not change, or is out of range; nothing was changed.
            ChangedMeanwhile: the topic has other attributes than those expected; nothing was changed.
            DatabaseUnavailable: try again later.
        """
        changing.validate(name, changes)

        def updated(topic: Topic) -> Topic:
            if expected_attributes is not None and topic.options.attributes != expected_attributes:
                raise errors.ChangedMeanwhile(f"topic {name!r} has got other attributes meanwhile; read it again")
            return self._permit(self._checked(changing.kept(topic, changing.merged(topic, changes))), topic)

        return await self._change(name, updated, draining, also=also)

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
            return self._with_attributes(topic, changes)

        return await self._change(name, changed, also=also)

    async def update_many(
        self,
        choose: Callable[[sa.Connection], Iterable[str]],
        changes: Callable[[Topic], Mapping[str, Any]],
        draining: Mapping[str, Collection[int] | None],
    ) -> Sequence[Topic]:
        """Change settings of several topics, of all or of none, in one transaction; return the topics as they are now.

        Args:
            choose: called within the transaction, in which it may write, too; returns the names of the topics. Those
                that do not exist, or that this version cannot read, are left as they are.
            changes: returns what to change of a topic, as for `update`; nothing, to leave it alone.
            draining: as for `update`, by topic.

        Raises:
            InvalidTopic: a setting is out of range; nothing was changed.
            DatabaseUnavailable: try again later.
        """

        def run(connection: sa.Connection) -> list[Topic]:
            version = self._next_version(connection)
            bodies, now_s = self._rows.bodies(connection, choose(connection)), self._now(connection)
            found: list[Topic] = []
            for name, body in bodies.items():
                if (topic := catalog_rows.readable(name, body)) is None or not (change := changes(topic)):
                    continue
                changing.validate(name, change)
                wanted = self._permit(self._checked(changing.kept(topic, changing.merged(topic, dict(change)))), topic)
                found.append(changing.divided(topic, wanted, draining.get(name), now_s))
            self._rows.save(connection, version, found)
            return found

        return await self._db.run(run)

    def _with_attributes(self, topic: Topic, changes: Mapping[str, str]) -> Topic:
        """Return a topic with attributes set; an empty text takes one away."""
        both = {**topic.options.attributes, **changes}
        attributes = {attribute: value for attribute, value in both.items() if value}
        return self._checked(changing.merged(topic, {"attributes": attributes}))

    async def share(self, name: str, expected: Topic, draining: Collection[int]) -> Topic:
        """Let only these retired groups share the topic's quota, beside its active ones.

        Compare-and-set: if the topic is no longer as `expected`, nothing is changed. Returns the topic as it is now.

        Raises:
            UnknownTopic: there is no such topic.
            DatabaseUnavailable: try again later.
        """
        as_it_is = await self.get(name)
        if as_it_is != expected:
            return as_it_is
        return await self._change(name, lambda topic: topic, draining, expected)

    async def retire(self, name: str, expected: Topic) -> Topic:
        """Stop consuming the groups above `active_groups`; call it once all their queues are sealed.

        Compare-and-set: if the topic is no longer as `expected`, nothing is changed. Returns the topic as it is now;
        after a success its `groups` equal its `active_groups`. Safe to repeat.

        Raises:
            UnknownTopic: there is no such topic.
            DatabaseUnavailable: try again later.
        """

        def retired(topic: Topic) -> Topic:
            return msgspec.structs.replace(topic, groups=topic.active_groups)

        return await self._change(name, retired, expected=expected)

    async def forget_layouts(self, name: str, numbers: Collection[int]) -> Topic:
        """Drop earlier layouts of which no message is left; return the topic as it is now. Safe to repeat.

        Raises:
            UnknownTopic: there is no such topic.
            DatabaseUnavailable: try again later.
        """

        def forget(topic: Topic) -> Topic:
            left = tuple(layout for layout in topic.earlier if layout.number not in numbers)
            return msgspec.structs.replace(topic, earlier=left)

        return await self._change(name, forget)

    async def note_expiring(self, name: str) -> Topic:
        """Note that messages of the topic may have a time to live of their own from now on; return the topic as it is
        now. Safe to repeat.

        Raises:
            UnknownTopic: there is no such topic.
            DatabaseUnavailable: try again later.
        """
        return await self._change(name, lambda topic: msgspec.structs.replace(topic, expiring=True))

    async def delete(self, *names: str) -> None:
        """Delete topics, in one transaction. The caller must drop their messages and checkpoints.

        Raises:
            UnknownTopic: there is no such topic; nothing was deleted.
            StillNamed: other topics name one of them as their budget; delete those first.
            DatabaseUnavailable: try again later.
        """

        def delete(connection: sa.Connection) -> None:
            version, now_s = self._next_version(connection), self._now(connection)
            for name in names:
                self._check_unnamed(connection, self._rows.topic(connection, name))
            self._rows.bury(connection, version, names, now_s)

        await self._db.run(delete)

    async def check_unnamed(self, topic: Topic) -> None:
        """Raise `StillNamed` if other topics name this one as their budget."""
        if topic.shared_s:
            await self._db.run(lambda c: self._check_unnamed(c, topic), read_only=True)

    async def version(self) -> int:
        """Return the catalog's version, which grows with every change; 0 if no topic was ever created. Cheap."""
        return await self._db.run(self._version, read_only=True, deadline_s=database.QUICK_S)

    async def changes_since(self, version: int) -> Changes:
        """Return the changes after `version` (0 for all topics), in time proportional to their number.

        A database may come back without its last writes. A new version is at least the time of day in seconds, so that
        a later change has another number than one that was lost in an earlier second. If nobody asks before a later
        change, nobody sees that changes were lost.

        Raises:
            DatabaseUnavailable: try again later.
        """

        def select(connection: sa.Connection) -> Changes:
            # Read the version first: a change that is committed in between is then reported again, never skipped.
            now = self._version(connection)
            lost = now < version
            since = 0 if lost else version
            # Cast, since SQLite keeps values of any type, whatever type the column has.
            deleted_at = sa.cast(_table.c.deleted_at, sa.BigInteger).label("deleted_at")
            columns = (_table.c.name, _table.c.body, _table.c.live, deleted_at)
            query = sa.select(*columns).where(_table.c.environment == self._environment, _table.c.version > since)
            rows = connection.execute(query.order_by(_table.c.version, _table.c.name)).all()
            read = {row.name: catalog_rows.readable(row.name, row.body) for row in rows if row.live}
            changed = [topic for topic in read.values() if topic is not None]
            gone = [row.name for row in rows if row.deleted_at > since or (since and read.get(row.name, row) is None)]
            return Changes(now, changed, gone, lost)

        return await self._db.run(select, read_only=True)

    async def export(self, fmt: Literal["toml", "json"], pattern: str = "*", *, secrets: bool = False) -> str:
        """Return the topics whose names match `pattern`, by name, as text for `import_`.

        The text leaves out settings that have their defaults. It has secrets of push only if `secrets` asks for them;
        else an import keeps those that the topics have.

        Raises:
            ValueError: another format.
            DatabaseUnavailable: try again later.
        """
        return catalog_file.dump(await self.list(pattern), fmt, secrets=secrets)

    async def import_(self, text: str, fmt: Literal["toml", "json"]) -> Sequence[Topic]:
        """Create or update topics from an export; topics that it does not mention stay as they are.

        Every topic is checked before the first is written, and all are written in one transaction. A setting that the
        text leaves out gets its default. Returns the topics in the order of the text.

        Raises:
            InvalidTopic: the text cannot be read, a field is unknown or out of range, or priorities would change;
                nothing was changed.
            UnknownTopic: a topic names a budget that is neither there nor in the text; nothing was changed.
            ValueError: another format.
            DatabaseUnavailable: try again later.
        """
        wanted = {topic.name: topic for topic in map(self._checked, catalog_file.load(text, fmt))}

        def save(connection: sa.Connection) -> list[Topic]:
            version = self._next_version(connection)
            bodies = self._rows.bodies(connection, wanted)
            present = catalog_rows.decoded(bodies)
            wanted.update({name: secret_attributes.unmasked(t, present.get(name)) for name, t in wanted.items()})
            for name, topic in wanted.items():
                self._permit(topic, present.get(name))
            for name, old in present.items():
                for field in ("priorities", "kind", "slots"):
                    if getattr(old, field) != getattr(wanted[name], field):
                        raise errors.InvalidTopic(f"topic {name!r}: {field} may not change: {changing.REFUSED[field]}")
                changing.kept(old, wanted[name])
                split = model.split(changing.computed(wanted[name], old))
                wanted[name] = changing.divided(old, split, None, self._now(connection))
            absent = [topic for name, topic in wanted.items() if name not in present]
            known = {name: topic for name, topic in wanted.items() if name in present}
            new, named = self._begun(connection, version, absent, known)
            wanted.update({topic.name: topic for topic in new})
            others = {topic.name: topic for topic in named}
            wanted.update({name: others.pop(name) for name in [*others] if name in wanted})
            self._rows.save(connection, version, [*wanted.values(), *others.values()])
            return [*wanted.values()]

        return await self._db.run(save)

    def _checked(self, topic: Topic) -> Topic:
        rules.validate_text(topic.name)  # or bytes would become other text
        topic = asking.checked(topic)
        if topic.is_sorted and topic.priorities == DEFAULT_PRIORITIES:
            topic = msgspec.structs.replace(topic, priorities=())
        rules.validate(topic, self._max_queue_qps)
        try:
            folds.check_lua(topic.options.fold_lua)
        except errors.InvalidMessage as exc:
            raise errors.InvalidTopic(f"topic {topic.name!r}: {exc}") from exc
        return model.split(topic)

    def _permit(self, topic: Topic, before: Topic | None) -> Topic:
        """Return `topic`.

        Raises:
            InvalidTopic: its Lua chunk is new and the setting forbids Lua chunks; or an extension refuses the change.
        """
        for extension in extending.extensions():
            extension.permit(topic, before)
        lua = topic.options.fold_lua
        if lua and not self._lua_folds and (before is None or before.options.fold_lua != lua):
            raise errors.InvalidTopic(
                f"topic {topic.name!r}: a fold in Lua runs the topic's own code in the store, which only an operator "
                "allows: set lua_folds = true in emq.toml, or EMQ_LUA_FOLDS=true"
            )
        return topic

    def _check_unnamed(self, connection: sa.Connection, topic: Topic) -> None:
        if topic.shared_s and (named_by := self._rows.naming(connection, topic.name)):
            names = ", ".join(map(repr, named_by[:3])) + (" ..." if len(named_by) > 3 else "")
            raise errors.StillNamed(
                f"topic {topic.name!r} is the budget of {plurals.count(len(named_by), 'topic')} ({names}); delete "
                f"{'that one' if len(named_by) == 1 else 'those'} first"
            )

    def _version(self, connection: sa.Connection) -> int:
        return database.read_value(connection, self._environment, "catalog_version")

    def _next_version(self, connection: sa.Connection) -> int:
        # Seconds, since a layout's number is a catalog version, and stores keep layouts in 32 bits.
        return database.next_value(connection, self._environment, "catalog_version", int(self._now(connection)))

    def _begun(
        self, connection: sa.Connection, version: int, topics: Sequence[Topic], known: Mapping[str, Topic]
    ) -> tuple[Sequence[Topic], Sequence[Topic]]:
        """Return new topics with their first layouts and divisions, kept apart from deleted topics of the same names.

        Also returns the budgets above them that change.

        The database may have lost a former topic whose messages and queues still have layouts. These are lower than any
        new version, since a version is at least the time of day and grows with each layout.
        """
        buried = self._rows.buried(connection, [topic.name for topic in topics])
        above = self._rows.budgets_above(connection, topics)
        timely = buried or above or any(t.options.budget or t.qps < 1 for t in topics)
        now_s = self._now(connection) if timely else 0.0
        new = [t if t.is_sorted else msgspec.structs.replace(t, layout=version) for t in topics]
        new = [changing.again(t, version, buried[t.name], now_s) if t.name in buried else t for t in new]
        new, named = budgets.begun(new, {**catalog_rows.decoded(above), **known}, now_s)
        return [changing.created(topic, now_s) for topic in new], named

    async def _change(
        self,
        name: str,
        change: Callable[[Topic], Topic],
        draining: Collection[int] | None = None,
        expected: Topic | None = None,
        also: Also | None = None,
    ) -> Topic:
        def run(connection: sa.Connection) -> Topic:
            # Take the version first: its row is the lock that keeps other writers out between our read and our write.
            version = self._next_version(connection)
            body = self._rows.body(connection, name)
            before = catalog_rows.decode(name, body)
            if expected is not None and before != expected:
                return before
            wanted = change(before)
            topic = changing.divided(before, wanted, draining, self._now(connection))
            self._rows.save(connection, version, [topic])
            if also is not None and wanted is not before:
                also(connection)
            return topic

        return await self._db.run(run)

    def _now(self, connection: sa.Connection) -> float:
        if self._clock is not None:
            return self._clock.now()
        return environment_time.now_us(connection, self._db, self._environment) / 1e6


def is_pattern(text: str) -> bool:
    """Return True if a text has wildcards."""
    return bool(set("*?[") & set(text))
