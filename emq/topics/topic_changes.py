"""The changes of the catalog since a version, for hosts and producers that follow it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import sqlalchemy as sa

from emq.database import database, levels, tables
from emq.topics import row_codec
from emq.topics.family_rows import FamilyRows
from emq.topics.model import Topic

_table = tables.topics

VERSION = "catalog_version"
"""The key of the catalog's version in `emq_meta`."""

FORGOTTEN = "catalog_forgotten"
"""The key of the version up to which the catalog has dropped rows of deleted topics."""


class Changes(NamedTuple):
    """The changes of the catalog since a version. Apply `deleted` first, then `changed`.

    A topic that falls asleep is deleted for whoever follows the catalog, and one that wakes is created.

    Attributes:
        version: the version to ask from next time.
        changed: topics created or updated since, as they are now, without those that this version of EMQ cannot read.
        deleted: names of topics deleted since, or changed so that this version cannot read them; a topic that was
            created again is in `changed`, too.
        all: True if the database does not know any more what has changed since that version: it has lost its last
            changes, or has dropped the rows of topics deleted long ago. `changed` then has all topics that are awake.
        families: all families now, with their numbers of buckets; none if nothing has changed.
    """

    version: int
    changed: list[Topic]
    deleted: list[str]
    all: bool = False
    families: Mapping[str, int] = MappingProxyType({})

    def gone(self, known: Iterable[str]) -> Sequence[str]:
        """Return the names among `known` that are to be dropped."""
        if not self.all:
            return self.deleted
        there = {topic.name for topic in self.changed}
        return [name for name in known if name not in there]


Place = tuple[int, str]
"""Version and name of the last topic read, for the next page."""

PAGE = 2_000
"""Topics of families on one page."""


class ChangedNames(NamedTuple):
    """Names of the topics that changed since a version.

    Attributes:
        version: the version to ask from next time.
        changed: created, updated or deleted since.
        deleted: those of them that were deleted since; they may have been created again.
        all: True if the database does not know any more what has changed, see `Changes`; any topic may have changed,
            and no name is told.
    """

    version: int
    changed: Sequence[str]
    deleted: Sequence[str]
    all: bool = False


class TopicChanges:
    """The changes of one environment's catalog, within a transaction."""

    def __init__(self, connection: sa.Connection, environment: str) -> None:
        self._connection = connection
        self._environment = environment

    def version(self) -> int:
        """Return the catalog's version; 0 if no topic was ever created."""
        return database.read_value(self._connection, self._environment, VERSION)

    def since(self, version: int) -> Changes:
        """Return the changes after a version; 0 for all topics that are awake (see `begun` for these in parts)."""
        now, lost = self._after(version, admits=True)
        if now == version > 0:
            return Changes(now, [], [], False, {})
        since = 0 if lost else version
        changed = self._changed(since, _table.c.body, _table.c.live)
        if not since:
            changed = changed.where(_table.c.live == tables.AWAKE)
        rows = self._connection.execute(changed.order_by(_table.c.version, _table.c.name)).all()
        awake = [row for row in rows if row.live == tables.AWAKE]
        read = row_codec.readable_ones((row.name, row.body) for row in awake)
        unread = {row.name for row in awake if since} - read.keys()
        gone = [row.name for row in rows if row.deleted_at > since or row.name in unread]
        families = FamilyRows(self._connection, self._environment).buckets()
        return Changes(now, [*read.values()], gone, lost, families)

    def begun(self) -> tuple[Changes, Place | None]:
        """Return the topics that a host must know before it knows others, and a page of the others.

        The former are those of no family, and budgets: the bucket of a topic's groups depends on its budget.

        Returns:
            The topics, as the changes since 0, and the place at which `more` goes on; None if these are all.
        """
        now, _ = self._after(0, admits=True)
        needed = self._connection.execute(self._awake().where(~_may_follow)).all()
        return self._page(now, needed, self._awake())

    def more(self, version: int, after: Place) -> tuple[Changes, Place | None]:
        """Return the next page, and the place behind it. A topic changed since `begun` may come again.

        Args:
            version: of the result of `begun`; what changed since then is told by `since`.
        """
        behind = sa.tuple_(_table.c.version, _table.c.name) > sa.tuple_(*map(sa.literal, after))
        return self._page(version, (), self._awake().where(behind))

    def _page(self, version: int, needed: Sequence[Any], others: sa.Select[Any]) -> tuple[Changes, Place | None]:
        page = self._connection.execute(others.where(_may_follow).limit(PAGE)).all()
        read = row_codec.readable_ones((row.name, row.body) for row in (*needed, *page))
        families = FamilyRows(self._connection, self._environment).buckets()
        place = (page[-1].version, page[-1].name) if len(page) == PAGE else None
        return Changes(version, [*read.values()], [], False, families), place

    def _awake(self) -> sa.Select[Any]:
        query = sa.select(_table.c.name, _table.c.body, _table.c.version)
        awake = query.where(_table.c.environment == self._environment, _table.c.live == tables.AWAKE)
        return awake.order_by(_table.c.version, _table.c.name)

    def names_since(self, version: int) -> ChangedNames:
        """Return the names of the topics that changed after a version; none after 0."""
        now, lost = self._after(version)
        if lost or version in (0, now):
            return ChangedNames(now, [], [], lost)
        rows = self._connection.execute(self._changed(version)).all()
        return ChangedNames(now, [row.name for row in rows], [row.name for row in rows if row.deleted_at > version])

    def _after(self, version: int, admits: bool = False) -> tuple[int, bool]:
        """Return the version now, and whether the database cannot tell what has changed since the caller's version.

        Ask this before you read rows: a change that is committed in between is then reported again, never skipped.

        Args:
            admits: also raise `HostConflict` as `levels.admit`.
        """
        keys = (VERSION, FORGOTTEN, levels.KEY)
        now, forgotten, level = database.read_values(self._connection, self._environment, *keys)
        if admits:
            levels.admit(self._environment, level)
        return now, now < version or 0 < version < forgotten

    def forget(self, version: int) -> None:
        """Note that rows of topics deleted at a version, or before it, are gone."""
        if database.read_value(self._connection, self._environment, FORGOTTEN) < version:
            database.next_value(self._connection, self._environment, FORGOTTEN, version)

    def _changed(self, since: int, *columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
        """Return the query for the rows that changed after a version."""
        # Cast, since SQLite keeps values of any type, whatever type the column has.
        deleted_at = sa.cast(_table.c.deleted_at, sa.BigInteger).label("deleted_at")
        query = sa.select(_table.c.name, deleted_at, *columns)
        return query.where(_table.c.environment == self._environment, _table.c.version > since)


_may_follow = sa.and_(_table.c.body.contains('"family":'), ~_table.c.body.contains('"shared_s":'))
"""The condition for topics of families that are no budgets."""
