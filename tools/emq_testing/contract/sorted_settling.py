"""Verdicts on members of slots, their tokens, what is recovered, and fences."""

from __future__ import annotations

import pytest

from emq.storage.slot_store import Entry, Keep, Recover, SlotAdd, SlotClaim, SlotKind, SlotSettle, SlotVerdict
from emq.storage.store import Store
from emq_testing.contract.slot_user import NOW, SECOND, STORES, TIMES, SlotUser, nth, refused, seconds_since
from emq_testing.contract.target import NEW, Target

pytestmark = STORES

OWNERS = (SlotVerdict.ACK, SlotVerdict.RETRY, SlotVerdict.REST, SlotVerdict.YIELD, SlotVerdict.DEAD)
STARTS = {SlotVerdict.REPLAY: "dead", SlotVerdict.PURGE: "dead", SlotVerdict.RECALL: "waiting"} | dict.fromkeys(
    OWNERS, "prepared"
)
STATES = ("absent", "waiting", "prepared", "dead")


async def in_state(user: SlotUser, state: str, member: bytes = b"x") -> Entry:
    """Bring a new member into a state; answers its entry, or one that it might have had."""
    score = nth(user.slot.kind, 0)
    if state != "absent":
        await user.fill(member)
    if state in ("absent", "waiting"):
        return Entry(member, score, NOW + 16, member)
    (entry,) = await user.claims(member)
    if state == "dead":
        assert await user.die(entry)
    return entry


async def test_verdicts_move_members(user: SlotUser) -> None:
    await user.fill(b"acked", b"retried", b"buried", b"purged", b"left alone")
    acked, retried, buried, purged, _ = await user.claims(b"acked", b"retried", b"buried", b"purged", b"left alone")
    await user.fill(b"recalled")
    later = nth(user.slot.kind, 9)
    assert (
        await user.sorted.settle(
            [
                user.verdict(SlotVerdict.ACK, acked),
                user.verdict(SlotVerdict.RETRY, retried, score=later),
                user.verdict(SlotVerdict.DEAD, buried, reason="hopeless"),
                user.verdict(SlotVerdict.DEAD, purged, reason="no use"),
                user.verdict(SlotVerdict.PURGE, b"purged"),
                user.verdict(SlotVerdict.RECALL, b"recalled"),
            ]
        )
        == [True] * 6
    )
    assert await user.sizes() == (1, 1, 1)
    assert await user.scores() == {b"retried": later}
    (dead,) = await user.dead()
    assert dead[:4] == (user.slot, b"buried", b"buried", b"")
    assert (dead.reason, dead.history) == ("hopeless", ())
    assert -1 < seconds_since(dead.dead_ms) < 30
    assert await user.settle(SlotVerdict.REPLAY, b"buried", score=nth(user.slot.kind, 10))
    retried, replayed = await user.claims(b"retried", b"buried", now_ms=NOW + SECOND)
    assert (retried.body, retried.left, replayed.body, replayed.left) == (b"retried", 16, b"buried", 16)
    assert await user.dead() == []


@pytest.mark.parametrize("verdict", [v for v in SlotVerdict if not v.is_of_all])
async def test_a_verdict_changes_nothing_from_any_other_state(
    store: Store, target: Target, verdict: SlotVerdict
) -> None:
    for group, state in enumerate(STATES):
        if state == STARTS[verdict]:
            continue
        user = SlotUser(store, target.sorted_slot(SlotKind.FIXED_TIME, apart=bool(group % 2), group=group))
        entry = await in_state(user, state)
        before = (await user.state(), await user.waiting(), await user.dead())
        subject: Entry | bytes = entry if verdict in OWNERS else b"x"
        assert not await user.settle(verdict, subject, score=NOW - 1, reason="changed")
        assert (await user.state(), await user.waiting(), await user.dead()) == before


