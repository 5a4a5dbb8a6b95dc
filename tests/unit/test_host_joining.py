"""A host that waits for its cluster starts nothing and ends when it is told to; no error keeps back its last steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from emq.allocation.member import ClusterMembership
from emq.allocation.membership import Seat
from emq.database import levels
from emq.host.host import Host
from emq.runtime import errors
from emq.runtime.clock import Clock, SystemClock
from emq.runtime.timekeeping import Asked, Timekeeper
from support.ensemble import MemoryEnsemble
from support.rig import Rig, Seen
from support.virtual import virtual
from support.waiting import until

pytestmark = virtual


async def generation(least: int) -> int:
    return least


def member(ensemble: MemoryEnsemble, clock: Clock, name: str = "a") -> ClusterMembership:
    return ClusterMembership(Seat(ensemble.tree(), "online", name, generation, clock))


async def test_a_host_that_waits_for_its_cluster_starts_nothing_and_stops_at_once(r: Rig) -> None:
    await r.topic("t", 20)
    await r.producer.publish_many("t", [b"x"] * 5)
    ensemble = MemoryEnsemble(r.clock)
    ensemble.quorum = False
    host = r.host(seen := Seen(), "a", membership=member(ensemble, r.clock))
    running = asyncio.create_task(host.run())
    await asyncio.sleep(60)
    assert not running.done()
    host.stop()
    began = asyncio.get_running_loop().time()
    await running
    assert asyncio.get_running_loop().time() - began < 0.1
    ensemble.quorum = True
    await asyncio.sleep(5)
    assert not ensemble.sessions  # what it had begun is ended, too
    assert len(seen) == 0


async def test_a_host_that_may_not_join_says_why_and_leaves_no_session(r: Rig) -> None:
    ensemble = MemoryEnsemble(r.clock)
    first = member(ensemble, r.clock)
    await first.join()
    with pytest.raises(errors.HostConflict, match="'a' is a member"):
        await r.host(Seen(), "a", membership=member(ensemble, r.clock)).run()
    assert len(ensemble.sessions) == 1
    await first.leave()


async def test_a_host_that_is_cancelled_while_it_waits_leaves_no_session(r: Rig) -> None:
    ensemble = MemoryEnsemble(r.clock)
    ensemble.quorum = False
    running = asyncio.create_task(r.host(Seen(), "a", membership=member(ensemble, r.clock)).run())
    await asyncio.sleep(1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    ensemble.quorum = True
    await asyncio.sleep(5)
    assert not ensemble.sessions


async def test_a_host_does_not_join_before_it_knows_the_time_and_stops_at_once_meanwhile(r: Rig) -> None:
    """Leases and the seconds of groups would be timed by a clock that may be hours wrong."""
    away, loop = True, asyncio.get_running_loop()

    async def ask(passed_us: Callable[[], int], note: bool, anchor_us: int | None = None, /) -> Asked:
        if away:
            raise errors.DatabaseUnavailable("away")
        return Asked(r.clock.now_us(), passed_us(), passed_us())

    def host(name: str) -> Host:
        clock = SystemClock(lambda: r.clock.now_us() * 1000 + 7_200 * 10**9, lambda: int(loop.time() * 1e9))
        keeper = Timekeeper(clock, ask, wall_ns=lambda: r.clock.now_us() * 1000)
        return r.host(Seen(), name, membership=member(ensemble, clock, name), clock=clock, timekeeper=keeper)

    ensemble = MemoryEnsemble(r.clock)
    waits, stopped = host("a"), host("b")
    running, stopping = asyncio.create_task(waits.run()), asyncio.create_task(stopped.run())
    await asyncio.sleep(60)
    assert not ensemble.sessions
    stopped.stop()
    began = loop.time()
    await stopping
    assert loop.time() - began < 0.1
    away = False
    await asyncio.sleep(5)
    assert len(ensemble.sessions) == 1
    waits.stop()
    await running


async def test_an_error_of_no_known_kind_while_a_host_arrives_does_not_end_it(
    r: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    await r.topic("t", 20)
    await r.producer.publish_many("t", [b"x"] * 5)
    failures, join = [RuntimeError("the handler is closed"), KeyError("level")], levels.join

    def breaking(*args: Any) -> None:
        if failures:
            raise failures.pop()
        join(*args)

    host = r.host(seen := Seen())
    with mock.patch.object(levels, "join", breaking):
        running = asyncio.create_task(host.run())
        await until(lambda: len(seen) == 5)
    host.stop()
    await running
    assert host.guard.broken == {"joining": 2}
    assert "it tries again" in caplog.text


@pytest.mark.parametrize(
    ("part", "step"),
    [
        ("membership.hand_over", "handing its groups over"),
        ("letting_go.release", "letting go of the groups"),
        ("work.checkpointer.save", "saving the last progress"),
        ("membership.leave", "leaving the cluster"),
    ],
)
async def test_an_error_in_a_last_step_leaves_out_that_step_alone(
    r: Rig, caplog: pytest.LogCaptureFixture, part: str, step: str
) -> None:
    await r.topic("t", 20)
    await r.producer.publish_many("t", [b"x"] * 5)
    ensemble = MemoryEnsemble(r.clock)
    host = r.host(seen := Seen(), "a", membership=member(ensemble, r.clock))
    running = asyncio.create_task(host.run())
    await until(lambda: len(seen) == 5)
    at: Any = host
    *path, name = part.split(".")
    for attribute in path:
        at = getattr(at, attribute)
    with mock.patch.object(at, name, side_effect=RuntimeError("the handler is closed")):
        host.stop()
        await running
    assert f"stopping without {step}" in caplog.text
    assert bool(ensemble.sessions) == (name == "leave")
    assert await r.lag("t") == (5 if part == "work.checkpointer.save" else 0)
