"""The rows of the catalog, one for each topic; `emq.topics.row_codec` reads and writes their texts."""

from __future__ import annotations

import fnmatch
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from emq.database import database, levels, statements, tables
from emq.runtime import errors, inputs, plurals
from emq.topics import families, row_codec
from emq.topics.family_rows import FamilyRows
from emq.topics.model import Topic
from emq.topics.topic_changes import VERSION, TopicChanges

_table = tables.topics
_WILDCARD = re.compile(r"[*?\[]")

HOUR_MS = 3_600_000
AT_ONCE = 500
"""Most names in one statement."""

LAYOUT = "catalog_layout"
"""The key of the number that the last change gave to layouts."""


class TopicRows:
    """The rows of one environment's topics, within a transaction.

    Args:
        place: the store and the database, for the error for an unknown topic; may be empty.

    Attributes:
        changes: what has changed in the rows since a version.
        families: the rows of the families.
    """

    def __init__(self, connection: sa.Connection, environment: str, place: str = "") -> None:
        self.connection = connection
        self.changes = TopicChanges(connection, environment)
        self.families = FamilyRows(connection, environment)
        self._environment = environment
        self._place = place

    def next_version(self, least: int) -> int:
        """Take the next version, at least this; its row stays locked until the transaction ends."""
        return database.next_value(self.connection, self._environment, VERSION, least)

    def next_layout(self, least: int) -> int:
        """Take the next number for the layouts of new topics, at least this."""
        return database.next_value(self.connection, self._environment, LAYOUT, least)

    def bodies(self, names: Iterable[str]) -> dict[str, str]:
        """Return the rows' texts by name, of those among the names that exist."""
        return {row.name: row.body for row in self._named(names) if row.live != tables.TOMBSTONE}

    def buried(self, names: Iterable[str]) -> dict[str, float]:
        """Return the times of deletion by name, of those among the names that were deleted."""
        return {row.name: row_codec.deleted_s(row.body) for row in self._named(names) if row.live == tables.TOMBSTONE}

    def topic(self, name: str) -> Topic:
        """Return a topic.

        Raises:
            UnknownTopic: there is no such topic; the text names topics that are spelt alike.
            InvalidTopic: this version cannot read the row.
        """
        found = self.bodies([name])
        if name in found:
            return row_codec.decode(name, found[name])
        if below := families.above(name, self.families.all()):
            hint = f"; a publish makes it in family {below!r}; to give it other settings: emq topic create {name} ..."
        else:
            # Comparing names is slow, so compare only names with the same first letter, and at most 2,000 of them.
            hint = inputs.alike(name, self.beginning(name[:1], 2000))
        raise unknown(name, self._environment, self._place, hint)

    def matching(self, pattern: str) -> list[Topic]:
        """Return the topics whose names match a shell pattern, by name, of those that this version can read."""
        query = sa.select(_table.c.name, _table.c.body).where(self._live(), _may_match(pattern))
        rows = self.connection.execute(query.order_by(_table.c.name)).all()
        there = set(fnmatch.filter([name for name, _ in rows], pattern))
        return [*row_codec.readable_ones(row for row in rows if row[0] in there).values()]

    def names(self, pattern: str) -> list[str]:
        """Return the names that match a shell pattern, in order."""
        query = sa.select(_table.c.name).where(self._live(), _may_match(pattern)).order_by(_table.c.name)
        return fnmatch.filter(self.connection.execute(query).scalars(), pattern)

    def beginning(self, start: str, limit: int, after: str = "") -> list[str]:
        """Return the first `limit` names that begin with a text and come after another, in order."""
        there = self._live(), _begins(start), _table.c.name > after
        query = sa.select(_table.c.name).where(*there).order_by(_table.c.name).limit(limit)
        return list(self.connection.execute(query).scalars()) if _is_storable(after) else []

    def budgets_above(self, topics: Sequence[Topic]) -> dict[str, Topic]:
        """Return the budgets above topics, of those that exist, also the budgets above these."""
        asked, found = {topic.name for topic in topics}, dict[str, Topic]()
        below: Iterable[Topic] = topics
        while wanted := {name for topic in below if (name := topic.options.budget) is not None} - asked:
            asked |= wanted
            budgets = row_codec.decoded(self.bodies(wanted))
            found |= budgets
            below = budgets.values()
        return found

    def check_unnamed(self, topic: Topic) -> None:
        """Raise `StillNamed` if other topics or families name this one as their budget.

        Reads many rows if a topic ever did.
        """
        if not topic.shared_s:
            return
        for name, stored in self.families.all().items():
            if stored.family.topic.options.budget == topic.name:
                raise errors.StillNamed(f"topic {topic.name!r} is the budget of family {name!r}; delete that one first")
        if named_by := self._naming(topic.name):
            names = ", ".join(map(repr, named_by[:3])) + (" ..." if len(named_by) > 3 else "")
            raise errors.StillNamed(
                f"topic {topic.name!r} is the budget of {plurals.count(len(named_by), 'topic')} ({names}); delete "
                f"{'that one' if len(named_by) == 1 else 'those'} first"
            )

    def save(self, version: int, topics: Iterable[Topic]) -> None:
        """Write topics.

        Raises:
            InvalidTopic: a topic has a field or option that some hosts cannot read; see `row_codec.encode`.
            HostConflict: this version cannot read the environment's feature level.
        """
        level = levels.current(self.connection, self._environment)
        rows = [(t.name, row_codec.encode(t, level), tables.ASLEEP if t.asleep_s else tables.AWAKE) for t in topics]
        if rows:
            text = msgspec.json.encode(rows).decode()
            values = {"environment": self._environment, "version": version, "rows": text}
            self.connection.execute(statements.catalog(self.connection, "topics_save"), values)

    def versions(self, names: Iterable[str]) -> dict[str, int]:
        """Return the versions of topics' rows by name, of those among the names that exist.

        A change of a topic that sleeps, and goes on sleeping, gives its row no newer version.
        """
        return {row.name: row.version for row in self._named(names) if row.live != tables.TOMBSTONE}

    def buried_before(self, before: int, limit: int) -> dict[str, str]:
        """Return the texts of rows of topics that were deleted before a version, the oldest first."""
        query = sa.select(_table.c.name, _table.c.body).where(_old(self._environment, before))
        rows = self.connection.execute(query.order_by(_table.c.version).limit(limit))
        return {row.name: row.body for row in rows}

    def drop_buried(self, before: int, names: Sequence[str]) -> None:
        """Drop rows of topics that were deleted before a version, and are not there again.

        Whoever follows the catalog from before the last of these deletions cannot learn of them any more; see
        `TopicChanges`.
        """
        for start in range(0, len(names), AT_ONCE):
            old = sa.and_(_old(self._environment, before), _table.c.name.in_(names[start : start + AT_ONCE]))
            last = self.connection.execute(sa.select(sa.func.max(_table.c.version)).where(old)).scalar()
            if last is not None:
                self.connection.execute(sa.delete(_table).where(old))
                self.changes.forget(last)

    def bury(self, version: int, topics: Sequence[Topic], now_s: float) -> None:
        """Mark topics' rows as deleted at `now_s`, and drop the topics' passages."""
        graves: dict[str, list[str]] = {}
        for topic in topics:
            graves.setdefault(row_codec.grave(now_s, topic), []).append(topic.name)
        for body, names in graves.items():
            grave = {"body": body, "live": tables.TOMBSTONE, "version": version, "deleted_at": version}
            for start in range(0, len(names), AT_ONCE):
                rows = sa.update(_table).where(self._live(), _table.c.name.in_(names[start : start + AT_ONCE]))
                self.connection.execute(rows.values(grave))
        self.drop_passages([topic.name for topic in topics])

    def drop_passages(self, names: Sequence[str]) -> None:
        """Drop the passages of topics, on all stores."""
        passed = tables.passages
        here = passed.c.environment == self._environment
        of_stores = passed.c.environment.startswith(f"{self._environment}@")
        for start in range(0, len(names), AT_ONCE):
            named = passed.c.topic.in_(names[start : start + AT_ONCE])
            self.connection.execute(sa.delete(passed).where(here | of_stores, named))

    def _live(self) -> sa.ColumnElement[bool]:
        """Return the condition for rows of topics that exist, awake or asleep."""
        return sa.and_(_table.c.environment == self._environment, _table.c.live > tables.TOMBSTONE)

    def _naming(self, budget: str) -> list[str]:
        """Return the names of the topics that name a topic as their budget, in order."""
        query = sa.select(_table.c.name, _table.c.body).where(self._live(), _table.c.body.contains('"budget"'))
        rows = self.connection.execute(query.order_by(_table.c.name))
        return [str(name) for name, body in rows if row_codec.options_of(body).get("budget") == budget]

    def _named(self, names: Iterable[str]) -> Iterable[Any]:
        stored = [str.__str__(name) for name in names if _is_storable(name)]
        values = {"environment": self._environment, "names": msgspec.json.encode(stored).decode()}
        return self.connection.execute(statements.catalog(self.connection, "topics_find"), values)


