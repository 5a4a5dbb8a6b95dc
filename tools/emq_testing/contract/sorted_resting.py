"""Members that rest in prepare until their next attempt, and those that make way for their waiting twins."""

from __future__ import annotations

import pytest

from emq.storage.slot_store import Fold, Keep, SlotAdd, SlotKind, SlotVerdict
from emq.storage.store import Store
from emq_testing.contract.slot_user import APART, NOW, SECOND, STORES, SlotUser, nth
from emq_testing.contract.target import Target

pytestmark = STORES


async def test_what_rests_is_claimed_again_after_its_time_and_no_sooner(user: SlotUser) -> None:
    await user.fill(b"x")
    (entry,) = await user.claims(b"x")
    score = nth(user.slot.kind, 7)
    assert await user.rest(entry, NOW + 5500, score, reason="busy")
    assert (await user.claim(now_ms=NOW + SECOND)).rest_ms == NOW + 5500
    assert await user.recover(now_ms=NOW + 5499) == 0
    await user.claims(now_ms=NOW + 5499)
    assert await user.recover(now_ms=NOW + 5500) == 0
    (again,) = await user.claims(b"x", now_ms=NOW + 6 * SECOND)
    assert (again.score, again.left, again.body) == (score, 15, b"x")
    assert [reason for _, reason in again.history] == ["busy"]
    assert (await user.claim()).rest_ms is None
    assert await user.ack(again)
    assert await user.sizes() == (0, 0, 0)


async def test_a_twin_of_what_rests_waits_and_becomes_one_with_it(user: SlotUser) -> None:
    await user.fill(b"x")
    (entry,) = await user.claims(b"x")
    assert await user.rest(entry, NOW + 5 * SECOND, reason="busy")
    newer = nth(user.slot.kind, 3)
    body = b"newer" if user.slot.apart else b""
    assert await user.sorted.add([SlotAdd(user.slot, b"x", newer, Keep.LAST, body)]) == [True]
    await user.claims(now_ms=NOW + 4 * SECOND)
    await user.recover(now_ms=NOW + 5 * SECOND)
    (again,) = await user.claims(b"x", now_ms=NOW + 6 * SECOND)
    assert (again.score, again.left, again.body) == (newer, 15, body or b"x")
    assert again.merged == (2 if user.slot.apart else 1)


@APART
async def test_what_rested_is_folded_with_its_twin_by_the_fold_of_the_last_add(user: SlotUser) -> None:
    total = Fold("sum")
    await user.add(b"x", nth(user.slot.kind, 0), body=b"1", fold=total)
    (entry,) = await user.claims(b"x")
    assert await user.rest(entry, NOW + 5 * SECOND, reason="busy")
    await user.add(b"x", nth(user.slot.kind, 0), body=b"2", fold=total)
    await user.recover(now_ms=NOW + 5 * SECOND)
    (again,) = await user.claims(b"x", now_ms=NOW + 6 * SECOND)
    assert (again.body, again.merged) == (b"3", 2)


async def test_no_verdict_and_no_owner_disturbs_what_rests_but_an_emptying(user: SlotUser) -> None:
    await user.fill(b"x", b"running")
    entry, _ = await user.claims(b"x", b"running")
    rest_ms = NOW + 30 * SECOND
    assert await user.rest(entry, rest_ms, reason="busy")
    # Its stamp while it rests; a claim gets the same one if the clock leaps back.
    stamped = entry._replace(token=rest_ms + SECOND + entry.left - 1)
    for verdict in (SlotVerdict.ACK, SlotVerdict.RETRY, SlotVerdict.REST, SlotVerdict.YIELD, SlotVerdict.DEAD):
        for late in (entry, stamped, stamped._replace(token=stamped.token + 1)):
            assert not await user.settle(verdict, late, reason="late")
    await user.recover(NOW - SECOND, lost=True)
    await user.recover(NOW + SECOND, now_ms=NOW + 2 * SECOND)
    await user.succeed()
    state = await user.state()
    assert (state.waiting, state.prepared, state.resting) == (1, 1, 1)
    assert (await user.claim()).rest_ms == rest_ms
    user.epoch += 1
    assert await user.recover(NOW + 3600 * SECOND) >= 0
    assert (await user.state()).resting == 0
    assert (await user.claim(limit=0)).rest_ms is None


