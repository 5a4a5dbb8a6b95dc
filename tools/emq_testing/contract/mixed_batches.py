"""One batch may hold every kind of value there is: calls are batched over queues, and these have nothing in common."""

from __future__ import annotations

import asyncio

import hypothesis.strategies as st
from hypothesis import HealthCheck, Phase, given, settings

from emq.storage import slot_store
from emq.storage.lane_store import LaneAdd, LaneClaim, LaneClaimed, LaneSettle, LaneVerdict
from emq.storage.log_store import Put, Read
from emq.storage.slot_store import Fold, Keep, Slot, SlotKind
from emq.storage.store import Store
from emq_testing.contract.slot_user import NOW, STORES
from emq_testing.contract.target import Can, Target, read_one

FAR_MS = 2**53 - 1
"""The latest time that every store keeps to the millisecond; Redis keeps scores as doubles."""

DUES = (0, 1, NOW - 1, NOW, NOW + 1, FAR_MS)
TEXTS = (
    "a",
    "0",
    " ",
    "é",
    "日本",
    "\U0001f600",
    "a\x00b",
    "\x00",
    "\x01",
    "\x01\x01",
    "\x1b[0m",
    "\\u0000",
    "'\"",
    "{},%s:x",
    "A",
)
BODIES = (b"", b"\0", b"\xff" * 3, bytes(range(256)), "日本".encode(), b"x" * 70_000)


async def claim_all(store: Store, *lanes: str, now_ms: int = NOW, epoch: int = 1) -> list[LaneClaimed]:
    answers = await store.lanes.claim([LaneClaim(lane, 1000, epoch) for lane in lanes], now_ms)
    assert all(isinstance(answer, LaneClaimed) for answer in answers), answers
    return [answer for answer in answers if isinstance(answer, LaneClaimed)]


async def test_one_claim_takes_lanes_that_hold_nothing_and_lanes_that_wait_for_a_time(
    store: Store, target: Target
) -> None:
    empty, *waiting = (target.slot(group) for group in range(4))
    dues = [FAR_MS, NOW + 1, NOW + 2]
    await store.lanes.add([LaneAdd(lane, "x", b"", due_ms) for lane, due_ms in zip(waiting, dues, strict=True)])
    claimed = await claim_all(store, empty, *waiting)
    assert [each.next_due_ms for each in claimed] == [None, *dues]
    # Once more: now the arming of each lane is written over.
    await store.lanes.add([LaneAdd(empty, "x", b"", NOW + 3), LaneAdd(waiting[0], "y", b"", NOW + 4)])
    claimed = await claim_all(store, *waiting, empty, now_ms=NOW + 2)
    assert [each.next_due_ms for each in claimed] == [NOW + 4, None, None, NOW + 3]


async def test_every_kind_of_text_body_priority_and_time_passes_through_a_lane_in_one_batch(
    store: Store, target: Target
) -> None:
    lane, other = target.slot(), target.slot(1)
    adds = [
        LaneAdd(lane, id_, BODIES[i % len(BODIES)], DUES[i % len(DUES)], None, (None, 1)[i % 2], (0, 15)[i % 2])
        for i, id_ in enumerate(TEXTS)
    ]
    adds += [LaneAdd(other, id_, b"", DUES[i % len(DUES)], f"because {id_}", 1) for i, id_ in enumerate(TEXTS)]
    assert await store.lanes.add(adds) == [True] * len(adds)
    assert await store.lanes.add(adds) == [False] * len(adds)
    (claimed, _) = await claim_all(store, lane, other, now_ms=FAR_MS)
    bodies = {add.id: add.body for add in adds if add.lane == lane}
    assert {id_: bytes(body) for id_, body in claimed.entries} == bodies
    verdicts = (LaneVerdict.RETRY, LaneVerdict.DEAD, LaneVerdict.ACK)
    settles = [
        LaneSettle(
            lane, id_, verdicts[i % 3], 1, DUES[-i % len(DUES)], BODIES[-i % len(BODIES)], f"{id_} failed", i % 16
        )
        for i, id_ in enumerate(TEXTS, 1)
    ]
    settles += [LaneSettle(other, id_, LaneVerdict.PURGE) for id_ in TEXTS]
    assert await store.lanes.settle(settles) == [True] * len(settles)
    dead = {letter.id: (bytes(letter.body), letter.reason) for letter in await store.lanes.dead(lane)}
    assert dead == {s.id: (s.body, s.reason) for s in settles if s.verdict is LaneVerdict.DEAD}
    waiting = {entry.id: (bytes(entry.body), entry.due_ms, entry.priority) for entry in await store.lanes.waiting(lane)}
    assert waiting == {s.id: (s.body, s.due_ms, s.priority) for s in settles if s.verdict is LaneVerdict.RETRY}
    recalls = [LaneSettle(lane, id_, LaneVerdict.RECALL) for id_ in waiting]
    assert await store.lanes.settle(recalls) == [True] * len(recalls)


