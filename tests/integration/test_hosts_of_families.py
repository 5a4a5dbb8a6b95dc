"""Hosts share the buckets of a family, and start the messages of its new topics at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from unittest import mock

import msgspec
import pytest

from emq.allocation.membership import LoneMembership
from emq.app import hosting
from emq.host.host import Host
from emq.host.options import HostOptions
from emq.producer import Producer
from emq.storage.log_store import Read
from emq.storage.names import parts_of
from emq.topics import buckets
from emq.topics.catalog import Catalog
from emq.topics.families import Family
from emq.topics.model import Topic, TopicOptions
from support.meeting import Meeting
from support.rig import ENVIRONMENT, Rig, Seen, starts_per_second
from support.virtual import virtual
from support.waiting import until

QPS = 20
POLL_S = 60.0
"""Seconds between two looks at the catalog: far more than any wait of these tests."""


def held(host: Host) -> set[str]:
    """Return the buckets of which the host consumes groups."""
    topics = host.ownership.topics
    groups = [parts_of(name) for name in host.ownership.groups]
    found = {buckets.bucket_of(topics[topic], index, topics) for topic, index in groups}
    return {bucket for bucket in found if bucket is not None}


def given(host: Host) -> set[str]:
    """Return the buckets that the plan gives to the host."""
    return {*filter(buckets.is_bucket, host.membership._inner.given())}


def are_shared(a: Host, b: Host, groups: int) -> bool:
    """Return whether each of two hosts consumes groups of its own buckets only, and both together consume this many."""
    counts = len(a.ownership.groups), len(b.ownership.groups)
    are_all = sum(counts) == groups and len(given(a)) + len(given(b)) == len(given(a) | given(b)) == buckets.BUCKETS
    return are_all and min(counts) > 0 and held(a) <= given(a) and held(b) <= given(b)


# ------------------------------------------------------------------------------------------------------ in virtual time


async def family(r: Rig, qps: float = QPS) -> None:
    await r.catalog.families.create(Family(Topic("f.*", qps, priorities=("only",), options=TopicOptions(idle_s=None))))


def elsewhere(r: Rig) -> Producer:
    """Return a producer in another process, as far as the hosts of the rig can tell."""
    return Producer(r.store, Catalog(r.db, ENVIRONMENT, None, r.clock), clock=r.clock)


@virtual
async def test_the_first_message_from_another_process_starts_without_a_look_at_the_catalog(r: Rig) -> None:
    await family(r)
    seen, producer, r.catalog.written = Seen(), elsewhere(r), asyncio.Event()
    async with r.consuming(seen, membership=LoneMembership("host-1", r.next_epoch), catalog_poll_s=POLL_S):
        await asyncio.sleep(5.4)
        for i in range(5):
            began_us = int(r.clock.now() * 1e6)
            await producer.publish(f"f.{i}", b"")
            await asyncio.sleep(3.05)
            [start] = seen.of(f"f.{i}")
            assert start.started_us < began_us + 100_000


@virtual
async def test_a_name_that_the_host_knows_causes_no_look_at_the_catalog(r: Rig) -> None:
    await family(r)
    r.catalog.written = asyncio.Event()
    async with r.consuming(Seen(), catalog_poll_s=POLL_S) as host:
        await r.producer.publish("f.x", b"")
        await asyncio.sleep(5)
        with mock.patch.object(host.catalog, "look", wraps=host.catalog.look) as look:
            await r.store.tell(["f.x"])
            await asyncio.sleep(1)
            assert look.await_count == 0
            await r.store.tell(["f.x", "f.y"])
            await asyncio.sleep(1)
            assert look.await_count == 1


@virtual
async def test_the_cap_holds_while_hosts_of_a_family_come_and_go_and_nothing_is_lost_or_twice(r: Rig) -> None:
    await family(r)
    seen, sent = Seen(), list[str]()

    async def publish() -> None:
        """Fill topics that are there, and make new ones; each has work for two seconds."""
        topics.extend(f"f.{len(topics) + i}" for i in range(5))
        for name in topics:
            sent.extend(await r.producer.publish_many(name, [b""] * 2 * QPS))

    topics: list[str] = []
    async with r.consuming(seen, "a") as a:
        await publish()
        async with r.consuming(seen, "b") as b:
            for _ in range(6):
                await publish()
                await asyncio.sleep(0.31)
                await r.producer.publish(f"f.late-{len(topics)}", b"")
                await asyncio.sleep(1.1)
            await asyncio.sleep(3)
            assert are_shared(a, b, len(topics) + 6)
        await publish()
        await asyncio.sleep(60)
        assert len(given(a)) == buckets.BUCKETS
    assert len(seen) == len(sent) + 6
    assert len({*seen.ids}) == len(seen)
    assert max(starts_per_second(seen.deliveries).values()) == QPS
    assert {start.host for start in seen.deliveries} == {"a", "b"}


class Insisting(LoneMembership):
    """Takes groups back as a member of a cluster does, some time after a stranger took them."""

    def fenced(self, group: str, epoch: int, bucket: str = "") -> bool:
        return True


@virtual
async def test_the_cap_holds_in_the_second_in_which_a_host_takes_a_group_back_that_a_stranger_took(r: Rig) -> None:
    await family(r)
    seen, names = Seen(), [f"f.{i}" for i in range(10)]
    async with r.consuming(seen, membership=Insisting("host-1", r.next_epoch)) as host:
        for name in names:
            await r.producer.publish_many(name, [b""] * 10 * QPS)
        for name in names:
            await asyncio.sleep(0.33)
            await r.store.log.read([Read(f"{name}/0/only", 0, 1, await r.next_epoch())])
        await asyncio.sleep(20)
        assert host.ownership.groups.keys() == {f"{name}/0" for name in names}
    assert all(len({start.id for start in seen.of(name)}) == 10 * QPS for name in names)
    assert max(starts_per_second(seen.deliveries).values()) <= QPS


# ------------------------------------------------------------------------------------------------------ on real servers


@contextlib.asynccontextmanager
async def family_host(shared: Meeting, name: str) -> AsyncIterator[Host]:
    """Yield a host that has the family and a handler for it."""
    app = shared.app(name)
    app.family(f"{shared.prefix}.*", qps=QPS, idle_s=None)
    async with app, app.running() as host:
        yield host


async def test_hosts_hear_of_a_first_publish_by_the_store(shared: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    rare = msgspec.defstruct("RareLooks", [("catalog_poll_s", float, POLL_S)], bases=(HostOptions,), frozen=True)
    monkeypatch.setattr(hosting, "HostOptions", rare)
    names = iter(shared.topics(1_000))
    async with family_host(shared, "a"), shared.app("b", "") as client:

        async def starts() -> bool:
            await client.publish(next(names), b"")  # again, since the host may not listen yet
            await asyncio.sleep(0.2)
            return len(shared.starts.ids) > 0

        await until(starts)


async def test_hosts_share_the_buckets_of_a_family_and_nothing_is_lost_or_twice(shared: Meeting) -> None:
    topics, sent = shared.topics(60), list[str]()
    async with shared.app("client", "") as client, family_host(shared, "a") as a:

        async def publish(names: list[str]) -> None:
            for found in await asyncio.gather(*(client.publish_many(name, [b""] * QPS * 2) for name in names)):
                sent.extend(found)

        await publish(topics[:20])
        async with family_host(shared, "b") as b:
            await publish(topics[:40])
            await until(lambda: are_shared(a, b, 40))
            await publish(topics[20:])
            await until(lambda: are_shared(a, b, 60) and shared.starts.hosts["b"] > 0)
        await until(lambda: len(a.ownership.groups) == 60)
        await publish(topics)
        await until(lambda: len(shared.starts.ids) >= len(sent))
    assert sorted(shared.starts.ids) == sorted(sent)
    assert shared.starts.most_in_a_second <= QPS
