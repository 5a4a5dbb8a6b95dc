"""`emq.storage.store.LaneStore`, sentence by sentence."""

from __future__ import annotations

import asyncio
import time

import pytest

from emq.runtime import errors
from emq.runtime.environment import Environment
from emq.storage.lane_store import DeadEntry, LaneAdd, LaneClaim, LaneClaimed, LaneSettle, LaneState, LaneVerdict
from emq.storage.log_store import Read, Trim
from emq.storage.store import Store
from emq_testing.contract.target import NEW, OLD, Can, Needs, Target

NOW = 1_700_000_000_000
MANY = 2000


async def add(store: Store, slot: str, *dues: tuple[str, int]) -> None:
    """Add waiting entries, each with its id as its body."""
    answers = await store.lanes.add([LaneAdd(slot, id_, id_.encode(), due_ms) for id_, due_ms in dues])
    assert answers == [True] * len(dues)


async def claim(store: Store, slot: str, limit: int = 100, epoch: int = 1, now_ms: int = NOW) -> LaneClaimed:
    (answer,) = await store.lanes.claim([LaneClaim(slot, limit, epoch)], now_ms)
    assert isinstance(answer, LaneClaimed)
    return answer


async def settle(store: Store, *settles: LaneSettle) -> list[bool | errors.NotOwner]:
    return await store.lanes.settle(settles)


async def state(store: Store, slot: str) -> LaneState:
    (answer,) = await store.lanes.inspect([slot])
    return answer


def ids(claimed: LaneClaimed) -> list[str]:
    return [id_ for id_, _ in claimed.entries]


async def test_due_entries_come_in_order_of_their_due_times(store: Store, target: Target) -> None:
    await add(store, target.slot(), ("c", NOW), ("a", NOW - 5000), ("later", NOW + 1), ("b", NOW - 1))
    claimed = await claim(store, target.slot())
    assert [(id_, bytes(body)) for id_, body in claimed.entries] == [("a", b"a"), ("b", b"b"), ("c", b"c")]
    assert claimed.next_due_ms == NOW + 1
    assert ids(await claim(store, target.slot(), now_ms=NOW + 1)) == ["later"]


async def test_a_claim_keeps_to_its_limit_and_tells_what_is_still_due(store: Store, target: Target) -> None:
    await add(store, target.slot(), ("a", NOW - 30), ("b", NOW - 20), ("c", NOW - 10))
    claimed = await claim(store, target.slot(), limit=2)
    assert (ids(claimed), claimed.next_due_ms) == (["a", "b"], NOW - 10)
    claimed = await claim(store, target.slot(), limit=2)
    assert (ids(claimed), claimed.next_due_ms) == (["c"], None)


async def test_a_claim_tells_whether_the_lane_holds_anything(store: Store, target: Target) -> None:
    slot, unused = target.slot(0), target.slot(1)
    assert (await claim(store, unused)).is_empty
    await add(store, slot, ("x", NOW), ("later", NOW + 1))
    assert not (await claim(store, slot)).is_empty  # one is claimed, and one waits
    await settle(store, LaneSettle(slot, "x", LaneVerdict.ACK, 1))
    assert not (await claim(store, slot)).is_empty  # one waits
    assert not (await claim(store, slot, now_ms=NOW + 1)).is_empty
    assert not (await claim(store, slot, now_ms=NOW + 1)).is_empty  # one is claimed, by an earlier claim
    await settle(store, LaneSettle(slot, "later", LaneVerdict.DEAD, 1, reason="no such order"))
    assert [each.is_empty for each in (await claim(store, slot), await claim(store, unused))] == [False, True]
    await settle(store, LaneSettle(slot, "later", LaneVerdict.PURGE))
    assert (await claim(store, slot)).is_empty


