"""The slots of sorted topics in the SQL store."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from emq.runtime import errors
from emq.storage.answers import Failure
from emq.storage.durability import Durability
from emq.storage.slot_store import (
    PAGE_BYTES,
    DeadMember,
    Entry,
    Recover,
    Slot,
    SlotAdd,
    SlotClaim,
    SlotClaimed,
    SlotKind,
    SlotSettle,
    SlotState,
    SlotVerdict,
    Waiting,
    check_scores,
    slot_sealed,
    told_score,
)
from emq_stores import refusals
from emq_stores.sql import slot_recovery
from emq_stores.sql.backend import Backend, Transaction, share_of
from emq_stores.sql.member_rows import (
    DEAD,
    PREPARED,
    WAITING,
    Key,
    beyond,
    digest,
    history_of,
    merged_of,
    rank_of,
    retries_left,
    score_of,
    text_of,
)
from emq_stores.sql.rows import Group, KnownRows, durability_of, save_groups
from emq_stores.sql.slot_members import Members
from emq_stores.sql.texts import restored

_LAST_MS = (1 << 53) - 1
"""Latest time of death that is returned, in ms; up to it, doubles hold every whole number."""


class SqlSorted:
    """`emq.storage.slot_store.SortedStore` in a database.

    Every call is one transaction, under the locks of its slots' rows, unless a row is damaged. A slot has a row of its
    own in `store_groups`, named by its address. Members of equal scores come in the order of their digests.
    """

    def __init__(self, backend: Backend, known: KnownRows) -> None:
        self._backend = backend
        self._known = known

    async def add(
        self, adds: Sequence[SlotAdd], durability: Durability = Durability.ACCEPTED
    ) -> list[bool | errors.QueueSealed | errors.TopicFull | Failure]:
        """See `SortedStore.add`; an add that the topic's Lua fold refuses gets `InvalidMessage`."""
        check_scores(adds)
        return await self._backend.of_each("add to slot", adds, _address, self._add, durability=durability)

    def _add(
        self, transaction: Transaction, adds: Sequence[SlotAdd]
    ) -> list[bool | errors.QueueSealed | errors.TopicFull]:
        slots, keys = self._lock(transaction, adds)
        members = Members(transaction, keys, _folded(adds, keys))
        answers: list[Any] = []
        for add, key in zip(adds, keys, strict=True):
            slot = slots[add.slot.address]
            if slot.sealed:
                answers.append(slot_sealed(add.slot))
                continue
            held = slot.waiting + members.came[slot.id]
            if add.slot.apart:
                slot.fold = text_of(add.fold)
            if add.max_length is not None and held >= add.max_length and not members.waits(key):
                answers.append(refusals.full(f"slot {add.slot.name!r}", held, add.max_length, 1))
                continue
            try:
                answers.append(members.add(key, add))
            except errors.InvalidMessage as exc:
                answers.append(exc)
                continue
            members.announce(slot, key)
        members.save(slots)
        save_groups(transaction, slots.values())
        return answers

    async def claim(
        self, claims: Sequence[SlotClaim], now_ms: int, max_bytes: int = 8 << 20
    ) -> list[SlotClaimed | errors.NotOwner | Failure]:
        """See `SortedStore.claim`."""
        return await self._backend.of_each(
            "claim from slot",
            claims,
            _address,
            lambda t, some: self._claim(t, some, now_ms, share_of(max_bytes, some, claims)),
        )

    def _claim(
        self, transaction: Transaction, claims: Sequence[SlotClaim], now_ms: int, max_bytes: int
    ) -> list[SlotClaimed | errors.NotOwner]:
        slots = self._known.lock_groups(transaction, {claim.slot.address for claim in claims})
        answers: dict[int, SlotClaimed | errors.NotOwner] = {}
        for number, claim in enumerate(claims):
            if stale := slots[claim.slot.address].fence(claim.epoch):
                answers[number] = stale
        accepted = [(n, slots[claim.slot.address], claim) for n, claim in enumerate(claims) if n not in answers]
        first = _next(transaction, {slot.id for _, slot, _ in accepted})
        for turn in _turns(accepted):
            taken = _take(transaction, turn, first, now_ms, max_bytes)
            max_bytes -= sum(len(e.member) + len(e.body) + len(e.note) for entries in taken.values() for e in entries)
            first |= _next(transaction, {slot.id for n, slot, _ in turn if n in taken})
            for number, slot, claim in turn:
                slot.waiting -= len(taken.get(number, ()))
                rank, rest_ms = first[slot.id]
                slot.arm(transaction.instance, rank)
                next_score = None if rank is None else score_of(claim.slot.kind, rank)
                answers[number] = SlotClaimed(taken.get(number, []), next_score, rest_ms)
        save_groups(transaction, slots.values())
        return [answers[number] for number in range(len(claims))]

    async def settle(self, settles: Sequence[SlotSettle]) -> list[bool | errors.NotOwner | Failure]:
        """See `SortedStore.settle`.

        A member that the topic's Lua fold cannot merge with its waiting twin becomes a dead letter. On REPLAY it stays
        dead, and its result is False.
        """
        check_scores(settles)
        durability = durability_of(settles)
        return await self._backend.of_each("settle in slot", settles, _address, self._settle, durability=durability)

    def _settle(self, transaction: Transaction, settles: Sequence[SlotSettle]) -> list[bool | errors.NotOwner]:
        slots, keys = self._lock(transaction, settles)
        members = Members(transaction, keys, _folded(settles, keys))
        now_ms = self._backend.now_ms()
        answers: list[bool | errors.NotOwner] = []
        for settle, key in zip(settles, keys, strict=True):
            slot = slots[settle.slot.address]
            if settle.epoch is not None and (stale := slot.refuses(settle.epoch)):
                answers.append(stale)
                continue
            if settle.verdict.is_of_all:
                answers.append(settle.verdict is SlotVerdict.SEAL or bool(slot.sealed))
                slot.sealed = int(settle.verdict is SlotVerdict.SEAL)
                continue
            if slot.sealed and settle.verdict is SlotVerdict.REPLAY:
                answers.append(False)
                continue
            answers.append(members.settle(key, settle, now_ms))
            members.announce(slot, key)
        members.save(slots)
        save_groups(transaction, slots.values())
        return answers

    async def recover(self, recovers: Sequence[Recover], now_ms: int) -> list[int | errors.NotOwner | Failure]:
        """See `SortedStore.recover`. A member that meets its twin is merged by the fold of the slot's last add."""
        return await self._backend.of_each(
            "recover slot", recovers, _address, lambda t, some: slot_recovery.recover(t, self._known, some, now_ms)
        )

    async def inspect(self, slots: Sequence[Slot], now_ms: int) -> list[SlotState | Failure]:
        """See `SortedStore.inspect`. The database counts, so the time grows with the members in the slots."""
        return await self._backend.of_each(
            "inspect slot",
            slots,
            operator.attrgetter("address"),
            lambda t, some: _inspect(t, some, now_ms),
            read_only=True,
        )

    async def dead(
        self, slot: Slot, after: tuple[int, bytes] = (0, b""), limit: int = 100, max_bytes: int = PAGE_BYTES
    ) -> list[DeadMember]:
        """See `SortedStore.dead`."""
        return await self._backend.run(lambda t: _dead(t, slot, after, limit, max_bytes), read_only=True)

    async def waiting(self, slot: Slot, skip: int = 0, limit: int = 100, max_bytes: int = PAGE_BYTES) -> list[Waiting]:
        """See `SortedStore.waiting`."""
        values = {"slot": slot.address, "skip": skip, "page": limit}
        rows = await self._backend.run(lambda t: t.page("members_waiting", max_bytes, **values), read_only=True)
        page = []
        for r in rows:
            member, body, note = _contents(slot, r.member, r.body, r.note)
            page.append(Waiting(member, score_of(slot.kind, r.rank), body, note, merged_of(r.merged)))
        return page

    def _lock(
        self, transaction: Transaction, asked: Sequence[SlotAdd] | Sequence[SlotSettle]
    ) -> tuple[dict[str, Group], list[Key]]:
        """Lock the slots' rows; return them by address, and the keys of the members asked about."""
        slots = self._known.lock_groups(transaction, {each.slot.address for each in asked})
        return slots, [(slots[each.slot.address].id, digest(each.member)) for each in asked]


