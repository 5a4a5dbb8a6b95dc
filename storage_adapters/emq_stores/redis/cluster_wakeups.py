"""Wake-ups from a cluster: sharded channels for queues and lanes, a plain channel for the slots of sorted topics.

A plain PUBLISH goes to every node of a cluster, even to nodes without listeners, so more nodes could not carry more
wake-ups. Each shard therefore has a sharded channel in its own hash slot. Its wake-ups stay on the node that serves the
shard (and on the node's replicas), and go from there to the one host concerned. The driver's asyncio client can
subscribe to sharded channels on a connection to one node. So this module keeps one connection, an *ear*, to each master
that serves a shard. When a hash slot moves, the node that loses it sends sunsubscribe, and the ear of the other node
subscribes to the channel.

Slots of sorted topics each lie in a hash slot of their own, and a script may use sharded channels of its own hash slot
only. So sharded channels would need a subscription for every slot. A plain PUBLISH carries these wake-ups instead; a
host hears it at any one node. The servers of a list pass nothing on to each other: there, each ear hears it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import redis.asyncio.client

from emq.runtime import errors
from emq_stores.redis.cluster import hash_slot
from emq_stores.redis.damage import Scripts
from emq_stores.redis.failures import TRANSPORT
from emq_stores.redis.keys import EVERYBODY, Shard
from emq_stores.redis.topology import Topology
from emq_stores.redis.wakeups import RECONNECT_S, SUBSCRIBE_S, SWEEP_S, sweep

log = logging.getLogger(__name__)

LISTEN_S = 5.0
"""Seconds of one wait for a message; the value changes no behaviour."""

News = list[str] | None
"""Names of the woken queues, lanes and slots; None if wake-ups may have been lost."""


class ClusterWakeUps:
    """Hears the wake-ups of all shards, on any nodes."""

    def __init__(self, topology: Topology, server: Scripts, shards: Sequence[Shard], instance: str) -> None:
        self._topology = topology
        self._server = server
        self._shards = {shard.channel(instance): shard for shard in shards}
        self._plain = shards[0].channel(instance), shards[0].channel(EVERYBODY)
        self._closed = False
        self._news: asyncio.Queue[News] = asyncio.Queue()
        self._ears: Ears | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def close(self) -> None:
        self._closed = True
        self._news.put_nowait([])
        await self._end()

    async def watch(self) -> AsyncIterator[Sequence[str] | None]:
        if self._closed:
            return
        self._ears = Ears(self._topology, list(self._shards), self._plain, self._news)
        self._tasks = [asyncio.create_task(self._ears.keep()), asyncio.create_task(self._sweep())]
        try:
            while not self._closed:
                names = await self._news.get()
                if names is None or names:
                    yield names
        finally:
            await self._end()

    async def _end(self) -> None:
        """End the subscriptions; the watcher or the store calls this, whichever ends first."""
        if self._ears is not None:
            self._ears.end()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._ears.close()

    async def _sweep(self) -> None:
        """Find missed wake-ups every few seconds. Ends by cancellation."""
        while True:
            await asyncio.sleep(SWEEP_S)
            calls = (sweep(self._server, shard, channel) for channel, shard in self._shards.items())
            for found in await asyncio.gather(*calls, return_exceptions=True):
                if isinstance(found, list):
                    self._news.put_nowait(found)
                elif not isinstance(found, errors.EMQError):
                    log.error("the sweep for lost wake-ups failed", exc_info=found)


class Ears:
    """Subscriptions to all channels, each at the node that serves it.

    Args:
        channels: the sharded channels.
        plain: plain channels, which any node carries.
        news: gets each wake-up, and None whenever all subscriptions stand and one of them is new.
    """

    def __init__(
        self, topology: Topology, channels: Sequence[str], plain: Sequence[str], news: asyncio.Queue[News]
    ) -> None:
        self._topology = topology
        self._slots = {channel: hash_slot(channel) for channel in channels}
        self._plain = plain
        self._news = news
        self._ears: dict[str, _Ear] = {}
        self._asked_for: set[tuple[str, str]] = set()
        self._changed = asyncio.Event()
        self._ended = False

    async def keep(self) -> None:
        """Keep the subscriptions; subscribe again after an end or a move. Ends by `end` and cancellation."""
        while not self._ended:
            self._changed.clear()
            try:
                well = await self._settle()
            except Exception:  # without its ears, a host would hear nothing of its groups: go on after any error
                log.exception("the subscriptions broke; they are made again")
                well = False
            if well:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(SWEEP_S):
                        await self._changed.wait()
            else:
                self._topology.suspect()
                await asyncio.sleep(RECONNECT_S)

    def end(self) -> None:
        """Announce that `keep` is about to be cancelled; the driver may report that as an error of the connection."""
        self._ended = True

    async def close(self) -> None:
        """End all subscriptions."""
        await asyncio.gather(*(ear.close() for ear in self._ears.values()), return_exceptions=True)

    async def _settle(self) -> bool:
        """Subscribe and unsubscribe as the topology asks; return False if a node was out of reach."""
        try:
            wanted = self._wanted()
        except errors.StoreUnavailable:
            return False
        for address in [a for a, ear in self._ears.items() if ear.ended or a not in wanted]:
            await self._drop(address)
        well = True
        for address, channels in wanted.items():
            try:
                async with asyncio.timeout(SUBSCRIBE_S):
                    await self._listen(address, channels)
            except Exception as exc:  # a node must not keep the others from being listened to
                if not isinstance(exc, (*TRANSPORT, errors.StoreUnavailable)):
                    log.exception("the subscriptions at %s broke; they are made again", address)
                await self._drop(address)
                well = False
        return well

    def _wanted(self) -> dict[str, set[str]]:
        everywhere = self._topology.masters() if self._topology.is_list else ()  # for the plain channels
        wanted: dict[str, set[str]] = {address: set() for address in everywhere}
        for channel, slot in self._slots.items():
            wanted.setdefault(self._topology.line(slot).address, set()).add(channel)
        return wanted

    async def _listen(self, address: str, channels: set[str]) -> None:
        ear = self._ears.get(address)
        if ear is None:
            ear = self._ears[address] = _Ear(self._topology.at(address).client.pubsub(), self._hear)
        others = () if self._topology.is_list else self._ears.values()
        plain = not ear.plain and not any(other.plain for other in others)
        asked_for = {("ssubscribe", channel) for channel in channels - ear.channels}
        if plain:
            asked_for |= {("subscribe", channel) for channel in self._plain}
        self._asked_for |= asked_for
        await ear.listen(channels, self._plain if plain else ())

    async def _drop(self, address: str) -> None:
        if (ear := self._ears.get(address)) is not None:
            try:
                await ear.close()
            except Exception:  # the connection is of no use any more; a new ear makes its own
                log.exception("the subscriptions at %s did not end well", address)
            self._ears.pop(address, None)  # not if cancelled: `close` ends it then

    def _hear(self, kind: str, channel: str, data: Any) -> None:
        if kind in ("message", "smessage"):
            self._news.put_nowait(data.decode().split("\n"))
        elif kind in ("subscribe", "ssubscribe"):
            self._asked_for.discard((kind, channel))
            if not self._asked_for:
                self._news.put_nowait(None)  # wake-ups before the subscriptions were not heard
        else:  # the node lost the channel's hash slot, or the connection to the node broke
            self._topology.suspect()
            self._changed.set()


class _Ear:
    """The subscriptions at one node, until its connection breaks.

    Attributes:
        channels: the sharded channels that the ear asked for and has not lost.
        plain: True if the ear listens to the plain channels.
    """

    def __init__(self, pubsub: redis.asyncio.client.PubSub, hear: Callable[[str, str, Any], None]) -> None:
        self._pubsub = pubsub
        self._hear = hear
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.channels: set[str] = set()
        self.plain = False

    @property
    def ended(self) -> bool:
        return self._task is not None and self._task.done()

    async def listen(self, channels: set[str], plain: Sequence[str]) -> None:
        """Subscribe to the channels that are missing; raises `RedisError` or `OSError` if the node is out of reach."""
        new = channels - self.channels
        self.channels = set(channels)
        for channel in new:  # one call each: a node refuses one call for channels of different hash slots
            await self._pubsub.ssubscribe(channel)
        if plain:
            await self._pubsub.subscribe(*plain)
            self.plain = True
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        with contextlib.suppress(*TRANSPORT):
            await self._pubsub.aclose()  # type: ignore[no-untyped-call]

    async def _run(self) -> None:
        try:
            while not self._closed:
                async with asyncio.timeout(LISTEN_S + SUBSCRIBE_S):  # the driver may have to connect again
                    message = await self._pubsub.get_message(timeout=LISTEN_S)
                if message is not None:
                    channel = message["channel"].decode()
                    if message["type"] == "sunsubscribe":
                        self.channels.discard(channel)
                    self._hear(message["type"], channel, message["data"])
        except TRANSPORT:  # for example MOVED: the node does not serve the channel
            self.plain = False
        finally:
            self._hear("ended", "", None)