async def test_dead_letters_of_every_kind_of_id_come_page_by_page_each_once(store: Store, target: Target) -> None:
    await store.lanes.add([LaneAdd(target.slot(), id_, b"", NOW, "why") for id_ in TEXTS])
    found: list[str] = []
    after = (0, "")
    while page := await store.lanes.dead(target.slot(), after, 2):
        found += [letter.id for letter in page]
        after = (page[-1].dead_ms, page[-1].id)
    assert sorted(found) == sorted(TEXTS)


async def test_bodies_of_every_size_and_kind_go_to_many_queues_in_one_put(store: Store, target: Target) -> None:
    queues = [target.queue("high", group) for group in range(3)]
    answers = await store.log.put([Put(queue, BODIES[i:]) for i, queue in enumerate(queues)] + [Put(queues[0], ())])
    assert [len(answer) for answer in answers if not isinstance(answer, Exception)] == [6, 5, 4, 0]
    if Can.DENSE not in target.can:
        return
    for i, queue in enumerate(queues):
        batch = await read_one(store.log, queue, store.log.first_offset)
        assert [bytes(body) for body in batch.bodies] == list(BODIES[i:])
    # Some that reached the tail, some that did not, some never used: each is armed or not by itself.
    reads = [Read(queue, store.log.first_offset, limit, 2) for queue, limit in zip(queues, (1, 100, 3), strict=True)]
    found = await store.log.read([*reads, Read(target.queue("low", 7), store.log.first_offset, 9, 2)])
    assert [getattr(batch, "exhausted", batch) for batch in found] == [False, True, False, True]


SCORES = {
    SlotKind.PRIORITY: (17, 17.5, 16.000001, 1e15, 2**53 - 1, 99.25),
    SlotKind.RANGE_MERGE: (17, NOW - 1, NOW, NOW + 1, FAR_MS, NOW + 0.5),
    SlotKind.FIXED_TIME: (17, NOW - 1, NOW, NOW + 1, FAR_MS, NOW - 0.25),
}
FOLDS = (Fold(), Fold("max"), Fold("count"))