@pytest.mark.parametrize("verdict", [v for v in SlotVerdict if not v.is_of_all])
async def test_a_settle_may_be_repeated(store: Store, target: Target, verdict: SlotVerdict) -> None:
    for group, apart in enumerate((False, True)):
        user = SlotUser(store, target.sorted_slot(SlotKind.PRIORITY, apart, group))
        entry = await in_state(user, STARTS[verdict])
        if verdict is SlotVerdict.YIELD:
            await user.fill(b"x")
        subject: Entry | bytes = entry if verdict in OWNERS else b"x"
        once = user.verdict(verdict, subject, score=77, reason="why")
        assert await user.sorted.settle([once, once]) == [True, False]
        after = (await user.state(), await user.waiting(), await user.dead())
        assert await user.sorted.settle([once, once]) == [False, False]
        assert (await user.state(), await user.waiting(), await user.dead()) == after


async def test_a_verdict_needs_the_token_of_the_claim(user: SlotUser) -> None:
    await user.fill(b"x")
    (entry,) = await user.claims(b"x")
    for token in (0, entry.token - 1, entry.token + 1, entry.token + 1000):
        for verdict in OWNERS:
            assert not await user.settle(verdict, entry._replace(token=token), score=17, reason="not mine")
    assert await user.sizes() == (0, 1, 0)
    assert await user.ack(entry)


@pytest.mark.parametrize("verdict", OWNERS)
async def test_a_settle_after_the_time_out_changes_nothing_that_is_not_its_own(
    user: SlotUser, verdict: SlotVerdict
) -> None:
    await user.fill(b"x")
    (late,) = await user.claims(b"x")
    assert await user.recover(older_than_ms=NOW + 5 * SECOND, now_ms=NOW + 5 * SECOND) == 1
    waiting = await user.waiting()
    assert not await user.settle(verdict, late, score=17, reason="late")
    assert await user.waiting() == waiting
    (again,) = await user.claims(b"x", now_ms=NOW + 5 * SECOND)
    state = await user.state()
    assert not await user.settle(verdict, late, score=17, reason="late")
    assert await user.state() == state
    assert await user.die(again, "in time")
    (dead,) = await user.dead()
    assert (dead.reason, dead.history) == ("in time", ((NOW + 5 * SECOND, "lost"),))


async def test_recover_rolls_back_to_the_retries_left(user: SlotUser) -> None:
    await user.fill(b"a", b"b")
    first, second = await user.claims(b"a", b"b")
    assert await user.retry(second, 9)
    await user.claims(b"b", now_ms=NOW + SECOND)
    assert (first.left, await user.succeed()) == (16, 2)
    assert await user.scores() == {b"a": 16, b"b": 8}
    entries = (await user.claim(now_ms=NOW + 2 * SECOND)).entries
    assert {(entry.member, entry.left) for entry in entries} == {(b"a", 15), (b"b", 7)}


async def send_again(user: SlotUser) -> None:
    """Add the member x, whether its twin waits or not."""
    body = b"x" if user.slot.apart else b""
    await user.sorted.add([SlotAdd(user.slot, b"x", nth(user.slot.kind, 0), Keep.LAST, body)])


async def test_what_is_added_again_during_each_run_has_no_more_retries_for_that(user: SlotUser) -> None:
    """A poison that is sent again and again would never die."""
    await user.fill(b"x")
    left = []
    for n in range(17):
        (entry,) = await user.claims(b"x", now_ms=NOW + n * SECOND)
        left.append(entry.left)
        await send_again(user)
        if entry.left:
            assert await user.retry(entry, entry.left, reason="failed")
            await send_again(user)
    assert left == list(range(16, -1, -1))
    assert await user.die(entry, "used up")
    (entry,) = await user.claims(b"x", now_ms=NOW + 20 * SECOND)  # sent again during the last run: a new one
    assert entry.left == 16
    assert await user.retry(entry, 16, reason="failed")
    (entry,) = await user.claims(b"x", now_ms=NOW + 21 * SECOND)
    assert entry.left == 15
    await send_again(user)
    assert await user.ack(entry)
    (entry,) = await user.claims(b"x", now_ms=NOW + 22 * SECOND)
    assert entry.left == 16


