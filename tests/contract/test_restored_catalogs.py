"""A catalog that has forgotten a number of groups, since its database was restored from an older copy.

The store has not forgotten it: its queues refuse keys by the former layout, and those of groups that were dropped are
sealed. Nothing waits, so no message tells a host of the forgotten layout.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from emq.allocation.membership import LoneMembership
from emq.host.host import Host
from emq.host.options import HostOptions
from emq.host.retirement import Retirement
from emq.host.surroundings import Services, Storage
from emq.observe.admin import Admin
from emq.offsets.checkpoints import CheckpointStore
from emq.offsets.deletion import Deletion
from emq.producer import Producer
from emq.runtime.clock import SystemClock
from emq.storage.log_store import Trim
from emq.storage.message import Message
from emq.storage.store import Store
from emq.topics import forgotten_layouts
from emq.topics.catalog import Catalog
from emq.topics.key_layouts import group_of_key
from emq.topics.model import Topic
from emq.trail.sink import NullTrail
from emq_testing.contract.target import Target
from support.doubles import InlineDatabase
from support.known_topics import KnownTopics
from support.rig import ENVIRONMENT, bound, running
from support.waiting import until

GROUP_QPS = 20.0
KEYS = [f"k{i}" for i in range(16)]


class Place:
    """A store, and a database that is put back to what it was before a change of the topic."""

    def __init__(self, db: InlineDatabase, store: Store, topic: str) -> None:
        self._db, self._name = db, topic
        self.store = store
        self.catalog = Catalog(db, ENVIRONMENT, None)
        self.checkpoints = CheckpointStore(db, ENVIRONMENT)
        self.admin = Admin(self.catalog, store, self.checkpoints, self.next_epoch)

    async def next_epoch(self) -> int:
        return await self._db.next_generation(ENVIRONMENT)

    async def forgetful(self, groups: int, then: int) -> Topic:
        """Create a topic, change its number of groups, and put the catalog back; return the topic as it was between."""
        [former] = await self.admin.create([Topic(self._name, groups * GROUP_QPS, group_qps=GROUP_QPS)])
        forgotten = await self.admin.update(self._name, qps=then * GROUP_QPS)
        retirement = Retirement(self.catalog, self.store, self.checkpoints, KnownTopics(), SystemClock(), stable_s=-1.0)
        while forgotten.groups > forgotten.active_groups:
            await retirement.retire(forgotten)
            forgotten = await self.catalog.get(self._name)
        await self.catalog.change(self._name, lambda _: former)
        return forgotten

    def producer(self) -> Producer:
        """Return a new one, which knows nothing of the past."""
        return Producer(self.store, self.catalog)

    async def consumed(self, count: int) -> set[bytes]:
        """Return what a host delivers of `count` messages."""
        seen: set[bytes] = set()

        async def handle(m: Message) -> None:
            seen.add(m.payload)

        host = Host(
            Storage(self.store, self.catalog, self.checkpoints),
            LoneMembership("host-1", self.next_epoch),
            bound({"*": handle}),
            Services(SystemClock()),
            HostOptions(catalog_poll_s=0.05, checkpoint_s=0.1),
        )
        async with running(host):
            await until(lambda: len(seen) == count)
        return seen


@pytest.fixture
async def place(store: Store, target: Target) -> AsyncIterator[Place]:
    db = await InlineDatabase.open("sqlite://")
    yield Place(db, store, target.topic)
    await db.close()


@pytest.mark.parametrize(("groups", "then"), [(1, 2), (2, 1)], ids=["grown", "shrunk"])
async def test_keys_are_taken_though_the_catalog_has_forgotten_a_number_of_groups(
    place: Place, groups: int, then: int
) -> None:
    forgotten = await place.forgetful(groups, then)
    assert {group_of_key(key, 2) for key in KEYS} == {0, 1}
    await place.producer().publish_many(forgotten.name, KEYS, keys=KEYS)
    assert await place.producer().publish(forgotten.name, b"one", key=KEYS[0])
    topic = await place.catalog.get(forgotten.name)
    assert (topic.active_groups, topic.layout > forgotten.layout) == (groups, True)
    assert await place.consumed(len(KEYS) + 1) == {b"one", *map(str.encode, KEYS)}


async def test_one_message_is_enough_to_notice_it(place: Place) -> None:
    forgotten = await place.forgetful(2, 1)
    key = next(key for key in KEYS if group_of_key(key, 2) == 1)
    assert await place.producer().publish(forgotten.name, b"one", key=key)
    assert await place.producer().publish(forgotten.name, b"two", key=key)
    assert await place.consumed(2) == {b"one", b"two"}


async def test_a_topic_that_is_being_deleted_stays_sealed(place: Place) -> None:
    """What is published after the deletion has counted the messages would be lost with the topic."""
    forgotten = await place.forgetful(1, 2)
    topic = await place.catalog.get(forgotten.name)
    assert await Deletion(place.store, place.checkpoints, place.next_epoch, NullTrail(), SystemClock()).seal(
        [topic], emptied=False
    )
    await forgotten_layouts.catch_up(place.store, place.catalog, topic.name, forgotten.layout)
    assert (await place.catalog.get(topic.name)).layout > forgotten.layout
    sealed = await place.store.log.trim([Trim(queue, 0, None) for queue in topic.all_queues()])
    assert all(answer is True for answer in sealed)
