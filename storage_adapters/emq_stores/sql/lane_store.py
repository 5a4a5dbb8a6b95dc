"""The lanes of the SQL store."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from emq.runtime import errors
from emq.storage import message
from emq.storage.answers import Failure
from emq.storage.durability import Durability
from emq.storage.lane_store import (
    AHEAD_S,
    MOST_FOUND,
    MOST_TAKEN,
    TAKEN_S,
    Asked,
    DeadEntry,
    EntryState,
    FoundEntry,
    LaneAdd,
    LaneClaim,
    LaneClaimed,
    LaneSettle,
    LaneState,
    LaneVerdict,
    WaitingEntry,
    lane_sealed,
)
from emq.storage.slot_store import PAGE_BYTES
from emq_stores.sql.backend import Backend, Transaction, share_of
from emq_stores.sql.published_ids import PublishedIds
from emq_stores.sql.rows import KnownRows, durability_of, save_groups
from emq_stores.sql.texts import restored, stored, well_formed

WAITING, PREPARED, DEAD = 0, 1, 2
TAKEN = 3
"""State of the row that remains of an entry that was taken for good.

Its due_ms is the time of the taking. Its at_ms is its place in the lane's order: the same time, or the highest at_ms so
far plus one if that is greater. Rows of older versions have the time as at_ms, and 0 as due_ms.
"""

EVER_MS = 1 << 62

_SOURCE = {
    LaneVerdict.ACK: PREPARED,
    LaneVerdict.RETRY: PREPARED,
    LaneVerdict.DEAD: PREPARED,
    LaneVerdict.REPLAY: DEAD,
    LaneVerdict.PURGE: DEAD,
    LaneVerdict.RECALL: WAITING,
}
"""State that an entry must have for each verdict."""


class SqlLanes:
    """`emq.storage.lane_store.LaneStore` in a database.

    Every call is one transaction, under the locks of its lanes' rows, unless a row is damaged. A lane's row is the row
    of its group, so that one fence guards a group's queues and its lane.
    """

    def __init__(self, backend: Backend, known: KnownRows) -> None:
        self._backend = backend
        self._known = known

    async def add(
        self, adds: Sequence[LaneAdd], durability: Durability = Durability.ACCEPTED
    ) -> list[bool | errors.NotOwner | errors.QueueSealed | Failure | None]:
        """See `LaneStore.add`."""
        return await self._backend.of_each("add to lane", adds, _lane, self._add, durability=durability)

    def _add(
        self, transaction: Transaction, adds: Sequence[LaneAdd]
    ) -> list[bool | errors.NotOwner | errors.QueueSealed | None]:
        lanes = self._known.lock_groups(transaction, (add.lane for add in adds))
        keys = [(lanes[add.lane].id, stored(add.id)) for add in adds]
        states, taken_ms = _states(transaction, keys)
        now_ms = self._backend.now_ms()
        asked = [(lanes[add.lane].id, add.label) for add in adds if add.remember_ms]
        published = PublishedIds(transaction, asked, now_ms)
        answers: list[bool | errors.NotOwner | errors.QueueSealed | None] = []
        rows: list[tuple[Any, ...]] = []
        outdated: list[tuple[int, str]] = []
        for add, key in zip(adds, keys, strict=True):
            lane = lanes[add.lane]
            if add.epoch is not None and (stale := lane.fence(add.epoch)):
                answers.append(stale)
                continue
            if lane.sealed and add.epoch is None:
                answers.append(lane_sealed(add.lane))
                continue
            if add.remember_ms and published.is_remembered(lane.id, add.label):
                answers.append(False)
                continue
            if states.get(key) == TAKEN:
                if add.since_ms is not None and taken_ms[key] >= add.since_ms:
                    answers.append(None)
                    continue
                outdated.append(key)
            elif key in states:
                answers.append(False)
                continue
            answers.append(True)
            if add.remember_ms:
                published.remember(lane.id, (add.label,), add.remember_ms)
            states[key] = WAITING if add.reason is None else DEAD
            if add.reason is None:
                rows.append((*key, WAITING, add.due_ms, add.due_ms, add.priority, add.body, ""))
                lane.comes(transaction, add.due_ms)
            else:
                reason = stored(well_formed(add.reason))
                rows.append((*key, DEAD, now_ms, add.due_ms, add.priority, add.body, reason))
        transaction.write("entries_drop", outdated)
        transaction.write("entries_add", rows)
        published.save()
        save_groups(transaction, lanes.values())
        return answers

    async def claim(
        self, claims: Sequence[LaneClaim], now_ms: int, max_bytes: int = 8 << 20
    ) -> list[LaneClaimed | errors.NotOwner | Failure]:
        """See `LaneStore.claim`."""
        return await self._backend.of_each(
            "claim from lane",
            claims,
            _lane,
            lambda t, some: self._claim(t, some, now_ms, share_of(max_bytes, some, claims)),
        )

    def _claim(
        self, transaction: Transaction, claims: Sequence[LaneClaim], now_ms: int, max_bytes: int
    ) -> list[LaneClaimed | errors.NotOwner]:
        lanes = self._known.lock_groups(transaction, (claim.lane for claim in claims))
        stale = {i: refused for i, claim in enumerate(claims) if (refused := lanes[claim.lane].fence(claim.epoch))}
        due = _next_due(transaction, {lanes[claim.lane].id for i, claim in enumerate(claims) if i not in stale})
        ready = []
        for i, claim in enumerate(claims):
            lane_id = lanes[claim.lane].id
            priorities = [] if i in stale else [p for p, due_ms in due.get(lane_id, {}).items() if due_ms <= now_ms]
            if priorities and claim.limit > 0:
                ready.append(_Ready(i, lane_id, claim, priorities))
        taken = _take(transaction, ready, now_ms, max_bytes)
        again = {each.lane_id for each in ready}
        due = {lane_id: of for lane_id, of in due.items() if lane_id not in again} | _next_due(transaction, again)
        kept = _not_waiting(transaction, {lane.id for lane in lanes.values()} - due.keys())
        answers: list[LaneClaimed | errors.NotOwner] = []
        for i, claim in enumerate(claims):
            lane = lanes[claim.lane]
            if i in stale:
                answers.append(stale[i])
                continue
            next_due_ms = min(due.get(lane.id, {}).values(), default=None)
            lane.arm(transaction.instance, next_due_ms)
            answers.append(LaneClaimed(taken.get(i, []), next_due_ms, lane.id not in due and lane.id not in kept))
        save_groups(transaction, lanes.values())
        return answers

    async def settle(self, settles: Sequence[LaneSettle]) -> list[bool | errors.NotOwner | Failure]:
        """See `LaneStore.settle`."""
        durability = durability_of(settles)
        return await self._backend.of_each("settle in lane", settles, _lane, self._settle, durability=durability)

    def _settle(self, transaction: Transaction, settles: Sequence[LaneSettle]) -> list[bool | errors.NotOwner]:
        lanes = self._known.lock_groups(transaction, (settle.lane for settle in settles))
        keys = [(lanes[settle.lane].id, stored(settle.id)) for settle in settles]
        states, times = _states(transaction, keys)
        repeated = _repeated(transaction, zip(settles, keys, strict=True), times)
        now_ms = self._backend.now_ms()
        answers: list[bool | errors.NotOwner] = []
        gone: list[tuple[int, str]] = []
        # By entry: a call may bury an entry and then replay it, and only its last state counts.
        moved: dict[tuple[int, str], tuple[Any, ...]] = {}
        trims: dict[int, int] = {}
        last_taken: dict[int, int] = {}
        for settle, entry in zip(settles, keys, strict=True):
            lane, verdict = lanes[settle.lane], settle.verdict
            if settle.epoch is not None and (stale := lane.fence(settle.epoch)):
                answers.append(stale)
                continue
            if verdict is LaneVerdict.FORGET:
                trims[lane.id] = EVER_MS
                answers.append(True)
                continue
            if verdict.is_of_all:
                answers.append(verdict is LaneVerdict.SEAL or bool(lane.sealed))
                lane.sealed = int(verdict is LaneVerdict.SEAL)
                continue
            sealed = lane.sealed and verdict is LaneVerdict.REPLAY
            answers.append(not sealed and states.get(entry) == _SOURCE[verdict])
            if not answers[-1] or (verdict is LaneVerdict.RETRY and repeated.get(entry) == settle.body):
                continue
            if verdict in (LaneVerdict.PURGE, LaneVerdict.RECALL) and settle.for_good:
                states[entry] = TAKEN
                last = last_taken[lane.id] if lane.id in last_taken else _last_taken(transaction, lane.id)
                last_taken[lane.id] = max(now_ms, last + 1)
                moved[entry] = (TAKEN, last_taken[lane.id], now_ms, 0, b"", "", *entry)
                trims[lane.id] = now_ms - (TAKEN_S + AHEAD_S) * 1000
            elif verdict in (LaneVerdict.ACK, LaneVerdict.PURGE, LaneVerdict.RECALL):
                del states[entry]
                moved.pop(entry, None)
                gone.append(entry)
            elif verdict is LaneVerdict.DEAD:
                states[entry] = DEAD
                reason = stored(well_formed(settle.reason))
                moved[entry] = (DEAD, now_ms, settle.due_ms, settle.priority, settle.body, reason, *entry)
            else:
                states[entry] = WAITING
                moved[entry] = (WAITING, settle.due_ms, settle.due_ms, settle.priority, settle.body, "", *entry)
                lane.comes(transaction, settle.due_ms)
        transaction.write("entries_drop", gone)
        transaction.write("entries_move", [*moved.values()])
        for lane_id, before_ms in trims.items():
            transaction.rows("entries_forget", lane=lane_id, before_ms=before_ms, most=MOST_TAKEN)
        save_groups(transaction, lanes.values())
        return answers

    async def recover(
        self, lanes: Sequence[tuple[str, int]], older_than_ms: int | None = None
    ) -> list[int | errors.NotOwner | Failure]:
        """See `LaneStore.recover`. Entries keep their due time from before the claim."""
        return await self._backend.of_each(
            "recover lane", lanes, operator.itemgetter(0), lambda t, some: self._recover(t, some, older_than_ms)
        )

    def _recover(
        self, transaction: Transaction, asked: Sequence[tuple[str, int]], older_than_ms: int | None
    ) -> list[int | errors.NotOwner]:
        lanes = self._known.lock_groups(transaction, (name for name, _ in asked))
        by_id = {lane.id: lane for lane in lanes.values()}
        counts = dict.fromkeys(by_id, 0)
        stale = [lanes[name].fence(epoch) for name, epoch in asked]
        accepted = dict([each for each, error in zip(asked, stale, strict=True) if error is None])
        rows = [(lanes[name].id, epoch) for name, epoch in accepted.items()]
        for lane_id, due_ms in transaction.rows("entries_recover", rows=rows, older_than_ms=older_than_ms):
            counts[lane_id] += 1
            by_id[lane_id].comes(transaction, due_ms)
        save_groups(transaction, lanes.values())
        return [error or counts[lanes[name].id] for (name, _), error in zip(asked, stale, strict=True)]

    async def inspect(self, lanes: Sequence[str]) -> list[LaneState | Failure]:
        """See `LaneStore.inspect`. The database counts, so the time grows with the entries in the lanes."""
        return await self._backend.of_each("inspect lane", lanes, str, _inspect, read_only=True)

    async def find(self, asked: Sequence[Asked]) -> list[list[FoundEntry] | Failure]:
        """See `LaneStore.find`."""
        return await self._backend.of_each("find in lane", asked, lambda each: each.lane, _find, read_only=True)

    async def dead(
        self, lane: str, after: tuple[int, str] = (0, ""), limit: int = 100, max_bytes: int = PAGE_BYTES
    ) -> list[DeadEntry]:
        """See `LaneStore.dead`."""
        values = {"lane": lane, "after_ms": after[0], "after_id": stored(after[1]), "page": limit}
        rows = await self._backend.run(lambda t: t.page("entries_dead", max_bytes, **values), read_only=True)
        return [DeadEntry(lane, restored(row.id), bytes(row.body), restored(row.reason), row.at_ms) for row in rows]

    async def waiting(
        self, lane: str, skip: int = 0, limit: int = 100, max_bytes: int = PAGE_BYTES
    ) -> list[WaitingEntry]:
        """See `LaneStore.waiting`. The database walks over skipped entries, so the time grows with `skip`."""
        values = {"lane": lane, "skipped": skip, "page": limit}
        rows = await self._backend.run(lambda t: t.page("entries_waiting", max_bytes, **values), read_only=True)
        return [WaitingEntry(restored(row.id), bytes(row.body), row.at_ms, row.priority) for row in rows]


def _lane(each: LaneAdd | LaneClaim | LaneSettle) -> str:
    return each.lane


def _inspect(transaction: Transaction, names: Sequence[str]) -> Sequence[LaneState]:
    rows = transaction.rows("entries_count", names=sorted(set(names)))
    found = {(name, state): (entries, first_ms) for name, state, entries, first_ms, _ in rows}
    sealed = {name for name, *_, is_sealed in rows if is_sealed}
    none = (0, None)
    return [
        LaneState(
            found.get((name, WAITING), none)[0],
            found.get((name, PREPARED), none)[0],
            found.get((name, DEAD), none)[0],
            found.get((name, WAITING), none)[1],
            name in sealed,
        )
        for name in names
    ]


def _find(transaction: Transaction, asked: Sequence[Asked]) -> Sequence[list[FoundEntry]]:
    """Look for each id, and in the range of names that may have it as their label."""
    found: list[list[FoundEntry]] = []
    for lane, id_, after in asked:
        names = {"id": stored(id_), "begin": stored(id_ + message.MARK), "end": stored(id_ + _BEHIND_MARK)}
        last: str = stored(after)
        mine: list[FoundEntry] = []
        while len(mine) < MOST_FOUND:
            rows = transaction.rows("entries_named", lane=lane, after=last, page=MOST_FOUND, **names)
            each = ((restored(uid), state) for uid, state in rows)
            mine += [FoundEntry(uid, _STATES[state]) for uid, state in each if id_ in (uid, message.label(uid))]
            if len(rows) < MOST_FOUND:
                break
            last = rows[-1][0]
        found.append(mine[:MOST_FOUND])
    return found


_BEHIND_MARK = chr(ord(message.MARK) + 1)
_STATES = {WAITING: EntryState.WAITING, PREPARED: EntryState.PREPARED, DEAD: EntryState.DEAD}


def _states(
    transaction: Transaction, entries: list[tuple[int, str]]
) -> tuple[dict[tuple[int, str], int], dict[tuple[int, str], int]]:
    """Return the states of entries, and times in ms: when entries were taken for good, when claimed ones were due."""
    rows = transaction.rows("entries_find", rows=entries)
    states = {(lane_id, id_): state for lane_id, id_, state, _, _ in rows}
    timed = [row for row in rows if row[2] in (TAKEN, PREPARED)]
    return states, {(lane_id, id_): due_ms or at_ms for lane_id, id_, _, at_ms, due_ms in timed}


def _repeated(
    transaction: Transaction,
    settles: Iterable[tuple[LaneSettle, tuple[int, str]]],
    times: dict[tuple[int, str], int],
) -> dict[tuple[int, str], bytes]:
    """Return the bodies of claimed entries whose RETRY may be a repeat, since it has their due time."""
    asked = [e for s, e in settles if s.verdict is LaneVerdict.RETRY and times.get(e) == s.due_ms]
    rows = transaction.rows("entries_bodies", rows=asked) if asked else ()
    return {(lane_id, id_): bytes(body) for lane_id, id_, body in rows}


def _last_taken(transaction: Transaction, lane_id: int) -> int:
    return max((at_ms for (at_ms,) in transaction.rows("entries_taken", lane=lane_id)), default=0)


class _Ready(NamedTuple):
    """A claim by its number, and the priorities of its lane that have due entries, highest first."""

    number: int
    lane_id: int
    claim: LaneClaim
    priorities: Sequence[int]


def _next_due(transaction: Transaction, lanes: set[int]) -> dict[int, dict[int, int]]:
    """Return, by lane and priority, the due time of the next entry, in order of priority."""
    found: dict[int, dict[int, int]] = {}
    if lanes:
        for lane_id, priority, due_ms in transaction.rows("entries_next", lanes=sorted(lanes)):
            found.setdefault(lane_id, {})[priority] = due_ms
    return found


def _not_waiting(transaction: Transaction, lanes: set[int]) -> set[int]:
    """Return those of the lanes that have claimed or dead entries."""
    return {lane_id for (lane_id,) in transaction.rows("entries_any", lanes=sorted(lanes))} if lanes else set()


def _take(
    transaction: Transaction, ready: Sequence[_Ready], now_ms: int, max_bytes: int
) -> dict[int, list[tuple[str, bytes]]]:
    """Prepare the first due entries for claims; return the entries by the numbers of the claims."""
    probes = [(r.lane_id, p, now_ms, min(r.claim.limit, _room(r.claim.rooms, p))) for r in ready for p in r.priorities]
    found = iter(_due(transaction, probes, max_bytes))
    taken: dict[int, list[tuple[str, bytes]]] = {}
    for number, _, claim, priorities in ready:
        mine = taken[number] = []
        rooms = list(claim.rooms)
        for priority in priorities:
            first = next(found)[: min(claim.limit - len(mine), _room(rooms, priority))]
            mine += first
            if rooms:
                rooms[min(priority, len(rooms) - 1)] -= len(first)
    rows = [(now_ms, r.claim.epoch, r.lane_id, stored(id_)) for r in ready for id_, _ in taken[r.number]]
    transaction.write("entries_prepare", rows)
    return taken


def _room(rooms: Sequence[int], priority: int) -> int:
    return rooms[min(priority, len(rooms) - 1)] if rooms else sys.maxsize


def _due(
    transaction: Transaction, probes: Sequence[tuple[int, int, int, int]], max_bytes: int
) -> list[list[tuple[str, bytes]]]:
    """Return the due entries of each probe (lane's id, priority, now in ms, limit), until `max_bytes` of bodies."""
    found: list[list[tuple[str, bytes]]] = [[] for _ in probes]
    for number, id_, body in transaction.each("entries_due", probes, max_bytes=max_bytes):
        found[number].append((restored(id_), bytes(body)))
        max_bytes -= len(body)
        if max_bytes <= 0:
            break
    return found