async def test_a_new_owner_gets_back_what_ran_beside_what_rests(user: SlotUser) -> None:
    await user.fill(b"rests", b"ran")
    entry, _ = await user.claims(b"rests", b"ran")
    assert await user.rest(entry, NOW + 500, reason="busy")
    user.epoch += 1
    assert await user.recover(now_ms=NOW + 400) == 1
    assert sorted(await user.scores()) == [b"ran"]
    await user.recover(now_ms=NOW + 500)
    assert sorted(await user.scores()) == [b"ran", b"rests"]


async def test_attempts_are_counted_on_when_no_retries_are_left(user: SlotUser) -> None:
    await user.fill(b"x")
    told = []
    for n in range(21):
        now_ms = NOW + n * 10 * SECOND
        await user.recover(now_ms=now_ms)
        (entry,) = await user.claims(b"x", now_ms=now_ms)
        told.append((entry.left, entry.beyond))
        if n % 2:
            assert await user.rest(entry, now_ms + 9 * SECOND, nth(user.slot.kind, 0), reason=f"attempt {n}")
        else:
            assert await user.retry(entry, nth(user.slot.kind, 0), reason=f"attempt {n}")
    assert told == [(left, 0) for left in range(16, -1, -1)] + [(0, beyond) for beyond in range(1, 5)]
    assert [reason for _, reason in entry.history] == [f"attempt {n}" for n in range(4, 20)]


async def test_rests_of_many_members_end_in_their_order(user: SlotUser) -> None:
    names = [b"%d" % n for n in range(40)]
    await user.fill(*names)
    entries = (await user.claim()).entries
    assert await user.sorted.settle(
        [
            user.verdict(SlotVerdict.REST, e, score=e.score, reason="busy")._replace(rest_ms=NOW + 100 * (40 - n))
            for n, e in enumerate(entries)
        ]
    ) == [True] * len(entries)
    assert (await user.claim()).rest_ms == NOW + 100
    await user.recover(now_ms=NOW + 1000)
    assert sorted(await user.scores()) == sorted(names[30:])
    assert (await user.claim(limit=0)).rest_ms == NOW + 1100
    state = await user.state()
    assert (state.prepared, state.resting) == (30, 30)


async def test_a_host_gets_back_thousands_of_rests_that_end_at_once(store: Store, target: Target) -> None:
    user = SlotUser(store, target.sorted_slot(SlotKind.PRIORITY))
    await user.fill(*(b"%d" % n for n in range(1500)))
    entries = (await user.claim(limit=1500)).entries
    asked = [user.verdict(SlotVerdict.REST, e, score=17)._replace(rest_ms=NOW + 1) for e in entries]
    assert all(await user.sorted.settle(asked))
    for _ in range(3):
        await user.recover(now_ms=NOW + 1)
    assert (await user.claim(limit=0)).rest_ms is None
    assert (await user.sizes())[:2] == (1500, 0)


@pytest.mark.parametrize("keep", Keep)
async def test_what_has_not_started_makes_way_for_its_waiting_twin_only(user: SlotUser, keep: Keep) -> None:
    await user.fill(b"twin", b"alone")
    entries = await user.claims(b"twin", b"alone")
    newer = nth(user.slot.kind, 9)
    body = b"newer" if user.slot.apart else b""
    assert await user.sorted.add([SlotAdd(user.slot, b"twin", newer, Keep.LAST, body)]) == [True]
    asked = [user.verdict(SlotVerdict.YIELD, e, score=e.score)._replace(keep=keep) for e in entries]
    assert await user.sorted.settle(asked) == [True, False]
    assert await user.sorted.settle(asked) == [False, False]
    expected = {Keep.FIRST: entries[0].score, Keep.LAST: newer}
    expected |= {Keep.LOWEST: min(expected.values()), Keep.HIGHEST: max(expected.values())}
    assert await user.scores() == {b"twin": expected[keep]}
    (again,) = await user.claims(b"twin", now_ms=NOW + SECOND)
    assert (again.left, again.history, again.body) == (16, (), body or b"twin")
    assert await user.ack(entries[1])


async def test_a_yield_that_changed_nothing_leaves_it_known_whose_claims_are_in_prepare(
    store: Store, target: Target
) -> None:
    user = SlotUser(store, target.sorted_slot(SlotKind.PRIORITY))
    await user.fill(b"x", b"y")
    x, _ = await user.claims(b"x", b"y")
    assert not await user.settle(SlotVerdict.YIELD, x, score=x.score)
    assert await user.succeed() == 2
