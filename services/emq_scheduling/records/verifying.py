"""The proof of a pool from its records: no limit was exceeded, no task ended twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from emq.database import Database
from emq_scheduling.pools.catalog import PoolCatalog
from emq_scheduling.records.proof import LimitProof, Recount
from emq_scheduling.records.records import Records


class Proof(msgspec.Struct, frozen=True):
    """The proof from the records of a pool.

    Attributes:
        attempts: starts that were counted.
        since_us: the first of them; 0 without any.
        outcomes: number of rows by outcome.
        limits: each with its peak.
        ended_twice: number of tasks that ended more than once, and some of their ids. A crash of the owner can cause
            this, since tasks are done at least once.
        twice: some of the ids.
        unproven: starts whose version of the pool is not known any more.
    """

    pool: str
    attempts: int
    since_us: int
    outcomes: Mapping[str, int]
    limits: Sequence[LimitProof]
    ended_twice: int
    twice: Sequence[str]
    unproven: int

    @property
    def over_s(self) -> int:
        """Seconds in which something started above a limit, summed over the limits."""
        return sum(each.over_s for each in self.limits)

    @property
    def holds(self) -> bool:
        """True if no limit was exceeded and no task ended twice."""
        return not self.over_s and not self.ended_twice


async def verify(
    database: Database, environment: str, pool: str, on_progress: Callable[[int], None] = lambda _: None
) -> Proof:
    """Count the records of a pool again, whether or not the pool is still there.

    The records of attempts that a host had not written when it crashed are missing: those of its last half second.

    Args:
        on_progress: takes the number of rows that are counted.

    Raises:
        DatabaseUnavailable: the database does not answer; try again.
    """
    records = Records(database, environment)
    recount = Recount(await PoolCatalog(database, environment).history(pool))
    rows, since_us = 0, 0
    async for page in records.all(pool):
        for row in page:
            recount.add(row)
            since_us = since_us or row.started_us
        rows += len(page)
        on_progress(rows)
    n, some = await records.ended_twice(pool)
    outcomes = await records.outcomes(pool)
    return Proof(pool, recount.attempts, since_us, outcomes, recount.result(), n, some, recount.unproven)
