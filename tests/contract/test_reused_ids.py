"""An id that a publisher chooses again names two messages: neither changes the other, whatever becomes of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from emq.host.host import Host
from emq.host.options import HostOptions
from emq.host.surroundings import Services, Storage
from emq.observe import dead_letters, planned, recall
from emq.observe.admin import Admin
from emq.observe.dead_letters import EVERY, Letter, Selection
from emq.offsets.checkpoints import CheckpointStore
from emq.producer import Producer
from emq.runtime import errors
from emq.runtime.clock import SystemClock
from emq.storage.answers import served
from emq.storage.lane_store import MOST_FOUND, Asked, EntryState, LaneAdd, LaneClaim, LaneSettle, LaneVerdict
from emq.storage.message import Message, label
from emq.storage.store import Store
from emq.topics.catalog import Catalog
from emq.topics.model import Topic, TopicOptions, split
from emq_testing.contract.target import Target
from support.doubles import InlineDatabase
from support.local_cluster import LocalCluster
from support.rig import ENVIRONMENT, bound, running
from support.waiting import until

ID = "order-17"
LONG_S = 600.0
ATTEMPTS = 3


class Shop:
    """A topic whose host does with each payload what the test says; `runs` has the attempts of each payload."""

    def __init__(self, store: Store, topic: Topic, producer: Producer) -> None:
        self.store = store
        self.topic = topic
        self.producer = producer
        self.runs: dict[bytes, list[int]] = {}
        self.does: dict[bytes, Callable[[Message], Awaitable[object]]] = {}
        self.ids = {ID}

    async def handle(self, m: Message) -> None:
        assert m.id in self.ids
        self.runs.setdefault(m.payload, []).append(m.attempt)
        if m.payload in self.does:
            await self.does[m.payload](m)

    async def publish(self, payload: bytes, id_: str = ID, **more: Any) -> None:
        self.ids.add(id_)
        assert await self.producer.publish(self.topic.name, payload, message_id=id_, **more) == id_

    async def found(self, selection: Selection = EVERY) -> list[Letter]:
        return [letter async for letter in dead_letters.find(self.store, self.topic, selection)]

    async def letters(self) -> list[bytes]:
        found = await self.found()
        assert {letter.id for letter in found} <= self.ids
        return [letter.payload for letter in found]

    async def waiting(self) -> list[bytes]:
        return [each.payload async for each in planned.find(self.store.lanes, [self.topic])]

    async def ran(self, payload: bytes, times: int) -> None:
        await until(lambda: len(self.runs.get(payload, ())) == times)


@contextlib.asynccontextmanager
async def opened(store: Store, name: str) -> AsyncIterator[Shop]:
    clock = SystemClock()
    db = await InlineDatabase.open("sqlite://")
    try:
        catalog, checkpoints = Catalog(db, ENVIRONMENT, None, clock), CheckpointStore(db, ENVIRONMENT)
        admin = Admin(catalog, store, checkpoints, lambda: db.next_generation(ENVIRONMENT))
        options = TopicOptions(max_attempts=ATTEMPTS, backoff_s=(0.05,), jitter=0.0)
        [topic] = await admin.create([Topic(name, 40, group_qps=40, options=options)])
        shop = Shop(store, topic, Producer(store, catalog, clock=clock))
        host = Host(
            Storage(store, catalog, checkpoints),
            LocalCluster(lambda: db.next_generation(ENVIRONMENT)).member("host"),
            bound({"*": shop.handle}),
            Services(clock),
            HostOptions(catalog_poll_s=0.05, checkpoint_s=0.1, drain_s=0.2),
        )
        async with running(host):
            yield shop
    finally:
        await db.close()


@pytest.fixture
async def shop(store: Store, target: Target) -> AsyncIterator[Shop]:
    async with opened(store, target.topic) as made:
        yield made


async def dead(shop: Shop) -> None:
    await shop.publish(b"old")
    await shop.ran(b"old", 1)
    while await shop.letters() != [b"old"]:
        await asyncio.sleep(0.01)


async def retried(shop: Shop) -> None:
    await shop.publish(b"old")
    await shop.ran(b"old", 1)
    while await shop.waiting() != [b"old"]:
        await asyncio.sleep(0.01)


async def delayed(shop: Shop) -> None:
    await shop.publish(b"old", delay_ms=LONG_S * 1000)


async def runs_from_its_queue(shop: Shop) -> None:
    await shop.publish(b"old")
    await shop.ran(b"old", 1)


async def runs_from_its_lane(shop: Shop) -> None:
    await shop.publish(b"old", delay_ms=1)
    await shop.ran(b"old", 1)


STATES = {
    "dead": (dead, errors.Reject("no"), ([b"old"], [])),
    "retried": (retried, errors.Retry(after_s=LONG_S), ([], [b"old"])),
    "delayed": (delayed, None, ([], [b"old"])),
    "runs from its queue": (runs_from_its_queue, None, ([], [])),
    "runs from its lane": (runs_from_its_lane, None, ([], [])),
}
"""How the first message comes into its state; what its handler does; and the dead letters and waiting messages then."""

PUBLISHES: dict[str, dict[str, Any]] = {"at once": {}, "delayed": {"delay_ms": 30}}


@pytest.mark.parametrize("more", PUBLISHES.values(), ids=list(PUBLISHES))
@pytest.mark.parametrize("state", STATES)
async def test_a_second_message_of_an_id_has_all_its_attempts_and_the_first_stays(
    shop: Shop, state: str, more: dict[str, Any]
) -> None:
    first, does, (letters, waiting) = STATES[state]

    async def old(_: Message) -> None:
        if does is None:
            await asyncio.sleep(1)  # a lane that doubts its claims rests until they are settled
        else:
            raise does

    async def new(m: Message) -> None:
        if m.payload == b"new" or m.attempt == 1:
            raise ValueError("no")

    shop.does = {b"old": old, b"new": new, b"newer": new}
    await first(shop)
    await shop.publish(b"new", **more)
    await shop.publish(b"newer", **more)
    await shop.ran(b"new", ATTEMPTS)
    await shop.ran(b"newer", 2)
    assert shop.runs[b"new"] == [1, 2, 3]
    assert shop.runs[b"newer"] == [1, 2]
    while b"new" not in await shop.letters():
        await asyncio.sleep(0.01)
    assert sorted(await shop.letters()) == sorted([*letters, b"new"])
    assert await shop.waiting() == waiting
    assert len(shop.runs.get(b"old", ())) <= 1


async def test_an_id_replays_purges_and_recalls_all_messages_that_have_it(shop: Shop) -> None:
    async def fails(m: Message) -> None:
        if len(shop.runs[m.payload]) == 1:
            raise errors.Reject("no")

    shop.does = {b"a": fails, b"b": fails, b"c": fails}
    for payload in (b"a", b"b"):
        await shop.publish(payload)
        await shop.ran(payload, 1)
    while len(await shop.letters()) < 2:
        await asyncio.sleep(0.01)
    assert await dead_letters.replay(shop.store, shop.topic, Selection(ids=frozenset({ID})), clock=SystemClock()) == 2
    await shop.ran(b"a", 2)
    await shop.ran(b"b", 2)
    await shop.publish(b"c")
    await shop.ran(b"c", 1)
    while len(await shop.letters()) < 1:
        await asyncio.sleep(0.01)
    for payload in (b"d", b"e"):
        await shop.publish(payload, delay_ms=LONG_S * 1000)
    assert await recall.recall(shop.store, shop.topic, [ID]) == {ID}
    assert (await shop.waiting(), await shop.letters()) == ([], [b"c"])
    assert await dead_letters.purge(shop.store, shop.topic, Selection(ids=frozenset({ID}))) == 1
    assert await shop.letters() == []


async def test_an_id_and_an_identity_that_look_alike_name_different_messages(shop: Shop) -> None:
    """A publisher chose the identity of another message as the id of its own."""

    async def fails(m: Message) -> None:
        raise errors.Reject("no")

    shop.does = {b"first": fails, b"second": fails}
    await shop.publish(b"first")
    while not (found := await shop.found()):
        await asyncio.sleep(0.01)
    [first] = found
    await shop.publish(b"second", first.uid)
    while len(found := await shop.found()) < 2:
        await asyncio.sleep(0.01)
    [second] = [letter for letter in found if letter.payload == b"second"]
    for selection, letter in (
        (Selection(ids=frozenset({first.uid})), second),
        (Selection(uids=frozenset({first.uid})), first),
        (Selection(ids=frozenset({ID})), first),
        (Selection(uids=frozenset({second.uid})), second),
    ):
        assert await shop.found(selection) == [letter]
    for payload in (b"third", b"fourth"):
        await shop.publish(payload, delay_ms=LONG_S * 1000)
    third, fourth = [each async for each in planned.find(shop.store.lanes, [shop.topic])]
    await shop.publish(b"fifth", third.uid, delay_ms=LONG_S * 1000)
    assert await planned.get(shop.store.lanes, shop.topic, third.uid, by_identity=True) == third
    alike = await planned.get(shop.store.lanes, shop.topic, third.uid)
    assert alike is not None
    assert alike.payload == b"fifth"
    assert await recall.recall(shop.store, shop.topic, (), uids=[third.uid]) == {third.uid}
    assert sorted(await shop.waiting()) == sorted([fourth.payload, b"fifth"])
    assert await recall.recall(shop.store, shop.topic, [third.uid]) == {third.uid}
    assert await shop.waiting() == [fourth.payload]


async def test_a_lane_finds_entries_by_identity_and_by_label_in_every_state(store: Store, target: Target) -> None:
    lane, nonces = target.slot(), [f"{n:013d}" for n in range(4)]
    uids = [f"x#{nonce}" for nonce in nonces]
    others = ["x", "x#short", "x#0000000000000#0000000000001", "y#0000000000000", "X#0000000000000"]
    adds = [LaneAdd(lane, uid, b"", 0 if uid == uids[1] else 1 << 40) for uid in (*uids[:3], *others)]
    adds.append(LaneAdd(lane, uids[3], b"", 0, reason="no"))
    assert list(await store.lanes.add(adds)) == [True] * 9
    [claimed] = served(await store.lanes.claim([LaneClaim(lane, 9, 1)], 1))
    assert not isinstance(claimed, errors.NotOwner)
    assert [id_ for id_, _ in claimed.entries] == [uids[1]]

    async def states(id_: str) -> list[tuple[str, EntryState]]:
        [found] = served(await store.lanes.find([Asked(lane, id_)]))
        return sorted((entry.id, entry.state) for entry in found)

    waiting, prepared, dead_ = EntryState.WAITING, EntryState.PREPARED, EntryState.DEAD
    assert await states("x") == sorted(
        [("x", waiting), (uids[0], waiting), (uids[1], prepared), (uids[2], waiting), (uids[3], dead_)]
    )
    assert await states(uids[1]) == [(uids[1], prepared), (others[2], waiting)][:1]
    assert await states("x#0000000000000") == sorted([(uids[0], waiting), (others[2], waiting)])
    assert await states("nothing") == []
    gone = [
        LaneSettle(lane, uids[0], LaneVerdict.RECALL),
        LaneSettle(lane, uids[1], LaneVerdict.ACK, 1),
        LaneSettle(lane, uids[3], LaneVerdict.PURGE),
    ]
    assert list(await store.lanes.settle(gone)) == [True] * 3
    assert await states("x") == [("x", waiting), (uids[2], waiting)]
    several = served(await store.lanes.find([Asked(lane, "y"), Asked(target.slot(1), "x"), Asked(lane, uids[2])]))
    assert [[entry.id for entry in found] for found in several] == [["y#0000000000000"], [], [uids[2]]]
    assert label(uids[2]) == "x"


async def test_many_entries_of_an_id_and_of_ids_that_begin_with_it_hide_none(store: Store, target: Target) -> None:
    topic = split(Topic(target.topic, 10, group_qps=10))
    many = [f"a#{n:013d}" for n in range(MOST_FOUND + 200)]
    crowd = [f"a#{n:04d}#0000000000000" for n in range(MOST_FOUND + 200)]
    for names in (many, crowd, ["a", "b#0000000000000"]):
        assert all(await store.lanes.add([LaneAdd(topic.group(0), name, b"", 1 << 40) for name in names]))
    assert await recall.recall(store, topic, ["a", "b"]) == {"a", "b"}
    [state] = served(await store.lanes.inspect([topic.group(0)]))
    assert state.waiting == len(crowd)
    assert await recall.recall(store, topic, ["a#0007"]) == {"a#0007"}
    [state] = served(await store.lanes.inspect([topic.group(0)]))
    assert state.waiting == len(crowd) - 1
