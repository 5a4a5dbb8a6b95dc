"""What becomes of a member that is added while it waits, and of twins that meet."""

from __future__ import annotations

import pytest

from emq.runtime import errors
from emq.storage import folds
from emq.storage.slot_store import Entry, Fold, Keep, SlotAdd, SlotKind, SlotVerdict, Waiting
from emq_testing.contract.slot_user import APART, APART_TIME, NOW, PRIORITIES, SECOND, STORES, SlotUser, nth

pytestmark = STORES

UNION = Fold("union")
JOIN = Fold("lua", "local older, newer = ...\nreturn older .. '<' .. newer")
BROKEN = [
    *(Fold("lua", lua) for lua in ("error('boom')", "return 7 .. nil", "return nil", "this is no Lua")),
    Fold("sum"),
]

FOLDED = [
    (Fold("latest"), [b"1", b"", b"\x00\xff"], b"\x00\xff"),
    (Fold("sum"), [b"1", b"2", b"-5"], b"-2"),
    (Fold("sum"), [b"0.1", b"0.2"], b"0.30000000000000004"),
    (Fold("sum"), [b" 1.5 ", b"1e2", b".5"], b"102"),
    (Fold("sum"), [b"9007199254740991", b"1"], b"9007199254740992"),
    (Fold("sum"), [b"1e300", b"1e300"], b"2.0000000000000001e+300"),
    (Fold("sum"), [b"-0", b"-0"], b"0"),
    (Fold("sum"), [b"007"], b"007"),
    (Fold("max"), [b"2", b"10", b"9.5"], b"10"),
    (Fold("max"), [b"1.0", b"1", b"01"], b"1.0"),
    (Fold("min"), [b"2", b"10", b"1.50"], b"1.50"),
    (Fold("min"), [b"1.0", b"1"], b"1.0"),
    (UNION, [b"b\na\n\nb", b"c\na", b""], b"b\na\nc"),
    (UNION, [b"\n\n"], b""),
    (UNION, [b"\xff\x00\n%d", b"\xff\x00", b"%d\n%s"], b"\xff\x00\n%d\n%s"),
    (Fold("count"), [b"x"], b"1"),
    (Fold("count"), [b"x", b"x", b"anything"], b"3"),
    (JOIN, [b"a", b"b\x00", b"\xff"], b"a<b\x00<\xff"),
]


@pytest.mark.parametrize(
    ("keep", "up", "down"), [(Keep.FIRST, 5, 5), (Keep.LAST, 7, 3), (Keep.LOWEST, 5, 3), (Keep.HIGHEST, 7, 5)]
)
async def test_the_keep_decides_which_score_counts(user: SlotUser, keep: Keep, up: int, down: int) -> None:
    base = nth(user.slot.kind, 500)
    for member in (b"up", b"down", b"same"):
        assert await user.add(member, base + 5, keep=keep)
    assert not await user.add(b"up", base + 7, keep=keep)
    assert not await user.add(b"down", base + 3, keep=keep)
    assert not await user.add(b"same", base + 5, keep=keep)
    scores = {b"up": base + up, b"down": base + down, b"same": base + 5}
    assert await user.scores() == scores
    entries = (await user.claim()).entries
    assert {entry.member: entry.score for entry in entries} == scores
    in_order = sorted(scores.values(), reverse=user.slot.kind is SlotKind.PRIORITY)
    assert [entry.score for entry in entries] == in_order


async def test_a_merge_may_move_a_member_before_or_behind_others(user: SlotUser) -> None:
    kind = user.slot.kind
    await user.fill(b"a", b"b", b"c", first=10)
    await user.add(b"c", nth(kind, 1))
    await user.add(b"a", nth(kind, 20))
    await user.claims(b"c", b"b", b"a")


async def test_members_of_one_call_merge_with_each_other(user: SlotUser) -> None:
    base = nth(user.slot.kind, 500)
    scores = ((b"x", 5), (b"y", 1), (b"x", 3), (b"x", 4))
    adds = [SlotAdd(user.slot, m, base + n, Keep.LOWEST, b"%d" % n, b"", UNION) for m, n in scores]
    assert await user.sorted.add(adds) == [True, True, False, False]
    found = {each.member: each for each in await user.waiting()}
    body, merged = (b"5\n3\n4", 3) if user.slot.apart else (b"x", 1)
    assert found[b"x"] == Waiting(b"x", base + 3, body, b"", merged)
    assert found[b"y"][:2] == (b"y", base + 1)


