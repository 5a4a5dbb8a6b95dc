"""The catalog: every topic of an environment, with its settings, in the database."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
import sqlalchemy as sa

from emq import catalog_file, errors, folds, model
from emq.database import Database, database, statements, tables
from emq.model import DEFAULT_PRIORITIES, Topic, TopicOptions

_table = tables.topics
_decoder = msgspec.json.Decoder(Topic)
_OPTIONS = frozenset(TopicOptions.__struct_fields__)
_CHANGEABLE = ("qps", "group_qps", "state", "options")
_REFUSED = {
    "name": "its queues are stored under its name; create a new topic instead",
    "priorities": (
        "its queues are named for them, and messages of a dropped or renamed one would never be consumed; "
        "create a new topic instead"
    ),
    "kind": "its messages are stored by it; create a new topic instead",
    "slots": "messages are found by it (checksum modulo slots), so those that wait would be lost; create a new topic",
    "active_groups": "it follows from qps and group_qps; change these",
    "groups": "it follows from qps and group_qps; change these",
}


class Changes(NamedTuple):
    """What happened since a version. Apply `deleted` first, then `changed`.

    Attributes:
        version: the version to ask from next time.
        changed: topics created or updated since, as they are now.
        deleted: names of topics deleted since; one that was created again is in `changed` too.
    """

    version: int
    changed: list[Topic]
    deleted: list[str]


class Catalog:
    """The topics of one environment. Any number of processes may share it.

    Every change takes the next catalog version inside its transaction, which puts all writers in line: two updates
    of one topic at the same time are applied one after the other, and nobody who polls `version` misses one.

    **Growing and shrinking lose no message.** When a topic shrinks, `active_groups` falls and `groups` stays: new
    messages go to the remaining groups while hosts go on consuming the retired ones. A producer that has not read
    the catalog yet may still write to a retired group, and what it writes is consumed too. Once a retired group is
    empty, its owner seals each of its queues; the store refuses to seal one that holds a message, and from then on
    refuses every put with `QueueSealed`, upon which the producer reads the catalog again. Only when all are sealed does
    `retire` drop them from `groups`, provided that the topic has not changed meanwhile. When a topic grows,
    the groups that come back are opened again by their owner; until then a put to them is refused, never lost.

    Args:
        db: an open database with the catalog's tables.
        environment: "online" or "sandbox".
        max_queue_qps: what one queue of the store takes, for the bound on group_qps; None where it names none.
    """

    def __init__(self, db: Database, environment: str, max_queue_qps: float | None) -> None:
        self._db = db
        self._environment = str(environment)
        self._max_queue_qps = max_queue_qps

    async def create(self, topic: Topic) -> Topic:
        """Create a topic; its groups are computed. One of that name with the same settings is simply returned.

        Raises:
            InvalidTopic: a setting is out of range; the text says what would be right.
            TopicExists: the name is taken by a topic with other settings.
            DatabaseUnavailable: try again later.
        """
        return (await self.create_many([topic]))[0]

    async def create_many(self, topics: Sequence[Topic], exist_ok: bool = False) -> list[Topic]:
        """Create topics, all or none, in one transaction; answers them in order.

        Args:
            topics: any number.
            exist_ok: leave topics that exist as they are, whatever their settings, instead of raising.

        Raises:
            InvalidTopic: a setting is out of range; nothing was created.
            TopicExists: a name is taken by a topic with other settings; nothing was created.
            DatabaseUnavailable: try again later.
        """
        wanted = {topic.name: topic for topic in map(self._checked, topics)}

        def create(connection: sa.Connection) -> list[Topic]:
            version = self._next_version(connection)
            present = self._find(connection, wanted)
            for name in () if exist_ok else present:
                if _settings(present[name]) != _settings(wanted[name]):
                    raise errors.TopicExists(
                        f"topic {name!r} exists already with other settings; update it or choose another name"
                    )
            self._save(connection, version, [t for name, t in wanted.items() if name not in present])
            both = wanted | present
            return [both[topic.name] for topic in topics]

        return await self._db.run(create)

    async def get(self, name: str) -> Topic:
        """The topic of that name.

        Raises:
            UnknownTopic: there is none; the text names those spelt alike.
            DatabaseUnavailable: try again later.
        """
        return await self._db.run(lambda c: self._get(c, name), read_only=True)

    async def list(self, pattern: str = "*") -> list[Topic]:
        """Topics whose name matches a shell pattern (`*`, `?`, `[abc]`), by name.

        Raises:
            DatabaseUnavailable: try again later.
        """

        def select(connection: sa.Connection) -> list[Topic]:
            query = sa.select(_table.c.name, _table.c.body).where(self._live()).order_by(_table.c.name)
            rows = connection.execute(query).all()
            if pattern != "*":
                matching = set(fnmatch.filter([name for name, _ in rows], pattern))
                rows = [row for row in rows if row[0] in matching]
            return [_decoder.decode(body) for _, body in rows]

        return await self._db.run(select, read_only=True)

    async def update(self, name: str, **changes: Any) -> Topic:
        """Change settings of a topic, atomically; answers it as it is now.

        A change of `qps` or `group_qps` splits the topic anew; see the class for why that loses nothing. Priorities
        may not change.

        Args:
            name: the topic's name.
            changes: `qps`, `group_qps`, `state`, `options` (all of them), or single options by their names.

        Raises:
            UnknownTopic: there is no such topic.
            InvalidTopic: a setting is unknown, may not change, or is out of range; nothing was changed.
            DatabaseUnavailable: try again later.
        """
        for key in changes:
            if key in _REFUSED:
                raise errors.InvalidTopic(f"topic {name!r}: {key} may not change: {_REFUSED[key]}")
            if key not in _CHANGEABLE and key not in _OPTIONS:
                raise errors.InvalidTopic(
                    f"topic {name!r} has no setting {key!r}{_alike(key, _OPTIONS | {*_CHANGEABLE})}"
                )
        return await self._change(name, lambda topic: self._checked(_kept(topic, _merged(topic, changes))))

    async def retire(self, name: str, expected: Topic) -> Topic:
        """Stop consuming the groups above `active_groups`; call it once all their queues are sealed.

        Compare-and-set: if the topic is no longer as `expected`, nothing is changed. Answers the topic as it is now;
        its `groups` equal its `active_groups` if it worked. Safe to repeat.

        Raises:
            UnknownTopic: there is no such topic.
            DatabaseUnavailable: try again later.
        """

        def retired(topic: Topic) -> Topic:
            if topic != expected:
                return topic
            return msgspec.structs.replace(topic, groups=topic.active_groups)

        return await self._change(name, retired)

    async def delete(self, name: str) -> None:
        """Delete a topic. Its messages and checkpoints are the caller's to drop.

        Raises:
            UnknownTopic: there is no such topic.
            DatabaseUnavailable: try again later.
        """

        def delete(connection: sa.Connection) -> None:
            version = self._next_version(connection)
            self._get(connection, name)
            rows = sa.update(_table).where(self._live(), _table.c.name == name)
            connection.execute(rows.values(body="", live=0, version=version, deleted_at=version))

        await self._db.run(delete)

    async def version(self) -> int:
        """The catalog's version: it grows with every change, and 0 means that nothing was ever created. Cheap."""
        return await self._db.run(self._version, read_only=True)

    async def changes_since(self, version: int) -> Changes:
        """What changed after `version` (0 for everything), in time proportional to the changes.

        Raises:
            DatabaseUnavailable: try again later.
        """

        def select(connection: sa.Connection) -> Changes:
            # Read first: a writer that commits in between is then reported again, never skipped.
            now = self._version(connection)
            columns = (_table.c.name, _table.c.body, _table.c.live, _table.c.deleted_at)
            query = sa.select(*columns).where(_table.c.environment == self._environment, _table.c.version > version)
            rows = connection.execute(query.order_by(_table.c.version, _table.c.name)).all()
            changed = [_decoder.decode(row.body) for row in rows if row.live]
            return Changes(now, changed, [row.name for row in rows if row.deleted_at > version])

        return await self._db.run(select, read_only=True)

    async def export(self, fmt: Literal["toml", "json"]) -> str:
        """All topics as text that `import_` takes, by name; settings at their defaults are left out.

        Raises:
            ValueError: another format.
            DatabaseUnavailable: try again later.
        """
        return catalog_file.dump(await self.list(), fmt)

    async def import_(self, text: str, fmt: Literal["toml", "json"]) -> Sequence[Topic]:
        """Create or update topics from an export; topics that it does not mention stay as they are.

        Every topic is checked before the first is written, and all are written in one transaction. What a topic in the
        text leaves out gets its default. Answers the topics in the order of the text.

        Raises:
            InvalidTopic: the text cannot be read, a field is unknown or out of range, or priorities would change;
                nothing was changed.
            ValueError: another format.
            DatabaseUnavailable: try again later.
        """
        wanted = {topic.name: topic for topic in map(self._checked, catalog_file.load(text, fmt))}

        def save(connection: sa.Connection) -> list[Topic]:
            version = self._next_version(connection)
            for name, old in self._find(connection, wanted).items():
                for field in ("priorities", "kind", "slots"):
                    if getattr(old, field) != getattr(wanted[name], field):
                        raise errors.InvalidTopic(f"topic {name!r}: {field} may not change: {_REFUSED[field]}")
                _kept(old, wanted[name])
                wanted[name] = model.split(msgspec.structs.replace(wanted[name], groups=old.groups))
            self._save(connection, version, wanted.values())
            return [*wanted.values()]

        return await self._db.run(save)

    def _checked(self, topic: Topic) -> Topic:
        # A Struct does not check types when it is made, so a string could pose as a number until here.
        try:
            topic = msgspec.convert(msgspec.to_builtins(topic), Topic)
        except (msgspec.ValidationError, TypeError) as exc:
            raise errors.InvalidTopic(f"topic {topic.name!r}: {exc}") from exc
        if topic.is_sorted and topic.priorities == DEFAULT_PRIORITIES:
            topic = msgspec.structs.replace(topic, priorities=())
        model.validate(topic, self._max_queue_qps)
        try:
            folds.check_lua(topic.options.fold_lua)
        except errors.InvalidMessage as exc:
            raise errors.InvalidTopic(f"topic {topic.name!r}: {exc}") from exc
        return model.split(topic)

    def _live(self) -> sa.ColumnElement[bool]:
        return sa.and_(_table.c.environment == self._environment, _table.c.live == 1)

    def _version(self, connection: sa.Connection) -> int:
        meta = tables.meta.c
        query = sa.select(meta.value).where(meta.environment == self._environment, meta.key == "catalog_version")
        return connection.execute(query).scalar() or 0

    def _next_version(self, connection: sa.Connection) -> int:
        return database.next_value(connection, self._environment, "catalog_version")

    def _find(self, connection: sa.Connection, names: Iterable[str]) -> dict[str, Topic]:
        values = {"environment": self._environment, "names": msgspec.json.encode([*names]).decode()}
        rows = connection.execute(statements.catalog(connection, "topics_find"), values)
        return {name: _decoder.decode(body) for name, body in rows}

    def _get(self, connection: sa.Connection, name: str) -> Topic:
        found = self._find(connection, [name])
        if name in found:
            return found[name]
        # Likeness is slow to judge: only among names that begin alike, and not among all of a large catalog.
        names = sa.select(_table.c.name).where(self._live(), _table.c.name.startswith(name[:1], autoescape=True))
        alike = _alike(name, connection.execute(names.limit(2000)).scalars())
        raise errors.UnknownTopic(f"no topic {name!r} in {self._environment}{alike or '; create it first'}")

    def _save(self, connection: sa.Connection, version: int, topics: Iterable[Topic]) -> None:
        rows = [(topic.name, msgspec.json.encode(topic).decode()) for topic in topics]
        if rows:
            text = msgspec.json.encode(rows).decode()
            values = {"environment": self._environment, "version": version, "rows": text}
            connection.execute(statements.catalog(connection, "topics_save"), values)

    async def _change(self, name: str, change: Callable[[Topic], Topic]) -> Topic:
        def run(connection: sa.Connection) -> Topic:
            # The version first: its row is the lock that keeps another writer out between our read and our write.
            version = self._next_version(connection)
            topic = change(self._get(connection, name))
            self._save(connection, version, [topic])
            return topic

        return await self._db.run(run)