async def test_claims_of_many_slots_are_answered_in_the_order_asked(store: Store, target: Target) -> None:
    slots = [target.slot(group) for group in range(MANY)]
    assert await store.lanes.add([LaneAdd(slot, "x", slot.encode(), NOW) for slot in slots]) == [True] * MANY
    answers = await store.lanes.claim([LaneClaim(slot, 5, 1) for slot in reversed(slots)], NOW)
    assert [answer.entries[0][1] for answer in answers if isinstance(answer, LaneClaimed)] == [
        slot.encode() for slot in reversed(slots)
    ]
    assert await store.lanes.inspect(slots) == [LaneState(0, 1, 0, None)] * MANY
    assert await store.lanes.settle([LaneSettle(slot, "x", LaneVerdict.ACK, 1) for slot in slots]) == [True] * MANY
    assert await store.lanes.recover([(slot, 2) for slot in slots]) == [0] * MANY


async def test_an_id_is_added_once_whatever_its_state(store: Store, target: Target) -> None:
    slot = target.slot()
    await add(store, slot, ("prepared", NOW - 3), ("dead", NOW - 2))
    await claim(store, slot)
    await settle(store, LaneSettle(slot, "dead", LaneVerdict.DEAD, 1, 0, b"old", "why"))
    await add(store, slot, ("waiting", NOW - 1))
    again = [LaneAdd(slot, id_, b"new", NOW - 100) for id_ in ("waiting", "prepared", "dead", "fresh", "fresh")]
    assert await store.lanes.add(again) == [False, False, False, True, False]
    assert await store.lanes.add([LaneAdd(slot, "waiting", b"", NOW, "dead now")]) == [False]
    assert await state(store, slot) == LaneState(2, 1, 1, NOW - 100)
    assert (await claim(store, slot)).entries == [("fresh", b"new"), ("waiting", b"waiting")]
    assert [letter.body for letter in await store.lanes.dead(slot)] == [b"old"]


async def test_an_entry_may_be_added_again_once_it_is_gone(store: Store, target: Target) -> None:
    slot = target.slot()
    for verdict, reason in ((LaneVerdict.ACK, None), (LaneVerdict.PURGE, "born dead")):
        assert await store.lanes.add([LaneAdd(slot, "x", b"", NOW, reason)]) == [True]
        await claim(store, slot)
        assert await settle(store, LaneSettle(slot, "x", verdict, None if reason else 1)) == [True]
        assert await state(store, slot) == LaneState(0, 0, 0, None)


async def test_verdicts_move_entries(store: Store, target: Target) -> None:
    slot = target.slot()
    await add(store, slot, ("acked", NOW - 3), ("retried", NOW - 2), ("buried", NOW - 1))
    await claim(store, slot)
    before_ms = int(time.time() * 1000) - 1000
    assert await settle(
        store,
        LaneSettle(slot, "acked", LaneVerdict.ACK, 1),
        LaneSettle(slot, "retried", LaneVerdict.RETRY, 1, NOW + 7, b"second"),
        LaneSettle(slot, "buried", LaneVerdict.DEAD, 1, 0, b"last", "hopeless"),
    ) == [True, True, True]
    assert await state(store, slot) == LaneState(1, 0, 1, NOW + 7)
    assert ids(await claim(store, slot, now_ms=NOW + 6)) == []
    assert (await claim(store, slot, now_ms=NOW + 7)).entries == [("retried", b"second")]
    (letter,) = await store.lanes.dead(slot)
    assert letter[:4] == (slot, "buried", b"last", "hopeless")
    assert before_ms <= letter.dead_ms <= time.time() * 1000 + 1000
    assert await settle(store, LaneSettle(slot, "buried", LaneVerdict.REPLAY, None, NOW, b"once more")) == [True]
    assert await state(store, slot) == LaneState(1, 1, 0, NOW)
    assert (await claim(store, slot)).entries == [("buried", b"once more")]


STARTS = dict.fromkeys((v for v in LaneVerdict if not v.is_of_all), "prepared") | {
    LaneVerdict.REPLAY: "dead",
    LaneVerdict.PURGE: "dead",
    LaneVerdict.RECALL: "waiting",
}
"""The state that each verdict starts from."""


