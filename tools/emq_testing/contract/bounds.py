"""No call brings or takes more bytes than it should, whatever the size of the bodies."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from emq.storage.lane_store import DeadEntry, LaneAdd, LaneClaim, LaneClaimed, LaneSettle, LaneVerdict, WaitingEntry
from emq.storage.log_store import Put, Read
from emq.storage.slot_store import (
    DeadMember,
    Entry,
    Fold,
    Keep,
    SlotAdd,
    SlotClaim,
    SlotClaimed,
    SlotKind,
    SlotVerdict,
    Waiting,
)
from emq.storage.store import Store
from emq_testing.contract.slot_user import SlotUser
from emq_testing.contract.target import Target

NOW = 1_900_000_000_000
MB = 1 << 20
"""A body of 1 MiB, the usual most, and ten of these, which a topic may allow."""


async def fill(store: Store, lanes: list[str], n: int, size: int, priorities: int = 1) -> None:
    for lane in lanes:
        for i in range(n):
            body = bytes([i % 256]) * size
            await store.lanes.add([LaneAdd(lane, f"{lane}-{i:03}", body, NOW - 100 + i, priority=i % priorities)])


async def claimed(store: Store, claims: list[LaneClaim], max_bytes: int) -> list[LaneClaimed]:
    answers = await store.lanes.claim(claims, NOW, max_bytes)
    assert not [answer for answer in answers if not isinstance(answer, LaneClaimed)]
    return [answer for answer in answers if isinstance(answer, LaneClaimed)]


@pytest.mark.parametrize(("size", "n"), [(MB, 6), (10 * MB, 2)])
async def test_a_claim_of_many_lanes_brings_little_more_than_it_was_asked_for(
    store: Store, target: Target, size: int, n: int
) -> None:
    lanes = [target.slot(i) for i in range(4)]
    await fill(store, lanes, n, size, priorities=2)
    seen: dict[str, bytes] = {}
    most = 2 * MB
    for _ in range(4 * n + 1):
        answers = await claimed(store, [LaneClaim(lane, 500, 1, (500, 500)) for lane in lanes], most)
        bodies = [body for answer in answers for _, body in answer.entries]
        assert sum(map(len, bodies)) < most + len(lanes) * size
        assert sum(map(len, bodies[:-1])) < most or len(bodies) <= len(lanes)
        for answer in answers:
            assert not seen.keys() & {id_ for id_, _ in answer.entries}
            seen.update(answer.entries)
        if not bodies:
            break
    assert len(seen) == 4 * n
    assert [answer.next_due_ms for answer in answers] == [None] * 4
    assert all(body == bytes([int(id_[-3:])]) * size for id_, body in seen.items())


async def test_at_least_one_entry_comes_however_small_the_bound(store: Store, target: Target) -> None:
    await fill(store, [target.slot()], 3, 10_000)
    found: list[int] = []
    for _ in range(3):
        [answer] = await claimed(store, [LaneClaim(target.slot(), 10, 1)], 1)
        found.append(len(answer.entries))
    assert found == [1, 1, 1]


async def test_what_is_left_of_a_bounded_claim_keeps_its_order(store: Store, target: Target) -> None:
    await fill(store, [target.slot()], 9, 1_000, priorities=3)
    order: list[str] = []
    while True:
        [answer] = await claimed(store, [LaneClaim(target.slot(), 10, 1, (9, 9, 9))], 1_500)
        if not answer.entries:
            break
        assert len(answer.entries) == 2 or len(order) == 8
        order += [id_[-3:] for id_, _ in answer.entries]
    assert order == ["000", "003", "006", "001", "004", "007", "002", "005", "008"]


async def test_large_bodies_can_be_added_retried_and_buried_many_at_once(store: Store, target: Target) -> None:
    lane, n = target.slot(), 24
    adds = [LaneAdd(lane, f"{i:02}", bytes([i]) * MB, NOW - 1) for i in range(n)]
    assert await store.lanes.add(adds) == [True] * n
    found: list[str] = []
    while len(found) < n:
        [answer] = await claimed(store, [LaneClaim(lane, 500, 1)], 8 * MB)
        found += [id_ for id_, _ in answer.entries]
    retry, dead = LaneVerdict.RETRY, LaneVerdict.DEAD
    settles = [
        LaneSettle(lane, id_, dead if i % 2 else retry, 1, NOW, bytes([i]) * MB, "why") for i, id_ in enumerate(found)
    ]
    assert await store.lanes.settle(settles) == [True] * n
    [state] = await store.lanes.inspect([lane])
    assert (state.waiting, state.prepared, state.dead) == (n // 2, 0, n // 2)


async def test_large_bodies_can_be_put_many_at_once_and_are_read_within_the_bound(store: Store, target: Target) -> None:
    queues = [target.queue(group=i) for i in range(3)]
    answers = await store.log.put([Put(queue, [bytes([i]) * MB for i in range(8)]) for queue in queues])
    assert [len(a) for a in answers if not isinstance(a, Exception)] == [8] * 3
    found = await store.log.read([Read(queue, 1, 500, 1) for queue in queues], 4 * MB)
    sizes = [len(body) for batch in found if not isinstance(batch, Exception) for body in batch.bodies]
    assert 0 < sum(sizes) < (4 + len(queues)) * MB


async def test_a_claim_of_many_slots_brings_little_more_than_it_was_asked_for(
    store: Store, target: Target, variant: tuple[SlotKind, bool]
) -> None:
    await claim_all(store, target, variant, MB, 10)


async def test_a_claim_of_slots_with_members_beyond_the_bound_brings_them_one_by_one(
    store: Store, target: Target
) -> None:
    await claim_all(store, target, (SlotKind.PRIORITY, True), 10 * MB, 2)


async def test_a_claim_counts_the_notes_of_members_in_which_their_headers_are(store: Store, target: Target) -> None:
    await claim_all(store, target, (SlotKind.PRIORITY, True), MB, 10, in_notes=True)


async def all_die(user: SlotUser, entries: Sequence[Entry]) -> None:
    deaths = [user.verdict(SlotVerdict.DEAD, entry, reason="why") for entry in entries]
    assert await user.sorted.settle(deaths) == [True] * len(deaths)


async def claim_all(
    store: Store, target: Target, variant: tuple[SlotKind, bool], size: int, n: int, in_notes: bool = False
) -> None:
    slots_ = [target.sorted_slot(*variant, group=i) for i in range(2)]
    large = bytes(size)
    for slot in slots_:
        for i in range(n):
            member, body = (b"%03d" % i, large) if slot.apart else (b"%03d" % i + large, b"")
            body, note = (b"", body) if in_notes else (body, b"")
            await store.sorted.add([SlotAdd(slot, member, 1_000 - i, Keep.FIRST, body, note)])
    seen: list[tuple[str, bytes]] = []
    most = 4 * MB
    while True:
        answers = await store.sorted.claim([SlotClaim(slot, 500, 1, NOW) for slot in slots_], NOW, most)
        found = [answer for answer in answers if isinstance(answer, SlotClaimed)]
        sizes = [len(entry.body) + len(entry.note) for answer in found for entry in answer.entries]
        assert sum(sizes) < most + len(slots_) * (size + 10)
        seen += [(slot.name, e.member[:3]) for slot, answer in zip(slots_, found, strict=True) for e in answer.entries]
        if not sizes:
            break
    assert sorted(seen) == sorted((slot.name, b"%03d" % i) for slot in slots_ for i in range(n))
    for slot in slots_:
        mine = [member for name, member in seen if name == slot.name]
        assert mine == sorted(mine, reverse=slot.kind is not SlotKind.PRIORITY)
    assert [answer.next_score for answer in found] == [None, None]


@pytest.mark.parametrize(("size", "most"), [(MB, 4 * MB), (2_000, 9_000)])
async def test_pages_of_a_lane_are_bounded_in_bytes_and_complete(
    store: Store, target: Target, size: int, most: int
) -> None:
    """1,000 dead letters of 1 MiB must not become one answer of a gigabyte."""
    dead, waiting, n = target.slot(0), target.slot(1), 24
    for i in range(n):
        body = bytes([i]) * size
        adds = [LaneAdd(dead, f"{i:02}", body, NOW, "why"), LaneAdd(waiting, f"{i:02}", body, NOW + i)]
        assert await store.lanes.add(adds) == [True] * 2
    letters: list[DeadEntry] = []
    while page := await store.lanes.dead(
        dead, (letters[-1].dead_ms, letters[-1].id) if letters else (0, ""), 500, most
    ):
        assert sum(len(letter.body) for letter in page[:-1]) < most
        letters += page
    assert sorted((d.id, d.body) for d in letters) == [(f"{i:02}", bytes([i]) * size) for i in range(n)]
    entries: list[WaitingEntry] = []
    while entries_page := await store.lanes.waiting(waiting, len(entries), 500, most):
        assert sum(len(entry.body) for entry in entries_page[:-1]) < most
        entries += entries_page
    assert [(e.id, e.body) for e in entries] == [(f"{i:02}", bytes([i]) * size) for i in range(n)]


async def test_a_page_has_at_least_one_entry_however_small_the_bound(store: Store, target: Target) -> None:
    await store.lanes.add(
        [LaneAdd(target.slot(), f"{i}", bytes(9_000), NOW, "why" if i % 2 else None) for i in range(4)]
    )
    assert len(await store.lanes.dead(target.slot(), max_bytes=1)) == 1
    assert [entry.id for entry in await store.lanes.waiting(target.slot(), 1, max_bytes=1)] == ["2"]


@pytest.mark.parametrize(("size", "most"), [(300_000, MB), (2_000, 9_000)])
async def test_pages_of_a_slot_are_bounded_in_bytes_and_complete(
    store: Store, target: Target, variant: tuple[SlotKind, bool], size: int, most: int
) -> None:
    slot, n = target.sorted_slot(*variant), 24
    large = bytes(size)
    names = [b"%02d" % i for i in range(n)]
    for i, name in enumerate(names):
        member, body = (name, large) if slot.apart else (name + large, b"")
        await store.sorted.add([SlotAdd(slot, member, 1_000 + i, Keep.FIRST, body)])
    waiting: list[Waiting] = []
    while page := await store.sorted.waiting(slot, len(waiting), 500, most):
        assert sum(len(each.body) for each in page[:-1]) < most
        assert all(len(each.body) >= size for each in page)
        waiting += page
    in_order = names[::-1] if slot.kind is SlotKind.PRIORITY else names
    assert [each.member[:2] for each in waiting] == in_order

    user = SlotUser(store, slot)
    while entries := (await user.claim(500)).entries:
        await all_die(user, entries)
    dead: list[DeadMember] = []
    while dead_page := await store.sorted.dead(
        slot, (dead[-1].dead_ms, dead[-1].member) if dead else (0, b""), 500, most
    ):
        assert sum(len(each.body) for each in dead_page[:-1]) < most
        dead += dead_page
    assert sorted(each.member[:2] for each in dead) == names
    assert all(len(each.body) >= size for each in dead)


async def test_pages_go_on_where_the_last_one_of_a_page_has_left(store: Store, target: Target) -> None:
    """Many died in the same moment, and each page is thrown away before the next is read."""
    lane, slot = target.slot(), target.sorted_slot(SlotKind.PRIORITY, True)
    await store.lanes.add([LaneAdd(lane, f"{i:03}", bytes(1_000), NOW, "why") for i in range(60)])
    await store.sorted.add([SlotAdd(slot, b"%03d" % i, 100, Keep.FIRST, bytes(1_000)) for i in range(60)])
    user = SlotUser(store, slot)
    await all_die(user, (await user.claim(500)).entries)
    ids: list[str] = []
    after = (0, "")
    while page := await store.lanes.dead(lane, after, 500, 7_000):
        ids += [letter.id for letter in page]
        after = page[-1].dead_ms, page[-1].id
        await store.lanes.settle([LaneSettle(lane, letter.id, LaneVerdict.PURGE) for letter in page])
    assert sorted(ids) == [f"{i:03}" for i in range(60)]
    members: list[bytes] = []
    behind = (0, b"")
    while dead := await store.sorted.dead(slot, behind, 500, 7_000):
        members += [each.member for each in dead]
        behind = dead[-1].dead_ms, dead[-1].member
        await store.sorted.settle([user.verdict(SlotVerdict.PURGE, each.member) for each in dead])
    assert sorted(members) == [b"%03d" % i for i in range(60)]


@pytest.mark.parametrize("fold", ["latest", "union"])
async def test_many_large_members_are_recovered_with_all_their_bodies(store: Store, target: Target, fold: str) -> None:
    """In several small steps, and each member once."""
    slot, n, large = target.sorted_slot(SlotKind.PRIORITY, True), 40, 200_000
    rule = Fold(fold)

    def add(i: int, text: str) -> SlotAdd:
        body = b'["%s"]' % (text * (large // len(text))).encode() if fold == "union" else text.encode() * large
        return SlotAdd(slot, b"%03d" % i, 100 + i, Keep.FIRST, body, fold=rule)

    assert await store.sorted.add([add(i, "a") for i in range(n)]) == [True] * n
    user, claimed = SlotUser(store, slot), 0
    while claimed < n:
        claimed += len((await user.claim(500)).entries)
    assert await store.sorted.add([add(i, "b") for i in range(0, n, 2)]) == [True] * (n // 2)
    assert await user.succeed() == n
    assert await user.recover(lost=True) == 0
    waiting: list[Waiting] = []
    while page := await store.sorted.waiting(slot, len(waiting)):
        waiting += page
    assert len(waiting) == n
    for each in waiting:
        twice = int(each.member) % 2 == 0
        assert each.merged == 2 if twice else 1
        assert len(each.body) > (2 * large if twice and fold == "union" else large) * 0.9
    assert await user.sizes() == (n, 0, 0)
