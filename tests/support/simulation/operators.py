"""The actions of operators in a trial: take messages back, and replay dead letters."""

from __future__ import annotations

import asyncio

from emq.observe import dead_letters
from support.simulation.cluster import Cluster
from support.simulation.work import Work

TOPIC = "resized"
"""Whose messages they are."""

RECALLED = 2
DELAY_MS = 1_500.0


async def recall(cluster: Cluster) -> None:
    """Take back some of the messages that wait for their time: these never start, the others do."""
    if cluster.db.ahead_s:
        return  # somebody set the clock of all hosts: for them, what is delayed by our clock is due
    publisher = cluster.publishers[TOPIC]
    ids = [await publisher.probe(delay_ms=DELAY_MS) for _ in range(2 * RECALLED)]
    await asyncio.sleep(DELAY_MS / 3000)
    wanted = {id_: name for id_, name in ids[:RECALLED] if id_ is not None}
    taken = await cluster.admin.recall(TOPIC, set(wanted))
    cluster.evidence.note(TOPIC, f"{sorted(wanted[id_] for id_ in taken)} are recalled")
    cluster.evidence.recalled.update(wanted[id_] for id_ in taken)
    cluster.evidence.forgotten.update(wanted[id_] for id_ in taken)
    cluster.evidence.happened["recalled"] += len(taken)
    if len(taken) < len(wanted):
        cluster.evidence.violated("recall", f"{TOPIC}/0", f"{len(taken)} of {len(wanted)} waiting messages recalled")


async def replay(cluster: Cluster) -> None:
    """Deliver the dead letters again, as first attempts; most of them fail again."""
    store, evidence = cluster.keeper.store, cluster.evidence
    topic = await cluster.catalog.get(TOPIC)
    names = {Work.parse(letter.payload).name async for letter in dead_letters.find(store, topic)}
    evidence.note(TOPIC, f"{sorted(names)} are replayed")
    evidence.replayed.update(dict.fromkeys(names, evidence.now))
    count = await dead_letters.replay(store, topic, clock=cluster.clock)
    evidence.happened["replayed"] += count
    if count < len(names):
        evidence.violated("replay", f"{TOPIC}/0", f"{count} of {len(names)} dead letters replayed")
