"""The lanes of the SQL store."""

from __future__ import annotations

import operator
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from emq import errors
from emq.storage.answers import Failure
from emq.storage.store import (
    PAGE_BYTES,
    Add,
    Claim,
    Claimed,
    DeadLetter,
    Durability,
    LaneState,
    Settle,
    Verdict,
    WaitingEntry,
    lane_sealed,
)
from storage_adapters.sql.backend import Backend, Transaction
from storage_adapters.sql.rows import Known, durability_of, save_groups
from storage_adapters.sql.texts import restored, stored, well_formed

WAITING, PREPARED, DEAD = 0, 1, 2

_SOURCE = {
    Verdict.ACK: PREPARED,
    Verdict.RETRY: PREPARED,
    Verdict.DEAD: PREPARED,
    Verdict.REPLAY: DEAD,
    Verdict.PURGE: DEAD,
    Verdict.RECALL: WAITING,
}
"""The state from which each verdict starts."""


class SqlLanes:
    """`emq.storage.store.LaneStore` in a database; every call is one transaction, under the locks of its slots' rows,
    unless a row is damaged.

    A slot's row is the row of its group, so that one fence guards both halves of a group.
    """

    def __init__(self, backend: Backend, known: Known) -> None:
        self._backend = backend
        self._known = known

    async def add(
        self, adds: Sequence[Add], durability: Durability = Durability.ACCEPTED
    ) -> list[bool | errors.NotOwner | errors.QueueSealed | Failure]:
        """See `LaneStore.add`."""
        if not adds:
            return []
        return await self._backend.of_each("add to lane", adds, _slot, self._add, durability=durability)

    def _add(self, transaction: Transaction, adds: Sequence[Add]) -> list[bool | errors.NotOwner | errors.QueueSealed]:
        slots = self._known.lock_groups(transaction, (add.slot for add in adds))
        keys = [(slots[add.slot].id, stored(add.id)) for add in adds]
        present = set(_states(transaction, keys))
        now_ms = self._backend.now_ms()
        answers: list[bool | errors.NotOwner | errors.QueueSealed] = []
        rows: list[tuple[Any, ...]] = []
        for add, key in zip(adds, keys, strict=True):
            slot = slots[add.slot]
            if add.epoch is not None and (stale := slot.fence(add.epoch)):
                answers.append(stale)
                continue
            if slot.sealed and add.epoch is None:
                answers.append(lane_sealed(add.slot))
                continue
            new = key not in present
            answers.append(new)
            if not new:
                continue
            present.add(key)
            if add.reason is None:
                rows.append((*key, WAITING, add.due_ms, add.due_ms, add.priority, add.body, ""))
                slot.comes(transaction, add.due_ms)
            else:
                reason = stored(well_formed(add.reason))
                rows.append((*key, DEAD, now_ms, add.due_ms, add.priority, add.body, reason))
        transaction.write("entries_add", rows)
        save_groups(transaction, slots.values())
        return answers

    async def claim(
        self, claims: Sequence[Claim], now_ms: int, max_bytes: int = 8 << 20
    ) -> list[Claimed | errors.NotOwner | Failure]:
        """See `LaneStore.claim`."""
        if not claims:
            return []
        return await self._backend.of_each(
            "claim from lane",
            claims,
            _slot,
            lambda t, some: self._claim(t, some, now_ms, max(max_bytes * len(some) // len(claims), 1)),
        )

    def _claim(
        self, transaction: Transaction, claims: Sequence[Claim], now_ms: int, max_bytes: int
    ) -> list[Claimed | errors.NotOwner]:
        slots = self._known.lock_groups(transaction, (claim.slot for claim in claims))
        stale = {i: refused for i, claim in enumerate(claims) if (refused := slots[claim.slot].fence(claim.epoch))}
        due = _next_due(transaction, {slots[claim.slot].id for i, claim in enumerate(claims) if i not in stale})
        ready = []
        for i, claim in enumerate(claims):
            slot_id = slots[claim.slot].id
            priorities = [] if i in stale else [p for p, due_ms in due.get(slot_id, {}).items() if due_ms <= now_ms]
            if priorities and claim.limit > 0:
                ready.append(_Ready(i, slot_id, claim, priorities))
        taken = _take(transaction, ready, now_ms, max_bytes)
        again = {each.slot_id for each in ready}
        due = {slot_id: of for slot_id, of in due.items() if slot_id not in again} | _next_due(transaction, again)
        answers: list[Claimed | errors.NotOwner] = []
        for i, claim in enumerate(claims):
            slot = slots[claim.slot]
            if i in stale:
                answers.append(stale[i])
                continue
            next_due_ms = min(due.get(slot.id, {}).values(), default=None)
            slot.arm(transaction.instance, next_due_ms)
            answers.append(Claimed(taken.get(i, []), next_due_ms))
        save_groups(transaction, slots.values())
        return answers

    async def settle(self, settles: Sequence[Settle]) -> list[bool | errors.NotOwner | Failure]:
        """See `LaneStore.settle`."""
        if not settles:
            return []
        durability = durability_of(settles)
        return await self._backend.of_each("settle in lane", settles, _slot, self._settle, durability=durability)

    def _settle(self, transaction: Transaction, settles: Sequence[Settle]) -> list[bool | errors.NotOwner]:
        slots = self._known.lock_groups(transaction, (settle.slot for settle in settles))
        keys = [(slots[settle.slot].id, stored(settle.id)) for settle in settles]
        states = _states(transaction, keys)
        now_ms = self._backend.now_ms()
        answers: list[bool | errors.NotOwner] = []
        gone: list[tuple[int, str]] = []
        # By entry: a call may replay a dead letter after it has buried it, and then only the last state counts.
        moved: dict[tuple[int, str], tuple[Any, ...]] = {}
        for settle, entry in zip(settles, keys, strict=True):
            slot, verdict = slots[settle.slot], settle.verdict
            if settle.epoch is not None and (stale := slot.fence(settle.epoch)):
                answers.append(stale)
                continue
            if verdict.is_of_all:
                slot.sealed = int(verdict is Verdict.SEAL)
                answers.append(True)
                continue
            sealed = slot.sealed and verdict is Verdict.REPLAY
            answers.append(not sealed and states.get(entry) == _SOURCE[verdict])
            if not answers[-1]:
                continue
            if verdict in (Verdict.ACK, Verdict.PURGE, Verdict.RECALL):
                del states[entry]
                moved.pop(entry, None)
                gone.append(entry)
            elif verdict is Verdict.DEAD:
                states[entry] = DEAD
                reason = stored(well_formed(settle.reason))
                moved[entry] = (DEAD, now_ms, settle.due_ms, settle.priority, settle.body, reason, *entry)
            else:
                states[entry] = WAITING
                moved[entry] = (WAITING, settle.due_ms, settle.due_ms, settle.priority, settle.body, "", *entry)
                slot.comes(transaction, settle.due_ms)
        transaction.write("entries_drop", gone)
        transaction.write("entries_move", [*moved.values()])
        save_groups(transaction, slots.values())
        return answers

    async def recover(self, slots: Sequence[tuple[str, int]], older_than_ms: int | None = None) -> list[int | Failure]:
        """See `LaneStore.recover`. Entries keep the due time that they had when they were claimed."""
        if not slots:
            return []
        return await self._backend.of_each(
            "recover lane", slots, operator.itemgetter(0), lambda t, some: self._recover(t, some, older_than_ms)
        )

    def _recover(
        self, transaction: Transaction, asked: Sequence[tuple[str, int]], older_than_ms: int | None
    ) -> list[int]:
        slots = self._known.lock_groups(transaction, (name for name, _ in asked))
        by_id = {slot.id: slot for slot in slots.values()}
        counts = dict.fromkeys(by_id, 0)
        rows = [(slots[name].id, epoch) for name, epoch in dict(asked).items()]
        for slot_id, due_ms in transaction.rows("entries_recover", rows=rows, older_than_ms=older_than_ms):
            counts[slot_id] += 1
            by_id[slot_id].comes(transaction, due_ms)
        save_groups(transaction, slots.values())
        return [counts[slots[name].id] for name, _ in asked]

    async def inspect(self, slots: Sequence[str]) -> list[LaneState | Failure]:
        """See `LaneStore.inspect`. It counts, so its time grows with the entries in the slots."""
        if not slots:
            return []
        return await self._backend.of_each("inspect lane", slots, str, _inspect, read_only=True)

    async def dead(
        self, slot: str, after: tuple[int, str] = (0, ""), limit: int = 100, max_bytes: int = PAGE_BYTES
    ) -> list[DeadLetter]:
        """See `LaneStore.dead`."""
        values = {"slot": slot, "after_ms": after[0], "after_id": stored(after[1]), "page": limit}
        rows = await self._backend.run(lambda t: t.page("entries_dead", max_bytes, **values), read_only=True)
        return [DeadLetter(slot, restored(row.id), bytes(row.body), restored(row.reason), row.at_ms) for row in rows]

    async def waiting(
        self, slot: str, skip: int = 0, limit: int = 100, max_bytes: int = PAGE_BYTES
    ) -> list[WaitingEntry]:
        """See `LaneStore.waiting`. It walks over what is skipped, so its time grows with the place of the page."""
        values = {"slot": slot, "skipped": skip, "page": limit}
        rows = await self._backend.run(lambda t: t.page("entries_waiting", max_bytes, **values), read_only=True)
        return [WaitingEntry(restored(row.id), bytes(row.body), row.at_ms, row.priority) for row in rows]


def _slot(each: Add | Claim | Settle) -> str:
    return each.slot


def _inspect(transaction: Transaction, names: Sequence[str]) -> Sequence[LaneState]:
    rows = transaction.rows("entries_count", names=sorted(set(names)))
    found = {(name, state): (entries, first_ms) for name, state, entries, first_ms in rows}
    none = (0, None)
    return [
        LaneState(
            found.get((name, WAITING), none)[0],
            found.get((name, PREPARED), none)[0],
            found.get((name, DEAD), none)[0],
            found.get((name, WAITING), none)[1],
        )
        for name in names
    ]


def _states(transaction: Transaction, entries: list[tuple[int, str]]) -> dict[tuple[int, str], int]:
    rows = transaction.rows("entries_find", rows=entries)
    return {(slot_id, id_): state for slot_id, id_, state in rows}


class _Ready(NamedTuple):
    """A claim, by its number, and the priorities of its slot of which some is due, highest first."""

    number: int
    slot_id: int
    claim: Claim
    priorities: Sequence[int]


def _next_due(transaction: Transaction, slots: set[int]) -> dict[int, dict[int, int]]:
    """By slot and priority, when the next one is due; in order of priority."""
    found: dict[int, dict[int, int]] = {}
    if slots:
        for slot_id, priority, due_ms in transaction.rows("entries_next", slots=sorted(slots)):
            found.setdefault(slot_id, {})[priority] = due_ms
    return found


def _take(
    transaction: Transaction, ready: Sequence[_Ready], now_ms: int, max_bytes: int
) -> dict[int, list[tuple[str, bytes]]]:
    """Prepare the first due entries for claims; answers them by the claims' numbers."""
    probes = [(r.slot_id, p, min(r.claim.limit, _room(r.claim.rooms, p))) for r in ready for p in r.priorities]
    found = iter(_due(transaction, probes, now_ms, max_bytes))
    taken: dict[int, list[tuple[str, bytes]]] = {}
    for number, _, claim, priorities in ready:
        mine = taken[number] = []
        rooms = list(claim.rooms)
        for priority in priorities:
            first = next(found)[: min(claim.limit - len(mine), _room(rooms, priority))]
            mine += first
            if rooms:
                rooms[min(priority, len(rooms) - 1)] -= len(first)
    rows = [(now_ms, r.claim.epoch, r.slot_id, stored(id_)) for r in ready for id_, _ in taken[r.number]]
    transaction.write("entries_prepare", rows)
    return taken


def _room(rooms: Sequence[int], priority: int) -> int:
    return rooms[min(priority, len(rooms) - 1)] if rooms else sys.maxsize


def _due(
    transaction: Transaction, probes: Sequence[tuple[int, int, int]], now_ms: int, max_bytes: int
) -> list[list[tuple[str, bytes]]]:
    """What is due for each probe (slot's id, priority, limit), until `max_bytes` of bodies are gathered."""
    found: list[list[tuple[str, bytes]]] = [[] for _ in probes]
    if not probes:
        return found
    if transaction.is_sqlite:
        statement = transaction.text("entries_due")
        cursor = transaction.connection.connection.cursor()
        for of_probe, (slot_id, priority, limit) in zip(found, probes, strict=True):
            if max_bytes <= 0:
                break
            cursor.execute(statement, (slot_id, priority, now_ms, limit))
            while max_bytes > 0 and (row := cursor.fetchone()):
                of_probe.append((restored(row[0]), row[1]))
                max_bytes -= len(row[1])
        cursor.close()
    else:
        for index, id_, body in transaction.rows("entries_due", probes=probes, now_ms=now_ms, max_bytes=max_bytes):
            found[index].append((restored(id_), bytes(body)))
    return found
