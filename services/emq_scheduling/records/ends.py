"""Records of attempts and of the ends of tasks, written into the database in the background.

Each attempt that starts on a resource has one row, so that starts and charges can be counted again (`proof`). The row
of the last attempt says how its task ended. A task that ends without a start has one row without a resource.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
import sqlalchemy as sa

from emq.database import Database
from emq.database.batch_writer import BatchWriter
from emq_scheduling.database import schema

log = logging.getLogger(__name__)

RUNNING: Final = "running"
"""The attempt has not ended."""
DONE: Final = "done"
DEAD: Final = "dead"
"""The last attempt failed; the task is a dead letter."""
EXPIRED: Final = "expired"
"""The task was not started before its time to live was over."""
CANCELLED: Final = "cancelled"
FAILED: Final = "failed"
"""The attempt failed, and the task waits for another one."""
LOST: Final = "lost"
"""The host of the attempt is gone, and with it the outcome; the task is tried again."""

FINAL: Final = frozenset((DONE, DEAD, EXPIRED, CANCELLED))
"""Outcomes after which a task is not tried again."""

RESULT_BYTES = 4096
"""Bytes of a result that are kept."""
ERROR_CHARS = 1000

FLUSH_S = 0.25
"""Most seconds that a record waits to be written, while the database answers."""
BATCH = 2_000
"""Most records of one transaction; if so many are there, the log waits for no more."""
MOST = 50_000
"""Records that wait while the database is away; with so many, `room` lets nothing start."""

COLUMNS = (
    *("environment", "pool", "started_us", "task", "type", "tenant", "resource", "key", "submitted_us"),
    *("deadline_us", "ended_us", "outcome", "attempt", "version", "costs", "actual", "error", "result", "host", "keys"),
    "as_type",
)
_LATER = ("ended_us", "outcome", "actual", "error", "result")
_SAVE = """INSERT INTO emq_scheduling_tasks ({}) VALUES ({})
ON CONFLICT (environment, pool, started_us, task, attempt, resource)
DO UPDATE SET {} WHERE emq_scheduling_tasks.outcome = 'running'"""
"""The record of an end replaces that of the running attempt, and nothing else. So a repeated write changes nothing, and
neither does a host that goes on after another one has noted its attempts as lost."""


class End(msgspec.Struct, gc=False):
    """One attempt, or the end of a task that never started. Make `started_us` and `ended_us` by `us`.

    Attributes:
        started_us: of the attempt, in microseconds since the epoch, as it was charged; 0 if the task never started.
        resource: where it ran; empty if the task never started.
        version: of the pool by which the attempt was charged.
        costs: units that it was charged, by limit name; 1 for other limits.
        outcome: one of the names above.
        ended_us: 0 while it runs.
        attempt: from 1; 0 if the task never started.
        actual: units that it really used, by limit name; None if as charged. Limits that are not named: as charged.
        result: the first `RESULT_BYTES` of the task's result.
        deadline_us: 0 for none.
        keys: by name, by which limits by key count it; None for none.
        as_type: the type as which a task with fallbacks ran; empty for its own.
    """

    pool: str
    task: str
    type: str
    tenant: str
    key: str
    submitted_us: int
    started_us: int
    resource: str
    version: int
    costs: Mapping[str, float]
    outcome: str
    ended_us: int = 0
    attempt: int = 1
    actual: Mapping[str, float] | None = None
    error: str = ""
    result: bytes = b""
    deadline_us: int = 0
    keys: Mapping[str, str] | None = None
    as_type: str = ""


def us(now: float) -> int:
    """Return a time in whole microseconds, never in a later second than `now`."""
    return int(now * 1_000_000)


class EndLog(BatchWriter[End]):
    """Takes records at once; another task writes them in batches.

    Records are evidence, so none is dropped: while the database is away they wait, and from `most` on `is_full` keeps
    the scheduler from starting tasks. Later records wait as well.

    Args:
        database: returns the database.
        environment: "online" or "sandbox".
        host: returns the name of this host.
        most: records that wait before the log is full.
    """

    def __init__(
        self, database: Callable[[], Database], environment: str, host: Callable[[], str], *, most: int = MOST
    ) -> None:
        super().__init__("record of a task", "records of tasks", batch=min(BATCH, most), flush_s=FLUSH_S)
        self._database = database
        self._environment = str(environment)
        self._host = host
        self._most = most
        self._room = asyncio.Event()
        self._room.set()
        self._tables: schema.Tables | None = None

    def add(self, end: End) -> None:
        """Take a record; costs an append."""
        self._add(end)
        if self.waiting >= self._most and not self.is_full:
            self._room.clear()
            log.warning("%d records of tasks wait for the database; no task starts until it takes them", self._most)

    @property
    def is_full(self) -> bool:
        """True while so many records wait that nothing more may start."""
        return not self._room.is_set()

    async def room(self) -> None:
        """Wait until something may start."""
        await self._room.wait()

    async def _prepare(self) -> None:
        if self._tables is None:
            self._tables = schema.Tables(self._database(), self._environment)
        await self._tables.ready()

    async def _save(self, batch: Sequence[End]) -> None:
        assert self._tables is not None
        await self._tables.run(functools.partial(self._insert, batch=batch))

    def _left(self) -> None:
        if self.is_full and self.waiting < self._most:
            self._room.set()
            log.warning("records of tasks are written again; tasks start again")

    def _shown(self, item: End) -> str:
        return f"{item.task!r} of pool {item.pool!r}"

    def _insert(self, connection: sa.Connection, batch: Sequence[End]) -> None:
        # Straight to the driver: SQLAlchemy's own way would cost several times as much for each row.
        mark = "?" if connection.dialect.name == "sqlite" else "%s"
        later = ", ".join(f"{name} = excluded.{name}" for name in _LATER)
        sql = _SAVE.format(", ".join(COLUMNS), ", ".join([mark] * len(COLUMNS)), later)
        encoded = _Encoded()
        host = self._host()
        connection.exec_driver_sql(sql, [self._row(end, encoded, host) for end in batch])

    def _row(self, end: End, encoded: _Encoded, host: str) -> tuple[object, ...]:
        return (
            *(self._environment, end.pool, end.started_us or end.ended_us, end.task, end.type, end.tenant),
            *(end.resource, _clean(end.key), end.submitted_us, end.deadline_us, end.ended_us, end.outcome, end.attempt),
            *(end.version, encoded.of(end.costs), "" if end.actual is None else encoded.of(end.actual)),
            *(_clean(end.error[:ERROR_CHARS]), end.result[:RESULT_BYTES], host),
            msgspec.json.encode(end.keys).decode() if end.keys else "",
            end.as_type,
        )


class _Encoded:
    """Costs as JSON. Most tasks of a batch share the object of their costs."""

    def __init__(self) -> None:
        self._texts: dict[int, tuple[Mapping[str, float], str]] = {}

    def of(self, costs: Mapping[str, float]) -> str:
        found = self._texts.get(id(costs))
        if found is None:
            # The entry holds the costs, too, so that no other object gets their id meanwhile.
            found = self._texts[id(costs)] = costs, msgspec.json.encode(costs).decode()
        return found[1]


def _clean(text: str) -> str:
    """Return the text without characters that PostgreSQL cannot hold."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd") if text else text
