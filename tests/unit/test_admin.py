"""Administration and retirement: catalog, store and checkpoints changed in the order that loses nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from emq.host.retirement import Retirement
from emq.offsets.checkpoints import Checkpoint
from emq.offsets.deletion import FAR_FUTURE_MS, TRIES
from emq.runtime import errors
from emq.runtime.clock import SystemClock
from emq.storage import message
from emq.storage.lane_store import LaneAdd, LaneClaim, LaneSettle, LaneState, LaneVerdict
from emq.storage.log_store import Put, Read
from emq.storage.message import Message
from emq.topics.model import Topic
from support.known_topics import KnownTopics
from support.rig import Rig, rig


@pytest.fixture
async def r() -> AsyncIterator[Rig]:
    async with rig(SystemClock()) as made:
        yield made


def retirement(r: Rig) -> Retirement:
    return Retirement(r.catalog, r.store, r.checkpoints, KnownTopics(), r.clock, stable_s=0.0)


async def shrunk(r: Rig) -> Topic:
    """A topic of four groups, shrunk to one."""
    await r.topic("orders", 40, group_qps=10)
    return await r.admin.update("orders", qps=10)


async def sealed(r: Rig, queue: str) -> bool:
    [answer] = await r.store.log.put([Put(queue, [b"x"])])
    return isinstance(answer, errors.QueueSealed)


async def test_lag_counts_by_priority_what_no_checkpoint_has_finished(r: Rig) -> None:
    topic = await r.topic("orders", 20, group_qps=10)
    await r.producer.publish_many("orders", [b"x"] * 20, priority="high")
    await r.producer.publish_many("orders", [b"x"] * 4, priority="low")
    await r.checkpoints.save([Checkpoint("orders/0/high", 1, 4, ((6, 8), (9, 10)))])
    assert [(lag.priority, lag.unfinished) for lag in await r.admin.lag([topic])] == [
        ("high", 10 + 7 - 3),
        ("mid", 0),
        ("low", 4),
    ]


async def test_delayed_retrying_and_dead_are_told_apart(r: Rig) -> None:
    topic = await r.topic("orders", 20, group_qps=10)
    body = message.encode_retry(Message("x", b""))
    await r.store.lanes.add([LaneAdd("orders/0", "a", body, 1 << 50), LaneAdd("orders/1", "b", body, 1, reason="no")])
    [found] = await r.admin.slot_lag([topic])
    assert (found.delayed, found.claimed, found.dead) == (1, 0, 1)


async def test_offsets_show_the_checkpoint_between_head_and_tail(r: Rig) -> None:
    topic = await r.topic("orders", 10, priorities=("p",))
    await r.producer.publish_many("orders", [b"x"] * 5)
    assert await r.admin.offsets(topic) == [(Checkpoint("orders/0/p", 0, 1), 1, 6)]
    await r.checkpoints.save([Checkpoint("orders/0/p", 7, 3)])
    assert await r.admin.offsets(topic) == [(Checkpoint("orders/0/p", 7, 3), 1, 6)]


async def test_a_topic_that_holds_messages_is_only_deleted_by_force_and_then_leaves_nothing(r: Rig) -> None:
    topic = await r.topic("orders", 20, group_qps=10)
    await r.producer.publish_many("orders", [b"x"] * 7)
    body = message.encode_retry(Message("x", b""))
    await r.store.lanes.add([LaneAdd("orders/0", "a", body, 1), LaneAdd("orders/1", "b", body, 1, reason="no")])
    await r.store.lanes.add([LaneAdd("orders/0", "taken", body, 1)])
    assert await r.store.lanes.settle([LaneSettle("orders/0", "taken", LaneVerdict.RECALL, for_good=True)]) == [True]
    await r.checkpoints.save([Checkpoint("orders/0/mid", 1, 2)])
    with pytest.raises(errors.StillConsumed, match="'orders' still holds 7 messages.*force"):  # noqa: RUF043
        await r.admin.delete("orders")
    assert await r.admin.delete("orders", force=True) == 7
    with pytest.raises(errors.UnknownTopic):
        await r.catalog.get("orders")
    assert await r.store.lanes.inspect(["orders/0", "orders/1"]) == [LaneState(0, 0, 0, None, sealed=True)] * 2
    again = [LaneAdd(f"orders/{n}", id_, body, 1, None, 1 << 50, since_ms=0) for n, id_ in ((0, "taken"), (1, "b"))]
    assert await r.store.lanes.add(again) == [True, True]
    assert all(b.head == b.tail for b in await r.store.log.bounds(topic.all_queues()))
    assert await r.checkpoints.load_all() == {}
    assert await sealed(r, "orders/0/mid")


async def test_an_empty_retired_group_is_sealed_and_dropped_and_opened_once_the_topic_grows(r: Rig) -> None:
    topic = await shrunk(r)
    assert await retirement(r).retire(topic)
    assert (await r.catalog.get("orders")).groups == 1
    assert all([await sealed(r, q) for q in topic.all_queues() if not q.startswith("orders/0/")])
    assert not await sealed(r, "orders/0/mid")
    topic = await r.admin.update("orders", qps=40)
    assert topic.active_groups == 4
    assert not any([await sealed(r, q) for q in topic.all_queues()])


@pytest.mark.parametrize("where", ["queue", "waiting", "prepared"])
async def test_nothing_is_retired_while_something_is_left_in_a_group(r: Rig, where: str) -> None:
    topic = await shrunk(r)
    if where == "queue":
        await r.store.log.put([Put("orders/2/low", [b"x"])])
    else:
        await r.store.lanes.add([LaneAdd("orders/2", "a", b"", 1)])
        if where == "prepared":
            await r.store.lanes.claim([LaneClaim("orders/2", 1, 1)], 10)
    assert not await retirement(r).retire(topic)
    assert (await r.catalog.get("orders")).groups == 4
    assert not await sealed(r, "orders/3/mid")


@pytest.mark.parametrize("look", [1, 2])
@pytest.mark.parametrize("fails", [False, True])
async def test_a_message_that_comes_between_a_look_and_the_seal_is_kept(r: Rig, fails: bool, look: int) -> None:
    topic = await shrunk(r)

    async def late() -> None:
        await r.store.log.put([Put("orders/2/low", [b"late"])])
        if fails:
            await r.store.lanes.add([LaneAdd("orders/2", "late", b"", 1)])
            await r.checkpoints.save([Checkpoint("orders/2/low", 1, 2)])

    async def looked() -> None:
        r.store.lanes.after["inspect"] = late

    r.store.lanes.after["inspect"] = late if look == 1 else looked
    assert not await retirement(r).retire(topic)
    assert (await r.catalog.get("orders")).groups == 4
    [batch] = await r.store.log.read([Read("orders/2/low", 1, 10, 1)])
    assert list(batch.bodies) == ([] if fails and look == 2 else [b"late"]), "what is finished is dropped"
    assert not await sealed(r, "orders/1/mid")


async def test_a_topic_that_grows_between_the_look_and_the_drop_keeps_its_groups_open(r: Rig) -> None:
    topic = await shrunk(r)

    async def grows() -> None:
        await r.admin.update("orders", qps=30)

    r.store.log.after["trim"] = grows
    assert not await retirement(r).retire(topic)
    now = await r.catalog.get("orders")
    assert (now.active_groups, now.groups) == (3, 4)
    assert not any([await sealed(r, q) for q in now.all_queues()])


async def test_dead_letters_of_a_retired_group_are_kept(r: Rig) -> None:
    topic = await shrunk(r)
    await r.store.lanes.add([LaneAdd("orders/3", "a", message.encode_retry(Message("a", b"")), 1, reason="no")])
    assert await retirement(r).retire(topic)
    assert [d.id for d in await r.store.lanes.dead("orders/0")] == ["a"]
    assert await r.store.lanes.settle([LaneSettle("orders/0", "a", LaneVerdict.PURGE)]) == [True]


async def test_nothing_is_remembered_of_what_was_taken_from_a_retired_group(r: Rig) -> None:
    topic = await shrunk(r)
    entries = [LaneAdd("orders/3", "recalled", b"", 1), LaneAdd("orders/3", "moved", b"", 1, reason="no")]
    entries.append(LaneAdd("orders/0", "recalled", b"", 1))
    await r.store.lanes.add(entries)
    recalls = [LaneSettle(f"orders/{n}", "recalled", LaneVerdict.RECALL, for_good=True) for n in (0, 3)]
    assert await r.store.lanes.settle(recalls) == [True, True]
    assert await retirement(r).retire(topic)
    again = [entry._replace(epoch=1 << 50, since_ms=0) for entry in entries]
    assert await r.store.lanes.add(again) == [True, True, None]


async def test_what_a_producer_delays_into_a_group_as_it_is_retired_is_found_again(
    r: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its add comes after the last look at the lane, and its own look before the catalog has changed."""
    topic = await shrunk(r)
    real = r.catalog.change

    async def with_late_add(name: str, changed: Callable[[Topic], Topic], **options: Any) -> Topic:
        body = message.encode_retry(Message("late", b"x"))
        await r.store.lanes.add([LaneAdd("orders/3", "late", body, 1 << 50, priority=2)])
        return await real(name, changed, **options)

    monkeypatch.setattr(r.catalog, "change", with_late_add)
    assert await retirement(r).retire(topic)
    assert [(e.id, e.priority) for e in await r.store.lanes.waiting("orders/0")] == [("late", 2)]
    assert await r.store.lanes.waiting("orders/3") == []


