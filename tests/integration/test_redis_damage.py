"""A key of a real server that somebody wrote over: its own queue waits, by name, and the others go on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
import redis

import emq
import emq_servers as servers
from emq.runtime import errors
from emq.runtime.environment import Environment
from emq.storage.lane_store import LaneAdd, LaneClaim, LaneSettle, LaneVerdict
from emq.storage.log_store import Put, Read
from emq.storage.opening import open_store
from emq.storage.slot_store import Keep, Slot, SlotAdd, SlotClaim, SlotKind
from emq_stores.redis.damage import LOOK_AGAIN_S
from emq_stores.redis.keys import Shard, SlotKeys
from support.waiting import until

TAG = "{emq:online:0}"

KEYS = {
    "queue": (f"{TAG}:log:hurt/0/mid", "list"),
    "lane": (f"{TAG}:waiting:hurt/0", "zset"),
    "ranks": (f"{TAG}:ranks:hurt/0", "zset"),
    "prepared": (f"{TAG}:prepared:hurt/0", "hash"),
    "taken": (f"{TAG}:taken:hurt/0", "zset"),
    "slot": ("hurt-sorted_0", "zset"),
    "prepare": ("prepare{hurt-sorted_0}", "zset"),
    "own": ("emq{hurt-sorted_0}", "hash"),
}
"""What is written over, and what should be there."""


class Load:
    """Topics that are hurt, and others beside them; the payloads that were handled."""

    def __init__(self, url: str, directory: Path) -> None:
        self.app = emq.App(url, database=f"sqlite:///{directory}/catalog.db")
        self.handled: set[str] = set()
        self.number = 0
        self.told: list[str] = []
        self.app.handler("*")(self._handle)

    async def _handle(self, m: emq.Message) -> None:
        if m.headers is None and m.attempt == 1 and m.payload.startswith(b"again"):
            raise emq.Retry("once", after_s=0.05)
        self.handled.add(m.payload.decode())

    async def create(self) -> None:
        for name in ("hurt", "well"):
            await self.app.create_topic(name, 50)
            await self.app.create_topic(f"{name}-sorted", 50, kind="priority", slots=1)

    async def publish(self, name: str) -> set[str]:
        """Publish some of every kind; returns the payloads that were taken."""
        taken: set[str] = set()
        self.number += 1
        for topic, kind, options in (
            (name, "plain", {}),
            (name, "again", {}),
            (name, "later", {"delay_ms": 100}),
            (f"{name}-sorted", "plain", {"priority": 20}),
        ):
            payload = f"{kind} {topic} {self.number}"
            try:
                await self.app.publish(topic, payload, **options)
            except errors.StoreUnavailable as exc:
                self.told.append(str(exc))
                continue
            taken.add(payload)
        return taken


@pytest.mark.parametrize("which", KEYS)
async def test_one_damaged_key_stops_its_own_queue_only_and_is_named_and_heals(
    which: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key, kind = KEYS[which]
    with servers.start_redis() as server, redis.Redis.from_url(server.url) as stranger:
        load = Load(server.url, tmp_path)
        caplog.set_level(logging.WARNING)
        async with load.app as app:
            await load.create()
            host = asyncio.create_task(app.run())
            taken = await load.publish("hurt") | await load.publish("well")
            await until(lambda: load.handled >= taken)
            stranger.delete(key)
            stranger.set(key, "x")
            hurt = await load.publish("hurt")
            for _ in range(4):
                await asyncio.sleep(0.4)
                well = await load.publish("well")
                await until(lambda: load.handled >= well, 5)  # noqa: B023
                hurt |= await load.publish("hurt")
            assert not host.done()
            lines = [record.getMessage() for record in caplog.records if key in record.getMessage()]
            assert len(lines) < 20, "it is said at every call"
            lines += [told for told in load.told if key in told]
            assert lines, "neither the log nor an error names the key"
            assert all(f"is a string, and EMQ keeps a {kind} there" in line for line in lines)
            assert [record for record in caplog.records if record.exc_info] == []
            stranger.delete(key)
            after = await load.publish("hurt")
            await until(lambda: load.handled >= after)
            if which not in ("prepared", "prepare"):  # what was claimed lay in the key that was written over
                await until(lambda: load.handled >= hurt)
            app.stop()
            await host


@pytest.mark.parametrize("name", ["head", "armed", "fence", "sealed", "woken", "slot_armed"])
async def test_a_damaged_key_of_all_queues_is_named_and_sorted_topics_go_on_and_the_queues_do_when_it_is_repaired(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key = f"{TAG}:{name}"
    with servers.start_redis() as server, redis.Redis.from_url(server.url) as stranger:
        load = Load(server.url, tmp_path)
        caplog.set_level(logging.WARNING)
        async with load.app as app:
            await load.create()
            host = asyncio.create_task(app.run())
            await load.publish("well")
            await until(lambda: len(load.handled) == 4)
            stranger.rename(key, "aside") if stranger.exists(key) else None
            stranger.set(key, "x")
            for _ in range(3):
                taken = await load.publish("well")
                await until(lambda: load.handled >= {p for p in taken if "sorted" in p}, 5)  # noqa: B023
                await asyncio.sleep(0.3)
            told = [record.getMessage() for record in caplog.records] + load.told
            assert any(key in line for line in told), "neither the log nor an error names the key"
            stranger.delete(key)
            stranger.rename("aside", key) if stranger.exists("aside") else None
            taken = await load.publish("well")
            await until(lambda: load.handled >= taken)
            app.stop()
            await host


async def test_a_host_starts_beside_a_damaged_key_and_acquires_its_group_when_the_key_is_repaired(
    tmp_path: Path,
) -> None:
    with servers.start_redis() as server, redis.Redis.from_url(server.url) as stranger:
        load = Load(server.url, tmp_path)
        async with load.app as app:
            await load.create()
            well = await load.publish("well")
            stranger.set("prepare{hurt-sorted_0}", "x")
            stranger.set(f"{TAG}:prepared:hurt/0", "x")
            host = asyncio.create_task(app.run())
            await until(lambda: load.handled >= well)
            stranger.delete("prepare{hurt-sorted_0}", f"{TAG}:prepared:hurt/0")
            hurt = await load.publish("hurt")
            await until(lambda: load.handled >= hurt)
            app.stop()
            await host


async def test_entries_beside_a_damaged_key_are_answered_and_its_own_with_the_key_and_the_remedy() -> None:
    with servers.start_redis() as server, redis.Redis.from_url(server.url) as stranger:
        store = await open_store(server.url, Environment.ONLINE)
        queues = [f"t/{group}/high" for group in range(7)]
        stranger.set(Shard("online", 0).log("t/3/high"), "x")
        slots = [Slot(f"s/{index}", SlotKind.PRIORITY) for index in range(7)]
        stranger.set(SlotKeys("online", "s/5").store, "x")
        try:
            first = await store.log.put([Put(queue, [b"x"]) for queue in queues])
        except errors.OutcomeUnknown as exc:
            first = [exc] * 7
        assert all(isinstance(answer, errors.OutcomeUnknown) for answer in first), "some of it may have been stored"
        answers = await store.log.put([Put(queue, [b"y"]) for queue in queues])
        assert [isinstance(answer, errors.KeyDamaged) for answer in answers] == [group == 3 for group in range(7)]
        assert "'{emq:online:0}:log:t/3/high' is a string, and EMQ keeps a list there; rename or delete" in str(
            answers[3]
        )
        batches = await store.log.read([Read(queue, 1, 10, None) for queue in queues])
        assert [isinstance(batch, errors.KeyDamaged) for batch in batches] == [group == 3 for group in range(7)]
        bounds = await store.log.bounds(queues)
        assert isinstance(bounds[3], errors.KeyDamaged)
        assert [b.head for b in bounds if not isinstance(b, errors.EMQError)] == [1] * 6
        adds = [SlotAdd(slot, b"m", 20, Keep.LAST) for slot in slots]
        for _ in range(2):
            added = [store.sorted.add(adds), store.sorted.add(adds[:5])]
            await asyncio.gather(*added, return_exceptions=True)
        states = await store.sorted.inspect(slots, 0)
        assert [isinstance(state, errors.KeyDamaged) for state in states] == [index == 5 for index in range(7)]
        claimed = await store.sorted.claim([SlotClaim(slot, 5, 1, 1) for slot in slots], 1_700_000_000_000)
        assert [len(c.entries) for c in claimed if not isinstance(c, errors.EMQError)] == [1] * 6
        stranger.delete(Shard("online", 0).log("t/3/high"))
        await asyncio.sleep(1.1)
        assert not any(isinstance(a, errors.EMQError) for a in await store.log.put([Put(q, [b"z"]) for q in queues]))
        await store.close()


@pytest.mark.parametrize("what", ["queue", "lane", "retry"])
async def test_a_wake_up_that_could_not_be_kept_is_due_at_the_next_message(what: str) -> None:
    """Nothing is stored: it would wait there for ever, since the store says that the queue is armed."""
    shard, queue, lane = Shard("online", 0), "t/0/high", "t/0"
    with servers.start_redis() as server, redis.Redis.from_url(server.url) as stranger:
        store = await open_store(server.url, Environment.ONLINE)
        calls: dict[str, Callable[[], Awaitable[Sequence[object]]]] = {
            "queue": lambda: store.log.put([Put(queue, [b"x"], ids=["x"], remember_ms=60_000)]),
            "lane": lambda: store.lanes.add([LaneAdd(lane, "x", b"x", 0, remember_ms=60_000)]),
            "retry": lambda: store.lanes.settle([LaneSettle(lane, "r", LaneVerdict.RETRY, 1, 50, b"r")]),
        }
        send = calls[what]
        await store.lanes.add([LaneAdd(lane, "r", b"r", 0)])
        await store.log.read([Read(queue, 1, 10, 1)])
        await store.lanes.claim([LaneClaim(lane, 10, 1)], 0)
        stranger.set(shard.woken, "x")
        with pytest.raises(errors.OutcomeUnknown):
            await send()
        stranger.delete(shard.woken)
        await asyncio.sleep(LOOK_AGAIN_S)
        assert await store.unarmed([queue, lane], 0) == []  # type: ignore[attr-defined]
        (bounds,), (found,) = await store.log.bounds([queue]), await store.lanes.inspect([lane])
        assert (bounds.head, bounds.tail) == (1, 1)  # type: ignore[union-attr]
        assert (found.waiting, found.prepared) == (0, 1)  # type: ignore[union-attr]
        assert not any(isinstance(answer, errors.EMQError) for answer in await send())
        assert await store.unarmed([queue, lane], 0) == [queue if what == "queue" else lane]  # type: ignore[attr-defined]
        await store.close()


async def test_an_add_that_met_a_damaged_lane_is_no_repeat_when_it_comes_again() -> None:
    add = LaneAdd("t/0", "x", b"x", 0, remember_ms=60_000)
    with servers.start_redis() as server, redis.Redis.from_url(server.url) as stranger:
        store = await open_store(server.url, Environment.ONLINE)
        stranger.set(f"{TAG}:waiting:t/0", "x")
        with pytest.raises(errors.OutcomeUnknown):
            await store.lanes.add([add])
        stranger.delete(f"{TAG}:waiting:t/0")
        await asyncio.sleep(LOOK_AGAIN_S)
        assert await store.lanes.add([add]) == [True]
        await store.close()
