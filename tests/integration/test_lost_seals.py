"""A real Redis that loses its last writes, and with them the seals of a group that is being retired."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import emq
from emq.host.retirement import Retirement
from emq.runtime import errors
from emq.storage.lane_store import LaneAdd
from emq.storage.log_store import Put
from emq.storage.slot_store import Keep, SlotAdd
from support.known_topics import KnownTopics
from support.lossy_servers import AppendOnlyFile

AT_THE_SECOND_LOOK_S = 1e-9
"""For `Retirement`: a group is dropped at the second look that finds it sealed."""


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[AppendOnlyFile]:
    request.getfixturevalue("redis_server")  # skips or fails where there is none
    made = AppendOnlyFile()
    yield made
    made.close()


@pytest.fixture
async def app(server: AppendOnlyFile, tmp_path: Path) -> AsyncIterator[emq.App]:
    """With a topic whose second group, of one queue, has retired and is empty."""
    async with emq.App(server.url, database=f"sqlite:///{tmp_path}/catalog.db") as app:
        await app.create_topic("orders", 100, group_qps=50, priorities=("mid",))
        await app.admin.update("orders", qps=50)
        yield app


async def lost(server: AppendOnlyFile, app: emq.App) -> None:
    """Have the server come back without what was written since the cut."""
    await asyncio.to_thread(server.crash)
    await asyncio.to_thread(server.back)
    while True:
        try:
            await app.store.log.bounds(["orders/1/mid"])
            return
        except errors.StoreUnavailable:
            await asyncio.sleep(0.02)


async def is_refused(app: emq.App) -> bool:
    """Publish by an old picture of the catalog; return whether the store refuses the message."""
    [answer] = await app.store.log.put([Put("orders/1/mid", [b"late"])])
    return isinstance(answer, errors.QueueSealed)


async def test_a_group_is_dropped_only_after_its_seals_have_held(server: AppendOnlyFile, app: emq.App) -> None:
    """The server dies twice, each time just after the seals were set."""
    loop = Retirement(app.catalog, app.store, app.checkpoints, KnownTopics(), app.clock, stable_s=AT_THE_SECOND_LOOK_S)
    topic = await app.catalog.get("orders")
    server.cut()
    assert not await loop.retire(topic)
    await lost(server, app)
    server.cut()
    assert not await loop.retire(topic), "the seals that it found at the look before are gone"
    await lost(server, app)
    assert not await is_refused(app)
    assert (await app.catalog.get("orders")).groups == 2, "nobody would consume the message"


async def test_a_group_is_dropped_if_its_seals_hold(app: emq.App) -> None:
    loop = Retirement(app.catalog, app.store, app.checkpoints, KnownTopics(), app.clock, stable_s=AT_THE_SECOND_LOOK_S)
    topic = await app.catalog.get("orders")
    assert [await loop.retire(topic), await loop.retire(topic)] == [False, True]
    assert await is_refused(app)


@pytest.mark.parametrize("kind", ["log", "priority"])
async def test_a_topic_that_is_created_again_stays_open(server: AppendOnlyFile, app: emq.App, kind: emq.Kind) -> None:
    """The server dies when the queues, lanes and slots that a deletion had sealed were open for a moment."""
    await app.create_topic("again", 50, kind=kind)
    await app.admin.delete("again")
    server.cut()
    creating = asyncio.create_task(app.create_topic("again", 50, kind=kind))
    async with asyncio.timeout(10):
        while not await is_open(app, "again"):
            await asyncio.sleep(0.02)
        await lost(server, app)
        assert not await is_open(app, "again"), "the server has forgotten that it was opened"
        await creating
    assert await is_open(app, "again")


async def is_open(app: emq.App, name: str) -> bool:
    """Return whether the first group of a topic takes messages, in its queue or slot and in its lane."""
    try:
        topic = await app.catalog.get(name)
    except errors.UnknownTopic:
        return False
    answers: list[object] = [*await app.store.lanes.add([LaneAdd(topic.group(0), "probe", b"", 1 << 50)])]
    if topic.is_sorted:
        answers += await app.store.sorted.add([SlotAdd(topic.slot(0), b"probe", 17.0, Keep.LAST)])
    else:
        answers += await app.store.log.put([Put(topic.queues(0)[0], [b"probe"])])
    return not any(isinstance(answer, errors.QueueSealed) for answer in answers)