def _address(each: SlotAdd | SlotClaim | SlotSettle | Recover) -> str:
    return each.slot.address


Accepted = tuple[int, Group, SlotClaim]
"""An accepted claim: its number in the call, its slot's row, the claim."""

First = tuple[float | None, int | None]
"""Of a slot: the rank of its first claimable member, and the end of its first rest; None if there is no member."""


def _turns(accepted: Sequence[Accepted]) -> Iterator[list[Accepted]]:
    """Divide the claims into turns without a slot twice: members that one claim takes are gone for the next."""
    while accepted:
        turn: dict[int, Accepted] = {}
        for each in accepted:
            turn.setdefault(each[1].id, each)
        yield [*turn.values()]
        numbers = {number for number, *_ in turn.values()}
        accepted = [each for each in accepted if each[0] not in numbers]


def _take(
    transaction: Transaction, turn: Sequence[Accepted], first: dict[int, First], now_ms: int, max_bytes: int
) -> dict[int, list[Entry]]:
    """Prepare the first claimable members for claims of different slots; return them by the numbers of the claims."""
    ready: list[tuple[Accepted, tuple[int, float, int]]] = []
    for each in turn:
        _, slot, claim = each
        rank, last = first[slot.id][0], _last_rank(claim.slot.kind, claim.until_ms)
        if rank is not None and rank <= last and claim.limit > 0:
            ready.append((each, (slot.id, last, claim.limit)))
    taken: dict[int, list[Entry]] = {}
    prepared: list[tuple[float, int, str]] = []
    second_ms = now_ms // 1000 * 1000
    if max_bytes <= 0:
        return taken
    asked = [values for _, values in ready]
    for index, id_, rank, *stored, merged, noted, history in transaction.each(
        "members_take", asked, max_bytes=max_bytes
    ):
        number, slot, claim = ready[index][0]
        score = score_of(claim.slot.kind, rank)
        token = second_ms + retries_left(score, noted)
        prepared.append((float(token), slot.id, id_))
        contents = _contents(claim.slot, *stored)
        failed = (beyond(noted), tuple(history_of(history))) if noted or history else ()
        taken.setdefault(number, []).append(Entry(contents[0], score, token, *contents[1:], merged_of(merged), *failed))
        max_bytes -= sum(len(each or b"") for each in stored)  # member, body and note, as the statement counts them
        if max_bytes <= 0:
            break
    transaction.write("members_prepare", prepared)
    return taken


