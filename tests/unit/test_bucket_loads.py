"""The plan goes by what buckets do, and not by each topic that wakes."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from emq.allocation import leader
from emq.allocation.bucket_loads import CHANGE, FLOOR, LOOK_S, BucketLoads
from emq.allocation.grounds import Grounds
from emq.allocation.plan import drafting
from emq.topics.buckets import LEAST_LOAD, names_of
from support.members import Cluster, Member
from support.virtual import virtual
from support.waiting import until

pytestmark = virtual

FAMILY = names_of("f.*", 256)


def loads(seen: BucketLoads) -> dict[str, float]:
    """Return the loads of all buckets, without those that have no more than every bucket."""
    added = seen.added_to(dict.fromkeys(FAMILY, LEAST_LOAD))
    return {bucket: load - LEAST_LOAD for bucket, load in added.items() if load > min(added.values())}


def test_the_first_look_counts_whole_and_each_later_one_in_part() -> None:
    seen, busy, other = BucketLoads(), FAMILY[3], FAMILY[4]
    seen.look({busy: 50.0})
    assert loads(seen) == pytest.approx({busy: 50})
    for _ in range(20):
        seen.look({busy: 50.0})
    assert (loads(seen), seen.changes) == (pytest.approx({busy: 50}), 1)
    seen.look({other: 100.0})
    assert loads(seen) == pytest.approx({busy: 45, other: 10})
    for _ in range(60):
        seen.look({other: 100.0})
    assert loads(seen)[other] == pytest.approx(100, rel=CHANGE)
    assert loads(seen).get(busy, 0.0) <= 100 * CHANGE
    changes = seen.changes
    for _ in range(60):
        seen.look({other: 100.0})
    assert seen.changes <= changes + 1, "a mean that only comes nearer changes nothing"


def test_what_ended_long_ago_leaves_nothing_behind() -> None:
    seen = BucketLoads()
    seen.look(dict.fromkeys(FAMILY, 50.0))
    for _ in range(120):
        seen.look({})
    assert loads(seen) == {}
    changes = seen.changes
    seen.look({})
    assert seen.changes == changes


def test_a_bucket_of_a_family_that_was_deleted_is_not_planned() -> None:
    seen = BucketLoads()
    seen.look({FAMILY[0]: 50.0, FAMILY[1]: 50.0})
    assert seen.added_to({FAMILY[1]: LEAST_LOAD, "alone/0": 3.0}) == {FAMILY[1]: 50 + LEAST_LOAD, "alone/0": 3.0}


def test_each_bucket_counts_a_part_of_the_mean_at_least() -> None:
    seen = BucketLoads()
    seen.look({FAMILY[0]: 256.0})
    added = seen.added_to(dict.fromkeys(FAMILY, 0.0) | {"alone/0": 0.0})
    assert added == dict.fromkeys(FAMILY, FLOOR) | {FAMILY[0]: 256.0, "alone/0": 0.0}


class Family:
    """Two hosts that share a family.

    Attributes:
        awake: bucket to the load of its topics that are awake; a test changes it.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.awake: dict[str, float] = {}
        self.cluster = cluster
        quotas = dict.fromkeys(FAMILY, LEAST_LOAD)
        self.hosts = [Member(cluster, name, quotas) for name in ("a", "b")]

    async def offer(self) -> None:
        for host in self.hosts:
            await host.membership.offer(host.quotas, 1, Grounds(awake=self.awake))

    def wake(self, host: Member, count: int, load: float) -> None:
        """Let topics be awake in so many of a host's buckets, and in no others."""
        self.awake.clear()
        self.awake.update(dict.fromkeys(sorted(host.held)[:count], load))

    def shares(self) -> list[float]:
        """Return the load of what is awake on each host."""
        return [sum(self.awake.get(bucket, 0.0) for bucket in host.held) for host in self.hosts]

    async def plan(self) -> int:
        return (await self.cluster.record()).generation


@pytest.fixture
async def family() -> AsyncIterator[Family]:
    made = Family(Cluster())
    async with made.hosts[0], made.hosts[1]:
        await made.offer()
        await made.cluster.settled(len(FAMILY))
        yield made


async def test_buckets_that_do_much_are_shared_out_though_each_host_has_as_many(family: Family) -> None:
    a, b = family.hosts
    assert min(len(a.held), len(b.held)) > 0.4 * len(FAMILY)
    family.wake(a, 20, 50.0)
    assert family.shares() == [1_000, 0]
    await asyncio.sleep(2 * LOOK_S)
    await family.cluster.settled(len(FAMILY))
    assert max(family.shares()) <= 1.1 * 500


async def test_a_topic_that_wakes_and_sleeps_between_two_looks_changes_no_plan(family: Family) -> None:
    before = await family.plan()
    for host in 10 * family.hosts:
        family.wake(host, 1, 50.0)
        await asyncio.sleep(1.0)
        family.awake.clear()
    await asyncio.sleep(2 * LOOK_S)
    assert await family.plan() == before


async def test_topics_that_come_and_go_all_over_the_family_move_next_to_nothing(family: Family) -> None:
    """Of 40 topics awake at any time, nine of ten are others at each look."""
    seed = random.Random(1)
    before, moves = family.cluster.owners, 0
    for _ in range(40):
        for bucket in [*family.awake]:
            if seed.random() < 0.9:
                del family.awake[bucket]
        while len(family.awake) < 40:
            family.awake[seed.choice(FAMILY)] = 50.0
        await asyncio.sleep(LOOK_S)
        await family.cluster.settled(len(FAMILY))
        after = family.cluster.owners
        moves += sum(host != before[bucket] for bucket, host in after.items())
        before = after
    assert moves < len(FAMILY) / 10


async def test_a_new_leader_goes_on_with_the_loads_and_moves_nothing(family: Family) -> None:
    a, b = family.hosts
    for host, count in ((a, 20), (b, 22)):
        family.awake.update(dict.fromkeys(sorted(host.held)[:count], 50.0))
    await asyncio.sleep(6 * LOOK_S)
    await family.cluster.settled(len(FAMILY))
    before = family.cluster.owners
    family.awake.clear()
    first = next(host for host in family.hosts if host.membership.leads)
    await first.membership._leader._resign()
    await until(lambda: any(host.membership.leads for host in family.hosts if host is not first), 10)
    await asyncio.sleep(5.0)
    assert family.cluster.owners == before


async def test_loads_alone_make_no_plan_where_plans_take_long(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that plans for loads cost a hundredth of a core at most."""
    beside = leader._beside

    async def slow(is_large: bool, compute: Callable[..., Any], *arguments: object) -> Any:
        if compute is drafting.planned:
            planned.append(asyncio.get_running_loop().time())
            await asyncio.sleep(8.0)
        return await beside(is_large, compute, *arguments)

    planned: list[float] = []
    monkeypatch.setattr(leader, "_beside", slow)
    for number in range(60):
        family.wake(family.hosts[number % 2], 30, 50.0)
        await asyncio.sleep(LOOK_S)
    assert len(planned) >= 2
    assert min(after - before for before, after in itertools.pairwise(planned)) >= 800
