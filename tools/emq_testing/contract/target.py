"""The store that is tried, and what it can do beyond a lone instance's promises."""

from __future__ import annotations

import asyncio
import enum
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from emq.runtime.environment import Environment
from emq.storage.answers import served
from emq.storage.log_store import Batch, LogStore, Put, Read
from emq.storage.slot_store import Slot, SlotKind
from emq.storage.store import Store


class Can(enum.Enum):
    """What a store may lack. The docstrings promise most of this of every store, but some stores cannot keep it."""

    SHARE_CONTROL = "fences, seals and trims hold for all instances"
    ONE_FENCE = "an epoch seen by the queues fences the slots, and the other way round"
    DIRECT_WAKEUPS = "a wake-up goes to the instance that armed last, and to no other"
    ATOMIC = "a put of several bodies, and sealing, are atomic against other instances"
    MAX_LENGTH = "the length of a group is known to its writers"
    DENSE = "offsets follow one another, and a read tells the tail from a hole at once"
    REPLICATE = "a put can wait for a replica, or there is none to wait for"
    REMEMBER = "ids of publishes are remembered together with what they put"
    MANY_INSTANCES = "several instances may be open on the same data"
    SLOTS = "it has slots of its own, for sorted topics"
    IN_ORDER = "wake-ups of queues and slots come in the order in which they were sent"


Needs = Callable[[Can], None]
"""Skips a test on a store that cannot do something."""

EVERYTHING = frozenset(Can)
PUT_GET = frozenset({Can.MANY_INSTANCES, Can.REPLICATE})
"""A store of PUT and GET alone."""

OLD = 4_102_444_799_999_998
"""Epochs count microseconds since 1970, more than 32 bits or 14 digits hold; this one is at the end of 2099."""

NEW = OLD + 1

PATIENCE_S = 8.0
"""How long a test waits for what must happen before it fails; nothing waits this long where all is well."""


class Target:
    """Opens instances of one store, all on the same data, and closes them.

    Args:
        name: the store's name, for reports.
        opener: opens an instance, as the factory of the adapter does.
        can: what may be asked of the store.
        topic: a topic's name that no other test uses; None for a random one.
        is_near: True if a call costs no more than some microseconds; then random tests try more.
        doubts: True if the store lets other programs claim members of slots, too.
        forget_last: an async function `(store, queue, count)` that takes back the last messages of a queue behind the
            adapter's back, as a server does that comes back without its last writes. None: this is not tried.

    Attributes:
        hole_grace_s: for stores that must wait before they tell a hole; set it before `open`.
    """

    hole_grace_s = 0.02

    def __init__(
        self,
        name: str,
        opener: Callable[[Environment], Awaitable[Store]],
        can: AbstractSet[Can] = EVERYTHING,
        *,
        topic: str | None = None,
        is_near: bool = False,
        doubts: bool = False,
        forget_last: Callable[[Store, str, int], Awaitable[object]] | None = None,
    ) -> None:
        self.name = name
        self.topic = topic or f"t{secrets.token_hex(6)}"
        self.can = can
        self.is_near = is_near
        self.doubts = doubts
        self.forget_last = forget_last
        self._opener = opener
        self._opened: list[Store] = []

    async def open(self, environment: Environment = Environment.ONLINE) -> Store:
        store = await self._opener(environment)
        self._opened.append(store)
        return store

    async def close(self) -> None:
        while self._opened:
            await self._opened.pop().close()

    def queue(self, priority: str = "high", group: int = 0) -> str:
        return f"{self.topic}/{group}/{priority}"

    def slot(self, group: int = 0) -> str:
        return f"{self.topic}/{group}"

    def sorted_slot(self, kind: SlotKind, apart: bool = False, group: int = 0) -> Slot:
        return Slot(self.slot(group), kind, apart)


