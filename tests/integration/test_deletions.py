"""Topics that are deleted, created again and resized while producers do not know yet, or while the store fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from emq.producer import Producer
from emq.runtime import errors
from emq.topics.catalog import Catalog
from emq.topics.model import Kind
from support.doubles import Faulty
from support.rig import Rig, Seen
from support.virtual import virtual
from support.waiting import until

pytestmark = virtual

SORTED: dict[str, Any] = {"kind": Kind.PRIORITY, "ordering": "none"}


class Broken(Exception):
    """The process has ended here."""


class Steps:
    """Counts the calls of an administration to store and database, and ends it before the one of a number."""

    def __init__(self, r: Rig) -> None:
        self.left = 1 << 30
        for half in (r.store.log, r.store.lanes, r.store.sorted):
            self._count_half(half)
        run = r.db.run

        async def counted(*args: Any, **kwargs: Any) -> Any:
            self._step()
            return await run(*args, **kwargs)

        r.db.run = counted  # type: ignore[method-assign]

    def _count_half(self, half: Faulty) -> None:
        for name in ("put", "trim", "bounds", "add", "claim", "settle", "recover", "inspect", "dead", "waiting"):
            real = getattr(half._real, name, None)
            if real is not None:
                half.replace(name, self._counted(real))

    def _counted(self, real: Any) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            self._step()
            return await real(*args, **kwargs)

        return call

    def _step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Broken

    async def each(self, work: Any, undo: Any) -> int:
        """Run `work` again and again, broken one step later each time, and repeated; answers how many steps it has."""
        for n in range(200):
            await undo()
            self.left = n
            try:
                await work()
            except Broken:
                self.left = 1 << 30
                await work()
            else:
                self.left = 1 << 30
                return n
        raise AssertionError("it never ended")


def stale_producer(r: Rig) -> Producer:
    """One that has read the catalog and does not look again by itself within the test."""
    return Producer(r.store, Catalog(r.db, "online", None), clock=r.clock)


@pytest.mark.parametrize("many", [False, True])
async def test_what_is_published_to_a_sorted_topic_that_was_created_again_smaller_is_delivered(
    r: Rig, many: bool
) -> None:
    await r.topic("jobs", 640, group_qps=10, slots=64, **SORTED)
    producer = stale_producer(r)
    await producer.publish("jobs", b"before", priority=20)
    await r.admin.delete("jobs", force=True)
    await r.topic("jobs", 640, group_qps=100, slots=8, **SORTED)
    payloads = [b"%d" % i for i in range(40)]
    if many:
        await producer.publish_many("jobs", payloads, priority=20)
    else:
        await asyncio.gather(*(producer.publish("jobs", p, priority=20) for p in payloads))
    seen = Seen()
    async with r.consuming(seen):
        await until(lambda: set(payloads) <= set(seen.payloads))
    assert b"before" not in seen.payloads


async def delete_while(r: Rig, call: int, publish: Any) -> tuple[bool, bool]:
    """Delete without force, and publish at one of its calls to the database; whether it was deleted, and published."""
    calls, run, publishing = 0, r.db.run, []

    async def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            publishing.append(asyncio.create_task(publish()))
            await asyncio.sleep(0.01)
        return await run(*args, **kwargs)

    r.db.run = counted  # type: ignore[method-assign]
    deleted = True
    try:
        await r.admin.delete("jobs")
    except errors.StillConsumed:
        deleted = False
    finally:
        r.db.run = run  # type: ignore[method-assign]
    await asyncio.gather(*publishing)
    return deleted, bool(publishing)


@pytest.mark.parametrize("kind", ["log", "sorted", "delayed"])
async def test_a_deletion_without_force_loses_nothing_that_is_published_meanwhile(r: Rig, kind: str) -> None:
    told: dict[str, Any] = {"log": {}, "sorted": {"priority": 20}, "delayed": {"delay_ms": 50}}[kind]
    settings: dict[str, Any] = {"group_qps": 50, **(SORTED if kind == "sorted" else {})}
    known: set[bytes] = set()
    seen, producer = Seen(), stale_producer(r)

    async def publish() -> None:
        payload = b"%d" % len(outcomes)
        try:
            await producer.publish("jobs", payload, **told)
        except errors.UnknownTopic:
            return
        known.add(payload)

    outcomes: list[bool] = []
    for call in range(1, 40):
        await r.topic("jobs", 100, **settings)
        deleted, published = await delete_while(r, call, publish)
        if not published:
            break
        outcomes.append(deleted)
        await r.topic("jobs", 100, **settings)
        async with r.consuming(seen):
            await until(lambda: known <= set(seen.payloads))
    assert set(outcomes) == {True, False}


@pytest.mark.parametrize("kind", ["log", "sorted"])
async def test_a_deletion_that_broke_off_at_any_step_is_completed_by_the_next(r: Rig, kind: str) -> None:
    options = {**SORTED, "slots": 4} if kind == "sorted" else {"group_qps": 50, "priorities": ("p",)}
    told: dict[str, Any] = {"priority": 20} if kind == "sorted" else {}
    steps = Steps(r)

    async def prepare() -> None:
        await r.topic("jobs", 200, **options)
        await r.producer.publish_many("jobs", [b"old %d" % i for i in range(30)], **told)
        if kind == "log":
            await r.producer.publish_many("jobs", [b"old"] * 5, delay_ms=10)

    async def delete() -> None:
        try:
            await r.admin.delete("jobs", force=True)
        except errors.UnknownTopic:
            if steps.left < 1 << 29:
                raise

    async def deleted_and_clean() -> None:
        with pytest.raises(errors.UnknownTopic):
            await r.catalog.get("jobs")
        topic = await r.topic("jobs", 200, **options)
        assert await r.lag("jobs") == 0
        [slots] = await r.admin.slot_lag([topic])
        assert (slots.ready, slots.delayed, slots.claimed, slots.dead) == (0, 0, 0, 0)
        ids = await r.producer.publish_many("jobs", [b"new %d" % i for i in range(20)], **told)
        assert len(ids) == 20, "all of it is open again"
        await r.admin.delete("jobs", force=True)

    began = False

    async def undo() -> None:
        nonlocal began
        if began:
            await deleted_and_clean()
        began = True
        await prepare()

    assert await steps.each(delete, undo) > 5
    await deleted_and_clean()


async def test_a_topic_that_failed_to_grow_half_way_takes_messages_after_the_next_try(r: Rig) -> None:
    steps = Steps(r)
    seen = Seen()
    await r.topic("jobs", 200, group_qps=50, priorities=("p",))

    async def shrunk() -> None:
        async with r.consuming(seen):
            await r.admin.update("jobs", qps=50)
            async with asyncio.timeout(60):
                while (await r.catalog.get("jobs")).groups > 1:
                    await asyncio.sleep(0.2)

    async def grow() -> None:
        await r.admin.update("jobs", qps=200)

    for n in range(40):
        await shrunk()
        steps.left = n
        try:
            await grow()
        except Broken:
            steps.left = 1 << 30
            await grow()
        else:
            steps.left = 1 << 30
            break
        payloads = [b"%d %d" % (n, i) for i in range(20)]
        await r.producer.publish_many("jobs", payloads)
    assert n >= 2