@pytest.mark.parametrize(("keep", "first"), [*zip(Keep, (True, False, True, False), strict=True)])
async def test_a_retried_message_that_is_added_again_merges_by_its_numbers_and_keeps_its_retries(
    user: SlotUser, keep: Keep, first: bool
) -> None:
    await user.fill(b"x")
    (entry,) = await user.claims(b"x")
    assert await user.retry(entry, 15, reason="no")
    fresh = nth(user.slot.kind, 3)
    assert not await user.add(b"x", fresh, keep=keep, body=b"newer")
    (entry,) = await user.claims(b"x", now_ms=NOW + SECOND)
    assert (entry.score, entry.left) == (15 if first else fresh, 14)
    assert (entry.body, entry.merged) == ((b"newer", 2) if user.slot.apart else (b"x", 1))


async def test_a_member_that_is_in_prepare_or_dead_only_is_new(user: SlotUser) -> None:
    await user.buried(b"dead")
    await user.fill(b"prepared")
    await user.claims(b"prepared")
    for member in (b"dead", b"prepared"):
        assert await user.add(member, nth(user.slot.kind, 0), keep=Keep.FIRST)
        assert not await user.add(member, nth(user.slot.kind, 0), keep=Keep.FIRST)
    assert await user.sizes() == (2, 1, 1)


@PRIORITIES
async def test_bodies_fold_as_the_folds_say(user: SlotUser) -> None:
    wanted: dict[bytes, tuple[bytes, int]] = {}
    for n, (fold, bodies, expected) in enumerate(FOLDED):
        reference = folds.initial(fold, bodies[0])
        for body in bodies[1:]:
            reference = folds.apply(fold, reference, folds.initial(fold, body))
        assert reference == expected
        together, one_by_one = b"%d together" % n, b"%d one by one" % n
        await user.sorted.add([SlotAdd(user.slot, together, 100, Keep.LAST, body, b"", fold) for body in bodies])
        for body in bodies:
            await user.add(one_by_one, 100, body=body, fold=fold)
        wanted |= dict.fromkeys((together, one_by_one), (expected, len(bodies)))
    entries = (await user.claim()).entries
    assert {entry.member: (entry.body, entry.merged) for entry in entries} == wanted


@APART
async def test_the_latest_note_counts(user: SlotUser) -> None:
    for note in (b"first", b"", b"\x00last"):
        await user.add(b"x", nth(user.slot.kind, 0), keep=Keep.FIRST, body=b"1", note=note, fold=Fold("sum"))
    expected = (b"x", nth(user.slot.kind, 0), b"3", b"\x00last", 3)
    assert await user.waiting() == [expected]
    (entry,) = await user.claims(b"x")
    assert (entry.member, entry.score, entry.body, entry.note, entry.merged) == expected


@pytest.mark.parametrize("variant", [APART_TIME], ids=["time-apart"])
async def test_a_fold_that_fails_refuses_its_add_and_changes_nothing(user: SlotUser) -> None:
    await user.add(b"x", NOW - 5, body=b"older", note=b"n")
    for n, fold in enumerate(BROKEN):
        refused = SlotAdd(user.slot, b"x", NOW - 9, Keep.LAST, b"newer", b"", fold)
        before, answer, after = await user.sorted.add(
            [refused._replace(member=b"before%d" % n), refused, refused._replace(member=b"after%d" % n)]
        )
        assert isinstance(answer, errors.InvalidMessage)
        assert ("Lua" if fold.lua else "sum") in str(answer)
        assert "\n" not in str(answer)
        assert (before, after) == (True, True)
        waiting = [each for each in await user.waiting() if each.member == b"x"]
        assert waiting == [Waiting(b"x", NOW - 5, b"older", b"n", 1)]
    assert len((await user.claim()).entries) == 1 + 2 * len(BROKEN)


