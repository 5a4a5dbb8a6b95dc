"""How far the groups of a topic whose keys move have come, in the database; see `emq.topics.key_layouts`."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import NamedTuple

import msgspec
import sqlalchemy as sa

from emq.database import Database, statements, tables

log = logging.getLogger(__name__)

_table = tables.passages
_tails = msgspec.json.Decoder(list[int])


class Passage(NamedTuple):
    """What is left of one earlier layout in one group.

    Attributes:
        layout: the earlier layout's number.
        tails: of each of the group's queues, by priority, an offset that no message of that layout lies behind.
        passed: nothing of that layout, or of an older one, is left in the group.
    """

    topic: str
    group: int
    layout: int
    tails: Sequence[int]
    passed: bool = False


class PassageStore:
    """The passages of one environment."""

    def __init__(self, db: Database, environment: str) -> None:
        self._db = db
        self._environment = str(environment)

    async def progress(self, topics: Collection[str]) -> dict[tuple[str, int], tuple[int, int]]:
        """By topic and layout, how many groups are noted and how many have passed. While both stay, so do the passages.

        Raises:
            DatabaseUnavailable: try again later.
        """
        counts = (sa.func.count(), sa.func.sum(_table.c.passed))
        query = sa.select(_table.c.topic, _table.c.layout, *counts).group_by(_table.c.topic, _table.c.layout)
        query = query.where(_table.c.environment == self._environment, _table.c.topic.in_([*topics]))

        def select(connection: sa.Connection) -> dict[tuple[str, int], tuple[int, int]]:
            return {(topic, layout): (noted, int(passed)) for topic, layout, noted, passed in connection.execute(query)}

        return await self._db.run(select, read_only=True)

    async def load(self, topics: Collection[str]) -> dict[tuple[str, int, int], Passage]:
        """The passages of these topics, by topic, group and layout.

        Raises:
            DatabaseUnavailable: try again later.
        """
        query = sa.select(_table.c.topic, _table.c.group_index, _table.c.layout, _table.c.tails, _table.c.passed)
        query = query.where(_table.c.environment == self._environment, _table.c.topic.in_([*topics]))

        def select(connection: sa.Connection) -> dict[tuple[str, int, int], Passage]:
            found = {}
            for topic, group, layout, tails, passed in connection.execute(query):
                try:
                    passage = Passage(topic, group, layout, _tails.decode(tails), bool(passed))
                    found[passage[:3]] = passage
                except msgspec.MsgspecError:  # damaged: it is noted anew, once it is gone
                    log.debug("the row of topic %s, group %s in emq_passages cannot be read", topic, group)
            return found

        return await self._db.run(select, read_only=True)

    async def note(self, passages: Sequence[Passage]) -> None:
        """Note passages. The tails that were noted first stay, and what has passed stays passed. Safe to repeat.

        Raises:
            DatabaseUnavailable: nothing is known to be noted; repeat it later.
        """
        rows = [(p.topic, p.group, p.layout, msgspec.json.encode(p.tails).decode(), int(p.passed)) for p in passages]
        values = {"environment": self._environment, "rows": msgspec.json.encode(rows).decode()}
        await self._db.run(lambda c: c.execute(statements.catalog(c, "passages_note"), values).rowcount)

    async def forget(self, topic: str, layouts: Collection[int]) -> None:
        """Drop what is known of layouts that every group has passed. Safe to repeat.

        Raises:
            DatabaseUnavailable: try again later.
        """
        rows = sa.delete(_table).where(_table.c.environment == self._environment, _table.c.topic == topic)
        await self._db.run(lambda c: c.execute(rows.where(_table.c.layout.in_([*layouts]))).rowcount)
