"""Groups of buckets whose topics are deleted and created again, whose epochs are refused, whose host breaks off."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator

import pytest

from emq.allocation.bucket_membership import BucketMembership
from emq.allocation.membership import Assignment, LoneMembership
from emq.database import Database
from emq.runtime import errors
from emq.runtime.clock import SystemClock
from emq.topics import buckets
from emq.topics.catalog import Catalog
from emq.topics.families import Family
from emq.topics.model import Topic, TopicOptions
from support.local_cluster import Epochs
from support.manual_clock import ManualClock

BUCKET, GROUP = "orders.*/bucket/7", "orders.a/0"


class _Insisting(LoneMembership):
    """As in a cluster, where a host takes a group back again and again."""

    def fenced(self, group: str, epoch: int, bucket: str = "") -> bool:
        return True


class Host:
    """A host that has one bucket with one group, under the bucket's epoch."""

    def __init__(self) -> None:
        self.inner = _Insisting("a", Epochs())
        self.membership = BucketMembership(self.inner, SystemClock())
        self.stream: AsyncIterator[Assignment] = self.membership.assignments()

    async def told(self) -> Assignment:
        return await asyncio.wait_for(anext(self.stream), 10)


async def begun() -> tuple[Host, int]:
    host = Host()
    await host.membership.join()
    await host.membership.offer({BUCKET: 1.0})
    host.membership.place({GROUP: BUCKET})
    return host, (await host.told()).groups[GROUP]


async def test_a_group_that_a_store_refuses_while_it_drains_comes_back() -> None:
    """Its topic is deleted and created again while a handler of the former topic runs, which then settles nothing."""
    host, first = await begun()
    host.membership.fenced(GROUP, first)  # the topic was deleted and created before, so it has an epoch of its own
    own = (await host.told()).groups[GROUP]
    host.membership.place({GROUP: None})
    host.membership.place({GROUP: BUCKET})
    assert GROUP not in (await host.told()).groups, "the host lets go of it"
    host.membership.fenced(GROUP, own)
    assert (await host.told()).groups[GROUP] == first


async def test_a_group_that_the_host_must_let_go_of_first_is_given_to_it() -> None:
    """So operators see a group that never comes back."""
    host, first = await begun()
    host.membership.fenced(GROUP, first)
    await host.told()
    host.membership.place({GROUP: None})
    host.membership.place({GROUP: BUCKET})
    assert GROUP not in (await host.told()).groups
    assert host.membership.given() == {GROUP}


async def test_a_host_whose_lease_has_ended_gives_groups_no_epochs() -> None:
    """Else it would take them from the hosts that have them now."""
    host, first = await begun()
    host.membership.lease.until = 0.0
    host.membership.fenced(GROUP, first)
    assert (await host.told()).groups[GROUP] == first
    host.membership.lease.until = math.inf
    assert (await host.told()).groups[GROUP] > first


async def test_a_reader_that_broke_hears_of_all_groups_again() -> None:
    host, first = await begun()
    host.stream = host.membership.assignments()
    again = await host.told()
    assert again.groups == {GROUP: first}
    assert again.changed is None, "the host may have broken before it noted what it was told"


async def test_a_family_that_is_created_while_the_host_runs_brings_only_groups() -> None:
    """No host had its buckets before; the host knows no buckets."""
    host = Host()
    await host.membership.join()
    await host.membership.offer({"alone/0": 1.0})
    await host.told()
    host.membership.place({GROUP: BUCKET})
    await host.membership.offer({"alone/0": 1.0, "new/0": 1.0, BUCKET: 1.0, "orders.*/bucket/8": 1.0})
    assert (await host.told()).first == {"new/0", GROUP}


async def test_a_group_that_a_plan_without_buckets_gave_is_released_to_the_cluster() -> None:
    """A leader of an older version plans the groups of families, too, until a newer one leads."""
    host = Host()
    await host.membership.join()
    await host.membership.offer({GROUP: 1.0})
    alone = (await host.told()).groups[GROUP]
    host.membership.place({GROUP: BUCKET})
    assert (await host.told()).groups[GROUP] == alone
    await host.membership.offer({BUCKET: 1.0})
    assert (await host.told()).groups[GROUP] > alone
    assert GROUP in host.inner._seen
    await host.membership.released([GROUP])
    assert GROUP not in host.inner._seen


async def test_a_topic_of_a_family_becomes_a_budget_only_where_its_groups_stay() -> None:
    """The groups of a budget are in one bucket. Those of another bucket would have two owners under one epoch."""
    database = await Database.open("sqlite://")
    catalog = Catalog(database, "online", None, clock=ManualClock(1e9))
    await catalog.families.create(Family(Topic("tenant.*", 100)))
    await catalog.create(Topic("tenant.a", 100))
    with pytest.raises(errors.InvalidTopic, match="has 2 groups, so it cannot become a budget"):
        await catalog.create(Topic("endpoint", 10, options=TopicOptions(budget="tenant.a")))
    assert (await catalog.get("tenant.a")).shared_s == 0
    await catalog.families.create(Family(Topic("small.*", 50)))
    before = buckets.bucket_of(await catalog.create(Topic("small.b", 50)), 0, {})
    await catalog.create(Topic("endpoint", 10, options=TopicOptions(budget="small.b")))
    assert buckets.bucket_of(await catalog.get("small.b"), 0, {}) == before
    await catalog.create_many([Topic("tenant.c", 100), Topic("other", 10, options=TopicOptions(budget="tenant.c"))])
    await database.close()