@APART
@pytest.mark.parametrize("fold", BROKEN[:1] + BROKEN[-1:], ids=lambda fold: fold.name)
async def test_what_cannot_be_folded_with_its_twin_is_dead_or_stays_so(user: SlotUser, fold: Fold) -> None:
    await user.add(b"x", nth(user.slot.kind, 1), body=b"old")
    (entry,) = await user.claims(b"x")
    await user.add(b"x", nth(user.slot.kind, 1), body=b"new")
    assert await user.retry(entry, reason="no", fold=fold)
    assert await user.sizes() == (1, 0, 1)
    assert not await user.settle(SlotVerdict.REPLAY, b"x", score=nth(user.slot.kind, 0), fold=fold)
    (dead,) = await user.dead()
    assert (dead.body, "Lua" in dead.reason or "sum" in dead.reason) == (b"old", True)
    (twin,) = await user.claims(b"x", now_ms=NOW + SECOND)
    assert (twin.body, twin.merged) == (b"new", 1)
    assert await user.ack(twin)
    assert await user.settle(SlotVerdict.REPLAY, b"x", score=nth(user.slot.kind, 0), fold=fold)
    assert (await user.claims(b"x", now_ms=NOW + 2 * SECOND))[0].body == b"old"


async def with_twin(user: SlotUser, fold: Fold = UNION) -> Entry:
    """A prepared member ("old" and "same" in it) and its waiting twin ("new" and "same")."""
    await user.add(b"x", nth(user.slot.kind, 1), body=b"old\nsame", note=b"older", fold=fold)
    await user.add(b"x", nth(user.slot.kind, 1), body=b"old", note=b"older", fold=fold)
    (entry,) = await user.claims(b"x")
    assert await user.add(b"x", nth(user.slot.kind, 9), body=b"new\nsame", note=b"newer", fold=fold)
    return entry


async def test_a_duplicate_waits_while_its_twin_is_in_prepare(user: SlotUser) -> None:
    entry = await with_twin(user)
    await user.fill(b"behind", first=20)
    assert (await user.state()).waiting == 2
    claimed = await user.claim()
    assert ([each.member for each in claimed.entries], claimed.next_score) == ([b"behind"], None)
    assert await user.ack(entry)
    (twin,) = await user.claims(b"x", now_ms=NOW + SECOND)
    assert (twin.body, twin.note, twin.merged) == ((b"new\nsame", b"newer", 1) if user.slot.apart else (b"x", b"", 1))


async def test_a_duplicate_waits_also_where_the_member_has_waited_before(user: SlotUser) -> None:
    for n in (7, 3):
        await user.add(b"x", nth(user.slot.kind, n))
    await user.fill(b"y", first=5)
    (entry,) = (await user.claim(limit=1)).entries
    await user.add(b"x", nth(user.slot.kind, 7))
    await user.claims(b"y", now_ms=NOW + SECOND)
    assert await user.sizes() == (1, 2, 0)
    assert await user.ack(entry)
    await user.claims(b"x", now_ms=NOW + SECOND)


async def test_duplicates_do_not_stand_in_the_way_of_those_behind(user: SlotUser) -> None:
    members = [b"%d" % n for n in range(50)]
    await user.fill(*members)
    await user.claims(*members)
    await user.fill(*members, b"free", b"freer")
    claimed = await user.claim(limit=1)
    assert ([entry.member for entry in claimed.entries], claimed.next_score) == ([b"free"], nth(user.slot.kind, 51))
    await user.claims(b"freer")


@pytest.mark.parametrize("verdict", [SlotVerdict.ACK, SlotVerdict.DEAD])
async def test_a_twin_may_run_once_the_prepared_one_is_gone(user: SlotUser, verdict: SlotVerdict) -> None:
    entry = await with_twin(user)
    assert await user.settle(verdict, entry, reason="why")
    assert await user.sizes() == (1, 0, verdict is SlotVerdict.DEAD)
    (twin,) = await user.claims(b"x", now_ms=NOW + SECOND)
    assert (twin.score, twin.left, twin.merged) == (nth(user.slot.kind, 9), 16, 1)