class TakingBack:
    """A host that has not heard of the deletion takes a group back, and claims what is there, after each recovery."""

    def __init__(self, r: Rig, times: int) -> None:
        self.r, self.left = r, times
        self.recover = r.store.real.lanes.recover

    async def __call__(self, owned: Any, older_than_ms: int | None = None) -> Any:
        answers = await self.recover(owned, older_than_ms)
        if self.left:
            self.left -= 1
            epoch = await self.r.next_epoch()
            await self.recover([(lane, epoch) for lane, _ in owned])
            await self.r.store.real.lanes.claim([LaneClaim(lane, 100, epoch) for lane, _ in owned], FAR_FUTURE_MS)
        return answers


@pytest.mark.parametrize("times", [0, 1, TRIES - 1])
async def test_a_deletion_leaves_nothing_in_lanes_that_a_host_takes_back_meanwhile(r: Rig, times: int) -> None:
    await r.topic("orders", 20, group_qps=10)
    for _ in range(20):
        await r.producer.publish("orders", b"x", delay_ms=60_000)
    r.store.lanes.replace("recover", TakingBack(r, times))
    await r.admin.delete("orders", force=True)
    for lane in ("orders/0", "orders/1"):
        assert (await r.store.real.lanes.inspect([lane]))[0][:3] == (0, 0, 0)


async def test_a_deletion_that_cannot_take_a_group_says_so_and_can_be_repeated(r: Rig) -> None:
    await r.topic("orders", 20, group_qps=10)
    await r.producer.publish("orders", b"x", delay_ms=60_000)
    taking = TakingBack(r, TRIES)
    r.store.lanes.replace("recover", taking)
    with pytest.raises(errors.StillConsumed, match=r"takes group orders/\d back again and again; nothing more"):
        await r.admin.delete("orders", force=True)
    with pytest.raises(errors.EMQError):
        await r.producer.publish("orders", b"x", delay_ms=60_000)
    await r.admin.delete("orders", force=True)
    assert taking.left == 0