@TIMES
@pytest.mark.parametrize("twin", [False, True])
async def test_what_failed_may_wait_for_a_time_and_has_no_more_retries_for_that(user: SlotUser, twin: bool) -> None:
    await user.fill(b"x")
    left = []
    for n in range(17):
        now_ms = NOW + n * 10 * SECOND
        (entry,) = await user.claims(b"x", now_ms=now_ms)
        left.append(entry.left)
        if twin:
            await user.add(b"x", now_ms + 9 * SECOND)
        if entry.left:
            assert await user.retry(entry, now_ms + 9 * SECOND, reason="busy")
            await user.claims(now_ms=now_ms + 8 * SECOND)
    assert left == list(range(16, -1, -1))


async def test_what_is_given_back_unharmed_keeps_its_retries(user: SlotUser) -> None:
    await user.fill(b"x")
    (entry,) = await user.claims(b"x")
    assert await user.retry(entry, 9, reason="failed")
    await send_again(user)
    (entry,) = await user.claims(b"x", now_ms=NOW + SECOND)
    assert entry.left == 8
    assert await user.retry(entry, entry.score)
    (entry,) = await user.claims(b"x", now_ms=NOW + 2 * SECOND)
    assert entry.left == 8


async def test_a_roll_back_at_0_is_a_dead_letter_once(user: SlotUser) -> None:
    await user.fill(b"x")
    (entry,) = await user.claims(b"x")
    assert await user.retry(entry, 1, reason="failed")
    (entry,) = await user.claims(b"x", now_ms=NOW + SECOND)
    assert entry.left == 0
    late = NOW + 9 * SECOND + 5
    assert await user.recover(older_than_ms=NOW + 9 * SECOND, now_ms=late, reason="host gone") == 1
    assert await user.recover(older_than_ms=NOW + 9 * SECOND, now_ms=late + SECOND) == 0
    assert not await user.die(entry, "late")
    assert await user.sizes() == (0, 0, 1)
    (dead,) = await user.dead()
    assert (dead.member, dead.body, dead.reason, dead.dead_ms) == (b"x", b"x", "host gone", late)
    assert [reason for _, reason in dead.history] == ["failed"]
    await user.claims(now_ms=NOW + 10 * SECOND)


async def test_what_a_lost_answer_brought_goes_back_at_once_but_what_is_held(user: SlotUser) -> None:
    await user.fill(b"a", b"b", b"c")
    held, _, _ = await user.claims(b"a", b"b", b"c")
    assert await user.recover(NOW - SECOND, [b"a"], lost=True) == 2
    assert await user.recover(NOW - SECOND, [b"a"], lost=True) == 0
    assert await user.sizes() == (2, 1, 0)
    assert await user.ack(held)


async def test_recover_under_a_new_epoch_returns_everything(user: SlotUser) -> None:
    await user.fill(b"a", b"b", b"c")
    await user.beside().fill(b"elsewhere")
    await user.claims(b"a", b"b", b"c")
    await user.beside().claims(b"elsewhere")
    assert await user.recover() == 0
    user.epoch += 1
    assert await user.recover(older_than_ms=NOW - SECOND, held=[b"a"]) == 3
    assert await user.recover() == 0
    assert await user.sizes() == (3, 0, 0)
    assert await user.beside().sizes() == (0, 1, 0)


async def test_recover_returns_what_timed_out_except_what_is_held(user: SlotUser) -> None:
    await user.fill(b"a", b"b", b"c", b"d")
    await user.claim(limit=2, now_ms=NOW)
    await user.claim(limit=1, now_ms=NOW + 3 * SECOND)
    await user.claim(limit=1, now_ms=NOW + 4 * SECOND)
    assert await user.recover(older_than_ms=NOW) == 0
    held = [b"b", b"unknown", b"\xff"]
    assert await user.recover(older_than_ms=NOW + 4 * SECOND, held=held) == 2
    assert sorted(await user.scores()) == [b"a", b"c"]
    assert (await user.state()).oldest_prepared_ms == NOW
    assert await user.recover(older_than_ms=NOW + 5 * SECOND) == 2


