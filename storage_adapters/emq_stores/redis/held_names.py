"""Finds the names of the queues, lanes and slots that hold messages, by the keys of the server."""

from __future__ import annotations

from emq.storage.store import Holding
from emq_stores.redis.damage import Scripts
from emq_stores.redis.keys import slot_of_own

LANES = ("waiting", "prepared", "dead")


async def held(server: Scripts, environment: str) -> Holding:
    """Return the names. A key exists only while it holds something, except EMQ's notes about slots.

    A slot that no host has ever had is left out: without EMQ's notes, its keys may be those of another program.
    """
    queues: dict[str, None] = {}
    lanes: dict[str, None] = {}
    slots: dict[str, None] = {}
    async for key in server.scan(f"{{emq:{environment}:*"):
        kind, _, name = key.partition("}:")[2].partition(":")
        if kind == "log":
            queues[name] = None
        elif kind in LANES:
            lanes[name] = None
    async for key in server.scan("emq{*}"):
        if (slot := slot_of_own(environment, key)) is not None:
            slots[slot] = None
    return Holding(sorted(queues), sorted(lanes), sorted(slots))
