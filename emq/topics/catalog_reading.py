"""Reading the catalog: single topics, names that begin alike, and what has changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import sqlalchemy as sa

from emq.database import Database, database
from emq.runtime import errors
from emq.runtime.inputs import is_pattern
from emq.topics import catalog_rows, row_codec, rules
from emq.topics.catalog_rows import TopicRows
from emq.topics.model import Topic
from emq.topics.topic_changes import ChangedNames, Changes, Place

T = TypeVar("T")


class CatalogReading:
    """The topics of one environment, to be read. Hosts follow all of them, producers those to which they publish.

    Args:
        db, environment, place: see `emq.topics.catalog.Catalog`.
    """

    def __init__(self, db: Database, environment: str, place: str) -> None:
        self._db = db
        self._environment = str(environment)
        self._place = f" ({place})" if place else ""

    async def get(self, name: str) -> Topic:
        """Return the topic of that name.

        Raises:
            UnknownTopic: there is no such topic; the text names topics that are spelt alike.
            InvalidTopic: no topic can have that name.
            DatabaseUnavailable: try again later.
        """
        rules.validate_text(name)
        return await self.read_rows(lambda rows: rows.topic(name))

    def unknown(self, name: str) -> errors.UnknownTopic:
        """Return the error for a name that a reading has not found."""
        return catalog_rows.unknown(name, self._environment, self._place)

    async def some(self, names: Iterable[str]) -> dict[str, Topic]:
        """Return those of the topics that exist, by name, in time proportional to the number of names.

        Raises:
            DatabaseUnavailable: try again later.
        """
        wanted = [*names]
        return await self.read_rows(lambda rows: row_codec.readable_ones(rows.bodies(wanted).items()))

    async def list(self, pattern: str = "*") -> list[Topic]:
        """Return the topics whose names match a shell pattern (`*`, `?`, `[abc]`), in the order of their names.

        Raises:
            InvalidTopic: `pattern` is not text.
            DatabaseUnavailable: try again later.
        """
        rules.validate_text(pattern)
        return await self.read_rows(lambda rows: rows.matching(pattern))

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
        return await self.read_rows(lambda rows: rows.names(pattern))

    async def beginning(self, start: str, limit: int, after: str = "") -> Sequence[str]:
        """Return the first `limit` names of topics that begin with a text and come after another, in order.

        Raises:
            DatabaseUnavailable: try again later.
        """
        return await self.read_rows(lambda rows: rows.beginning(start, limit, after))

    async def check_unnamed(self, topic: Topic) -> None:
        """Raise `StillNamed` if other topics name this one as their budget."""
        await self.read_rows(lambda rows: rows.check_unnamed(topic))

    async def version(self) -> int:
        """Return the catalog's version, which grows with every change; 0 if no topic was ever created. Cheap."""
        return await self.read_rows(lambda rows: rows.changes.version(), database.QUICK_S)

    async def changes_since(self, version: int) -> Changes:
        """Return the changes after `version` (0 for all topics), in time proportional to their number. Cheap if none.

        A database may come back without its last writes. A version is at least the time of day in milliseconds, so a
        later change has another number than a lost one. A caller that asks only after a later change does not see
        the loss.

        Raises:
            HostConflict: this version cannot read all that is written there now: upgrade it.
            DatabaseUnavailable: try again later.
        """
        return await self.read_rows(lambda rows: rows.changes.since(version))

    async def begun(self) -> tuple[Changes, Place | None]:
        """Return the first part of all topics that are awake; see `TopicChanges.begun`.

        Raises:
            HostConflict, DatabaseUnavailable: as `changes_since`.
        """
        return await self.read_rows(lambda rows: rows.changes.begun())

    async def more(self, version: int, after: Place) -> tuple[Changes, Place | None]:
        """Return the next part; see `TopicChanges.more`."""
        return await self.read_rows(lambda rows: rows.changes.more(version, after))

    async def changed_names(self, version: int) -> ChangedNames:
        """Return the names of the topics that changed after `version`; no names if it is 0.

        Raises:
            DatabaseUnavailable: try again later.
        """
        return await self.read_rows(lambda rows: rows.changes.names_since(version), database.QUICK_S)

    async def read_rows(self, look: Callable[[TopicRows], T], deadline_s: float = database.ANSWER_S) -> T:
        """Return what a function finds in the rows, in one transaction that only reads."""

        def run(connection: sa.Connection) -> T:
            return look(TopicRows(connection, self._environment, self._place))

        return await self._db.run(run, read_only=True, deadline_s=deadline_s)
