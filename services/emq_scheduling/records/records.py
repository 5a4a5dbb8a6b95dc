"""Reads the records of tasks: the state of one task, the latest, and all in order of their starts."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Mapping, Sequence

import msgspec
import sqlalchemy as sa

from emq.database.database import LONG_S
from emq_scheduling.database import schema, tables
from emq_scheduling.records import ends
from emq_scheduling.records.progress import Key, Progress

_tasks = tables.tasks
PAGE = 5_000
"""Most rows of one transaction."""

_costs = msgspec.json.Decoder(dict[str, float]).decode
_keys = msgspec.json.Decoder(dict[str, str]).decode


class Attempt(msgspec.Struct, frozen=True):
    """One row of the records; see `emq_scheduling.records.ends`. Times are in microseconds since the epoch.

    Attributes:
        started_us: of the attempt; when the task ended if it never started, and `resource` is empty.
        ended_us: 0 while it runs.
        actual: units really used; None if as charged.
        keys: by name, by which limits by key count it; None for none.
        as_type: the type as which a task with fallbacks ran, whose costs and limits counted; empty for its own.
    """

    task: str
    type: str
    tenant: str
    resource: str
    key: str
    submitted_us: int
    deadline_us: int
    started_us: int
    ended_us: int
    outcome: str
    attempt: int
    version: int
    costs: Mapping[str, float]
    actual: Mapping[str, float] | None
    error: str
    result: bytes
    host: str
    keys: Mapping[str, str] | None = None
    as_type: str = ""

    @property
    def ran_as(self) -> str:
        """The type whose limits by key counted it."""
        return self.as_type or self.type

    @property
    def wait_s(self) -> float:
        """Seconds from submit to start; to the end, if the task never started."""
        return (self.started_us - self.submitted_us) / 1e6


class TaskStatus(msgspec.Struct, frozen=True):
    """The status of a task.

    Attributes:
        state: "running"; how it ended ("done", "dead", "expired", "cancelled"); "waiting" for its first attempt, or for
            another one; or "unknown" if nothing is recorded but that somebody wants it cancelled.
        attempts: those that started, the first one first; for a task that ended without a start, that end.
        cancel_asked: somebody asked to cancel it.
        progress: how far it came, as JSON, if its performer told that and it has not ended; empty for nothing.
        told_us: when the performer told that, in microseconds since the epoch; 0 for never.
    """

    task: str
    state: str
    attempts: Sequence[Attempt]
    cancel_asked: bool = False
    progress: bytes = b""
    told_us: int = 0


class Records(schema.Tables):
    """Reads the records."""

    async def find(self, pool: str, task: str, task_type: str = "", tenant: str = "") -> TaskStatus | None:
        """Return the records of a task; None if there are none.

        Args:
            task_type, tenant: of the task, where tasks of others may have the same id; empty for any.
        """
        wanted = ((_tasks.c.type, task_type), (_tasks.c.tenant, tenant))
        where = [_tasks.c.task == task, *(column == value for column, value in wanted if value)]
        found, asked = await self.run(lambda c: self._of_task(c, pool, task, where), read_only=True)
        if not (found or asked):
            return None
        state, told = _state(found), None
        if found and state not in ends.FINAL:
            of = await Progress(self._database, self._environment).of(pool, [task])
            told = of.get(Key(task, found[-1].type, found[-1].tenant, found[-1].submitted_us))
        if told is None:
            return TaskStatus(task, state, found, asked)
        return TaskStatus(task, state, found, asked, told.body, told.told_us)

    async def latest(
        self,
        pool: str,
        *,
        limit: int = 100,
        resource: str = "",
        task_type: str = "",
        outcome: str = "",
        before_us: int | None = None,
        before_task: str = "",
    ) -> list[Attempt]:
        """Return attempts and ends, the latest start first.

        Args:
            resource, task_type, outcome: only these; empty for all.
            before_us: only those that started before; None for all.
            before_task: with `before_us`, also those that started then and whose ids are smaller than this one.
        """
        where = [*self._of_pool(pool)]
        for column, wanted in ((_tasks.c.resource, resource), (_tasks.c.type, task_type), (_tasks.c.outcome, outcome)):
            if wanted:
                where.append(column == wanted)
        if before_us is not None:
            where.append(sa.tuple_(_tasks.c.started_us, _tasks.c.task) < sa.tuple_(before_us, before_task))
        order = (_tasks.c.started_us.desc(), _tasks.c.task.desc())
        query = sa.select(_tasks).where(*where).order_by(*order).limit(limit)
        return await self.run(lambda c: _attempts(c, query), read_only=True)

    async def all(self, pool: str, since_us: int = 0, until_us: int | None = None) -> AsyncIterator[Sequence[Attempt]]:
        """Yield pages of all rows in order of their starts.

        Args:
            since_us, until_us: only starts from then on, and before then.
        """
        where = [*self._of_pool(pool), _tasks.c.started_us >= since_us]
        if until_us is not None:
            where.append(_tasks.c.started_us < until_us)
        place = sa.tuple_(_tasks.c.started_us, _tasks.c.task)
        after: tuple[int, str] | None = None
        while True:
            beyond = () if after is None else (place > sa.tuple_(*map(sa.literal, after)),)
            query = sa.select(_tasks).where(*where, *beyond).order_by(_tasks.c.started_us, _tasks.c.task).limit(PAGE)
            page = await self.run(functools.partial(_attempts, query=query), read_only=True)
            if page:
                yield page
            if len(page) < PAGE:
                return
            after = page[-1].started_us, page[-1].task

    async def ended_twice(self, pool: str, limit: int = 10) -> tuple[int, list[str]]:
        """Return how many tasks ended more than once, and the ids of some of them."""
        where = (*self._of_pool(pool), _tasks.c.outcome.in_(ends.FINAL))
        twice = sa.select(_tasks.c.task).where(*where).group_by(_tasks.c.type, _tasks.c.tenant, _tasks.c.task)
        found = twice.having(sa.func.count() > 1).subquery()

        def read(connection: sa.Connection) -> tuple[int, list[str]]:
            n = int(connection.execute(sa.select(sa.func.count()).select_from(found)).scalar_one())
            some = sa.select(found.c.task).order_by(found.c.task).limit(limit)
            return n, list(connection.execute(some).scalars()) if n else []

        return await self.run(read, read_only=True, deadline_s=LONG_S)

    async def outcomes(self, pool: str) -> dict[str, int]:
        """Return the number of rows by outcome."""
        query = sa.select(_tasks.c.outcome, sa.func.count()).where(*self._of_pool(pool)).group_by(_tasks.c.outcome)
        rows = await self.run(lambda c: list(c.execute(query)), read_only=True, deadline_s=LONG_S)
        return {outcome: int(n) for outcome, n in sorted(tuple(row) for row in rows)}

    async def give_up_running(self, pool: str, now_us: int) -> int:
        """Note that attempts that are recorded as running were lost with their host; return their number.

        For a new owner of the pool, before it starts anything.
        """
        lost = sa.update(_tasks).where(*self._of_pool(pool), _tasks.c.outcome == ends.RUNNING)
        lost = lost.values(outcome=ends.LOST, ended_us=now_us, error="the host of the attempt is gone")
        return await self.run(lambda c: c.execute(lost).rowcount)

    def _of_pool(self, pool: str) -> tuple[sa.ColumnElement[bool], ...]:
        return (_tasks.c.environment == self._environment, _tasks.c.pool == pool)

    def _of_task(
        self, connection: sa.Connection, pool: str, task: str, where: Sequence[sa.ColumnElement[bool]]
    ) -> tuple[list[Attempt], bool]:
        query = sa.select(_tasks).where(*self._of_pool(pool), *where).order_by(_tasks.c.started_us)
        t = tables.cancels.c
        asked = sa.select(t.task).where(t.environment == self._environment, t.pool == pool, t.task == task)
        return _attempts(connection, query), connection.execute(asked).first() is not None


def _state(attempts: Sequence[Attempt]) -> str:
    if not attempts:
        return "unknown"
    if ended := [each.outcome for each in attempts if each.outcome in ends.FINAL]:
        return ended[-1]
    return ends.RUNNING if attempts[-1].outcome == ends.RUNNING else "waiting"


def _attempts(connection: sa.Connection, query: sa.Select[tuple[object, ...]]) -> list[Attempt]:
    known: dict[str, Mapping[str, float]] = {}  # most rows of a page have one of a few costs

    def costs(text: str) -> Mapping[str, float]:
        found = known.get(text)
        if found is None:
            found = known[text] = _costs(text)
        return found

    return [
        Attempt(
            *(r.task, r.type, r.tenant, r.resource, r.key, r.submitted_us, r.deadline_us, r.started_us, r.ended_us),
            *(r.outcome, r.attempt, r.version, costs(r.costs), costs(r.actual) if r.actual else None, r.error),
            *(bytes(r.result), r.host, _keys(text) if (text := r._mapping["keys"]) else None, r.as_type),
        )
        for r in connection.execute(query)
    ]
