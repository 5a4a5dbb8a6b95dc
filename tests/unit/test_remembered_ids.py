"""The producer and ids that a topic remembers: where a message goes, what is recorded, and what is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.recorded_trail import RecordedTrail
from support.rig import Rig, rig

from emq import errors
from emq.clock import SystemClock
from emq.producer import Producer
from emq.producer.outgoing import Outgoing
from emq.storage.log_store import Read
from emq.topics.model import Topic, TopicOptions
from emq.topics.rules import MAX_DEDUPE_S, validate
from emq.trail import events


@pytest.fixture
async def r() -> AsyncIterator[Rig]:
    async with rig(SystemClock()) as made:
        yield made


async def count(r: Rig, topic: str) -> int:
    found = await r.catalog.get(topic)
    reads = [Read(queue, 1, 1_000, None) for queue in found.all_queues()]
    batches = await r.store.real.log.read(reads)
    return sum(len(batch.bodies) for batch in batches if not isinstance(batch, Exception))


async def test_a_repeat_finds_its_group_by_its_id_or_its_key(r: Rig) -> None:
    await r.topic("orders", 500, group_qps=50, dedupe_s=60.0)
    ids = [f"id-{n}" for n in range(50)]
    for _ in range(3):
        for id_ in ids[:10]:
            assert await r.producer.publish("orders", b"x", message_id=id_) == id_
        assert await r.producer.publish_many("orders", [b"x"] * 50, message_ids=ids) == ids
        assert await r.producer.send([Outgoing("orders", b"x", id_) for id_ in ids]) == ids
        assert await r.producer.publish("orders", b"x", key="k", message_id="keyed") == "keyed"
    assert await count(r, "orders") == 51
    assert r.producer.published == 51


async def test_only_the_publish_that_stored_the_message_is_recorded(r: Rig) -> None:
    await r.topic("orders", 100, group_qps=50, dedupe_s=60.0)
    trail = RecordedTrail()
    producer = Producer(r.store, r.catalog, trail)
    await producer.publish_many("orders", [b"x"] * 3, message_ids=["a", "b", "c"])
    await producer.publish_many("orders", [b"x"] * 3, message_ids=["b", "d", "a"])
    await producer.publish("orders", b"x", message_id="d")
    for _ in range(2):
        await producer.publish("orders", b"x", message_id="later", delay_ms=60_000)
    recorded = [id_ for event in trail.events if isinstance(event, events.Published) for id_ in event.ids]
    assert sorted(recorded) == ["a", "b", "c", "d", "later"]


async def test_a_topic_that_remembers_nothing_stores_a_repeat(r: Rig) -> None:
    await r.topic("orders", 50)
    for _ in range(2):
        await r.producer.publish("orders", b"x", message_id="a")
    assert await count(r, "orders") == 2


@pytest.mark.parametrize("dedupe_s", [-1.0, 0.0001, MAX_DEDUPE_S + 1, float("nan")])
def test_a_time_that_cannot_be_meant_is_refused(dedupe_s: float) -> None:
    with pytest.raises(errors.InvalidTopic, match="dedupe_s"):
        validate(Topic("orders", 50, options=TopicOptions(dedupe_s=dedupe_s)), None)


async def test_a_sorted_topic_has_no_ids_to_remember(r: Rig) -> None:
    with pytest.raises(errors.InvalidTopic, match="dedupe_s is for log topics"):
        await r.topic("sorted", 50, kind="priority", slots=1, dedupe_s=60.0)
