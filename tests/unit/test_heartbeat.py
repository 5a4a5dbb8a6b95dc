"""The heartbeat renews the lease by what has truly passed, whatever the clock is corrected by meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from emq.allocation.heartbeat import LEASE_SHARE, Heartbeat
from emq.allocation.records import Paths
from emq.runtime.clock import SystemClock
from emq.runtime.lease import Lease
from support.virtual import virtual

pytestmark = virtual

TIMEOUT_S = 9.0
SLOW_S = 1.0


class SlowTree:
    """Takes every write after a second."""

    timeout_s = TIMEOUT_S

    async def create(self, path: str, data: bytes = b"", **_: Any) -> str:
        await asyncio.sleep(SLOW_S)
        return path

    async def write(self, path: str, data: bytes, version: int) -> int:
        await asyncio.sleep(SLOW_S)
        return 1

    async def read(self, path: str, on_change: Any = None) -> None:
        return None


async def under_way() -> tuple[SystemClock, Lease, Heartbeat, asyncio.Task[None]]:
    """A heartbeat of which half of its time has passed."""
    loop = asyncio.get_running_loop()
    clock = SystemClock(lambda: int((1_700_000_000.25 + loop.time()) * 1e9), lambda: int(loop.time() * 1e9))
    lease = Lease(0.0)
    beat = Heartbeat(SlowTree(), Paths("online"), clock, lease, lambda text: None)  # type: ignore[arg-type]
    await beat.begin("one")
    beating = asyncio.create_task(beat.beat())
    await asyncio.sleep(SLOW_S / 2)
    return clock, lease, beat, beating


@pytest.mark.parametrize("by_s", [-30.0, -2.0, -0.4, 0.0, 3.0, 3600.0])
async def test_a_correction_while_a_heartbeat_is_under_way_lengthens_no_lease(by_s: float) -> None:
    loop = asyncio.get_running_loop()
    clock, lease, _, beating = await under_way()
    clock.adjust(round(by_s * 1e6))
    lease.shift(by_s)
    sent_s = loop.time() - SLOW_S / 2
    await asyncio.sleep(SLOW_S * 0.6)
    beating.cancel()
    ends_s = sent_s + TIMEOUT_S * LEASE_SHARE
    while loop.time() < ends_s + 40:
        starts = clock.now() < lease.until
        assert not starts or loop.time() <= ends_s + 1e-3, "the session may have ended"
        if by_s > -TIMEOUT_S * LEASE_SHARE / 2 and loop.time() < ends_s - 0.2:
            assert starts
        await asyncio.sleep(0.1)


async def test_a_lease_counts_from_when_a_heartbeat_was_sent_and_ends_before_its_session() -> None:
    """The servers count the session's time-out from its arrival at the latest; what was started needs time to end."""
    loop = asyncio.get_running_loop()
    clock = SystemClock(lambda: int((1_700_000_000.25 + loop.time()) * 1e9), lambda: int(loop.time() * 1e9))
    lease = Lease(0.0)
    beat = Heartbeat(SlowTree(), Paths("online"), clock, lease, lambda text: None)  # type: ignore[arg-type]
    sent_s = clock.now()
    await beat.begin("one")
    assert lease.until == pytest.approx(sent_s + TIMEOUT_S * 2 / 3, abs=1e-3)
    sent_s = clock.now()
    beating = asyncio.create_task(beat.beat())
    await asyncio.sleep(SLOW_S * 1.1)
    beating.cancel()
    assert lease.until == pytest.approx(sent_s + TIMEOUT_S * 2 / 3, abs=1e-3)


async def test_a_heartbeat_of_a_session_that_has_ended_renews_nothing() -> None:
    """Its answer may come when another session has begun, whose nodes the others have not seen."""
    _, lease, beat, beating = await under_way()
    beat.end()
    await asyncio.sleep(SLOW_S)
    beating.cancel()
    assert lease.until == 0.0
