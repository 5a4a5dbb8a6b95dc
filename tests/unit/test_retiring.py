"""Whatever comes to a retired group while it is being retired is not lost, at whichever moment it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from unittest import mock

import pytest

from emq.host.retirement import AGAIN_S, RETIRE_S, STABLE_S, Retirement
from emq.offsets.checkpoints import CheckpointStore
from emq.runtime import errors
from emq.storage import message
from emq.storage.answers import served
from emq.storage.durability import Durability
from emq.storage.lane_store import LaneAdd
from emq.storage.log_store import Put, Trim
from emq.storage.message import Message
from emq.topics.model import Topic
from support.known_topics import KnownTopics
from support.rig import Rig
from support.virtual import virtual

pytestmark = virtual

QUEUE, LANE = "orders/1/mid", "orders/1"

LATER_MS = 1 << 50
"""Due when nobody waits for it any more."""

MOMENTS = 16
"""More than the calls that a retirement makes of the store."""


class Interrupted:
    """A part of a store; right behind the n-th call of all parts, somebody else's turn comes."""

    def __init__(self, real: Any, count: Callable[[], Awaitable[None]]) -> None:
        self._real = real
        self._count = count

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)

        async def called(*args: Any, **kwargs: Any) -> Any:
            answer = await found(*args, **kwargs)
            await self._count()
            return answer

        return called


