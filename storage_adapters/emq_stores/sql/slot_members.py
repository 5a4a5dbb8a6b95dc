"""Members of slots within one transaction: the store reads them, changes them in Python, and writes them back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from emq.runtime import errors
from emq.storage import folds
from emq.storage.slot_store import Fold, Slot, SlotAdd, SlotSettle, SlotVerdict, resting_ms, told_score
from emq_stores.sql.backend import Transaction
from emq_stores.sql.damage import MOST
from emq_stores.sql.member_rows import (
    DEAD,
    PREPARED,
    WAITING,
    Key,
    Member,
    history_of,
    joined,
    merged_of,
    noted_retries,
    rank_of,
    score_of,
)
from emq_stores.sql.rows import Group
from emq_stores.sql.texts import restored, stored, well_formed

_SOURCES = {
    SlotVerdict.ACK: PREPARED,
    SlotVerdict.RETRY: PREPARED,
    SlotVerdict.REST: PREPARED,
    SlotVerdict.YIELD: PREPARED,
    SlotVerdict.DEAD: PREPARED,
    SlotVerdict.REPLAY: DEAD,
    SlotVerdict.PURGE: DEAD,
    SlotVerdict.RECALL: WAITING,
}


class Members:
    """The members that a transaction changes, in all their states; the transaction has locked their slots.

    Args:
        transaction: the open transaction.
        keys: members to load.
        folded: the keys of members whose bodies the transaction may fold.

    Attributes:
        came: by slot's id, the change in the number of waiting members; below 0 if there are fewer.
    """

    def __init__(self, transaction: Transaction, keys: Iterable[Key], folded: Collection[Key] = ()) -> None:
        self.came: Counter[int] = Counter()
        self._transaction = transaction
        self._dropped: list[tuple[int, str, int]] = []
        self._resting: set[Key] = set()
        self._rests: dict[Key, tuple[int, float]] = {}
        self._rested: set[Key] = set()
        self._states: dict[Key, list[Member | None]] = {key: [None, None, None] for key in keys}
        if not self._states:
            return
        for slot_id, id_, state, rank, merged, reason, history in transaction.rows(
            "members_find", rows=[*self._states]
        ):
            if not 0 < merged_of(merged) < MOST:
                merged = 1  # damaged; the sum of two such numbers would not fit into the column
            self._states[slot_id, id_][state] = Member(
                state, float(told_score(rank)), merged, restored(reason), history
            )
        prepared = [key for key, states in self._states.items() if states[PREPARED] is not None]
        if prepared:
            self._resting.update((row[0], row[1]) for row in transaction.rows("rests_find", rows=prepared))
        # A merge needs a waiting member, or two members that may wait or die in this transaction.
        twins = [key for key in set(folded) if self._states[key][WAITING] or all(self._states[key][PREPARED:])]
        if twins:
            for slot_id, id_, state, body, note in transaction.rows("members_bodies", rows=twins):
                member = self._states[slot_id, id_][state]
                assert member is not None
                member.body, member.note = bytes(body or b""), bytes(note or b"")

    def claimable(self, key: Key) -> float | None:
        """Return the rank of a waiting member without a twin in prepare; None for other members."""
        waiting, prepared, _ = self._states[key]
        return waiting.rank if waiting is not None and prepared is None else None

    def waits(self, key: Key) -> bool:
        return self._states[key][WAITING] is not None

    def is_prepared(self, key: Key) -> bool:
        return self._states[key][PREPARED] is not None

    def add(self, key: Key, add: SlotAdd) -> bool:
        """Add a member, or merge it with its waiting twin; return whether it was new.

        Raises:
            InvalidMessage: `folds.apply` raised it; nothing was applied.
        """
        slot, rank = add.slot, rank_of(add.slot.kind, add.score)
        twin = self._states[key][WAITING]
        if twin is None:
            new = self._states[key][WAITING] = Member(None, rank)
            new.member = add.member
            self.came[key[0]] += 1
            if slot.apart:
                new.fill(folds.initial(add.fold, add.body), add.note)
            return True
        if slot.apart:
            body = folds.initial(add.fold, add.body)
            if add.fold.name != "latest":
                body = folds.apply(add.fold, twin.body or b"", body)
            twin.fill(body, add.note)
            twin.merged += 1
            twin.changed = True
        kept = rank_of(slot.kind, add.keep.of(score_of(slot.kind, twin.rank), add.score))
        twin.changed |= kept != twin.rank
        twin.rank = kept
        return False

    def settle(self, key: Key, settle: SlotSettle, now_ms: int) -> bool:
        """Carry out a verdict; return False if it does not apply. A member that cannot be folded with its twin dies."""
        verdict, source = settle.verdict, _SOURCES[settle.verdict]
        found = self._states[key][source]
        if found is None or (source == PREPARED and (found.rank != settle.token or key in self._resting)):
            return False
        match verdict:
            case SlotVerdict.REST:
                found.failed(now_ms, settle.reason)
                self._rest(key, found, settle)
            case SlotVerdict.YIELD if not self.waits(key):
                return False
            case SlotVerdict.RETRY | SlotVerdict.YIELD:
                self._keep(key, settle)
                self._retry(key, settle.slot, settle.score, settle.reason, settle.fold, now_ms)
            case SlotVerdict.DEAD:
                self._die(key, settle.slot, settle.reason, settle.fold, now_ms)
            case SlotVerdict.REPLAY:
                return self._wait_again(key, DEAD, settle.slot, settle.score, settle.fold) is None
            case _:
                self._drop(key, source)
        return True

    def end_rest(self, key: Key, slot: Slot, rest_ms: int, rank: float, fold: Fold, now_ms: int) -> None:
        """Let a rested member wait again, unless another program took it out of prepare since."""
        found = self._states[key][PREPARED]
        if found is not None and int(found.rank) // 1000 * 1000 == resting_ms(rest_ms):
            self._retry(key, slot, score_of(slot.kind, rank), "", fold, now_ms)
        self._resting.discard(key)
        self._rested.add(key)

    def roll_back(self, key: Key, slot: Slot, reason: str, fold: Fold, now_ms: int) -> None:
        """Put a prepared member back with its remaining retries; make it dead if it has none."""
        found = self._states[key][PREPARED]
        assert found is not None
        left = int(found.rank) % 1000
        if left:
            self._retry(key, slot, left, reason, fold, now_ms)
        else:
            self._die(key, slot, reason, fold, now_ms)
        if key in self._resting:
            self._resting.discard(key)
            self._rested.add(key)

    def announce(self, slot: Group, key: Key) -> None:
        """Wake the slot's claimer if the member may be claimed before all members that the claimer knows of."""
        rank = self.claimable(key)
        if rank is not None:
            slot.comes(self._transaction, rank)

    def save(self, slots: Mapping[str, Group]) -> None:
        """Write the changed members back, and note in the slots how many members wait."""
        for slot in slots.values():
            slot.waiting += self.came[slot.id]
        new, filled = [], []
        moved: dict[int, list[tuple[object, ...]]] = {WAITING: [], PREPARED: [], DEAD: []}
        for key, states in self._states.items():
            for state, m in enumerate(states):
                if m is None:
                    continue
                if m.origin is None:
                    new.append((*key, m.rank, m.member, m.body, m.note, m.merged))
                    continue
                if m.filled:
                    filled.append((m.rank, m.merged, m.reason, m.history, m.body, m.note, *key, state))
                if m.changed and not (m.filled and m.origin == state):
                    moved[state].append((state, m.rank, m.merged, stored(m.reason), m.history, *key, m.origin))
        self._transaction.write("members_drop", self._dropped)
        self._transaction.write("members_add", new)
        # A replayed member must leave its place before its twin takes the place by its death.
        self._transaction.write("members_move", moved[PREPARED])
        self._transaction.write("rests_drop", [*self._rested])
        self._transaction.write("rests_add", [(*key, *rest) for key, rest in self._rests.items()])
        self._transaction.write("members_move", moved[WAITING])
        self._transaction.write("members_move", moved[DEAD])
        self._transaction.write("members_fill", filled)

    def _keep(self, key: Key, settle: SlotSettle) -> None:
        """Give the waiting twin of a member that goes back without a run the score that `settle.keep` chooses."""
        twin = self._states[key][WAITING]
        if twin is not None and settle.keep is not None:
            kind = settle.slot.kind
            rank = rank_of(kind, settle.keep.of(settle.score, score_of(kind, twin.rank)))
            twin.changed |= rank != twin.rank
            twin.rank = rank

    def _rest(self, key: Key, found: Member, settle: SlotSettle) -> None:
        left = settle.token % 1000
        found.note_failed(left)
        found.rank, found.changed = float(resting_ms(settle.rest_ms) + left), True
        self._resting.add(key)
        self._rests[key] = settle.rest_ms, rank_of(settle.slot.kind, settle.score)

    def _take(self, key: Key, state: int) -> Member:
        taken = self._states[key][state]
        assert taken is not None
        self._states[key][state] = None
        return taken

    def _drop(self, key: Key, state: int) -> None:
        origin = self._take(key, state).origin
        assert origin is not None
        if state == WAITING:
            self.came[key[0]] -= 1
        self._dropped.append((*key, origin))

    def _die(self, key: Key, slot: Slot, reason: str, fold: Fold, now_ms: int) -> None:
        """Make a prepared member dead; merge it with a dead twin if there is one."""
        dead, twin = self._take(key, PREPARED), self._states[key][DEAD]
        if twin is not None:
            if failure := dead.inherit(twin, slot, fold):
                reason = f"{reason}; the earlier body could not be folded in: {failure}"
            self._drop(key, DEAD)
        self._states[key][DEAD] = dead
        dead.rank, dead.reason, dead.changed = float(now_ms), well_formed(reason), True

    def _retry(self, key: Key, slot: Slot, score: float, reason: str, fold: Fold, now_ms: int) -> None:
        found = self._states[key][PREPARED]
        assert found is not None
        found.failed(now_ms, reason)
        if reason:
            found.note_failed(int(found.rank) % 1000)  # its token names the retries that the claim left
        if failure := self._wait_again(key, PREPARED, slot, score, fold):
            self._die(key, slot, str(failure), fold, now_ms)

    def _wait_again(self, key: Key, source: int, slot: Slot, score: float, fold: Fold) -> errors.InvalidMessage | None:
        """Let a member wait; merge it with a waiting twin if there is one; return the error if the merge fails."""
        twin = self._states[key][WAITING]
        if twin is None:
            again = self._states[key][WAITING] = self._take(key, source)
            again.rank, again.changed = rank_of(slot.kind, score), True
            if source == DEAD:
                again.reason = ""
            else:
                again.note_retries(score)
            self.came[key[0]] += 1
            return None
        older = self._states[key][source]
        assert older is not None
        if slot.apart:
            if fold.name != "latest":
                try:
                    twin.fill(folds.apply(fold, older.body or b"", twin.body or b""), twin.note or b"")
                except errors.InvalidMessage as exc:
                    return exc
            twin.merged += older.merged
        if source == PREPARED:
            older.note_retries(score)
            if older.reason:
                twin.note_retries(noted_retries(older.reason))
        twin.history = joined(history_of(older.history), history_of(twin.history))
        twin.changed = True
        self._drop(key, source)
        return None
