"""Passages: the database's record of the groups that have finished the messages of earlier layouts.

`emq.topics.key_layouts` explains layouts.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import NamedTuple

import msgspec
import sqlalchemy as sa

from emq.database import Database, statements, tables
from emq.database.known_stores import KnownStores

log = logging.getLogger(__name__)

_table = tables.passages
_tails = msgspec.json.Decoder(list[int])


class Passage(NamedTuple):
    """The progress of one group through one earlier layout.

    Attributes:
        layout: the earlier layout's number.
        tails: for each of the group's queues, by priority, an offset behind which no message of that layout is.
        passed: True if no message of that layout, or of an older one, is left in the group.
    """

    topic: str
    group: int
    layout: int
    tails: Sequence[int]
    passed: bool = False


class PassageStore:
    """The passages of one environment and store; see `emq.database.known_stores`."""

    def __init__(self, db: Database, environment: str, stores: KnownStores | None = None) -> None:
        self._db = db
        self._environment = str(environment)
        self._stores = stores

    async def _scope(self) -> str:
        return self._environment if self._stores is None else await self._stores.scope(writes=True)

    async def progress(self, topics: Collection[str]) -> dict[tuple[str, int], tuple[int, int]]:
        """Return, by topic and layout, the number of groups noted and the number that have passed.

        While both numbers stay the same, so do the passages.

        Raises:
            DatabaseUnavailable: try again later.
        """
        counts = (sa.func.count(), sa.func.sum(_table.c.passed))
        query = sa.select(_table.c.topic, _table.c.layout, *counts).group_by(_table.c.topic, _table.c.layout)
        query = query.where(_table.c.environment == await self._scope(), _table.c.topic.in_([*topics]))

        def select(connection: sa.Connection) -> dict[tuple[str, int], tuple[int, int]]:
            return {(topic, layout): (noted, int(passed)) for topic, layout, noted, passed in connection.execute(query)}

        return await self._db.run(select, read_only=True)

    async def load(self, topics: Collection[str]) -> dict[tuple[str, int, int], Passage]:
        """Return the passages of these topics, by topic, group and layout.

        Raises:
            DatabaseUnavailable: try again later.
        """
        query = sa.select(_table.c.topic, _table.c.group_index, _table.c.layout, _table.c.tails, _table.c.passed)
        query = query.where(_table.c.environment == await self._scope(), _table.c.topic.in_([*topics]))

        def select(connection: sa.Connection) -> dict[tuple[str, int, int], Passage]:
            found = {}
            for topic, group, layout, tails, passed in connection.execute(query):
                try:
                    passage = Passage(topic, group, layout, _tails.decode(tails), bool(passed))
                    found[passage[:3]] = passage
                except msgspec.MsgspecError:  # damaged: once the row is gone, the passage is noted again
                    log.debug("the row of topic %s, group %s in emq_passages cannot be read", topic, group)
            return found

        return await self._db.run(select, read_only=True)

    async def note(self, passages: Sequence[Passage]) -> None:
        """Note passages. The first noted tails stay, and a passed layout stays passed. Safe to repeat.

        Raises:
            DatabaseUnavailable: the passages may or may not have been noted; repeat the call later.
        """
        rows = [(p.topic, p.group, p.layout, msgspec.json.encode(p.tails).decode(), int(p.passed)) for p in passages]
        values = {"environment": await self._scope(), "rows": msgspec.json.encode(rows).decode()}
        await self._db.run(lambda c: c.execute(statements.catalog(c, "passages_note"), values).rowcount)

    async def forget(self, topic: str, layouts: Collection[int]) -> None:
        """Drop the passages of layouts that every group has passed. Safe to repeat.

        Raises:
            DatabaseUnavailable: try again later.
        """
        rows = sa.delete(_table).where(_table.c.environment == await self._scope(), _table.c.topic == topic)
        await self._db.run(lambda c: c.execute(rows.where(_table.c.layout.in_([*layouts]))).rowcount)