class Interruption:
    """The store as the retirement sees it.

    Attributes:
        came: whether the moment came.
    """

    def __init__(self, r: Rig, moment: int, then: Callable[[], Awaitable[None]]) -> None:
        self._left = moment
        self._then = then
        self.came = False
        self.log = Interrupted(r.store.real.log, self._count)
        self.lanes = Interrupted(r.store.real.lanes, self._count)
        self.sorted = r.store.real.sorted

    async def _count(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.came = True
            await self._then()


async def shrunk(r: Rig) -> Topic:
    """A topic with one group that has retired, and of which nothing is left."""
    await r.topic("orders", 100, group_qps=50, priorities=("mid",))
    await r.admin.update("orders", qps=50)
    topic = await r.catalog.get("orders")
    assert (topic.active_groups, topic.groups) == (1, 2)
    return topic


def retirement(
    r: Rig, store: Any = None, *, known: KnownTopics | None = None, stable_s: float = STABLE_S
) -> Retirement:
    """Make the retirement of a host with a store, the rig's by default, and with the topics that it knows."""
    checkpoints = CheckpointStore(r.db, "online")
    return Retirement(r.catalog, store or r.store, checkpoints, known or KnownTopics(), r.clock, stable_s=stable_s)


@pytest.mark.parametrize("moment", range(1, MOMENTS))
async def test_a_message_that_comes_to_a_retiring_queue_stays_there_or_is_refused(r: Rig, moment: int) -> None:
    topic = await shrunk(r)
    answers: list[Any] = []

    async def publish() -> None:
        body = message.encode("late", b"x", None, 1, None)
        answers.extend(await r.store.real.log.put([Put(QUEUE, [body])]))

    store = Interruption(r, moment, publish)
    retired = await retirement(r, store, stable_s=0.0).retire(topic)
    [bounds] = await r.store.real.log.bounds([QUEUE])
    if not store.came:
        assert retired
    elif isinstance(answers[0], errors.QueueSealed):
        assert bounds.head == bounds.tail
    else:
        assert not retired
        assert bounds.tail - bounds.head == 1
        assert (await r.catalog.get("orders")).groups == 2


@pytest.mark.parametrize("moment", range(1, MOMENTS))
async def test_an_entry_that_comes_to_a_retiring_lane_stays_there_or_is_moved(r: Rig, moment: int) -> None:
    """As long as the catalog shows the group; later, whoever adds it finds out."""
    topic = await shrunk(r)
    shown: list[int] = []

    async def add() -> None:
        shown.append((await r.catalog.get("orders")).groups)
        await r.store.real.lanes.add([LaneAdd(LANE, "late", message.encode_retry(Message("late", b"x")), LATER_MS)])

    store = Interruption(r, moment, add)
    retired = await retirement(r, store, stable_s=0.0).retire(topic)
    lanes = [await r.store.real.lanes.waiting(lane) for lane in ("orders/0", LANE)]
    if not store.came:
        assert retired
    elif shown == [2]:
        assert [len(entries) for entries in lanes] == ([1, 0] if retired else [0, 1])
        assert (await r.catalog.get("orders")).groups == (1 if retired else 2)


async def test_a_store_that_loses_its_last_second_does_not_bring_a_dead_letter_back_where_nobody_looks(r: Rig) -> None:
    """The dead letter has moved, the store forgets the move, and the group may not be gone by then."""
    topic = await shrunk(r)
    entry = LaneAdd(LANE, "dead", message.encode_retry(Message("dead", b"x")), 1, reason="no")
    assert await r.store.real.lanes.add([entry]) == [True]
    loop = retirement(r)
    kept = r.world.snapshot()
    assert not await loop.retire(topic), "its dead letter has only just moved"
    await asyncio.sleep(STABLE_S - 1)
    r.world.restore(kept)
    assert not await loop.retire(topic), "it has moved again"
    await asyncio.sleep(STABLE_S - 0.1)
    assert not await loop.retire(topic)
    await asyncio.sleep(0.2)
    assert await loop.retire(topic)
    assert [d.id for d in await r.store.real.lanes.dead("orders/0")] == ["dead"]
    assert (await r.catalog.get("orders")).groups == 1


async def test_a_group_is_not_dropped_while_the_store_may_still_lose_its_seals(r: Rig) -> None:
    """The store comes back without its last second twice: the first time the seals are lost, and set again."""
    topic = await shrunk(r)
    loop = retirement(r)
    unsealed = r.world.snapshot()
    assert not await loop.retire(topic), "it was sealed only now"
    await asyncio.sleep(0.9)
    r.world.restore(unsealed)
    await asyncio.sleep(1.0)
    assert not await loop.retire(topic), "it was sealed again only now"
    await asyncio.sleep(0.2)
    assert not await loop.retire(topic)
    r.world.restore(unsealed)
    body = message.encode("late", b"x", None, 1, None)
    assert await r.store.real.log.put([Put(QUEUE, [body])]) == [range(1, 2)], "a producer knows no better"
    assert not await loop.retire(topic)
    assert (await r.catalog.get("orders")).groups == 2, "its message is still to be consumed"


@pytest.mark.parametrize("answer_is_lost", [False, True])
async def test_a_rescue_that_fails_is_tried_again(
    r: Rig, monkeypatch: pytest.MonkeyPatch, answer_is_lost: bool
) -> None:
    topic = await shrunk(r)
    body = message.encode_retry(Message("late", b"x"))

    real = r.catalog.change

    async def dropped(name: str, changed: Callable[[Topic], Topic], **options: Any) -> Topic:
        after = await real(name, changed, **options)
        await r.store.real.lanes.add([LaneAdd(LANE, "late", body, LATER_MS)])
        if answer_is_lost:
            raise errors.DatabaseUnavailable("the answer was lost")
        r.store.lanes.after["waiting"] = fails
        return after

    async def fails() -> None:
        raise errors.StoreUnavailable("the store is away")

    monkeypatch.setattr(r.catalog, "change", dropped)
    loop = retirement(r, stable_s=0.0)
    with pytest.raises((errors.StoreUnavailable, errors.DatabaseUnavailable)):
        await loop.retire(topic)
    watching = asyncio.create_task(loop.watch())
    await asyncio.sleep(2 * RETIRE_S)
    watching.cancel()
    lanes = [await r.store.real.lanes.waiting(lane) for lane in ("orders/0", LANE)]
    assert [len(entries) for entries in lanes] == [1, 0]


async def test_a_rescued_message_stays_as_durable_as_it_was_published(r: Rig) -> None:
    asked = []
    late = LaneAdd(LANE, "late", message.encode_retry(Message("late", b"x")), LATER_MS)

    async def add(adds: Sequence[LaneAdd], durability: Durability = Durability.ACCEPTED) -> Any:
        asked.append(durability)
        return await r.store.real.lanes.add(adds, durability)

    await shrunk(r)
    await r.admin.update("orders", durability="fsynced")
    loop, real = retirement(r, stable_s=0.0), r.catalog.change

    async def dropped(*args: Any, **options: Any) -> Topic:
        after = await real(*args, **options)
        await r.store.real.lanes.add([late])
        return after

    r.store.lanes.replace("add", add)
    with mock.patch.object(r.catalog, "change", dropped):
        assert await loop.retire(await r.catalog.get("orders"))
    assert asked == [Durability.FSYNCED]


async def test_groups_that_a_host_seals_by_an_old_picture_of_the_catalog_are_opened_again(r: Rig) -> None:
    """The topic grows, whoever grows it opens the groups, and only then the host seals them, which it has begun."""
    topic = await shrunk(r)
    known = KnownTopics([topic])
    loop = retirement(r, known=known)
    await r.admin.update("orders", qps=100)
    assert not await loop.retire(topic)
    assert isinstance((await put(r))[0], errors.QueueSealed)
    watching = asyncio.create_task(loop.watch())
    await asyncio.sleep(2 * RETIRE_S)
    assert isinstance((await put(r))[0], errors.QueueSealed), "the host has not heard of it yet"
    known.topics["orders"] = await r.catalog.get("orders")
    await asyncio.sleep(2 * RETIRE_S)
    assert await put(r) == [range(1, 2)]
    watching.cancel()


async def test_groups_that_came_back_are_opened_once_more_in_case_a_slow_seal_came_later(r: Rig) -> None:
    topic, known = await shrunk(r), KnownTopics()
    loop = retirement(r, known=known)
    assert not await loop.retire(topic)
    await r.admin.update("orders", qps=100)
    known.topics["orders"] = await r.catalog.get("orders")
    watching = asyncio.create_task(loop.watch())
    await asyncio.sleep(5.0)
    assert served(await r.store.real.log.trim([Trim(QUEUE, 0, None, seal=True)])) == [True], "the slow one"
    await asyncio.sleep(AGAIN_S)
    assert await put(r) == [range(1, 2)]
    watching.cancel()


async def test_groups_that_have_retired_again_are_not_opened(r: Rig) -> None:
    """The host knows that the topic has grown, and not yet that it has shrunk once more."""
    topic, known = await shrunk(r), KnownTopics()
    loop = retirement(r, known=known)
    assert not await loop.retire(topic)
    known.topics["orders"] = await r.admin.update("orders", qps=100)
    await r.admin.update("orders", qps=50)
    assert served(await r.store.real.log.trim([Trim(QUEUE, 0, None, seal=True)])) == [True]
    watching = asyncio.create_task(loop.watch())
    await asyncio.sleep(2 * RETIRE_S)
    assert isinstance((await put(r))[0], errors.QueueSealed)
    watching.cancel()


async def put(r: Rig) -> Sequence[Any]:
    return await r.store.real.log.put([Put(QUEUE, [message.encode("late", b"x", None, 1, None)])])
