"""Messages of one key run one at a time and in order, also while their topic's number of groups changes (K)."""

from __future__ import annotations

import asyncio
import copy
import functools
import random
from collections import defaultdict

import pytest

from emq.host.passage_loop import PASS_S
from emq.producer import Producer
from emq.runtime import errors
from emq.storage.log_store import Trim
from emq.storage.message import Message
from emq.topics.key_layouts import group_of_key
from emq.topics.model import MAX_EARLIER, State, Topic
from emq_stores.memory import MemoryStore
from support.assigned import Assigned
from support.doubles import FaultyStore
from support.rig import Rig, Seen, bound
from support.virtual import virtual
from support.waiting import until

pytestmark = virtual

KEYS = 60
GROUP_QPS = 20.0


class KeyWatch:
    """A handler that notes what it should never see: two of a key at a time, or a first delivery out of order."""

    def __init__(self, seed: int, failing: float = 0.05) -> None:
        self._random = random.Random(seed)
        self._failing = failing
        self._running: dict[str, str] = {}
        self._last: dict[str, int] = defaultdict(lambda: -1)
        self.finished: set[str] = set()
        self.overlaps: list[str] = []
        self.disorders: list[str] = []
        self.groups: dict[str, set[int]] = defaultdict(set)

    async def __call__(self, m: Message) -> None:
        assert m.key is not None
        number = int(m.payload)
        if m.key in self._running:
            self.overlaps.append(f"{m.key}: {number} beside {self._running[m.key]}")
        if m.attempt == 1:
            if number < self._last[m.key]:
                self.disorders.append(f"{m.key}: {number} after {self._last[m.key]}")
            self._last[m.key] = max(self._last[m.key], number)
        self.groups[m.key].add(m.group)
        self._running[m.key] = m.payload.decode()
        try:
            await asyncio.sleep(self._random.expovariate(1 / 0.05))
            if m.attempt == 1 and self._random.random() < self._failing:
                raise ValueError("fails once")
            self.finished.add(m.id)
        finally:
            self._running.pop(m.key, None)