@pytest.mark.parametrize("verdict", [SlotVerdict.RETRY, SlotVerdict.REPLAY])
async def test_what_comes_back_to_a_waiting_twin_merges_into_it(user: SlotUser, verdict: SlotVerdict) -> None:
    entry = await with_twin(user)
    if verdict is SlotVerdict.RETRY:
        assert await user.retry(entry, 16, reason="no", fold=UNION)
    else:
        assert await user.die(entry)
        assert await user.settle(verdict, b"x", score=nth(user.slot.kind, 0), fold=UNION)
    assert await user.sizes() == (1, 0, 0)
    body, note, merged = (b"old\nsame\nnew", b"newer", 3) if user.slot.apart else (b"x", b"", 1)
    assert await user.waiting() == [Waiting(b"x", nth(user.slot.kind, 9), body, note, merged)]
    (again,) = await user.claims(b"x", now_ms=NOW + SECOND)
    left = 15 if verdict is SlotVerdict.RETRY else 16  # what failed once has failed once
    assert (again.left, again.body, again.note, again.merged) == (left, body, note, merged)


@APART
@pytest.mark.parametrize("fold", [JOIN, Fold("latest"), Fold("count")], ids=lambda fold: fold.name)
async def test_the_waiting_twin_is_the_newer_of_the_two(user: SlotUser, fold: Fold) -> None:
    await user.add(b"x", nth(user.slot.kind, 1), body=b"old", fold=fold)
    (entry,) = await user.claims(b"x")
    await user.add(b"x", nth(user.slot.kind, 1), body=b"new", fold=fold)
    assert await user.retry(entry, fold=fold)
    (again,) = await user.claims(b"x", now_ms=NOW + SECOND)
    assert again.body == {"lua": b"old<new", "latest": b"new", "count": b"2"}[fold.name]


async def test_what_is_recovered_merges_into_a_waiting_twin_by_the_fold_of_the_last_add(user: SlotUser) -> None:
    await with_twin(user)
    assert await user.succeed() == 1
    assert await user.sizes() == (1, 0, 0)
    body, note, merged = (b"old\nsame\nnew", b"newer", 3) if user.slot.apart else (b"x", b"", 1)
    assert await user.waiting() == [Waiting(b"x", nth(user.slot.kind, 9), body, note, merged)]
    (again,) = await user.claims(b"x", now_ms=NOW + SECOND)
    assert again.left == 15


async def test_a_twin_may_be_recalled_from_beside_the_prepared_one(user: SlotUser) -> None:
    entry = await with_twin(user)
    assert await user.settle(SlotVerdict.RECALL, b"x")
    assert await user.sizes() == (0, 1, 0)
    assert await user.retry(entry, fold=UNION)
    (again,) = await user.claims(b"x", now_ms=NOW + SECOND)
    assert (again.left, again.body) == (15, b"old\nsame" if user.slot.apart else b"x")


async def test_what_is_replayed_waits_for_its_twin_in_prepare(user: SlotUser) -> None:
    await user.buried(b"x")
    await user.fill(b"x")
    (entry,) = await user.claims(b"x", now_ms=NOW + SECOND)
    assert await user.settle(SlotVerdict.REPLAY, b"x", score=nth(user.slot.kind, 0))
    assert await user.sizes() == (1, 1, 0)
    await user.claims(now_ms=NOW + 2 * SECOND)
    assert await user.ack(entry)
    await user.claims(b"x", now_ms=NOW + 3 * SECOND)


async def die_by(way: str, user: SlotUser, now_ms: int, reason: str, fold: Fold) -> None:
    """Let the only claimable member be dead, by its owner's verdict or by being recovered once too often."""
    (entry,) = await user.claims(b"x", now_ms=now_ms)
    if way == "verdict":
        assert await user.settle(SlotVerdict.DEAD, entry, reason=reason, fold=fold)
        return
    assert await user.retry(entry, 1, fold=fold)
    (entry,) = await user.claims(b"x", now_ms=now_ms + SECOND)
    assert entry.left == 0
    user.epoch += 1
    assert await user.recover(now_ms=now_ms + SECOND, reason=reason) == 1


WAYS = pytest.mark.parametrize("way", ["verdict", "recover"])