class Watcher:
    """Collects a store's wake-ups in the background.

    Attributes:
        woken: each name once, since a store may tell again of what no read or claim has answered.
        ignored: names that are not collected, for the same reason: those of canaries that have done their work.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.woken: list[str] = []
        self.ignored: set[str] = set()
        self.sweeps = 0
        self.ended = False
        self._news = asyncio.Event()

    async def run(self) -> None:
        async for names in self._store.watch():
            if names is None:
                self.sweeps += 1
            else:
                known = self.ignored.union(self.woken)
                self.woken += [name for name in dict.fromkeys(names) if name not in known]
            self._news.set()
        self.ended = True
        self._news.set()

    async def until(self, happened: Callable[[], bool], what: str) -> None:
        """Wait for news until `happened`; fails the test when it does not."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not happened():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"{what} did not happen; woken: {self.woken[:10]}, sweeps: {self.sweeps}") from None

    async def wakes(self, *names: str) -> None:
        await self.until(lambda: set(names) <= set(self.woken), f"waking {names[:10]}")

    def forget(self) -> None:
        self.woken.clear()
        self.sweeps = 0


@asynccontextmanager
async def watching(store: Store, canary: str) -> AsyncIterator[Watcher]:
    """A watcher that is surely listening: it has reported a canary queue, which is used for that alone."""
    watcher = Watcher(store)
    task = asyncio.create_task(watcher.run())
    try:
        start = store.log.first_offset
        async with asyncio.timeout(PATIENCE_S):
            while canary not in watcher.woken:
                batch = await read_one(store.log, canary, start)
                start = batch.next
                await store.log.put([Put(canary, [b"canary"])])
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await watcher._news.wait()
                watcher._news.clear()
        watcher.ignored.add(canary)  # a late wake-up of a canary before the last one
        watcher.forget()
        yield watcher
        assert not task.done() or task.result() is None
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def settle_down(store: Store, watcher: Watcher, canary: str) -> None:
    """Return when a wake-up that was sent before this call would have arrived."""
    batch = await read_one(store.log, canary, store.log.first_offset, limit=1_000_000)
    while not batch.exhausted:
        batch = await read_one(store.log, canary, batch.next, limit=1_000_000)
    watcher.ignored.discard(canary)
    await store.log.put([Put(canary, [b"canary"])])
    await watcher.wakes(canary)
    watcher.ignored.add(canary)
    watcher.woken = [name for name in watcher.woken if name != canary]


def optional(store: Store, name: str) -> Any:
    """Return a method that a store need not have; skip the test if it has not."""
    method = getattr(store, name, None)
    if method is None:
        pytest.skip(f"the store has no method `{name}`, which is optional")
    return method


async def put_one(log: LogStore, queue: str, *bodies: bytes) -> Sequence[int]:
    """Put, and insist that it was not refused."""
    (answer,) = await log.put([Put(queue, bodies)])
    if isinstance(answer, Exception):
        raise answer
    return answer


async def ends(log: LogStore, queues: Sequence[str]) -> list[tuple[int, int]]:
    """Return head and tail of each queue."""
    return [(b.head, b.tail) for b in served(await log.bounds(queues))]


async def read_one(log: LogStore, queue: str, start: int, limit: int = 100, epoch: int = 1) -> Batch:
    """Read, and insist that it was not refused."""
    (answer,) = await log.read([Read(queue, start, limit, epoch)])
    if isinstance(answer, Exception):
        raise answer
    return answer


async def read_all(
    log: LogStore, queue: str, count: int, start: int | None = None, limit: int = 100, epoch: int = 1
) -> list[tuple[int, bytes]]:
    """Read on until `count` messages have come, over holes that take their time to be decided."""
    position = log.first_offset if start is None else start
    found: list[tuple[int, bytes]] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count:
        batch = await read_one(log, queue, position, limit, epoch)
        assert list(batch.offsets) == sorted(batch.offsets)
        assert len(batch.offsets) == len(batch.bodies) <= limit
        assert all(position <= offset < batch.next for offset in batch.offsets)
        found += zip(batch.offsets, batch.bodies, strict=True)
        position = batch.next
        if not batch.offsets:
            assert time.monotonic() < deadline, f"{len(found)} of {count} messages of {queue} after {PATIENCE_S} s"
            await asyncio.sleep(0.002)
    return found
