"""The producer and ids that a topic remembers: where a message goes, what is recorded, and what is refused."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence

import pytest

from emq.producer import Producer
from emq.producer.outgoing import Outgoing
from emq.runtime import errors
from emq.runtime.clock import SystemClock
from emq.storage.log_store import Read, Trim
from emq.storage.message import label
from emq.topics.model import Topic, TopicOptions
from emq.topics.rules import MAX_DEDUPE_S, validate
from emq.trail import events
from support.recorded_trail import RecordedTrail
from support.rig import Rig, rig


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
    recorded = [label(uid) for event in trail.events if isinstance(event, events.Published) for uid in event.ids]
    assert sorted(recorded) == ["a", "b", "c", "d", "later"]


async def test_a_delayed_repeat_is_counted_once(r: Rig) -> None:
    await r.topic("orders", 100, group_qps=50, dedupe_s=60.0)
    for _ in range(3):
        await r.producer.publish("orders", b"x", message_id="later", delay_ms=60_000)
    assert r.producer.published == 1


async def test_a_change_of_the_rate_within_the_groups_forgets_nothing(r: Rig) -> None:
    await r.topic("orders", 40, dedupe_s=60.0)
    await r.producer.publish("orders", b"x", message_id="a")
    await r.admin.update("orders", qps=45)
    await r.producer.publish("orders", b"x", message_id="a")
    assert await count(r, "orders") == 1


async def test_a_delayed_publish_during_a_deletion_leaves_no_id_behind(r: Rig) -> None:
    """The new topic of that name would leave out a message of this id, and say that it has stored the message."""
    await r.topic("orders", 50, dedupe_s=60.0)
    real = r.store.log.trim

    async def published_meanwhile(trims: Sequence[Trim]) -> object:
        answers = await real(trims)
        if any(trim.seal for trim in trims):
            with contextlib.suppress(errors.EMQError):
                await r.producer.publish("orders", b"x", message_id="a", delay_ms=60_000)
        return answers

    r.store.log.trim = published_meanwhile  # type: ignore[method-assign, assignment]
    await r.admin.delete("orders", force=True)
    r.store.log.trim = real  # type: ignore[method-assign]
    await r.topic("orders", 50, dedupe_s=60.0)
    await r.producer.refresh()
    await r.producer.publish("orders", b"x", message_id="a")
    assert await count(r, "orders") == 1


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
