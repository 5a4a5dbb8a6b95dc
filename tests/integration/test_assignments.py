"""Letting go of groups that goes wrong is tried again, and not without a pause."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

import pytest

from support.rig import Rig, Seen, running
from support.virtual import virtual
from support.waiting import until

pytestmark = virtual


async def test_letting_go_that_broke_is_tried_again_after_a_pause(r: Rig, caplog: pytest.LogCaptureFixture) -> None:
    await r.topic("orders", 100, group_qps=50)
    host = r.host(Seen())
    releasing, tries = host.letting_go.releasing, 0

    async def broken(names: Iterable[str], drain_s: float = 0.0) -> AsyncIterator[list[str]]:
        nonlocal tries
        tries += 1
        if tries < 100:
            raise RuntimeError("a bug")
        yield list(names)

    async with running(host):
        await until(lambda: len(host.ownership.groups) == 2)
        host.letting_go.releasing = broken  # type: ignore[method-assign]
        async with r.consuming(Seen(), "host-2") as other:
            await asyncio.sleep(5)
            assert 2 <= tries <= 6
            host.letting_go.releasing = releasing  # type: ignore[method-assign]
            await until(lambda: len(other.ownership.groups) == 1)
    assert "letting go of groups broke" in caplog.text


async def test_a_group_that_was_let_go_of_while_the_database_was_down_is_not_forgotten(r: Rig) -> None:
    await r.topic("orders", 100, group_qps=50)
    async with r.consuming(Seen()) as host:
        await until(lambda: len(host.ownership.groups) == 2)
        released = host.assignments._membership.released

        async def without_database(groups: Iterable[str]) -> None:
            r.db.down = True
            asyncio.get_running_loop().call_later(2.5, setattr, r.db, "down", False)
            host.assignments._membership.released = released  # type: ignore[method-assign]
            await released(groups)

        host.assignments._membership.released = without_database  # type: ignore[method-assign]
        await asyncio.sleep(0.3)  # into the part of a second in which nothing is let go of: the other is there first
        async with r.consuming(Seen(), "host-2") as other:
            await until(lambda: len(other.ownership.groups) == 1, 10)
