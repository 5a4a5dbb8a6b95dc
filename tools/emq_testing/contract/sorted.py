"""The protocol of slots, sentence by sentence: adding, claiming, looking. See also the other `test_sorted_*`."""

from __future__ import annotations

import asyncio

import pytest

from emq.runtime import errors
from emq.runtime.environment import Environment
from emq.storage.lane_store import LaneAdd, LaneState
from emq.storage.slot_store import (
    RETRIES,
    Entry,
    Keep,
    Slot,
    SlotAdd,
    SlotClaim,
    SlotClaimed,
    SlotKind,
    SlotSettle,
    SlotState,
    SlotVerdict,
    Waiting,
)
from emq.storage.store import Store
from emq_testing.contract.slot_user import APART_TIME, NOW, SECOND, STORES, TIMES, SlotUser, nth
from emq_testing.contract.target import Target

pytestmark = STORES

PRIORITY = SlotKind.PRIORITY


@TIMES
async def test_a_time_is_claimed_once_it_is_due_and_the_earliest_first(user: SlotUser) -> None:
    for member, score in ((b"c", NOW), (b"a", NOW - 86_400_000), (b"later", NOW + 1), (b"b", NOW - 1)):
        assert await user.add(member, score, body=b"of " + member)
    claimed = await user.claim()
    assert [(entry.member, entry.score) for entry in claimed.entries] == [
        (b"a", NOW - 86_400_000),
        (b"b", NOW - 1),
        (b"c", NOW),
    ]
    assert claimed.next_score == NOW + 1
    assert [entry.member for entry in (await user.claim(now_ms=NOW + 1)).entries] == [b"later"]


async def test_the_highest_priority_is_claimed_first_and_at_once(store: Store, target: Target) -> None:
    user = SlotUser(store, target.sorted_slot(PRIORITY))
    for member, score in ((b"c", 17), (b"a", 10**12), (b"b2", 100.25), (b"b1", 100.5)):
        await user.add(member, score)
    claimed = await user.claim(limit=3, now_ms=5000, until_ms=0)
    assert [(entry.member, entry.score) for entry in claimed.entries] == [
        (b"a", 10**12),
        (b"b1", 100.5),
        (b"b2", 100.25),
    ]
    assert claimed.next_score == 17


