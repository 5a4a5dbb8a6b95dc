"""What a dead letter tells of the attempts at its message."""

from __future__ import annotations

import time

import pytest

from emq.storage.slot_store import SlotKind, SlotVerdict
from emq.storage.store import Store
from emq_testing.contract.slot_user import NOW, SECOND, STORES, SlotUser, nth, seconds_since
from emq_testing.contract.target import Target

pytestmark = STORES


async def test_what_is_given_back_unharmed_has_no_history(user: SlotUser) -> None:
    await user.fill(b"x")
    (entry,) = await user.claims(b"x")
    assert await user.retry(entry, nth(user.slot.kind, 3))
    (entry,) = await user.claims(b"x", now_ms=NOW + SECOND)
    assert (entry.score, entry.left) == (nth(user.slot.kind, 3), 16)
    assert await user.die(entry, "only")
    assert [(each.reason, each.history) for each in await user.dead()] == [("only", ())]


async def test_the_history_tells_of_all_failed_attempts_before_the_last(user: SlotUser) -> None:
    await user.fill(b"x", b"y")
    reasons = ["third", "second: é|,\n\"[]'", "first"]
    for n, reason in enumerate(reasons):
        (entry, *_) = (await user.claim(now_ms=NOW + n * SECOND)).entries
        assert await user.retry(entry, nth(user.slot.kind, 0), reason=reason)
    (entry,) = (await user.claim(limit=1, now_ms=NOW + 5 * SECOND)).entries
    lost_ms = int(time.time() * 1000) + 60_000
    assert await user.recover(older_than_ms=NOW + 6 * SECOND, held=[b"y"], now_ms=lost_ms) == 1
    (entry,) = [e for e in (await user.claim(now_ms=NOW + 8 * SECOND)).entries if e.member == b"x"]
    assert await user.die(entry, "last")
    (dead,) = await user.dead()
    assert [reason for _, reason in dead.history] == [*reasons, "lost"]
    assert dead.reason == "last"
    assert all(-1 < seconds_since(at_ms) < 30 for at_ms, _ in dead.history[:3])
    assert dead.history[3][0] == lost_ms


async def test_attempts_of_one_millisecond_stay_in_their_order(user: SlotUser) -> None:
    await user.fill(b"x")
    for n, reason in enumerate(("second to none", "a third", "Z", "0")):
        await user.claims(b"x", now_ms=NOW + n * SECOND)
        user.epoch += 1
        assert await user.recover(now_ms=NOW + 9 * SECOND, reason=reason) == 1
    (entry,) = await user.claims(b"x", now_ms=NOW + 9 * SECOND)
    assert await user.die(entry)
    assert [reason for _, reason in (await user.dead())[0].history] == ["second to none", "a third", "Z", "0"]


async def test_the_history_goes_along_when_a_message_merges_into_its_twin(user: SlotUser) -> None:
    await user.fill(b"x")
    for n, reason in enumerate(("one", "two", "three")):
        (entry,) = await user.claims(b"x", now_ms=NOW + n * SECOND)
        if reason == "three":
            await user.add(b"x", nth(user.slot.kind, 0))
        assert await user.retry(entry, nth(user.slot.kind, 0), reason=reason)
    (entry,) = await user.claims(b"x", now_ms=NOW + 5 * SECOND)
    assert await user.die(entry)
    assert [reason for _, reason in (await user.dead())[0].history] == ["one", "two", "three"]


@pytest.mark.parametrize("goes", [SlotVerdict.ACK, SlotVerdict.RECALL, SlotVerdict.PURGE])
async def test_a_message_that_left_leaves_no_history_to_the_next_of_its_content(
    store: Store, target: Target, goes: SlotVerdict
) -> None:
    for group, score in enumerate((15, 100)):
        user = SlotUser(store, target.sorted_slot(SlotKind.PRIORITY, apart=False, group=group))
        await user.fill(b"x")
        (entry,) = await user.claims(b"x")
        assert await user.retry(entry, score, reason="of the one before")
        if goes is SlotVerdict.RECALL:
            assert await user.settle(goes, b"x")
        else:
            (entry,) = await user.claims(b"x", now_ms=NOW + SECOND)
            if goes is SlotVerdict.ACK:
                assert await user.ack(entry)
            else:
                assert await user.die(entry, "died before")
                assert await user.settle(goes, b"x")
        dead = await user.buried(b"x", "of its own")
        assert (dead.reason, dead.history) == ("of its own", ())


async def test_a_dead_letter_keeps_its_history_while_a_new_one_of_its_content_passes(user: SlotUser) -> None:
    await user.fill(b"x")
    (entry,) = await user.claims(b"x")
    assert await user.retry(entry, reason="once")
    (entry,) = await user.claims(b"x", now_ms=NOW + SECOND)
    assert await user.die(entry, "twice")
    before = await user.dead()
    await user.fill(b"x")
    (entry,) = await user.claims(b"x", now_ms=NOW + 2 * SECOND)
    assert await user.retry(entry, reason="another")
    (entry,) = await user.claims(b"x", now_ms=NOW + 3 * SECOND)
    assert await user.ack(entry)
    assert await user.dead() == before
    assert [(each.reason, [why for _, why in each.history]) for each in before] == [("twice", ["once"])]


async def test_a_dead_letter_tells_of_both_deaths_the_earlier_ones_attempts_first(user: SlotUser) -> None:
    lost_ms = int(time.time() * 1000) + 60_000  # later than what comes after it
    await user.fill(b"x")
    for n in range(8):
        await user.claims(b"x", now_ms=NOW + n * SECOND)
        user.epoch += 1
        assert await user.recover(now_ms=lost_ms + n, reason=f"first life {n}") == 1
    (entry,) = await user.claims(b"x", now_ms=NOW + 8 * SECOND)
    assert await user.die(entry, "died: é|,\n\"[]'")
    (first,) = await user.dead()
    await user.fill(b"x")
    for n in range(10):
        (entry,) = await user.claims(b"x", now_ms=NOW + (10 + n) * SECOND)
        if n == 2:
            assert await user.die(entry, "died again")
            (dead,) = await user.dead()
            assert dead.history[:9] == (*first.history, (first.dead_ms, first.reason))
            assert [why for _, why in dead.history[9:]] == ["second life 0", "second life 1"]
            assert (dead.reason, dead.dead_ms >= first.dead_ms) == ("died again", True)
            await user.fill(b"x")
        else:
            assert await user.retry(entry, nth(user.slot.kind, 0), reason=f"second life {n}")
    (entry,) = await user.claims(b"x", now_ms=NOW + 30 * SECOND)
    assert await user.die(entry, "for good")
    (dead,) = await user.dead()
    told = [f"first life {n}" for n in range(3, 8)] + [first.reason, "second life 0", "second life 1", "died again"]
    assert [why for _, why in dead.history] == [*told, *(f"second life {n}" for n in range(3, 10))]