@APART
@WAYS
@pytest.mark.parametrize(
    ("fold", "first", "second", "both"),
    [
        (Fold("latest"), b"old", b"new", b"new"),
        (Fold("sum"), b"1.5", b"40", b"43"),
        (Fold("max"), b"9", b"10", b"10"),
        (UNION, b"b\na", b"c\nb", b"b\na\nc"),
        (Fold("count"), b"x", b"y", b"3"),
        (JOIN, b"old", b"new\x00", b"old<old<new\x00"),
    ],
    ids=lambda value: value.name if isinstance(value, Fold) else "",
)
async def test_a_second_death_does_not_lose_the_body_of_the_first(
    user: SlotUser, way: str, fold: Fold, first: bytes, second: bytes, both: bytes
) -> None:
    score = nth(user.slot.kind, 0)
    assert await user.add(b"x", score, body=first, note=b"n1", fold=fold)
    assert not await user.add(b"x", score, body=first, note=b"n1", fold=fold)
    await die_by(way, user, NOW, "first", fold)
    (before,) = await user.dead()
    assert await user.add(b"x", score, body=second, note=b"n2", fold=fold)
    await die_by(way, user, NOW + 2 * SECOND, "second", fold)
    (dead,) = await user.dead()
    assert (dead.body, dead.note, dead.reason) == (both, b"n2", "second")
    assert dead.history == ((before.dead_ms, "first"),)
    assert dead.dead_ms == NOW + 3 * SECOND if way == "recover" else dead.dead_ms >= before.dead_ms
    assert await user.settle(SlotVerdict.REPLAY, b"x", score=score, fold=fold)
    (entry,) = await user.claims(b"x", now_ms=NOW + 5 * SECOND)
    assert (entry.body, entry.note, entry.merged) == (both, b"n2", 3)


@APART
@WAYS
@pytest.mark.parametrize("fold", BROKEN[:1] + BROKEN[-1:], ids=lambda fold: fold.name)
async def test_a_fold_that_fails_does_not_keep_a_second_death_from_being_kept(
    user: SlotUser, way: str, fold: Fold
) -> None:
    score = nth(user.slot.kind, 0)
    for n, body in enumerate((b'old"', b"new")):
        assert await user.add(b"x", score, body=body, note=body, fold=fold)
        await die_by(way, user, NOW + 2 * n * SECOND, f'number "{n}"', fold)
    (dead,) = await user.dead()
    assert (dead.body, dead.note, [why for _, why in dead.history]) == (b"new", b"new", ['number "0"'])
    assert dead.reason.startswith('number "1"; the earlier body could not be folded in: ')
    assert ("Lua" if fold.lua else "sum") in dead.reason
    assert await user.settle(SlotVerdict.REPLAY, b"x", score=score, fold=fold)
    (entry,) = await user.claims(b"x", now_ms=NOW + 5 * SECOND)
    assert (entry.body, entry.merged) == (b"new", 1)


@APART
async def test_a_retry_that_cannot_be_folded_dies_as_one_with_its_dead_twin(user: SlotUser) -> None:
    score, fold = nth(user.slot.kind, 0), Fold("sum")
    assert await user.add(b"x", score, body=b"1", fold=fold)
    await die_by("verdict", user, NOW, "first", fold)
    assert await user.add(b"x", score, body=b"2", fold=fold)
    (entry,) = await user.claims(b"x", now_ms=NOW + SECOND)
    assert await user.add(b"x", score, body=b"no number")
    assert await user.retry(entry, reason="failed", fold=fold)
    (dead,) = await user.dead()
    assert (dead.body, [why for _, why in dead.history]) == (b"3", ["first", "failed"])
    assert "sum" in dead.reason
    assert "earlier body" not in dead.reason
    assert [each.body for each in await user.waiting()] == [b"no number"]


@APART
async def test_one_call_may_fold_among_the_waiting_and_among_the_dead(user: SlotUser) -> None:
    score, fold = nth(user.slot.kind, 0), Fold("sum")
    assert await user.add(b"x", score, body=b"1", fold=fold)
    await die_by("verdict", user, NOW, "first", fold)
    for member in (b"x", b"y"):
        assert await user.add(member, score, body=b"2", fold=fold)
    entries = {entry.member: entry for entry in (await user.claim(now_ms=NOW + SECOND)).entries}
    assert await user.add(b"y", score, body=b"40", fold=fold)
    dies = user.verdict(SlotVerdict.DEAD, entries[b"x"], reason="second", fold=fold)
    fails = user.verdict(SlotVerdict.RETRY, entries[b"y"], fold=fold)
    assert await user.sorted.settle([dies, fails]) == [True, True]
    assert [each.body for each in await user.dead()] == [b"3"]
    assert [each.body for each in await user.waiting()] == [b"42"]