@TIMES
async def test_what_is_due_is_decided_by_the_until_of_the_claim(user: SlotUser) -> None:
    await user.fill(b"a", b"b", b"c")
    assert await user.claim(until_ms=NOW - 1001) == SlotClaimed([], NOW - 1000)
    first = await user.claim(until_ms=NOW - 999, now_ms=NOW - 5000)
    assert ([entry.member for entry in first.entries], first.next_score) == ([b"a", b"b"], NOW - 998)
    assert {entry.token // 1000 * 1000 for entry in first.entries} == {NOW - 5000}


async def test_a_claim_keeps_to_its_limit_and_tells_what_is_next(user: SlotUser) -> None:
    await user.fill(b"a", b"b", b"c")
    first = await user.claim(limit=2)
    assert ([entry.member for entry in first.entries], first.next_score) == ([b"a", b"b"], nth(user.slot.kind, 2))
    second = await user.claim(limit=2)
    assert ([entry.member for entry in second.entries], second.next_score) == ([b"c"], None)
    assert await user.claim(now_ms=NOW + 10**9) == SlotClaimed([], None)


async def test_an_entry_carries_its_score_its_token_and_its_body(user: SlotUser) -> None:
    await user.add(b"x", nth(user.slot.kind, 0), body=b"body" if user.slot.apart else b"", note=b"\x00note")
    (entry,) = (await user.claim(now_ms=NOW + 1234)).entries
    body, note = (b"body", b"\x00note") if user.slot.apart else (b"x", b"")
    assert entry == Entry(b"x", nth(user.slot.kind, 0), NOW + 1000 + 16, body, note, 1)
    assert entry.left == RETRIES


async def test_a_score_up_to_16_is_the_number_of_retries_left(user: SlotUser) -> None:
    scores = {b"a": 0, b"b": 1, b"c": 2, b"d": 15, b"e": 16, b"f": 17}
    await user.fill(*scores)
    for entry in await user.claims(*scores):
        assert await user.retry(entry, scores[entry.member])
    entries = (await user.claim(now_ms=NOW + SECOND)).entries
    assert {entry.member: entry.score for entry in entries} == scores
    assert {entry.member: entry.left for entry in entries} == {b"a": 0, b"b": 0, b"c": 1, b"d": 14, b"e": 15, b"f": 16}


async def test_what_comes_back_is_ordered_by_its_score_as_a_number(user: SlotUser) -> None:
    await user.fill(b"a", b"b", b"fresh")
    for entry, score in zip((await user.claim(limit=2)).entries, (3, 16), strict=True):
        assert await user.retry(entry, score)
    assert (await user.state()).due == 3
    await user.claims(*([b"fresh", b"b", b"a"] if user.slot.kind is PRIORITY else [b"a", b"b", b"fresh"]))


async def test_equal_scores_come_in_the_order_that_waiting_shows(user: SlotUser) -> None:
    members = [bytes([n * 37 % 256, n]) for n in range(40)]
    await user.sorted.add([SlotAdd(user.slot, member, nth(user.slot.kind, 5), Keep.LAST) for member in members])
    shown = [each.member for each in await user.waiting()]
    assert sorted(shown) == sorted(members)
    first = (await user.claim(limit=15)).entries
    rest = (await user.claim()).entries
    assert [entry.member for entry in (*first, *rest)] == shown


async def test_claims_of_many_slots_are_answered_in_the_order_asked(store: Store, target: Target) -> None:
    sorts = [(kind, apart) for kind in SlotKind for apart in (False, True)] * 50
    slots = [target.sorted_slot(kind, apart, group) for group, (kind, apart) in enumerate(sorts)]
    SlotUser(store, slots[0])
    added = await store.sorted.add([SlotAdd(slot, slot.name.encode(), nth(slot.kind, 0), Keep.LAST) for slot in slots])
    assert added == [True] * len(slots)
    answers = await store.sorted.claim([SlotClaim(slot, 5, 1, NOW) for slot in reversed(slots)], NOW)
    entries = [answer.entries[0] for answer in answers if isinstance(answer, SlotClaimed)]
    assert [entry.member for entry in entries] == [slot.name.encode() for slot in reversed(slots)]
    assert await store.sorted.inspect(slots, NOW) == [SlotState(0, 0, 1, 0, None, NOW)] * len(slots)
    acks = [SlotSettle(s, e.member, SlotVerdict.ACK, e.token, 1) for s, e in zip(reversed(slots), entries, strict=True)]
    assert await store.sorted.settle([*acks[:100], acks[0], *acks[100:]]) == [*[True] * 100, False, *[True] * 200]


async def test_many_members_of_one_slot_go_through_one_call(user: SlotUser) -> None:
    members = [b"%05d" % n for n in range(2500)]
    adds = [SlotAdd(user.slot, m, nth(user.slot.kind, n / 5), Keep.LAST, m) for n, m in enumerate(members)]
    assert await user.sorted.add(adds) == [True] * len(adds)
    entries = (await user.claim(limit=len(adds))).entries
    assert [(entry.member, entry.body) for entry in entries] == [(m, m) for m in members]
    acks = [user.verdict(SlotVerdict.ACK, entry) for entry in entries]
    assert await user.sorted.settle(acks) == [True] * len(adds)
    assert await user.state() == SlotState(0, 0, 0, 0, None, None)


@pytest.mark.parametrize("variant", [(SlotKind.FIXED_TIME, False), APART_TIME], ids=["plain", "apart"])
async def test_any_bytes_come_back_as_they_went_in(user: SlotUser) -> None:
    every = bytes(range(256))
    members = [b"", b"plain", every, b"\0", b"'; -- {\xe2\x82\xac}", b"A", b"a", b"1", b"1.0", b"x" * (1 << 20)]
    bodies = [member[::-1] for member in members]
    adds = [
        SlotAdd(user.slot, m, NOW - 100 + n, Keep.LAST, body, every if user.slot.apart else b"")
        for n, (m, body) in enumerate(zip(members, bodies, strict=True))
    ]
    assert await user.sorted.add(adds) == [True] * len(adds)
    seen = [(each.member, each.body, each.note) for each in await user.waiting()]
    entries = (await user.claim()).entries
    expected = list(
        zip(members, bodies, [every] * len(members), strict=True)
        if user.slot.apart
        else zip(members, members, [b""] * len(members), strict=True)
    )
    assert seen == expected
    assert [(entry.member, entry.body, entry.note) for entry in entries] == expected
    for n, entry in enumerate(entries):
        assert await user.die(entry, f"é '{n}'\n")
    dead = {each.member: (each.body, each.note, each.reason) for each in await user.dead()}
    assert dead == {m: (body, note, f"é '{n}'\n") for n, (m, body, note) in enumerate(expected)}


async def test_a_full_slot_refuses_new_members_and_still_merges(user: SlotUser) -> None:
    def bounded(member: bytes, slot: Slot = user.slot) -> SlotAdd:
        return SlotAdd(slot, member, nth(user.slot.kind, 0), Keep.LAST, max_length=2)

    adds = [*map(bounded, (b"a", b"b", b"c", b"a")), bounded(b"c", user.beside().slot)]
    first, second, full, merged, elsewhere = await user.sorted.add(adds)
    assert (first, second, merged, elsewhere) == (True, True, False, True)
    assert isinstance(full, errors.TopicFull)
    assert sorted(await user.scores()) == [b"a", b"b"]
    assert await user.add(b"d", nth(user.slot.kind, 0))
    # What is in prepare does not wait any more.
    await user.claim(limit=2)
    assert await user.sorted.add([bounded(b"e")]) == [True]
    (full,) = await user.sorted.add([bounded(b"f")])
    assert isinstance(full, errors.TopicFull)


async def test_inspect_counts_what_is_due_at_the_time_asked_for(user: SlotUser) -> None:
    kind = user.slot.kind
    assert await user.state() == SlotState(0, 0, 0, 0, None, None)
    await user.fill(b"a", b"b", b"c", b"d", b"e")
    by_time = kind is not PRIORITY
    assert await user.state(NOW - 1001) == SlotState(5, 0 if by_time else 5, 0, 0, nth(kind, 0), None)
    assert (await user.state(5)).due == (0 if by_time else 5)
    assert await user.state(NOW - 998) == SlotState(5, 3 if by_time else 5, 0, 0, nth(kind, 0), None)
    (first,) = (await user.claim(limit=1, now_ms=NOW + 3999)).entries
    (second,) = (await user.claim(limit=1, now_ms=NOW + 5000)).entries
    assert await user.state() == SlotState(3, 3, 2, 0, nth(kind, 2), NOW + 3000)
    assert await user.die(first)
    assert await user.state() == SlotState(3, 3, 1, 1, nth(kind, 2), NOW + 5000)
    assert await user.retry(second)
    assert (await user.state())[:4] == (4, 4, 0, 1)


async def test_waiting_members_are_paged_completely_and_in_claim_order(user: SlotUser) -> None:
    members = [b"%03d" % n for n in range(70)]
    adds = [
        SlotAdd(user.slot, m, nth(user.slot.kind, int(m)), Keep.LAST, m, b"n") for m in members[::2] + members[1::2]
    ]
    await user.sorted.add(adds)
    pages = [await user.sorted.waiting(user.slot, skip, 30) for skip in (0, 30, 60, 90)]
    assert [len(page) for page in pages] == [30, 30, 10, 0]
    note = b"n" if user.slot.apart else b""
    assert [each for page in pages for each in page] == [
        Waiting(m, nth(user.slot.kind, int(m)), m, note, 1) for m in members
    ]
    assert await user.beside().waiting() == []


async def test_dead_members_are_paged_completely_and_in_order(user: SlotUser) -> None:
    members = sorted(bytes([n * 89 % 256]) * (n % 3 + 1) for n in range(60))
    for at_ms, part in ((NOW + SECOND, members[::2]), (NOW, members[1::2])):
        await user.fill(*part)
        for entry in (await user.claim()).entries:
            assert await user.retry(entry, 1)
        assert len((await user.claim()).entries) == len(part)
        assert await user.succeed(now_ms=at_ms) == len(part)
    await user.beside().buried(b"elsewhere")
    pages = [await user.sorted.dead(user.slot, limit=25)]
    while pages[-1] and len(pages) < 5:
        last = pages[-1][-1]
        pages.append(await user.sorted.dead(user.slot, (last.dead_ms, last.member), 25))
    assert [len(page) for page in pages] == [25, 25, 10, 0]
    found = [(each.dead_ms, each.member) for page in pages for each in page]
    assert found == [(NOW, m) for m in members[1::2]] + [(NOW + SECOND, m) for m in members[::2]]
    assert all((x.slot, x.body, x.reason) == (user.slot, x.member, "lost") for page in pages for x in page)


async def test_two_claims_that_race_get_each_member_once(store: Store, other: Store, user: SlotUser) -> None:
    await user.fill(*(b"%d" % n for n in range(60)))
    claim = SlotClaim(user.slot, 7, 1, NOW)
    calls = [instance.sorted.claim([claim], NOW) for _ in range(5) for instance in (store, other)]
    claimed = [e.member for (c,) in await asyncio.gather(*calls) if isinstance(c, SlotClaimed) for e in c.entries]
    assert sorted(claimed, key=int) == [b"%d" % n for n in range(60)]


async def test_a_member_added_by_two_at_once_is_new_to_one(store: Store, other: Store, user: SlotUser) -> None:
    adds = [SlotAdd(user.slot, b"%d" % n, nth(user.slot.kind, n), Keep.LAST, b"x") for n in range(20)]
    orders = (adds, adds[::-1])
    answers = await asyncio.gather(*(each.sorted.add(order) for each in (store, other) for order in orders))
    assert sum(new for answer in answers for new in answer if new is True) == 20
    waiting = await user.waiting()
    assert [each.merged for each in waiting] == [4 if user.slot.apart else 1] * 20


async def test_a_slot_shares_nothing_with_the_lane_of_its_name(store: Store, target: Target) -> None:
    user = SlotUser(store, target.sorted_slot(SlotKind.FIXED_TIME))
    await user.fill(b"x")
    await store.lanes.add([LaneAdd(user.slot.name, "x", b"", NOW), LaneAdd(user.slot.name, "y", b"", NOW, "dead")])
    await user.claims(b"x")
    assert await user.sizes() == (0, 1, 0)
    assert await store.lanes.inspect([user.slot.name]) == [LaneState(1, 0, 1, NOW)]


async def test_the_environments_share_nothing(store: Store, opened: Target, user: SlotUser) -> None:
    sandbox = SlotUser(await opened.open(Environment.SANDBOX), user.slot, epoch=9)
    await user.fill(b"x")
    assert await sandbox.sizes() == (0, 0, 0)
    await sandbox.buried(b"x")
    assert await user.dead() == []
    await user.claims(b"x")
