"""The database of all hosts comes back without its last writes, or empty; then operators give their orders again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from emq.database import environment_time
from support.simulation.member import ENVIRONMENT, EPOCH_S
from support.simulation.plans import Event

if TYPE_CHECKING:
    from support.simulation.cluster import Cluster
    from support.simulation.member import Rows

QUICK_S = 0.05
"""How soon a replica takes over, in half of the cases; else the server starts again, which takes longer."""

LATER_S = 4.0
"""By when operators have found out and given their orders again, at the latest."""

HEARD_S = 3.0
"""After this time some host has brought the environment's time back to an empty database. Operators wait for that: if
they created topics before it, and the clock of the database had been set back, these would get versions below those of
their former lives, and queues refuse the keyed messages of a lower layout."""


async def database_shorter(cluster: Cluster, event: Event) -> None:
    """It comes back without what it was told in the last second, or less."""
    async with cluster.losing:
        kept = await cluster.db.rows()
        await asyncio.sleep(event.size)
        await _lose(cluster, event, kept, f"by {event.size:.2f} s")


async def database_empty(cluster: Cluster, event: Event) -> None:
    """It comes back empty: its tables are there, and nothing is in them.

    The note of the environment's time is lost. Running hosts bring the time back; where no host runs, nobody can. The
    server on which such a database begins has the right time then, as docs/host/time.md asks.
    """
    async with cluster.losing:
        if not cluster.alive:
            now_us = await cluster.db.run(lambda c: environment_time.now_us(c, cluster.db, ENVIRONMENT))
            true_us = int((EPOCH_S + 0.25 + cluster.evidence.now) * 1e6)
            cluster.db.ahead_s = max(cluster.db.ahead_s, (now_us - true_us) / 1e6)
        await _lose(cluster, event, {}, "all of it", HEARD_S)


async def _lose(cluster: Cluster, event: Event, kept: Rows, text: str, heard_s: float = 0.0) -> None:
    evidence = cluster.evidence
    async with cluster.topics.lock:
        ordered = await cluster.catalog.list()
        evidence.note("", f"--- {event.what}: {text}")
        evidence.happened[event.what] += 1
        await cluster.db.come_back(kept)
        evidence.database_lost(await cluster.checkpoints.load_all())
        cluster.db.restarting = True
        await asyncio.sleep(QUICK_S if event.pick % 2 else event.for_s / 4)
        cluster.db.restarting = False
        evidence.note("", "--- the database is back")
        await asyncio.sleep(heard_s + LATER_S * event.size)
        await cluster.topics.give_again(ordered)
        evidence.note("", "--- all orders are given again")
