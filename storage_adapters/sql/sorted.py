"""The slots of sorted topics in the SQL store."""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from emq import errors
from emq.durability import Durability
from emq.slots import (
    RETRIES,
    Add,
    Claim,
    Claimed,
    DeadMember,
    Entry,
    Recover,
    Settle,
    Slot,
    SlotKind,
    SlotState,
    Waiting,
)
from storage_adapters.sql.backend import Backend, Transaction
from storage_adapters.sql.members import (
    DEAD,
    PREPARED,
    WAITING,
    Key,
    Members,
    digest,
    fold_of,
    history_of,
    rank_of,
    score_of,
    text_of,
)
from storage_adapters.sql.rows import Group, Known, save_groups

_EVERYTHING = 1 << 62
"""Above all tokens."""


class SqlSorted:
    """`emq.slots.SortedStore` in a database; every call is one transaction, under the locks of its slots' rows.

    A slot has a row of its own in `store_groups`, named by its address. Members of equal scores come in the order of
    their digests.
    """

    def __init__(self, backend: Backend, known: Known) -> None:
        self._backend = backend
        self._known = known

    async def add(
        self, adds: Sequence[Add], durability: Durability = Durability.ACCEPTED
    ) -> list[bool | errors.TopicFull]:
        """See `SortedStore.add`; an add that its topic's Lua fold refuses is answered with `InvalidMessage`."""
        if not adds:
            return []
        return await self._backend.run(lambda t: self._add(t, adds), durability=durability)

    def _add(self, transaction: Transaction, adds: Sequence[Add]) -> list[bool | errors.TopicFull]:
        slots, keys = self._lock(transaction, adds)
        members = Members(transaction, keys, _folded(adds, keys))
        answers: list[Any] = []
        for add, key in zip(adds, keys, strict=True):
            slot = slots[add.slot.address]
            held = slot.waiting + members.came[slot.id]
            if add.slot.apart:
                slot.fold = text_of(add.fold)
            if add.max_length is not None and held >= add.max_length and not members.waits(key):
                answers.append(
                    errors.TopicFull(
                        f"slot {add.slot.name!r} holds {held} of at most {add.max_length} messages, one more does not "
                        "fit; wait for its consumers or raise max_length"
                    )
                )
                continue
            try:
                answers.append(members.add(key, add))
            except errors.InvalidMessage as exc:
                answers.append(exc)
                continue
            _announce(transaction, slot, members, key)
        _save(transaction, slots, members)
        return answers

    async def claim(self, claims: Sequence[Claim], now_ms: int) -> list[Claimed | errors.NotOwner]:
        """See `SortedStore.claim`."""
        if not claims:
            return []
        return await self._backend.run(lambda t: self._claim(t, claims, now_ms))

    def _claim(self, transaction: Transaction, claims: Sequence[Claim], now_ms: int) -> list[Claimed | errors.NotOwner]:
        slots = self._known.lock_groups(transaction, {claim.slot.address for claim in claims})
        answers: dict[int, Claimed | errors.NotOwner] = {}
        for number, claim in enumerate(claims):
            if stale := slots[claim.slot.address].fence(claim.epoch):
                answers[number] = stale
        accepted = [(n, slots[claim.slot.address], claim) for n, claim in enumerate(claims) if n not in answers]
        first = _next(transaction, {slot.id for _, slot, _ in accepted})
        for turn in _turns(accepted):
            taken = _take(transaction, turn, first, now_ms)
            first |= _next(transaction, {slot.id for n, slot, _ in turn if n in taken})
            for number, slot, claim in turn:
                slot.waiting -= len(taken.get(number, ()))
                rank = first[slot.id]
                slot.arm(transaction.instance, rank)
                next_score = None if rank is None else score_of(claim.slot.kind, rank)
                answers[number] = Claimed(taken.get(number, []), next_score)
        save_groups(transaction, slots.values())
        return [answers[number] for number in range(len(claims))]

    async def settle(self, settles: Sequence[Settle]) -> list[bool | errors.NotOwner]:
        """See `SortedStore.settle`. What its topic's Lua fold cannot merge with its waiting twin is dead, or
        stays so."""
        if not settles:
            return []
        return await self._backend.run(lambda t: self._settle(t, settles))

    def _settle(self, transaction: Transaction, settles: Sequence[Settle]) -> list[bool | errors.NotOwner]:
        slots, keys = self._lock(transaction, settles)
        members = Members(transaction, keys, _folded(settles, keys))
        now_ms = int(time.time() * 1000)
        answers: list[bool | errors.NotOwner] = []
        for settle, key in zip(settles, keys, strict=True):
            slot = slots[settle.slot.address]
            if settle.epoch is not None and (stale := slot.refuses(settle.epoch)):
                answers.append(stale)
                continue
            answers.append(members.settle(key, settle, now_ms))
            _announce(transaction, slot, members, key)
        _save(transaction, slots, members)
        return answers

    async def recover(self, recovers: Sequence[Recover], now_ms: int) -> list[int | errors.NotOwner]:
        """See `SortedStore.recover`. What meets its twin is merged by the fold of the slot's last add."""
        if not recovers:
            return []
        return await self._backend.run(lambda t: self._recover(t, recovers, now_ms))

    def _recover(
        self, transaction: Transaction, recovers: Sequence[Recover], now_ms: int
    ) -> list[int | errors.NotOwner]:
        slots = self._known.lock_groups(transaction, {recover.slot.address for recover in recovers})
        answers: dict[int, int | errors.NotOwner] = {}
        wanted: list[tuple[int, int, int]] = []
        held: dict[int, set[str]] = {}
        for number, recover in enumerate(recovers):
            slot = slots[recover.slot.address]
            seen = slot.epoch
            if stale := slot.fence(recover.epoch):
                answers[number] = stale
            elif recover.epoch > seen:
                wanted.append((number, slot.id, _EVERYTHING))
            elif recover.older_than_ms is not None:
                # A token tells whole seconds.
                wanted.append((number, slot.id, -(-recover.older_than_ms // 1000) * 1000))
                held[number] = {digest(member) for member in recover.held}
        lost = transaction.rows("members_prepared", rows=wanted) if wanted else []
        gone = [(number, (slot_id, id_)) for number, slot_id, id_ in lost if id_ not in held.get(number, ())]
        folds = {number: fold_of(slots[recovers[number].slot.address].fold) for number, _ in gone}
        folded = [key for number, key in gone if folds[number].name != "latest"]
        members = Members(transaction, (key for _, key in gone), folded)
        counts = dict.fromkeys(range(len(recovers)), 0)
        for number, key in gone:
            # Two recoveries of one slot may both have found it.
            if members.is_prepared(key):
                recover = recovers[number]
                members.roll_back(key, recover.slot, recover.reason, folds[number], now_ms)
                counts[number] += 1
                _announce(transaction, slots[recover.slot.address], members, key)
        _save(transaction, slots, members)
        return [answers.get(number, count) for number, count in counts.items()]

    async def inspect(self, slots: Sequence[Slot], now_ms: int) -> list[SlotState]:
        """See `SortedStore.inspect`. It counts, so its time grows with the members in the slots."""
        if not slots:
            return []
        asked = [*{slot.address: (slot.address, _last_rank(slot.kind, now_ms)) for slot in slots}.values()]
        rows = await self._backend.run(lambda t: t.rows("members_count", rows=asked), read_only=True)
        found = {(name, state): (members, first, bounded) for name, state, members, first, bounded in rows}
        return [_state(slot, found) for slot in slots]

    async def dead(self, slot: Slot, after: tuple[int, bytes] = (0, b""), limit: int = 100) -> list[DeadMember]:
        """See `SortedStore.dead`."""
        values = {"slot": slot.address, "after_ms": after[0], "after_member": after[1], "page": limit}
        rows = await self._backend.run(lambda t: t.rows("members_dead", **values), read_only=True)
        return [
            DeadMember(
                slot, *_contents(slot, r.member, r.body, r.note), r.reason, tuple(history_of(r.history)), int(r.rank)
            )
            for r in rows
        ]

    async def waiting(self, slot: Slot, skip: int = 0, limit: int = 100) -> list[Waiting]:
        """See `SortedStore.waiting`."""
        values = {"slot": slot.address, "skip": skip, "page": limit}
        rows = await self._backend.run(lambda t: t.rows("members_waiting", **values), read_only=True)
        page = []
        for r in rows:
            member, body, note = _contents(slot, r.member, r.body, r.note)
            page.append(Waiting(member, score_of(slot.kind, r.rank), body, note, r.merged))
        return page

    def _lock(
        self, transaction: Transaction, asked: Sequence[Add] | Sequence[Settle]
    ) -> tuple[dict[str, Group], list[Key]]:
        """The slots' rows by address, locked, and the keys of the members asked about."""
        slots = self._known.lock_groups(transaction, {each.slot.address for each in asked})
        return slots, [(slots[each.slot.address].id, digest(each.member)) for each in asked]


Accepted = tuple[int, Group, Claim]
"""A claim that was not refused: its number in the call, its slot's row, itself."""


def _turns(accepted: Sequence[Accepted]) -> Iterator[list[Accepted]]:
    """The claims in their order, no slot twice in a turn: what one takes is gone for the next."""
    while accepted:
        turn: dict[int, Accepted] = {}
        for each in accepted:
            turn.setdefault(each[1].id, each)
        yield [*turn.values()]
        numbers = {number for number, *_ in turn.values()}
        accepted = [each for each in accepted if each[0] not in numbers]


def _take(
    transaction: Transaction, turn: Sequence[Accepted], first: dict[int, float | None], now_ms: int
) -> dict[int, list[Entry]]:
    """Prepare the first claimable members for claims of different slots; answers them by the claims' numbers."""
    ready: list[tuple[Accepted, tuple[int, float, int]]] = []
    for each in turn:
        _, slot, claim = each
        rank, last = first[slot.id], _last_rank(claim.slot.kind, claim.until_ms)
        if rank is not None and rank <= last and claim.limit > 0:
            ready.append((each, (slot.id, last, claim.limit)))
    taken: dict[int, list[Entry]] = {}
    prepared: list[tuple[float, int, str]] = []
    second_ms = now_ms // 1000 * 1000
    for index, id_, rank, member, body, note, merged in _first_members(transaction, [asked for _, asked in ready]):
        number, slot, claim = ready[index][0]
        score = score_of(claim.slot.kind, rank)
        token = second_ms + (RETRIES if score > RETRIES else max(0, int(score) - 1))
        prepared.append((float(token), slot.id, id_))
        contents = _contents(claim.slot, member, body, note)
        taken.setdefault(number, []).append(Entry(contents[0], score, token, contents[1], contents[2], merged))
    transaction.write("members_prepare", prepared)
    return taken


def _first_members(transaction: Transaction, asked: list[tuple[int, float, int]]) -> Iterator[Any]:
    """Rows (index of what was asked, id, rank, member, body, note, merged) for each (slot's id, last rank, limit)."""
    if not asked:
        return
    if transaction.is_sqlite:
        statement = transaction.text("members_take")
        cursor = transaction.connection.connection.cursor()
        for index, values in enumerate(asked):
            cursor.execute(statement, values)
            for row in cursor.fetchall():
                yield index, *row
        cursor.close()
    else:
        yield from transaction.rows("members_take", claims=asked)


def _next(transaction: Transaction, slots: Collection[int]) -> dict[int, float | None]:
    """The rank of the first claimable member of each slot, by the slots' ids."""
    rows = transaction.rows("members_next", slots=sorted(slots)) if slots else ()
    return {row[0]: row[1] for row in rows}


def _save(transaction: Transaction, slots: dict[str, Group], members: Members) -> None:
    members.save()
    for slot in slots.values():
        slot.waiting += members.came[slot.id]
    save_groups(transaction, slots.values())


def _announce(transaction: Transaction, slot: Group, members: Members, key: Key) -> None:
    """Wake the slot's claimer if the member may be claimed, and that before all that the claimer knows of."""
    rank = members.claimable(key)
    if rank is not None:
        slot.comes(transaction, rank)


def _folded(asked: Sequence[Add] | Sequence[Settle], keys: Sequence[Key]) -> list[Key]:
    """The keys of members whose bodies may have to be folded."""
    return [*itertools.compress(keys, (each.slot.apart and each.fold.name != "latest" for each in asked))]


def _last_rank(kind: SlotKind, until_ms: int) -> float:
    """The rank up to which members may run."""
    return rank_of(kind, 0) if kind is SlotKind.PRIORITY else until_ms


def _contents(slot: Slot, member: Any, body: Any, note: Any) -> tuple[bytes, bytes, bytes]:
    """Member, body and note, of which only the first is stored unless they are apart."""
    member = bytes(member)
    return (member, bytes(body or b""), bytes(note or b"")) if slot.apart else (member, member, b"")


def _state(slot: Slot, found: dict[tuple[str, int], tuple[int, float | None, int]]) -> SlotState:
    none = (0, None, 0)
    waiting, first, due = found.get((slot.address, WAITING), none)
    prepared, token, _ = found.get((slot.address, PREPARED), none)
    return SlotState(
        waiting,
        due,
        prepared,
        found.get((slot.address, DEAD), none)[0],
        None if first is None else score_of(slot.kind, first),
        None if token is None else int(token) // 1000 * 1000,
    )
