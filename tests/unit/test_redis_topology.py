"""The lines to the nodes of a cluster."""

from __future__ import annotations

import asyncio
from typing import Any

from emq_stores.redis.topology import HASH_SLOTS, Topology


class SlowToClose:
    """A node's client that takes its time, and may be interrupted in it."""

    def __init__(self) -> None:
        self.closed = 0

    async def aclose(self) -> None:
        await asyncio.sleep(0.01)
        self.closed += 1


async def test_a_line_that_is_forgotten_while_the_store_closes_is_closed_too() -> None:
    clients: dict[str, Any] = {}
    topology = Topology([], lambda host, port: clients.setdefault(host, SlowToClose()), "redis+cluster://a")
    topology._served = ["master:1"] * HASH_SLOTS
    for address in ("master:1", "replica:1", "gone:1"):
        topology.at(address)
    refreshing = asyncio.create_task(topology._forget_others())
    await asyncio.sleep(0.015)  # the second one of the two is being closed
    refreshing.cancel()
    await asyncio.gather(refreshing, return_exceptions=True)
    await topology.close()
    assert all(client.closed for client in clients.values())
