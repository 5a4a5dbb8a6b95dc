"""`emq.storage.store.Store.tell`: the names of new topics come to hosts without a look at the catalog."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager

import pytest

from emq.runtime.environment import Environment
from emq.storage.store import Store
from emq_stores.redis import cluster_wakeups, wakeups
from emq_stores.sql import listen
from emq_testing.contract.target import PATIENCE_S, Target, Watcher, settle_down, watching


def teller(store: Store) -> Callable[[Collection[str]], Awaitable[None]]:
    """Return the optional method, which all of these stores have."""
    told: Callable[[Collection[str]], Awaitable[None]] = getattr(store, "tell")  # noqa: B009, not in the protocol
    return told


@asynccontextmanager
async def hearing(store: Store, canary: str) -> AsyncIterator[Watcher]:
    """A watcher that surely hears what is told: it has heard a name that is told for that alone.

    A store may listen to what is told somewhat later than to its own puts.
    """
    pilot = canary.replace("/", ".")
    async with watching(store, canary) as watcher:
        async with asyncio.timeout(PATIENCE_S):
            while pilot not in watcher.woken:
                await teller(store)([pilot])
                await asyncio.sleep(0.05)
        watcher.ignored.add(pilot)
        watcher.forget()
        yield watcher


async def test_another_instance_tells_a_watcher_the_names(store: Store, other: Store, target: Target) -> None:
    names = [f"{target.topic}.{name}" for name in ("a", "b", "Ünï")]
    async with hearing(store, target.queue("high", 9)) as watcher:
        await teller(other)(names)
        await watcher.wakes(*names)
        await settle_down(store, watcher, target.queue("high", 9))
        assert sorted(watcher.woken) == sorted(names)


@pytest.fixture
def no_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """No instance that is opened from now on finds by a sweep what nobody told."""
    for module in (listen, wakeups, cluster_wakeups):
        monkeypatch.setattr(module, "SWEEP_S", 3_600.0)


async def test_a_watcher_of_the_same_instance_is_told_too(no_sweeps: None, store: Store, target: Target) -> None:
    async with hearing(store, target.queue("high", 9)) as watcher:
        await teller(store)([f"{target.topic}.a"])
        await watcher.wakes(f"{target.topic}.a")


async def test_all_watchers_are_told(store: Store, other: Store, opened: Target) -> None:
    if opened.name == "sqlite":
        pytest.skip("only one process has hosts; a name goes to one of its instances")
    third = await opened.open()
    async with hearing(store, opened.queue("high", 8)) as one, hearing(other, opened.queue("high", 9)) as two:
        await teller(third)([f"{opened.topic}.a"])
        for watcher in (one, two):
            await watcher.wakes(f"{opened.topic}.a")


async def test_names_of_the_other_environment_are_not_heard(store: Store, opened: Target) -> None:
    sandbox = await opened.open(Environment.SANDBOX)
    mine, theirs = opened.queue("high", 8), opened.queue("high", 9)
    async with hearing(store, mine) as online, hearing(sandbox, theirs) as there:
        await teller(sandbox)([f"{opened.topic}.sandbox"])
        await teller(store)([f"{opened.topic}.online"])
        await online.wakes(f"{opened.topic}.online")
        await there.wakes(f"{opened.topic}.sandbox")
        await settle_down(store, online, mine)
        await settle_down(sandbox, there, theirs)
        assert (online.woken, there.woken) == ([f"{opened.topic}.online"], [f"{opened.topic}.sandbox"])