def every_add(target: Target) -> list[slot_store.SlotAdd]:
    """Members of every kind of score, in slots of every kind and both layouts, in turn."""
    made = []
    for group, (kind, apart) in enumerate((kind, apart) for kind in SlotKind for apart in (False, True)):
        slot = Slot(target.slot(group), kind, apart)
        keep = Keep.HIGHEST if kind is SlotKind.PRIORITY else Keep.LOWEST
        for i, score in enumerate(SCORES[kind]):
            member = TEXTS[i].encode() + b"\0\xff"
            body, note, fold = (b"%d" % i, bytes([i]), FOLDS[group // 2]) if apart else (b"", b"", FOLDS[0])
            made.append(slot_store.SlotAdd(slot, member, score, keep, body, note, fold=fold))
    return sorted(made, key=lambda add: (add.score, add.slot.name))


@STORES
async def test_slots_of_every_kind_and_scores_of_every_kind_share_each_call(store: Store, target: Target) -> None:
    adds, sorted_ = every_add(target), store.sorted
    empty = Slot(target.slot(9), SlotKind.PRIORITY)
    addressed = [*dict.fromkeys(add.slot for add in adds), empty]
    first = await sorted_.claim([slot_store.SlotClaim(slot, 9, 1, NOW) for slot in addressed], NOW)
    assert {getattr(each, "next_score", each) for each in first} == {None}
    assert await sorted_.add(adds) == [True] * len(adds)
    assert await sorted_.add(adds) == [False] * len(adds)
    claimed = await sorted_.claim([slot_store.SlotClaim(slot, 3, 1, NOW) for slot in addressed], NOW)
    settles: list[slot_store.SlotSettle] = []
    for slot, found in zip(addressed, claimed, strict=True):
        assert isinstance(found, slot_store.SlotClaimed)
        scores = sorted((add.score for add in adds if add.slot == slot), reverse=slot.kind is SlotKind.PRIORITY)
        runnable = [s for s in scores if slot.kind is SlotKind.PRIORITY or s <= NOW]
        assert [entry.score for entry in found.entries] == runnable[:3]
        assert found.next_score == (scores[len(runnable[:3])] if scores else None)
        verdicts = (slot_store.SlotVerdict.RETRY, slot_store.SlotVerdict.DEAD, slot_store.SlotVerdict.ACK)
        for entry, verdict in zip(found.entries, verdicts, strict=False):
            score = (16, 3, 0)[len(settles) % 3]
            settles.append(
                slot_store.SlotSettle(slot, entry.member, verdict, entry.token, 1, score, "why \x00 not \U0001f600")
            )
    assert await sorted_.settle(settles) == [True] * len(settles)
    again = await sorted_.claim([slot_store.SlotClaim(slot, 99, 2, FAR_MS) for slot in reversed(addressed)], NOW)
    taken = sum(len(found.entries) for found in again if isinstance(found, slot_store.SlotClaimed))
    settled = [s.verdict for s in settles]
    assert taken == len(adds) - settled.count(slot_store.SlotVerdict.DEAD) - settled.count(slot_store.SlotVerdict.ACK)
    recovers = [slot_store.Recover(slot, 3) for slot in addressed]
    assert sum(n for n in await sorted_.recover(recovers, NOW) if isinstance(n, int)) == taken
    dead = [letter for slot in addressed for letter in await sorted_.dead(slot)]
    assert len(dead) >= settled.count(slot_store.SlotVerdict.DEAD)


texts = st.one_of(st.sampled_from(TEXTS), st.text(st.characters(codec="utf-8"), min_size=1, max_size=12))
adds = st.builds(
    LaneAdd,
    st.sampled_from(("0", "1", "2")),
    texts,
    st.binary(max_size=40),
    st.one_of(st.sampled_from(DUES), st.integers(0, FAR_MS)),
    st.one_of(st.none(), texts),
    st.sampled_from((None, 1)),
    st.integers(0, 15),
    st.one_of(st.none(), st.integers(0, FAR_MS)),
    st.sampled_from((0, 1, 60_000)),
)


@STORES
def test_whatever_is_added_to_lanes_together_is_told_again_as_it_was(target: Target) -> None:
    near = target.is_near

    @settings(
        max_examples=40 if near else 15,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[p for p in Phase if near or p not in (Phase.shrink, Phase.explain)],
    )
    @given(st.lists(adds, max_size=8, unique_by=lambda add: (add.lane, add.id)))
    def check(batch: list[LaneAdd]) -> None:
        runner.run(told_again(target, batch))

    with asyncio.Runner() as runner:
        check()


async def told_again(target: Target, batch: list[LaneAdd]) -> None:
    store = await target.open()
    try:
        target.topic += "x"
        placed = [add._replace(lane=f"{target.topic}/{add.lane}") for add in batch]
        assert await store.lanes.add(placed) == [True] * len(placed)
        for lane in {add.lane for add in placed}:
            mine = [add for add in placed if add.lane == lane]
            waiting = [(e.id, bytes(e.body), e.due_ms, e.priority) for e in await store.lanes.waiting(lane)]
            expected = [(a.id, a.body, a.due_ms, a.priority) for a in mine if a.reason is None]
            assert sorted(waiting) == sorted(expected)
            dead = [(e.id, bytes(e.body), e.reason) for e in await store.lanes.dead(lane)]
            assert sorted(dead) == sorted((a.id, a.body, a.reason) for a in mine if a.reason is not None)
    finally:
        await target.close()
