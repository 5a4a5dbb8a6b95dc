"""The topology: the node that serves each hash slot of a cluster; refreshed when a node contradicts it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import redis.asyncio

from emq.runtime import errors
from emq_stores.redis.failures import TRANSPORT
from emq_stores.redis.keys import HASH_SLOTS
from emq_stores.redis.node_pipeline import NodePipeline

log = logging.getLogger(__name__)

REFUSAL_S = 30.0
"""Seconds without a refusal of a hash slot, after which a further refusal counts as a new trouble."""

REFRESH_S = 0.2
"""Least seconds between two looks at the cluster."""


class Topology:
    """The lines to the nodes, by address and by hash slot.

    Args:
        seeds: addresses ("host:port") of nodes; one node that still knows the cluster is enough.
        connect: makes the client of a node.
        url: URL of the cluster, for error texts.

    Attributes:
        seeds: see above.
        is_list: True for a list of servers, which know nothing of each other; see `server_list`.
    """

    is_list = False

    def __init__(self, seeds: Sequence[str], connect: Callable[[str, int], redis.asyncio.Redis], url: str) -> None:
        self.seeds = seeds
        self._connect = connect
        self._url = url
        self._lines: dict[str, NodePipeline] = {}
        self._forgotten: list[NodePipeline] = []
        self._served: list[str | None] = [None] * HASH_SLOTS
        self._refreshing: asyncio.Task[None] | None = None
        self._refreshed = -REFRESH_S
        self._closed = False
        self._refusing: dict[int, tuple[float, float]] = {}

    def line(self, hash_slot: int) -> NodePipeline:
        """Return the line to the node that serves a hash slot.

        Raises:
            StoreUnavailable: no node is known to serve it; nothing was sent.
        """
        address = self._served[hash_slot]
        if address is None:
            self.suspect()
            raise errors.StoreUnavailable(f"no node of {self._url} serves hash slot {hash_slot}; is the cluster well?")
        return self.at(address)

    def at(self, address: str) -> NodePipeline:
        """Return the line to the node at "host:port"."""
        line = self._lines.get(address)
        if line is None:
            if self._closed:
                raise errors.StoreUnavailable(f"the store at {self._url} was closed")
            host, _, port = address.rpartition(":")
            line = self._lines[address] = NodePipeline(
                address, self._connect(host.strip("[]"), int(port)), followed=not self.is_list
            )
        return line

    def stamp(self, hash_slot: int, address: str) -> Sequence[Any]:
        """Return what a server needs to tell whether it serves a call's hash slot; nothing for a cluster's node."""
        return ()

    def masters(self) -> set[str]:
        """Return the addresses of the nodes that serve hash slots."""
        return {address for address in self._served if address is not None}

    def serves(self, address: str, hash_slot: int) -> bool:
        """Return whether the node at an address serves a hash slot."""
        return self._served[hash_slot] == address

    def moved(self, hash_slot: int, address: str) -> None:
        """Note that another node serves this hash slot, as a node said, and refresh; other slots may have moved too."""
        self._served[hash_slot] = address
        self.suspect()

    def refused_for_s(self, hash_slot: int) -> float:
        """Note a refused call to the hash slot; return the seconds since the first refusal after the last success."""
        now = time.monotonic()
        since, last = self._refusing.get(hash_slot, (now, now))
        if now - last > REFUSAL_S:
            since = now
        self._refusing[hash_slot] = since, now
        return now - since

    def served(self, hash_slot: int) -> None:
        """Note that a call to the hash slot was served."""
        if self._refusing:
            self._refusing.pop(hash_slot, None)

    def suspect(self) -> None:
        """Refresh soon, since the topology seems out of date."""
        if self._refreshing is None and not self._closed:
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh_soon())

    async def refresh(self) -> None:
        """Look at the cluster now.

        Raises:
            StoreUnavailable: no node answers, or the nodes that answer belong to no cluster.
        """
        failure: Exception | None = None
        known = [*self.masters(), *self._lines, *self.seeds]
        for address in sorted(dict.fromkeys(known), key=lambda _: random.random()):
            line = self.at(address)
            try:
                entries = await line.patience.answer(lambda: line.client.execute_command("CLUSTER", "SLOTS"))  # type: ignore[no-untyped-call] # noqa: B023
            except (*TRANSPORT, errors.StoreUnavailable) as exc:
                failure = exc
                continue
            if entries:
                self._learn(entries, address)
                await self._forget_others()
                return
        why = failure or "they serve no hash slots"
        raise errors.StoreUnavailable(f"none of the nodes of {self._url} tells of its cluster: {why}") from failure

    async def close(self) -> None:
        """Close all lines. Safe to repeat."""
        self._closed = True
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
        lines, self._lines = [*self._lines.values(), *self._forgotten], {}
        await asyncio.gather(*(line.close() for line in lines), return_exceptions=True)

    async def _refresh_soon(self) -> None:
        try:
            await asyncio.sleep(max(0.0, self._refreshed + REFRESH_S - time.monotonic()))
            self._refreshed = time.monotonic()
            with contextlib.suppress(errors.EMQError):  # the next call that fails asks again
                await self.refresh()
        finally:
            self._refreshing = None

    def _learn(self, entries: Sequence[Any], asked: str) -> None:
        served: list[str | None] = [None] * HASH_SLOTS
        for first, last, master, *_ in entries:
            host = master[0].decode() if master[0] else asked.rpartition(":")[0].strip("[]")
            served[first : last + 1] = [f"{host}:{master[1]}"] * (last + 1 - first)
        self._served = served

    async def _forget_others(self) -> None:
        """Close the lines to nodes that serve no hash slot now, once no call is under way on them."""
        masters = self.masters()
        self._forgotten += [self._lines.pop(a) for a in [*self._lines] if a not in masters and self._lines[a].idle]
        while self._forgotten:  # `close` closes the lines that a cancellation leaves here
            await self._forgotten[-1].close()
            self._forgotten.pop()