@pytest.mark.parametrize(
    ("verdict", "from_state"),
    [
        (verdict, from_state)
        for verdict in STARTS
        for from_state in ("absent", "waiting", "prepared", "dead")
        if from_state != STARTS[verdict]
    ],
)
async def test_a_verdict_changes_nothing_from_any_other_state(
    store: Store, target: Target, verdict: LaneVerdict, from_state: str
) -> None:
    slot = target.slot()
    if from_state != "absent":
        await store.lanes.add([LaneAdd(slot, "x", b"body", NOW, "dead" if from_state == "dead" else None)])
    if from_state == "prepared":
        await claim(store, slot)
    before = await state(store, slot)
    epoch = 1 if STARTS[verdict] == "prepared" else None
    assert await settle(store, LaneSettle(slot, "x", verdict, epoch, NOW + 1, b"changed", "changed")) == [False]
    assert await state(store, slot) == before
    if from_state == "waiting":
        assert (await claim(store, slot)).entries == [("x", b"body")]
    if from_state == "dead":
        assert (await store.lanes.dead(slot))[0][1:4] == ("x", b"body", "dead")


@pytest.mark.parametrize("verdict", list(STARTS))
async def test_a_settle_may_be_repeated(store: Store, target: Target, verdict: LaneVerdict) -> None:
    slot = target.slot()
    starts = STARTS[verdict]
    await store.lanes.add([LaneAdd(slot, "x", b"1", NOW, "dead" if starts == "dead" else None)])
    if starts == "prepared":
        await claim(store, slot)
    once = LaneSettle(slot, "x", verdict, 1 if starts == "prepared" else None, NOW + 5, b"2", "why")
    assert await settle(store, once, once) == [True, False]
    after = await state(store, slot)
    assert await settle(store, once._replace(body=b"3", due_ms=NOW + 6)) == [False]
    assert await settle(store, once, once) == [False, False]
    assert await state(store, slot) == after
    if after.waiting:
        assert (await claim(store, slot, now_ms=NOW + 5)).entries == [("x", b"2")]


async def test_a_retry_that_is_sent_again_leaves_the_next_claim_of_its_entry(store: Store, target: Target) -> None:
    """Else the entry would run again after that claim's acknowledgement."""
    slot = target.slot()
    await add(store, slot, ("x", NOW))
    await claim(store, slot)
    retry = LaneSettle(slot, "x", LaneVerdict.RETRY, 1, NOW + 5, b"second")
    assert await settle(store, retry) == [True]
    assert (await claim(store, slot, now_ms=NOW + 5)).entries == [("x", b"second")]
    assert await settle(store, retry) == [True]
    assert await state(store, slot) == LaneState(0, 1, 0, None)
    assert await settle(store, retry._replace(body=b"third")) == [True]
    assert await state(store, slot) == LaneState(1, 0, 0, NOW + 5)


async def test_a_higher_epoch_fences_off_claims_and_verdicts_of_lower_ones(store: Store, target: Target) -> None:
    slot, neighbour = target.slot(0), target.slot(1)
    await add(store, slot, ("x", NOW - 1), ("y", NOW))
    await add(store, neighbour, ("z", NOW))
    await claim(store, slot, limit=1, epoch=OLD)
    await store.lanes.claim([LaneClaim(slot, 1, NEW)], NOW - 100)
    answers = await store.lanes.claim([LaneClaim(slot, 10, OLD), LaneClaim(neighbour, 10, OLD)], NOW)
    assert isinstance(answers[0], errors.NotOwner)
    assert answers[1] == LaneClaimed([("z", b"z")], None, is_empty=False)
    stale = [
        LaneSettle(slot, "x", verdict, OLD, NOW, b"", "")
        for verdict in (LaneVerdict.ACK, LaneVerdict.RETRY, LaneVerdict.DEAD)
    ]
    verdicts = await settle(store, *stale, LaneSettle(neighbour, "z", LaneVerdict.ACK, OLD))
    assert [isinstance(verdict, errors.NotOwner) for verdict in verdicts] == [True, True, True, False]
    assert await state(store, slot) == LaneState(1, 1, 0, NOW)
    assert ids(await claim(store, slot, epoch=NEW)) == ["y"]


async def test_replay_purge_and_recall_are_not_fenced(store: Store, target: Target) -> None:
    slot = target.slot()
    await store.lanes.add([LaneAdd(slot, id_, b"", NOW, "dead") for id_ in ("x", "y")])
    await claim(store, slot, epoch=9)
    await add(store, slot, ("z", NOW))
    replay = LaneSettle(slot, "x", LaneVerdict.REPLAY, None, NOW, b"")
    others = [LaneSettle(slot, "y", LaneVerdict.PURGE), LaneSettle(slot, "z", LaneVerdict.RECALL)]
    assert await settle(store, replay, *others) == [True, True, True]
    assert await state(store, slot) == LaneState(1, 0, 0, NOW)
    assert ids(await claim(store, slot, epoch=9)) == ["x"], "it raised no fence"


