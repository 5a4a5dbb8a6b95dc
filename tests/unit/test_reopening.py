"""A publish waits for a group that is being opened, and says that nothing was published if nobody opens the group."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from emq.producer import reopening
from emq.producer.outgoing import Outgoing
from emq.runtime import errors
from emq.storage import message
from emq.storage.answers import served
from emq.storage.log_store import Read, Trim
from support.rig import Rig, rig

WAYS: dict[str, tuple[str, str, Callable[[Rig], Awaitable[object]]]] = {
    "one message": ("log", "put", lambda r: r.producer.publish("log", b"x", key="k")),
    "many messages": ("log", "put", lambda r: r.producer.publish_many("log", [b"x", b"y"], key="k")),
    "a delayed message": ("lanes", "add", lambda r: r.producer.publish("log", b"x", delay_ms=5)),
    "a message of a sorted topic": ("sorted", "add", lambda r: r.producer.publish("merged", b"x")),
    "many messages of a sorted topic": ("sorted", "add", lambda r: r.producer.publish_many("merged", [b"x", b"y"])),
}


@pytest.fixture
async def r(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setattr(reopening, "STEP_S", 0.0)
    async with rig() as made:
        await made.topic("log", 50)
        await made.topic("merged", 100, kind="range_merge", slots=4, time_range_ms=500)
        yield made


def seal(r: Rig, part: str, call: str, calls: int) -> None:
    """The store refuses the next calls, as while a group that the catalog shows is not open yet."""
    real: Callable[..., Any] = getattr(getattr(r.store.real, part), call)
    left = calls

    async def refuse(items: Any, durability: Any) -> Any:
        nonlocal left
        left -= 1
        return [errors.QueueSealed("sealed")] * len(items) if left >= 0 else await real(items, durability)

    getattr(r.store, part).replace(call, refuse)


@pytest.mark.parametrize("way", list(WAYS))
async def test_a_publish_waits_until_the_group_is_open(r: Rig, way: str) -> None:
    part, call, publish = WAYS[way]
    seal(r, part, call, reopening.TRIES - 1)
    assert await publish(r)


@pytest.mark.parametrize("way", list(WAYS))
async def test_a_group_that_nobody_opens_is_no_error_of_the_publisher(r: Rig, way: str) -> None:
    part, call, publish = WAYS[way]
    seal(r, part, call, reopening.TRIES)
    with pytest.raises(errors.StoreUnavailable, match="nothing was published"):
        await publish(r)


async def test_a_topic_that_is_being_deleted_is_not_opened(r: Rig) -> None:
    """What is published between the count of the deletion and its end would be deleted, too."""
    queues = (await r.catalog.get("log")).all_queues()
    await r.store.log.trim([Trim(queue, 0, None, seal=True) for queue in queues])
    with pytest.raises(errors.StoreUnavailable, match="nobody has opened it"):
        await r.producer.publish("log", b"x", key="k")
    assert all(await r.store.log.trim([Trim(queue, 0, None) for queue in queues]))


async def test_each_message_of_a_send_is_told_so(r: Rig) -> None:
    seal(r, "log", "put", reopening.TRIES)
    outcomes = await r.producer.send([Outgoing("log", b"x"), Outgoing("log", b"y"), Outgoing("merged", b"z")])
    assert [*map(type, outcomes)] == [errors.StoreUnavailable, errors.StoreUnavailable, str]


def test_a_publish_waits_for_seconds() -> None:
    """The process that opens the group may be slow, or may have ended, so that a host must."""
    assert reopening.STEP_S * sum(range(reopening.TRIES)) == pytest.approx(9.5)


async def test_a_batch_that_many_groups_refuse_keeps_its_order_in_each_queue(r: Rig) -> None:
    await r.topic("wide", 300)
    groups = (await r.catalog.get("wide")).active_groups
    assert groups == 6
    seal(r, "log", "put", 1)
    await r.producer.publish_many("wide", [b"%d" % number for number in range(40)])
    queues = (await r.catalog.get("wide")).all_queues()
    batches = served(await r.store.log.read([Read(queue, 0, 100, None) for queue in queues]))
    found = [[int(message.decode(body).payload) for body in batch.bodies] for batch in batches]
    assert sorted(number for numbers in found for number in numbers) == list(range(40))
    assert [numbers for numbers in found if numbers != sorted(numbers)] == []
