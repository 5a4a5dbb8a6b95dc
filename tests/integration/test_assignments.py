"""Letting go of groups that goes wrong is tried again, and not without a pause."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

import pytest
from support.rig import Seen, rig, running, until
from support.virtual import virtual


@virtual
async def test_letting_go_that_broke_is_tried_again_after_a_pause(caplog: pytest.LogCaptureFixture) -> None:
    async with rig() as r:
        await r.topic("orders", 100, group_qps=50)
        host = r.host(Seen())
        releasing, tries = host.ownership.releasing, 0

        async def broken(names: Iterable[str], drain_s: float = 0.0) -> AsyncIterator[list[str]]:
            nonlocal tries
            tries += 1
            if tries < 100:
                raise RuntimeError("a bug")
            yield list(names)

        async with running(host):
            await until(lambda: len(host.ownership.groups) == 2)
            host.ownership.releasing = broken  # type: ignore[method-assign]
            async with r.consuming(Seen(), "host-2") as other:
                await asyncio.sleep(5)
                assert 2 <= tries <= 6
                host.ownership.releasing = releasing  # type: ignore[method-assign]
                await until(lambda: len(other.ownership.groups) == 1)
    assert "letting go of groups broke" in caplog.text