async def test_an_owner_adds_under_its_epoch_and_a_producer_under_none(store: Store, target: Target) -> None:
    slot, neighbour = target.slot(0), target.slot(1)
    await claim(store, slot, epoch=5)
    adds = [
        LaneAdd(slot, "stale", b"", NOW, None, 4),
        LaneAdd(neighbour, "x", b"", NOW, None, 4),
        LaneAdd(slot, "p", b"", NOW),
    ]
    stale, new, produced = await store.lanes.add([*adds])
    assert isinstance(stale, errors.NotOwner)
    assert (new, produced) == (True, True)
    dead, owned = await store.lanes.add(
        [LaneAdd(slot, "d", b"", NOW, "dead", 4), LaneAdd(slot, "o", b"", NOW + 1, None, 5)]
    )
    assert isinstance(dead, errors.NotOwner)
    assert owned is True
    assert await state(store, slot) == LaneState(2, 0, 0, NOW)


async def test_queues_and_slots_of_a_group_have_one_fence(store: Store, target: Target, needs: Needs) -> None:
    needs(Can.ONE_FENCE)
    await store.log.read([Read(target.queue("low", 0), store.log.first_offset, 1, 7)])
    (claimed,) = await store.lanes.claim([LaneClaim(target.slot(0), 1, 6)], NOW)
    (added,) = await store.lanes.add([LaneAdd(target.slot(0), "x", b"", NOW, None, 6)])
    await claim(store, target.slot(1), epoch=7)
    (read,) = await store.log.read([Read(target.queue("high", 1), store.log.first_offset, 1, 6)])
    (trimmed,) = await store.log.trim([Trim(target.queue("high", 1), store.log.first_offset, 6)])
    assert [type(answer) for answer in (claimed, added, read, trimmed)] == [errors.NotOwner] * 4


async def test_a_fence_holds_for_all_instances(store: Store, other: Store, target: Target) -> None:
    await add(store, target.slot(), ("x", NOW))
    await claim(store, target.slot(), epoch=1)
    await claim(other, target.slot(), epoch=2)
    (refused,) = await settle(store, LaneSettle(target.slot(), "x", LaneVerdict.ACK, 1))
    assert isinstance(refused, errors.NotOwner)
    assert (await state(other, target.slot())).prepared == 1


async def test_recover_returns_what_lower_epochs_had_claimed(store: Store, target: Target) -> None:
    slot, untouched = target.slot(0), target.slot(1)
    await add(store, slot, ("x", NOW - 2), ("y", NOW - 1), ("z", NOW))
    await add(store, untouched, ("w", NOW))
    await claim(store, slot, limit=2, epoch=1)
    await claim(store, slot, limit=1, epoch=2)
    await claim(store, untouched, epoch=2)
    assert await store.lanes.recover([(untouched, 2), (slot, 2)]) == [0, 2]
    assert (await state(store, slot))[:3] == (2, 1, 0)
    assert sorted((await claim(store, slot, epoch=2)).entries) == [("x", b"x"), ("y", b"y")]
    assert await store.lanes.recover([(slot, 2)]) == [0]


async def test_recover_fences_as_a_claim_does(store: Store, target: Target) -> None:
    slot, other = target.slot(0), target.slot(1)
    await add(store, slot, ("x", NOW), ("y", NOW))
    await claim(store, slot, limit=1, epoch=NEW)
    stale, fresh = await store.lanes.recover([(slot, OLD), (other, OLD)], older_than_ms=NOW + 1)
    assert isinstance(stale, errors.NotOwner)
    assert (fresh, (await state(store, slot)).prepared) == (0, 1), "the newer owner runs it"
    assert await store.lanes.recover([(slot, NEW + 1)]) == [1]
    assert isinstance((await store.lanes.claim([LaneClaim(slot, 1, NEW)], NOW))[0], errors.NotOwner)


