"""An error that nobody expected, at one call of a part of a host, costs a moment: no group, topic or message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from emq.allocation.member import ClusterMembership
from emq.allocation.membership import Seat
from emq.host.host import Host
from support.ensemble import MemoryEnsemble
from support.rig import Rig, Seen
from support.virtual import virtual
from support.waiting import until


def breaking_once(real: Callable[..., Any]) -> Callable[..., Any]:
    """Return `real`, whose first call raises instead."""
    failures = [RuntimeError("nobody expected this")]

    def called(*args: Any, **kwargs: Any) -> Any:
        if failures:
            raise failures.pop()
        return real(*args, **kwargs)

    return called


def part_of(host: Host, path: str) -> tuple[Any, str]:
    at: Any = host
    *attributes, name = path.split(".")
    for attribute in attributes:
        at = getattr(at, attribute)
    return at, name


def member(r: Rig, ensemble: MemoryEnsemble, seen: Seen, name: str) -> Host:
    async def generation(least: int) -> int:
        return await r.db.next_generation("online", least)

    membership = ClusterMembership(Seat(ensemble.tree(6.0), "online", name, generation, r.clock), database=r.db)
    return r.host(seen, name, membership=membership)


def consumes_all(host: Host) -> bool:
    own = host.ownership
    groups = {group for topic in own.topics.values() for group in map(topic.group, range(topic.groups))}
    return own.consumed.keys() == own.groups.keys() == groups and own.owned.keys() == own.topics.keys()


@pytest.mark.parametrize(
    "path",
    [
        "membership.join",
        "ownership._updates.bind",  # of a topic's first group
        "work.dispatcher.tasks.cancel",  # at the end
        "work.settler.failures.close",
    ],
)
@virtual
async def test_an_error_at_one_call_costs_no_group_no_topic_and_no_message(r: Rig, path: str) -> None:
    await r.topic("t", 200.0, group_qps=50.0)
    await r.topic("d", 50.0)
    ensemble, seen = MemoryEnsemble(r.clock), Seen()
    a, b = member(r, ensemble, seen, "a"), member(r, ensemble, seen, "b")
    at, name = part_of(a, path)
    with mock.patch.object(at, name, breaking_once(getattr(at, name))):
        first = asyncio.create_task(a.run())
        await until(lambda: consumes_all(a) and len(a.ownership.groups) == 5, 10)
        second = asyncio.create_task(b.run())
        await until(lambda: len(b.ownership.consumed) >= 2, 10)
        await r.producer.publish_many("d", [b"former"])
        await r.admin.delete("d", force=True)
        await r.topic("d", 50.0)
        b.stop()
        await second
        await until(lambda: consumes_all(a) and len(a.ownership.groups) == 5, 15)
        await r.producer.publish_many("t", [b"x"] * 8)
        await r.producer.publish_many("d", [b"new"])
        await until(lambda: seen.payloads.count(b"x") == 8 and b"new" in seen.payloads, 10)
        a.stop()
        await first
    assert not ensemble.sessions
    assert [await r.lag("t"), await r.lag("d")] == [0, 0]
