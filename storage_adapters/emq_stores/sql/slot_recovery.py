"""Recovery of slots in the SQL store: ends rests, and rolls back claims that nobody will settle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from emq.runtime import errors
from emq.storage.slot_store import Fold, Recover
from emq_stores.sql.backend import Transaction
from emq_stores.sql.member_rows import Key, digest, fold_of
from emq_stores.sql.rows import Group, KnownRows, save_groups
from emq_stores.sql.slot_members import Members

RECOVERED_AT_ONCE = 1_000
FOLDED_AT_ONCE = 8
"""Most members that roll back together if their bodies may be folded, since all these bodies are in memory at once."""

_EVERYTHING = 1 << 62
"""A number above all tokens."""


class _Found(NamedTuple):
    """A member to bring back: the number of its request, its key, and the end and rank of its rest if it rested."""

    number: int
    key: Key
    rest_ms: int = 0
    rank: float = 0.0


def recover(
    transaction: Transaction, known: KnownRows, recovers: Sequence[Recover], now_ms: int
) -> list[int | errors.NotOwner]:
    """Carry out the requests; return for each the number of members rolled back, or the refusal."""
    slots = known.lock_groups(transaction, {recover.slot.address for recover in recovers})
    refused: dict[int, errors.NotOwner] = {}
    wanted: list[tuple[int, int, int, int]] = []
    held: dict[int, set[str]] = {}
    for number, recover in enumerate(recovers):
        slot = slots[recover.slot.address]
        seen = slot.epoch
        # A token holds whole seconds.
        timed = -(-(recover.older_than_ms or 0) // 1000) * 1000
        if stale := slot.fence(recover.epoch):
            refused[number] = stale
        elif recover.epoch > seen:
            wanted.append((number, slot.id, _EVERYTHING, timed))
        elif recover.lost or recover.older_than_ms is not None:
            wanted.append((number, slot.id, _EVERYTHING if recover.lost else timed, timed))
            held[number] = {digest(member) for member in recover.held}
    accepted = [(n, slots[r.slot.address].id, now_ms) for n, r in enumerate(recovers) if n not in refused]
    rows = transaction.rows("rests_due", rows=accepted) if accepted else []
    rested = [_Found(number, (slot_id, id_), rest_ms, rank) for number, slot_id, id_, rest_ms, rank in rows]
    over = {found.key for found in rested}
    rows = transaction.rows("members_prepared", rows=wanted) if wanted else []
    gone = [
        _Found(number, (slot_id, id_))
        for number, slot_id, id_ in rows
        if id_ not in held.get(number, ()) and (slot_id, id_) not in over
    ]
    folds = {number: fold_of(slots[recovers[number].slot.address].fold) for number, *_ in rested + gone}
    counts = dict.fromkeys(range(len(recovers)), 0)

    def end_rest(members: Members, found: _Found) -> None:
        slot = recovers[found.number].slot
        members.end_rest(found.key, slot, found.rest_ms, found.rank, folds[found.number], now_ms)
        members.announce(slots[slot.address], found.key)

    def roll_back(members: Members, found: _Found) -> None:
        # Two recoveries of one slot may both have found the member.
        if members.is_prepared(found.key):
            recover = recovers[found.number]
            members.roll_back(found.key, recover.slot, recover.reason, folds[found.number], now_ms)
            counts[found.number] += 1
            members.announce(slots[recover.slot.address], found.key)

    _in_parts(transaction, slots, rested, folds, end_rest)
    _in_parts(transaction, slots, gone, folds, roll_back)
    save_groups(transaction, slots.values())
    return [refused.get(number, count) for number, count in counts.items()]


def _in_parts(
    transaction: Transaction,
    slots: dict[str, Group],
    found: Sequence[_Found],
    folds: dict[int, Fold],
    bring_back: Callable[[Members, _Found], None],
) -> None:
    """Load members, bring them back and save them, as many at once as fit into memory."""
    plain = all(fold.name == "latest" for fold in folds.values())
    size = RECOVERED_AT_ONCE if plain else FOLDED_AT_ONCE
    for start in range(0, len(found), size):
        part = found[start : start + size]
        folded = [each.key for each in part if folds[each.number].name != "latest"]
        members = Members(transaction, (each.key for each in part), folded)
        for each in part:
            bring_back(members, each)
        members.save(slots)