async def test_recover_returns_what_was_claimed_too_long_ago(store: Store, target: Target) -> None:
    slot = target.slot()
    await add(store, slot, ("old", NOW - 2), ("new", NOW - 1))
    await claim(store, slot, limit=1, now_ms=NOW)
    await claim(store, slot, limit=1, now_ms=NOW + 10)
    assert await store.lanes.recover([(slot, 1)], older_than_ms=NOW) == [0]
    assert await store.lanes.recover([(slot, 1)], older_than_ms=NOW + 10) == [1]
    assert (await state(store, slot))[:3] == (1, 1, 0)
    assert ids(await claim(store, slot, now_ms=NOW + 10)) == ["old"]


async def test_what_is_recovered_is_due_at_once_on_the_callers_clock(store: Store, target: Target) -> None:
    # Simulations run on clocks of their own, which may be far behind the server's.
    slot, now_ms = target.slot(), 5000
    await add(store, slot, ("x", 4000))
    assert ids(await claim(store, slot, now_ms=now_ms)) == ["x"]
    await store.lanes.recover([(slot, 2)])
    assert ids(await claim(store, slot, epoch=2, now_ms=now_ms)) == ["x"]


async def test_dead_letters_are_paged_completely_and_in_order(store: Store, target: Target) -> None:
    slot = target.slot()
    expected = {f"id{n * 7919 % 230:03d}" for n in range(230)}
    for part in range(5):
        chunk = [id_ for n, id_ in enumerate(sorted(expected)) if n % 5 == part]
        await store.lanes.add([LaneAdd(slot, id_, id_.encode(), NOW, f"reason {id_}") for id_ in chunk])
        await asyncio.sleep(0.002)
    await store.lanes.add([LaneAdd(target.slot(1), "elsewhere", b"", NOW, "other slot")])
    pages: list[list[DeadEntry]] = [await store.lanes.dead(slot, limit=50)]
    while pages[-1] and len(pages) < 10:
        pages.append(await store.lanes.dead(slot, (pages[-1][-1].dead_ms, pages[-1][-1].id), limit=50))
    assert [len(page) for page in pages] == [50, 50, 50, 50, 30, 0]
    letters = [letter for page in pages for letter in page]
    assert letters == sorted(letters, key=lambda letter: (letter.dead_ms, letter.id))
    assert {letter.id for letter in letters} == expected
    assert all((x.lane, x.body, x.reason) == (slot, x.id.encode(), f"reason {x.id}") for x in letters)


async def test_two_claimers_never_get_the_same_entry(store: Store, other: Store, target: Target) -> None:
    slot = target.slot()
    await add(store, slot, *((f"{n}", NOW - n) for n in range(60)))
    calls = [instance.lanes.claim([LaneClaim(slot, 7, 1)], NOW) for _ in range(5) for instance in (store, other)]
    claimed = [id_ for (c,) in await asyncio.gather(*calls) if isinstance(c, LaneClaimed) for id_ in ids(c)]
    assert sorted(claimed, key=int) == [f"{n}" for n in range(60)]


async def test_an_entry_added_by_two_at_once_is_new_to_one(store: Store, other: Store, target: Target) -> None:
    entries = [LaneAdd(target.slot(), f"{n}", b"", NOW) for n in range(20)]
    answers = await asyncio.gather(*(i.lanes.add(order) for i in (store, other) for order in (entries, entries[::-1])))
    assert sum(new for answer in answers for new in answer if new is True) == 20
    assert (await state(store, target.slot())).waiting == 20


async def test_the_environments_share_nothing(store: Store, opened: Target, needs: Needs) -> None:
    needs(Can.MANY_INSTANCES)
    sandbox = await opened.open(Environment.SANDBOX)
    slot = opened.slot()
    await add(store, slot, ("x", NOW))
    assert await state(sandbox, slot) == LaneState(0, 0, 0, None)
    assert ids(await claim(sandbox, slot, epoch=9)) == []
    await sandbox.lanes.add([LaneAdd(slot, "x", b"", NOW, "dead")])
    assert await store.lanes.dead(slot) == []
    assert ids(await claim(store, slot, epoch=1)) == ["x"]
