"""How far tasks came that have not ended, in the database, for the next attempt and for whoever looks.

A task has a row once it has told its progress, until it ends. The row of an attempt that started later stays: a host
that has lost the pool may still write.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from emq.database.database import QUICK_S
from emq_scheduling.database import schema, tables
from emq_scheduling.tasks import Task

_progress = tables.progress

AT_ONCE = 500
"""Most tasks named in one statement."""


class Key(NamedTuple):
    """Names a task: ids alone may be of several."""

    task: str
    type: str
    tenant: str
    submitted_us: int


class Told(NamedTuple):
    """What an attempt told last.

    Attributes:
        body: JSON.
        started_us: when the attempt started.
        told_us: when it told that. Both in microseconds since the epoch.
    """

    body: bytes
    started_us: int
    told_us: int


def key_of(task: Task) -> Key:
    """Return the key of a task."""
    return Key(task.id, task.own_type, task.tenant, task.submitted_us)


class Progress(schema.Tables):
    """The progress of pools' tasks."""

    async def is_any(self, pool: str) -> bool:
        """Return whether a task of the pool has told its progress."""
        query = sa.select(_progress.c.task).where(*self._of(pool)).limit(1)
        return await self.run(lambda c: c.execute(query).first() is not None, read_only=True)

    async def of(self, pool: str, tasks: Collection[str]) -> dict[Key, Told]:
        """Return the progress of all tasks with these ids."""
        names, found = list(tasks), dict[Key, Told]()
        for start in range(0, len(names), AT_ONCE):
            some = names[start : start + AT_ONCE]
            query = sa.select(_progress).where(*self._of(pool), _progress.c.task.in_(some))
            for r in await self.run(functools.partial(_rows, query=query), read_only=True):
                key = Key(r.task, r.type, r.tenant, r.submitted_us)
                found[key] = Told(r.body.encode(), r.started_us, r.told_us)
        return found

    async def save(self, pool: str, told: Mapping[Key, Told], gone: Collection[Key]) -> None:
        """Save the progress of tasks, and forget that of others, which have ended. Safe to repeat."""

        def save(connection: sa.Connection) -> None:
            own = {"environment": self._environment, "pool": pool}
            if told:
                added = (postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert)(_progress)
                new = added.excluded
                update = added.on_conflict_do_update(
                    index_elements=[column.name for column in _progress.primary_key],
                    set_={name: new[name] for name in ("started_us", "told_us", "body")},
                    where=_progress.c.started_us <= new.started_us,
                )
                rows = [
                    {**own, **key._asdict(), **one._asdict(), "body": one.body.decode()} for key, one in told.items()
                ]
                connection.execute(update, rows)
            if gone:
                named = [_progress.c[name] == sa.bindparam(f"gone_{name}") for name in Key._fields]
                marks = [{f"gone_{name}": value for name, value in key._asdict().items()} for key in gone]
                connection.execute(sa.delete(_progress).where(*self._of(pool), *named), marks)

        if told or gone:
            await self.run(save, deadline_s=QUICK_S)

    def _of(self, pool: str) -> tuple[sa.ColumnElement[bool], ...]:
        return (_progress.c.environment == self._environment, _progress.c.pool == pool)


def _rows(connection: sa.Connection, query: sa.Select[tuple[object, ...]]) -> list[sa.Row[tuple[object, ...]]]:
    return list(connection.execute(query))
