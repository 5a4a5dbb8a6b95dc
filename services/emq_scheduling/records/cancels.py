"""Tasks that somebody asked to cancel, by id: all in the database, and the latest in the memory of the pool's owner.

A cancel concerns each task of its id that was submitted before. The owner of the pool keeps reading new cancels. A
cancelled task that waits in the owner's window leaves it; one farther back ends when the owner's host reads it from the
store, without a start (`withdraws` of `emq.App.handler`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from functools import partial

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from emq.producer.rounds import Rounds
from emq_scheduling.database import schema, tables

_cancels = tables.cancels
OVERLAP_US = 10_000_000
"""Microseconds by which each look reaches back, since a later time may be committed first."""

CLOCKS_US = 5_000_000
"""Microseconds by which the clocks of submitters and cancellers may differ."""

MOST = 200_000
"""Most cancels that an owner remembers: the latest. It looks in the database for others."""

PAGE = 10_000
"""Most cancels of one read."""

AT_ONCE = 500
"""Most tasks named in one statement."""

Asked = Mapping[str, int]
"""When somebody asked to cancel tasks, by id, in microseconds since the epoch."""


class Cancels(schema.Tables):
    """Asks to cancel tasks, and reads who asked."""

    async def ask(self, pool: str, tasks: Collection[str]) -> None:
        """Ask to cancel tasks. Asking again later concerns tasks that were submitted meanwhile, too."""

        def save(connection: sa.Connection) -> None:
            insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
            now_us = self.time_us(connection)
            own = {"environment": self._environment, "pool": pool, "asked_us": now_us}
            added = insert(_cancels)
            keys = ["environment", "pool", "task"]
            again = added.on_conflict_do_update(index_elements=keys, set_={"asked_us": added.excluded.asked_us})
            connection.execute(again, [{**own, "task": task} for task in dict.fromkeys(tasks)])

        if tasks:
            await self.run(save)

    async def latest(self, pool: str, most: int) -> dict[str, int]:
        """Return the latest cancels of a pool, the latest one last."""
        order = (_cancels.c.asked_us.desc(), _cancels.c.task.desc())
        found = await self._read(self._of(pool).order_by(*order).limit(most))
        return dict(reversed(found.items()))

    async def after(self, pool: str, asked_us: int, task: str) -> dict[str, int]:
        """Return up to `PAGE` cancels behind this time and task, in their order."""
        place = sa.tuple_(_cancels.c.asked_us, _cancels.c.task)
        behind = self._of(pool).where(place > sa.tuple_(sa.literal(asked_us), sa.literal(task)))
        return await self._read(behind.order_by(_cancels.c.asked_us, _cancels.c.task).limit(PAGE))

    async def of(self, pool: str, tasks: Collection[str]) -> dict[str, int]:
        """Return the cancels of these tasks."""
        names, found = list(tasks), dict[str, int]()
        for start in range(0, len(names), AT_ONCE):
            found |= await self._read(self._of(pool).where(_cancels.c.task.in_(names[start : start + AT_ONCE])))
        return found

    def _of(self, pool: str) -> sa.Select[tuple[str, int]]:
        c = _cancels.c
        return sa.select(c.task, c.asked_us).where(c.environment == self._environment, c.pool == pool)

    async def _read(self, query: sa.Select[tuple[str, int]]) -> dict[str, int]:
        rows = await self.run(lambda c: list(c.execute(query)), read_only=True)
        return {row.task: row.asked_us for row in rows}


class Remembered:
    """The latest cancels of a pool, in memory.

    Attributes:
        forgotten_us: when the latest cancel was asked for that is not remembered; 0 without one.
    """

    def __init__(self, most: int = MOST) -> None:
        self.forgotten_us = 0
        self._most = most
        self._asked: dict[str, int] = {}

    def add(self, asked: Asked) -> dict[str, int]:
        """Remember cancels, the latest one last; return those that are new. Forget the oldest ones beyond `most`."""
        new = {task: at_us for task, at_us in asked.items() if self._asked.get(task) != at_us}
        for task, at_us in new.items():
            self._asked.pop(task, None)
            self._asked[task] = at_us
        while len(self._asked) > self._most:
            self.forgotten_us = max(self.forgotten_us, self._asked.pop(next(iter(self._asked))))
        return new

    def concerns(self, task: str, submitted_us: int) -> bool:
        """Return True if a remembered cancel concerns the task."""
        return is_concerned(self._asked.get(task), submitted_us)

    def may_have_forgotten(self, submitted_us: int) -> bool:
        """Return True if a forgotten cancel may concern a task that was submitted then."""
        return is_concerned(self.forgotten_us or None, submitted_us)


class CancelReader:
    """Reads the cancels of one pool bit by bit, for its owner: at first the latest, then those that came.

    Attributes:
        remembered: what was read.
    """

    def __init__(self, cancels: Cancels, pool: str, most: int = MOST) -> None:
        self.remembered = Remembered(most)
        self._cancels = cancels
        self._pool = pool
        self._most = most
        self._latest_us = 0
        self._looks = Rounds(partial(cancels.of, pool), "reading of cancels")

    async def begin(self) -> None:
        """Remember the latest cancels: call it first."""
        found = await self._cancels.latest(self._pool, self._most + 1)  # one more says whether there are others
        self._latest_us = max(found.values(), default=0)
        self.remembered.add(found)

    async def new(self) -> AsyncIterator[dict[str, int]]:
        """Yield the cancels that came since the last call, in pages; one may come again."""
        at_us, task = max(0, self._latest_us - OVERLAP_US), ""
        while page := await self._cancels.after(self._pool, at_us, task):
            task, at_us = next(reversed(page.items()))
            if new := self.remembered.add(page):
                yield new
            self._latest_us = max(self._latest_us, at_us)
            if len(page) < PAGE:
                return

    async def concerns(self, task: str, submitted_us: int) -> bool:
        """Return True if a cancel concerns the task. Looks in the database only if a forgotten cancel may concern it.

        Raises:
            DatabaseUnavailable: nobody knows now; ask again later.
        """
        if self.remembered.concerns(task, submitted_us):
            return True
        if not self.remembered.may_have_forgotten(submitted_us):
            return False
        asked = await asyncio.shield(self._looks.join([task]))  # tasks that come together share a look
        return is_concerned(asked.get(task), submitted_us)


def is_concerned(asked_us: int | None, submitted_us: int) -> bool:
    """Return True if a cancel concerns a task; None for no cancel."""
    return asked_us is not None and submitted_us <= asked_us + CLOCKS_US
