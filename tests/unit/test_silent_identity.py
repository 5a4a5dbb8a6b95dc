"""The identity of a store whose servers do not all answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from emq.runtime import errors
from emq.runtime.environment import Environment
from emq.storage import identity, opening


class PartlySilent:
    """The lanes of a store, of which some never answer.

    Attributes:
        silent: names of these.
    """

    def __init__(self, lanes: Any, *silent: str) -> None:
        self._lanes = lanes
        self.silent = set(silent)

    async def waiting(self, lane: str, after_ms: int, count: int) -> Any:
        if lane in self.silent:
            await asyncio.sleep(3600)
        return await self._lanes.waiting(lane, after_ms, count)

    async def add(self, adds: Any) -> Any:
        if any(add.lane in self.silent for add in adds):
            raise errors.StoreUnavailable("silent")
        return await self._lanes.add(adds)


@pytest.mark.parametrize("silent", identity.LANES)
async def test_a_silent_server_hides_no_identity_and_holds_nobody_up(silent: str) -> None:
    store = await opening.open_store("memory:", Environment.ONLINE)
    known = await identity.keep(store.lanes)
    async with asyncio.timeout(3):
        assert await identity.find(PartlySilent(store.lanes, silent)) == known  # type: ignore[arg-type]
        assert await identity.keep(PartlySilent(store.lanes, silent)) == known  # type: ignore[arg-type]
    await store.close()


async def test_a_new_store_gets_an_identity_beside_a_silent_server_and_keeps_it_when_the_server_is_back() -> None:
    store = await opening.open_store("memory:", Environment.ONLINE)
    lanes: Any = PartlySilent(store.lanes, identity.LANES[0])
    async with asyncio.timeout(5):
        one, other = await asyncio.gather(identity.keep(lanes), identity.keep(lanes))
    assert one == other
    lanes.silent.clear()
    assert await identity.keep(lanes) == one
    for lane in identity.LANES:
        assert [entry.body.decode() for entry in await store.lanes.waiting(lane, 0, 1)] == [one]
    await store.close()