async def test_recovers_of_many_slots_are_answered_in_the_order_asked(store: Store, target: Target) -> None:
    users = [SlotUser(store, target.sorted_slot(SlotKind.RANGE_MERGE, group=group)) for group in range(4)]
    for n, user in enumerate(users):
        await user.fill(*(b"%d" % m for m in range(n)))
        assert len((await user.claim()).entries) == n
    users[1].epoch = 5
    await users[1].claim()
    recovers = [Recover(user.slot, 2 + group) for group, user in enumerate(users)]
    answers = await store.sorted.recover(recovers[::-1], NOW)
    assert answers[:2] == [3, 2]
    assert refused(answers) == [False, False, True, False]
    assert answers[3] == 0


async def test_a_higher_epoch_fences_off_lower_ones(user: SlotUser) -> None:
    await user.fill(b"x", b"y")
    (entry,) = (await user.claim(limit=1)).entries
    neighbour = user.beside()
    await neighbour.fill(b"z")
    for raised in (NEW, NEW + 2):
        if raised == NEW:
            assert refused(await user.sorted.claim([SlotClaim(user.slot, 1, NEW, NOW)], NOW)) == [False]
        else:
            assert await user.sorted.recover([Recover(user.slot, raised)], NOW) == [2]
        before = await user.state()
        stale = [SlotSettle(user.slot, b"x", verdict, entry.token, raised - 1, 17, "stale") for verdict in OWNERS]
        assert refused(await user.sorted.settle(stale)) == [True] * len(OWNERS)
        claims = [SlotClaim(user.slot, 5, raised - 1, NOW), SlotClaim(neighbour.slot, 5, raised - 1, NOW)]
        assert refused(await user.sorted.claim(claims, NOW)) == [True, False]
        assert refused(await user.sorted.recover([Recover(user.slot, raised - 1, NOW * 2)], NOW)) == [True]
        assert await user.state() == before
    user.epoch = raised
    assert len((await user.claim(now_ms=NOW + SECOND)).entries) == 2


async def test_a_refused_verdict_leaves_the_others_of_its_call(user: SlotUser) -> None:
    await user.fill(b"x")
    (entry,) = await user.claims(b"x")
    neighbour = user.beside()
    await neighbour.fill(b"y")
    (other,) = await neighbour.claims(b"y")
    user.epoch = 2
    await user.claims()
    stale = SlotSettle(user.slot, b"x", SlotVerdict.ACK, entry.token, 1)
    answers = await user.sorted.settle(
        [stale, neighbour.verdict(SlotVerdict.ACK, other), user.verdict(SlotVerdict.ACK, entry)]
    )
    assert refused(answers) == [True, False, False]
    assert answers[1:] == [True, True]


async def test_the_administrations_verdicts_are_not_fenced(user: SlotUser) -> None:
    for member in (b"x", b"y"):
        await user.buried(member)
    await user.fill(b"z")
    await user.sorted.recover([Recover(user.slot, 9)], NOW)
    assert await user.settle(SlotVerdict.REPLAY, b"x", score=nth(user.slot.kind, 1))
    assert await user.settle(SlotVerdict.PURGE, b"y")
    assert await user.settle(SlotVerdict.RECALL, b"z")
    assert await user.sizes() == (1, 0, 0)


async def test_a_fence_holds_for_all_instances(store: Store, other: Store, target: Target) -> None:
    first = SlotUser(store, target.sorted_slot(SlotKind.PRIORITY))
    second = SlotUser(other, first.slot, epoch=2)
    await first.fill(b"x")
    (entry,) = await first.claims(b"x")
    await second.claims()
    assert refused(await first.sorted.settle([first.verdict(SlotVerdict.ACK, entry)])) == [True]
    assert await second.sizes() == (0, 1, 0)