class Load:
    """Producers with pictures of the catalog of their own; each key is published by one of them, in order."""

    def __init__(self, r: Rig, seed: int) -> None:
        self._random = random.Random(seed)
        self._producers = [Producer(r.store, r.catalog, clock=r.clock) for _ in range(3)]
        self._numbers: dict[str, int] = defaultdict(int)
        self.sent: list[str] = []

    async def publish(self, seconds: float, rate: int) -> None:
        for _ in range(int(seconds * 10)):
            await asyncio.gather(*(self._some(i, rate // 30) for i in range(len(self._producers))))
            await asyncio.sleep(0.1)

    async def _some(self, number: int, count: int) -> None:
        keys = [f"k{self._random.randrange(number, KEYS, len(self._producers))}" for _ in range(count)]
        payloads = []
        for key in keys:
            payloads.append(str(self._numbers[key]))
            self._numbers[key] += 1
        producer = self._producers[number]
        if self._random.random() < 0.5:
            self.sent += await producer.publish_many("orders", payloads, keys=keys)
            return
        for key, payload in zip(keys, payloads, strict=True):
            self.sent.append(await producer.publish("orders", payload, key=key))


async def settled(r: Rig) -> bool:
    topic = await r.catalog.get("orders")
    return not topic.earlier and topic.groups == topic.active_groups


async def settle(r: Rig) -> None:
    for _ in range(400):
        if await settled(r):
            return
        await asyncio.sleep(0.25)
    raise AssertionError("an earlier layout was never dropped")


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("pacing", ["window", "smooth"])
async def test_keys_keep_their_order_while_their_topic_grows_and_shrinks(r: Rig, seed: int, pacing: str) -> None:
    await r.topic("orders", 2 * GROUP_QPS, group_qps=GROUP_QPS, pacing=pacing, backoff_s=[0.3, 1.0])
    watch, load = KeyWatch(seed), Load(r, seed)
    hosts = [bound({"*": watch}) for _ in range(3)]
    async with r.consuming(hosts[0], "host-1"), r.consuming(hosts[1], "host-2"):
        for groups in (2, 40, 3, 7, 2):
            await r.admin.update("orders", qps=groups * GROUP_QPS)
            await load.publish(3.0, rate=300)
        async with r.consuming(hosts[2], "host-3"):
            await r.admin.update("orders", qps=12 * GROUP_QPS)
            await load.publish(1.0, rate=300)
        await r.admin.update("orders", qps=30 * GROUP_QPS)
        await until(lambda: len(watch.finished) == len(set(load.sent)), 300)
        await settle(r)
    assert (watch.overlaps, watch.disorders) == ([], [])
    assert sum(len(groups) > 1 for groups in watch.groups.values()) > KEYS / 2, "hardly a key has moved"


def _put_back(former: Topic, _: Topic) -> Topic:
    """Change a topic to what it was, as a catalog that was restored from an older copy has it."""
    return former


async def test_keys_with_a_long_backlog_wait_for_no_ring_of_groups_after_several_changes(r: Rig) -> None:
    """More messages are held back in a group than it may buffer, and older layouts are finished before them."""
    await r.topic("orders", 100)
    watch, last, count = Seen(), dict[str, int](), 0

    async def in_order(m: Message) -> None:
        assert m.key is not None
        assert last.get(m.key, -1) < int(m.payload)
        last[m.key] = int(m.payload)

    watch.then = in_order
    async with r.consuming(watch):
        for qps in (100, 150, 250, 100, 250, 50):
            await r.admin.update("orders", qps=qps)
            numbers = range(count, count + 3_500)
            count += len(numbers)
            keys = [f"k{number % 5}" for number in numbers]
            await r.producer.publish_many("orders", [b"%d" % number for number in numbers], keys=keys)
            await asyncio.sleep(1)
        await r.admin.update("orders", qps=1_000)
        await until(lambda: len(watch) == count, 300)
        await settle(r)
    assert len(set(watch.ids)) == count


async def test_what_no_host_has_read_yet_goes_before_what_is_published_after_the_change(r: Rig) -> None:
    """A paused topic is not read: nothing of it runs or waits on its host, and yet its old groups hold a backlog."""
    await r.topic("orders", 20, group_qps=10)
    keys = [f"k{i}" for i in range(KEYS)]
    for number in range(4):
        await r.producer.publish_many("orders", [str(number)] * KEYS, keys=keys)
    await r.admin.update("orders", state=State.PAUSED)
    await r.admin.update("orders", qps=50)
    watch = KeyWatch(1, failing=0)
    async with r.consuming(bound({"*": watch})):
        await asyncio.sleep(3)
        await r.producer.publish_many("orders", ["4"] * KEYS, keys=keys)
        assert (await r.catalog.get("orders")).earlier, "the old groups have not passed"
        await r.admin.update("orders", state=State.ACTIVE)
        await until(lambda: len(watch.finished) == 5 * KEYS, 60)
        await settle(r)
    assert (watch.overlaps, watch.disorders) == ([], [])


async def test_nothing_comes_to_a_key_s_old_group_once_that_group_has_passed(r: Rig) -> None:
    places: dict[str, int] = {}

    async def handle(m: Message) -> None:
        assert m.key is not None
        places[m.key] = m.group

    await r.topic("orders", 20, group_qps=10)
    stale = Producer(r.store, r.catalog, clock=r.clock)
    await stale.refresh()
    keys = [f"k{i}" for i in range(40)]
    async with r.consuming(bound({"*": handle})):
        await r.admin.update("orders", qps=50)
        await settle(r)
        await stale.publish_many("orders", ["x"] * 20, keys=keys[:20])
        await asyncio.gather(*(stale.publish("orders", "x", key=key) for key in keys[20:]))
        await until(lambda: len(places) == 40, 60)
    assert places == {key: group_of_key(key, 5) for key in keys}


async def test_keys_that_did_not_move_and_messages_without_a_key_do_not_wait_for_those_that_did(r: Rig) -> None:
    started: list[str] = []
    release = asyncio.Event()

    async def handle(m: Message) -> None:
        if m.payload == b"stuck":
            await release.wait()
        started.append(m.payload.decode())

    keys = [f"k{n}" for n in range(200)]
    stuck = next(k for k in keys if group_of_key(k, 2) == 0 and group_of_key(k, 5) == 1)
    stays = next(k for k in keys if group_of_key(k, 2) == 1 and group_of_key(k, 5) == 1)
    await r.topic("orders", 20, group_qps=10)
    async with r.consuming(bound({"*": handle})):
        await r.producer.publish("orders", "stuck", key=stuck)
        await r.admin.update("orders", qps=50)
        await r.producer.refresh()
        await r.producer.publish("orders", "behind", key=stuck)
        await r.producer.publish("orders", "stays", key=stays)
        for _ in range(5):
            await r.producer.publish("orders", "no key")
        await until(lambda: len(started) == 6, 10)
        assert sorted(started) == ["no key"] * 5 + ["stays"]
        release.set()
        await until(lambda: len(started) == 8, 10)
        assert started[6:] == ["stuck", "behind"]


async def test_a_retry_of_a_key_that_moved_runs_beside_none_of_its_messages(r: Rig) -> None:
    """Its retry was in the old group's lane when the key moved; nothing of the key is in the old group's queue."""
    watch = KeyWatch(3, failing=0)
    running: list[str] = []

    async def handle(m: Message) -> None:
        if m.payload == b"0" and m.attempt == 1:
            raise ValueError("fails once")
        running.append(m.payload.decode())
        await asyncio.sleep(0.8)
        await watch(m)

    keys = [f"k{n}" for n in range(100)]
    await r.topic("orders", 100, group_qps=50, backoff_s=[2.0])
    async with r.consuming(bound({"*": handle})):
        await r.producer.publish_many("orders", ["0"] * 40, keys=keys[:40])
        await asyncio.sleep(1.5)
        await r.admin.update("orders", qps=350)
        await r.producer.refresh()
        for number in range(1, 6):
            await r.producer.publish_many("orders", [str(number)] * 40, keys=keys[:40])
            await asyncio.sleep(0.3)
        await until(lambda: len(watch.finished) == 240, 60)
    assert watch.overlaps == []


async def test_a_topic_that_is_created_again_takes_messages_whatever_its_former_life(r: Rig) -> None:
    await r.topic("orders", 20, group_qps=10)
    await r.admin.update("orders", qps=50)
    await r.admin.update("orders", qps=10)
    await r.admin.delete("orders", force=True)
    topic = await r.topic("orders", 30, group_qps=10)
    assert topic.layout > 2
    assert not topic.earlier
    await Producer(r.store, r.catalog, clock=r.clock).publish_many("orders", ["x"] * 9, keys=list("abcdefghi"))


async def test_a_key_that_moves_waits_for_one_pass_after_its_last_message_in_the_old_group(r: Rig) -> None:
    await r.topic("orders", 100, group_qps=100, pacing="smooth")
    seen = Seen()
    async with r.consuming(seen):
        await r.producer.publish_many("orders", [b"old"] * 300, keys=["k"] * 300)
        await r.admin.update("orders", qps=150)
        await r.producer.refresh()
        await r.producer.publish_many("orders", [b"new"] * 300, keys=["k"] * 300)
        await until(lambda: len(seen) == 600)
    groups = {d.group for d in seen.deliveries}
    assert len(groups) == 2, "choose a key that moves"
    last = max(d.started_us for d in seen.deliveries if d.payload == b"old")
    first = min(d.started_us for d in seen.deliveries if d.payload == b"new")
    assert last < first < last + 1.2e6 * PASS_S


async def test_keys_of_a_layout_that_a_restored_catalog_has_forgotten_are_delivered(
    r: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """Their queues refuse all keys by the layout of the catalog, and its hosts know nothing of the newer one."""
    former = await r.topic("orders", 2 * GROUP_QPS, group_qps=GROUP_QPS)
    await r.admin.update("orders", qps=GROUP_QPS)
    keys = [f"k{i}" for i in range(16)]
    await r.producer.publish_many("orders", keys, keys=keys)
    await r.catalog.change("orders", lambda _: former)
    seen = Seen()
    async with r.consuming(seen):
        await until(lambda: len(seen) == 16)
        await Producer(r.store, r.catalog, clock=r.clock).publish_many("orders", keys, keys=keys)
        await until(lambda: len(seen) == 32)
        await settle(r)
    assert caplog.text.count("the store knows a number of groups that the catalog does not know") == 1


async def test_one_topic_that_cannot_be_caught_up_keeps_no_other_waiting(
    r: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    keys = [f"k{i}" for i in range(16)]
    for name in ("first", "second"):
        former = await r.topic(name, 2 * GROUP_QPS, group_qps=GROUP_QPS)
        await r.admin.update(name, qps=GROUP_QPS)
        await r.producer.publish_many(name, keys, keys=keys)
        await r.catalog.change(name, functools.partial(_put_back, former))
    seen, store = Seen(), FaultyStore(MemoryStore(r.world))
    away = errors.StoreUnavailable("this part of the store is away")
    opened = store.log.inject(
        "trim", before=away, times=None, of=lambda trim: trim.seal is False and trim.queue.startswith("first/")
    )
    async with r.consuming(seen, store=store):
        await until(lambda: len(seen.of("second")) == 16)
        opened.times = 0
        await until(lambda: len(seen) == 32)
    assert caplog.text.count("the store knows a number of groups that the catalog does not know") == 2


async def test_changes_that_nobody_works_off_are_refused_in_the_end(r: Rig) -> None:
    await r.topic("orders", 10, group_qps=10)
    for change in range(MAX_EARLIER):
        await r.admin.update("orders", qps=20 - 10 * (change % 2))
    with pytest.raises(errors.InvalidTopic, match="keys still move from 64 earlier numbers of groups"):
        await r.admin.update("orders", qps=20)
    await r.admin.update("orders", qps=9, max_attempts=3)


async def test_keys_do_not_wait_for_messages_that_a_store_has_forgotten_in_a_crash(r: Rig) -> None:
    keys = [f"k{n}" for n in range(40)]
    await r.topic("orders", 2 * GROUP_QPS, group_qps=GROUP_QPS)
    await r.producer.publish_many("orders", ["0"] * 20, keys=keys[:20])
    before = copy.deepcopy(r.world.queues)
    await r.producer.publish_many("orders", ["1"] * 400, keys=keys[:20] * 20)
    await r.admin.update("orders", qps=3 * GROUP_QPS)  # notes tails that lie behind those
    r.world.queues.clear()
    r.world.queues.update(before)
    await r.producer.refresh()
    ids = await r.producer.publish_many("orders", ["2"] * 40, keys=keys)
    watch = KeyWatch(1, failing=0)
    async with r.consuming(bound({"*": watch})):
        await until(lambda: watch.finished >= set(ids), 30)
        await settle(r)


class Turns:
    """A handler that fails the first message once, and takes its time for all others."""

    def __init__(self) -> None:
        self.running: list[str] = []
        self.ended: list[str] = []
        self.overlaps: list[str] = []

    async def __call__(self, m: Message) -> None:
        name = m.payload.decode()
        if name == "0" and m.attempt == 1:
            raise ValueError("fails once")
        if self.running:
            self.overlaps.append(f"{name} beside {self.running}")
        self.running.append(name)
        await asyncio.sleep(1.5)
        self.running.remove(name)
        self.ended.append(name)


async def test_a_host_that_acquires_a_group_with_an_old_picture_of_the_catalog_keeps_its_keys_in_turn(r: Rig) -> None:
    """The key's retry lies in the group's lane, and the key has moved since that host looked at the catalog."""
    key = next(k for n in range(99) if group_of_key(k := f"k{n}", 2) == 0 and group_of_key(k, 5) == 3)
    await r.topic("orders", 20, group_qps=10, backoff_s=[6.0], jitter=0.0)
    turns, groups = Turns(), [f"orders/{i}" for i in range(5)]
    knows, late = Assigned(r, "knows"), Assigned(r, "late")
    await knows.give(groups)
    async with (
        r.consuming(bound({"*": turns}), membership=knows),
        r.consuming(bound({"*": turns}), membership=late, catalog_poll_s=1e6),
    ):
        await r.producer.publish("orders", "0", key=key)
        await asyncio.sleep(2)
        await r.admin.update("orders", qps=50)
        await asyncio.sleep(0.1)
        await knows.give(groups)
        await settle(r)
        await knows.give(groups[1:])
        await asyncio.sleep(1)
        await late.give(groups[:1])
        await r.producer.refresh()
        for number in range(1, 7):
            await r.producer.publish("orders", str(number), key=key)
        await until(lambda: len(turns.ended) == 7, 60)
    assert turns.overlaps == []
    assert [n for n in turns.ended if n != "0"] == [str(n) for n in range(1, 7)]


async def test_a_host_that_lost_a_group_unawares_does_not_say_what_the_group_has_passed(r: Rig) -> None:
    """The new owner may know less of the catalog, and run what lies in the lane of a key that has moved."""
    store = FaultyStore(MemoryStore(r.world))

    def is_of_first_group(trim: Trim) -> bool:
        return trim.epoch is not None and trim.layout is None and trim.queue.startswith("orders/0/")

    await r.topic("orders", 20, group_qps=10)
    async with r.consuming(bound({"*": KeyWatch(1)}), store=store) as host:
        await asyncio.sleep(1)
        # What a store does that has seen a newer owner of the group, since the queues were raised.
        store.log.inject("trim", before=errors.NotOwner("newer"), of=is_of_first_group, times=None)
        await r.admin.update("orders", qps=50)
        await asyncio.sleep(2)
        passages = (await host.passage._passages.load({"orders"})).values()
    assert {p.group: p.passed for p in passages} == {0: False, 1: True}
    assert host.ownership.losses.groups == 1