def _next(transaction: Transaction, slots: Collection[int]) -> dict[int, First]:
    """Return the rank of each slot's first claimable member and the end of its first rest, by the slot's id."""
    rows = transaction.rows("members_next", slots=sorted(slots)) if slots else ()
    return {row[0]: (row[1], row[2]) for row in rows}


def _folded(asked: Sequence[SlotAdd] | Sequence[SlotSettle], keys: Sequence[Key]) -> list[Key]:
    """Return the keys of members whose bodies may need a fold."""
    return [*itertools.compress(keys, (each.slot.apart and each.fold.name != "latest" for each in asked))]


def _last_rank(kind: SlotKind, until_ms: int) -> float:
    """Return the highest rank that a member may have to run now."""
    return rank_of(kind, 0) if kind is SlotKind.PRIORITY else until_ms


def _contents(slot: Slot, member: Any, body: Any, note: Any) -> tuple[bytes, bytes, bytes]:
    """Return member, body and note. Only the member is stored, unless the slot keeps bodies apart."""
    member = bytes(member)
    return (member, bytes(body or b""), bytes(note or b"")) if slot.apart else (member, member, b"")


def _dead(
    transaction: Transaction, slot: Slot, after: tuple[int, bytes], limit: int, max_bytes: int
) -> list[DeadMember]:
    """Return a page of dead members. A time of death that another program wrote is bounded to a valid time, so the
    page's order may differ from the rows' order."""
    found: list[DeadMember] = []
    values = {"slot": slot.address, "after_ms": float(after[0]) if after[0] > 0 else -math.inf, "page": limit}
    skipped = 0
    while True:
        after_member = after[1] if after[0] > 0 else b""
        rows = transaction.page("members_dead", max_bytes, **values, after_member=after_member, skipped=skipped)
        for r in rows:
            dead_ms = int(max(0.0, min(r.rank, _LAST_MS))) if r.rank == r.rank else _LAST_MS
            contents = _contents(slot, r.member, r.body, r.note)
            if (dead_ms, contents[0]) > after:
                found.append(DeadMember(slot, *contents, restored(r.reason), tuple(history_of(r.history)), dead_ms))
        skipped += len(rows)
        if found or not rows:
            return found


def _inspect(transaction: Transaction, slots: Sequence[Slot], now_ms: int) -> Sequence[SlotState]:
    asked = [*{slot.address: (slot.address, _last_rank(slot.kind, now_ms)) for slot in slots}.values()]
    rows = transaction.rows("members_count", rows=asked)
    found = {(row[0], row[1]): (row[2], row[3], row[4], row[5]) for row in rows}
    return [_state(slot, found) for slot in slots]


def _state(slot: Slot, found: dict[tuple[str, int], tuple[int, float | None, int, int]]) -> SlotState:
    none = (0, None, 0, 0)
    waiting, first, due, _ = found.get((slot.address, WAITING), none)
    prepared, token, _, resting = found.get((slot.address, PREPARED), none)
    return SlotState(
        waiting,
        due,
        prepared,
        found.get((slot.address, DEAD), none)[0],
        None if first is None else score_of(slot.kind, first),
        None if token is None else int(told_score(token)) // 1000 * 1000,
        resting,
    )
