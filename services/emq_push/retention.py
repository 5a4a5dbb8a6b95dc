"""Deletes attempts and settled deliveries that are older than their tenant keeps them.

Nothing of a message goes while one of its deliveries waits, delayed or parked. Hosts do this, also for topics without a
tenant and without an API process. `emq_push.service.upkeep` deletes other old rows.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import sqlalchemy as sa

from emq.database import Database, schema
from emq.database.trimming import Trimmer, delete_some
from emq.runtime.clock import Clock
from emq_push.records import rows, tables
from emq_push.records.deliveries import PENDING
from emq_push.records.schema import PUSH
from emq_push.records.tenants import Tenants

DEFAULT_S = 30 * 86_400.0
"""Thirty days, in seconds: for topics of no tenant, and tenants that say nothing."""

ROWS = 1_000
"""Most rows that one statement deletes, so that no write waits long for the database."""

TOPICS = 200
"""Topics that are looked at in one transaction."""

PAUSE_S = 0.05


class Retention(Trimmer):
    """Deletes these rows.

    Args:
        known: returns those of the topics of some names that exist, also those that sleep.
    """

    KEY = "push_trimmed"
    WHAT = "records of attempts"

    def __init__(
        self,
        database: Callable[[], Database],
        environment: str,
        known: Callable[[Sequence[str]], Awaitable[Iterable[str]]],
        clock: Clock,
    ) -> None:
        super().__init__(database, environment, clock)
        self._tenants = Tenants(environment)
        self._known = known

    def is_set_up(self, connection: sa.Connection) -> bool:
        return schema.revision(connection, PUSH) is not None

    async def trim(self) -> int:
        kept_s = await self._database().run(self._tenants.log_retentions_s, read_only=True)
        now, deleted = self._clock.now(), 0
        topics = [*(await self._names(tables.attempts) | await self._names(tables.deliveries))]
        for start in range(0, len(topics), TOPICS):
            left = dict.fromkeys(await self._known(topics[start : start + TOPICS]))
            while left:
                cutoffs = {name: _us(now - kept_s.get(name.partition(".")[0], DEFAULT_S)) for name in left}
                found = await self._database().run(functools.partial(self._deleted, cutoffs=cutoffs))
                deleted += sum(map(sum, found.values()))
                left = {name: None for name, both in found.items() if max(both) >= ROWS}
                await asyncio.sleep(PAUSE_S)
        return deleted + await self._orphans(_us(now - max([DEFAULT_S, *kept_s.values()])))

    async def _names(self, table: sa.Table) -> dict[str, None]:
        """Return the topics that have rows; one look-up for each, however many rows they have."""
        names, last = dict[str, None](), ""
        look = functools.partial(rows.topics_after, table=table, environment=self._environment, limit=TOPICS)
        while found := await self._database().run(functools.partial(look, topic=last), read_only=True):
            names |= dict.fromkeys(found)
            last = found[-1]
            await asyncio.sleep(PAUSE_S)
        return names

    async def _orphans(self, cutoff_us: int) -> int:
        """Delete attempts that are older than the longest retention, also of topics that are gone."""
        a, deleted = tables.attempts, 0
        old = (a.c.environment == self._environment) & (a.c.started_us < cutoff_us) & ~_waits(a)
        while n := await self._database().run(lambda c: delete_some(c, a, old, ROWS)):
            deleted += n
            if n < ROWS:
                break
            await asyncio.sleep(PAUSE_S)
        return deleted

    def _deleted(self, connection: sa.Connection, cutoffs: Mapping[str, int]) -> Mapping[str, tuple[int, int]]:
        """Delete at most `ROWS` attempts and as many deliveries of each topic; return how many there were."""
        a, d = tables.attempts.c, tables.deliveries.c
        found: dict[str, tuple[int, int]] = {}
        for topic, cutoff_us in cutoffs.items():
            old = (a.environment == self._environment) & (a.topic == topic) & (a.started_us < cutoff_us)
            settled = (d.environment == self._environment) & (d.topic == topic) & (d.state != PENDING)
            settled &= (d.created_us < cutoff_us) & (d.settled_us < cutoff_us) & ~_waits(tables.deliveries)
            found[topic] = (
                delete_some(connection, tables.attempts, old & ~_waits(tables.attempts), ROWS),
                delete_some(connection, tables.deliveries, settled, ROWS),
            )
        return found


def _waits(table: sa.Table) -> sa.ColumnElement[bool]:
    """Whether the message of an attempt or a delivery still waits for one of its tenant's endpoints."""
    own, other = tables.deliveries.alias("own"), tables.deliveries.alias("other")
    its = [own.c[name] == table.c[name] for name in ("environment", "topic", "message")]
    same = [other.c[name] == own.c[name] for name in ("environment", "tenant", "message")]
    found = sa.select(sa.literal(1)).select_from(own, other).where(*its, *same, other.c.state == PENDING)
    return sa.exists(found.correlate(table))


def _us(seconds: float) -> int:
    return int(seconds * 1_000_000)
