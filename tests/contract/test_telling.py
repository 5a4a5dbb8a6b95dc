"""`emq.storage.store.Store.tell`: the names of new topics come to hosts without a look at the catalog."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Any

import pytest
from target import Target, settle_down, watching

from emq.runtime.environment import Environment
from emq.storage.store import Store


def teller(store: Store) -> Callable[[Collection[str]], Awaitable[None]]:
    """Return the optional method, which all of these stores have."""
    tell: Any = getattr(store, "tell", None)
    assert tell is not None
    told: Callable[[Collection[str]], Awaitable[None]] = tell
    return told


async def test_another_instance_tells_a_watcher_the_names(store: Store, other: Store, target: Target) -> None:
    names = [f"{target.topic}.{name}" for name in ("a", "b", "Ünï")]
    async with watching(store, target.queue("high", 9)) as watcher:
        await teller(other)(names)
        await watcher.wakes(*names)
        await settle_down(store, watcher, target.queue("high", 9))
        assert sorted(watcher.woken) == sorted(names)


async def test_a_watcher_of_the_same_instance_is_told_too(store: Store, target: Target) -> None:
    async with watching(store, target.queue("high", 9)) as watcher:
        await teller(store)([f"{target.topic}.a"])
        await watcher.wakes(f"{target.topic}.a")


async def test_all_watchers_are_told(store: Store, other: Store, opened: Target) -> None:
    if opened.name == "sqlite":
        pytest.skip("only one process has hosts; a name goes to one of its instances")
    third = await opened.open()
    async with watching(store, opened.queue("high", 8)) as one, watching(other, opened.queue("high", 9)) as two:
        await teller(third)([f"{opened.topic}.a"])
        for watcher in (one, two):
            await watcher.wakes(f"{opened.topic}.a")


async def test_names_of_the_other_environment_are_not_heard(store: Store, opened: Target) -> None:
    sandbox, canary = await opened.open(Environment.SANDBOX), opened.queue("high", 9)
    async with watching(store, canary) as online, watching(sandbox, canary) as there:
        await teller(sandbox)([f"{opened.topic}.sandbox"])
        await teller(store)([f"{opened.topic}.online"])
        await online.wakes(f"{opened.topic}.online")
        await there.wakes(f"{opened.topic}.sandbox")
        await settle_down(store, online, canary)
        await settle_down(sandbox, there, canary)
        assert (online.woken, there.woken) == ([f"{opened.topic}.online"], [f"{opened.topic}.sandbox"])