def unknown(name: str, environment: str, place: str, alike: str = "") -> errors.UnknownTopic:
    """Return the error for a name of no topic.

    Args:
        alike: names topics that are spelt alike.
    """
    return errors.UnknownTopic(f"there is no topic {name!r} in {environment}{place}{alike or '; create it first'}")


def _old(environment: str, before: int) -> sa.ColumnElement[bool]:
    """Return the condition for rows of topics that were deleted before a version; an hour before, if of no family.

    A producer without the database may publish for an hour, and a store takes messages to a name that it has forgotten.
    Names below a family get their topic back then (`emq.host.orphan_watch`); no others do.
    """
    late = sa.or_(_table.c.body.contains('"family":'), _table.c.version < before - HOUR_MS)
    dead = _table.c.live == tables.TOMBSTONE
    return sa.and_(_table.c.environment == environment, dead, _table.c.version < before, late)


def _may_match(pattern: str) -> sa.ColumnElement[bool]:
    """Return the condition for the range of names that begin as a shell pattern does, up to its first wildcard."""
    start = _WILDCARD.split(pattern, maxsplit=1)[0]
    return _begins(start) if start != pattern else _table.c.name == start if _is_storable(start) else sa.false()


def _begins(start: str) -> sa.ColumnElement[bool]:
    """Return the condition for names that begin with a text: a range of the key, unlike LIKE in SQLite."""
    if not _is_storable(start):
        return sa.false()
    least, end = _table.c.name >= start, _behind(start)
    return least if end is None else sa.and_(least, _table.c.name < end)


def _behind(start: str) -> str | None:
    """Return the first text, by code points, behind all texts that begin with `start`; None if there is none."""
    kept = start.rstrip(chr(sys.maxunicode))
    if not kept:
        return None
    following = ord(kept[-1]) + 1
    return kept[:-1] + chr(0xE000 if following == 0xD800 else following)  # UTF-8 cannot hold what is in between


def _is_storable(name: str) -> bool:
    """Return False for text that PostgreSQL, or every database, refuses: no topic has such a name."""
    try:
        return b"\0" not in str.encode(name)
    except UnicodeEncodeError:
        return False
