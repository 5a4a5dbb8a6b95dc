"""The lease: who waits for it, and what lengthens it."""

from __future__ import annotations

import asyncio
import math

from emq.runtime.lease import Lease
from support.manual_clock import ManualClock
from support.waiting import turns

T = 1_000_000_000.0


async def is_open(lease: Lease, clock: ManualClock) -> bool:
    waiting = asyncio.create_task(lease.valid(clock))
    await turns(5)
    was_open = waiting.done()
    waiting.cancel()
    return was_open


async def test_claims_wait_from_the_end_of_the_lease_until_it_is_renewed() -> None:
    clock, lease = ManualClock(T), Lease(T + 5)
    assert await is_open(lease, clock)
    clock.advance(5)
    waiting = asyncio.create_task(lease.valid(clock))
    await turns(5)
    assert not waiting.done()
    lease.renew(T + 5)  # by an answer that came too late
    await turns(5)
    assert not waiting.done()
    lease.renew(T + 9)
    async with asyncio.timeout(5):
        await waiting


async def test_renewing_never_shortens_and_a_suspended_host_goes_on_to_the_end() -> None:
    clock, lease = ManualClock(T), Lease(T + 5)
    lease.renew(T + 3)
    assert lease.until == T + 5
    lease.suspend()
    assert lease.suspended
    assert await is_open(lease, clock)
    lease.renew(T + 8)
    assert (lease.suspended, lease.until) == (False, T + 8)


async def test_an_ended_lease_is_closed_at_once_and_a_shift_does_not_open_it() -> None:
    clock, lease = ManualClock(T), Lease(T + 5)
    lease.end()
    lease.shift(3600)
    assert not await is_open(lease, clock)
    lease.renew(T + 5)
    assert await is_open(lease, clock)


async def test_a_host_that_does_not_know_the_time_waits_whatever_its_membership_allows() -> None:
    clock, lease = ManualClock(T), Lease()
    lease.sure(0.0)
    lease.renew(T + 100)
    assert not await is_open(lease, clock)
    lease.sure(T + 50)
    assert await is_open(lease, clock)
    assert lease.until == T + 50
    lease.sure(math.inf)
    assert lease.until == math.inf


async def test_those_who_wait_to_start_hear_of_every_renewal() -> None:
    heard: list[float] = []
    lease = Lease(T)
    lease.on_renewed.append(lambda: heard.append(lease.until))
    lease.renew(T + 1)
    lease.sure(T + 0.5)
    assert heard == [T + 1, T + 0.5]