def _kept(before: Topic, after: Topic) -> Topic:
    """`after`, if what waits in the topic is stored in the way that `before` says."""
    if after.options.merge != before.options.merge:
        raise errors.InvalidTopic(f"topic {before.name!r}: merge may not change: {_REFUSED['kind']}")
    return after


def _settings(topic: Topic) -> Topic:
    return msgspec.structs.replace(topic, active_groups=0, groups=0)


def _merged(topic: Topic, changes: dict[str, Any]) -> Topic:
    options = changes.get("options", topic.options)
    if isinstance(options, TopicOptions):
        options = {field: getattr(options, field) for field in _OPTIONS}
    whole = {key: value for key, value in changes.items() if key not in _OPTIONS and key != "options"}
    single = {key: value for key, value in changes.items() if key in _OPTIONS}
    try:
        return msgspec.structs.replace(topic, **whole, options=msgspec.convert({**options, **single}, TopicOptions))
    except (msgspec.ValidationError, TypeError) as exc:
        raise errors.InvalidTopic(f"topic {topic.name!r}: {exc}") from exc


def _alike(name: str, names: Iterable[str]) -> str:
    found = difflib.get_close_matches(name, [*names], n=3)
    return f"; did you mean {' or '.join(map(repr, found))}?" if found else ""
