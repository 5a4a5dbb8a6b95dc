"""The slots of sorted topics in the memory store."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter

from emq.runtime import errors
from emq.storage import folds
from emq.storage.durability import Durability
from emq.storage.slot_store import (
    PAGE_BYTES,
    RETRIES,
    DeadMember,
    Entry,
    Fold,
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
)
from emq_stores import refusals
from emq_stores.memory.pages import page_size
from emq_stores.memory.slot_members import Dead, Kept, SortedSlot, lower
from emq_stores.memory.wakeups import Wakeups
from emq_stores.memory.world import World


class MemorySorted:
    """Slots in memory; every call is atomic. Members of equal scores come in the order of their bytes."""

    def __init__(self, world: World, wakeups: Wakeups) -> None:
        self._world = world
        self._wakeups = wakeups

    async def add(
        self, adds: Sequence[SlotAdd], durability: Durability = Durability.ACCEPTED
    ) -> list[bool | errors.QueueSealed | errors.TopicFull | errors.InvalidMessage]:
        """See `SortedStore.add`. Members live as long as the process, whatever the durability."""
        self._wakeups.check_open()
        check_scores(adds)
        return [self._add(add) for add in adds]

    def _add(self, add: SlotAdd) -> bool | errors.QueueSealed | errors.TopicFull | errors.InvalidMessage:
        if add.slot.address in self._world.sealed:
            return slot_sealed(add.slot)
        slot = self._slot(add.slot)
        twin = slot.waiting.get(add.member)
        if twin is None and add.max_length is not None and len(slot.waiting) >= add.max_length:
            return refusals.full(f"slot {add.slot.name!r}", len(slot.waiting), add.max_length, 1)
        if add.slot.apart:
            added = Kept(add.score, folds.initial(add.fold, add.body), add.note)
        else:
            added = Kept(add.score, add.member)
        if twin is None:
            slot.fold = add.fold
            slot.wait(add.member, added)
            return True
        try:
            merged = _merge(add.slot, add.fold, twin, added)
        except errors.InvalidMessage as exc:
            return exc
        slot.fold = add.fold
        slot.wait(add.member, merged._replace(score=add.keep.of(twin.score, add.score)))
        return False

    async def claim(
        self, claims: Sequence[SlotClaim], now_ms: int, max_bytes: int = 8 << 20
    ) -> list[SlotClaimed | errors.NotOwner]:
        """See `SortedStore.claim`."""
        answers, left_bytes = [], max(max_bytes, 1)
        for claim in claims:
            answer = self._claim(claim, now_ms, left_bytes)
            if isinstance(answer, SlotClaimed):
                left_bytes -= sum(_size(claim.slot, entry.member, entry.body, entry.note) for entry in answer.entries)
            answers.append(answer)
        return answers

    def _claim(self, claim: SlotClaim, now_ms: int, max_bytes: int) -> SlotClaimed | errors.NotOwner:
        slot = self._slot(claim.slot)
        if stale := _stale(claim.slot, slot, claim.epoch):
            return stale
        slot.epoch = claim.epoch
        entries: list[Entry] = []
        while len(entries) < claim.limit and max_bytes > 0 and (head := slot.head()) is not None:
            member, kept = head
            if claim.slot.kind is not SlotKind.PRIORITY and kept.score > claim.until_ms:
                break
            token = now_ms // 1000 * 1000 + kept.left
            slot.prepare(member, token)
            max_bytes -= _size(claim.slot, member, kept.body, kept.note)
            entries.append(
                Entry(member, kept.score, token, kept.body, kept.note, kept.merged, kept.beyond, kept.history)
            )
        return SlotClaimed(entries, slot.arm(self._wakeups), slot.rest_ms())

    async def settle(self, settles: Sequence[SlotSettle]) -> list[bool | errors.NotOwner]:
        """See `SortedStore.settle`."""
        check_scores(settles)
        now_ms = int(self._world.clock.now() * 1000)
        return [self._settle(settle, now_ms) for settle in settles]

    def _settle(self, settle: SlotSettle, now_ms: int) -> bool | errors.NotOwner:
        address = settle.slot.address
        if settle.verdict is SlotVerdict.OPEN:
            return self._world.open(address)
        if settle.verdict is SlotVerdict.SEAL:
            self._world.sealed.add(address)
            return True
        if settle.verdict is SlotVerdict.REPLAY and address in self._world.sealed:
            return False
        slot = self._slot(settle.slot)
        member = settle.member
        if settle.verdict is SlotVerdict.RECALL:
            return slot.recall(member)
        if settle.verdict in (SlotVerdict.REPLAY, SlotVerdict.PURGE):
            dead = slot.unbury(member)
            if dead is None or settle.verdict is SlotVerdict.PURGE:
                return dead is not None
            failure = _wait_again(
                settle.slot, slot, member, dead.kept._replace(score=settle.score, retries=None), settle.fold
            )
            if failure is not None:
                slot.bury(member, dead)
            return failure is None
        assert settle.epoch is not None, f"{settle.verdict} needs its owner's epoch"
        if stale := _stale(settle.slot, slot, settle.epoch):
            return stale
        prepared = slot.prepared.get(member)
        if prepared is None or prepared.token != settle.token or slot.is_resting(member):
            return False
        if settle.verdict is SlotVerdict.REST:
            kept = prepared.kept.failed(now_ms, settle.reason).used(settle.token % 1000)
            slot.rest(member, settle.token % 1000, kept, settle.rest_ms, settle.score)
            return True
        if settle.verdict is SlotVerdict.YIELD and member not in slot.waiting:
            return False
        kept = slot.leave(member)
        if settle.verdict in (SlotVerdict.RETRY, SlotVerdict.YIELD):
            twin = slot.waiting.get(member)
            if twin is not None and settle.keep is not None:
                slot.wait(member, twin._replace(score=settle.keep.of(settle.score, twin.score)))
            if settle.reason:
                kept = kept.used(settle.token % 1000)
            _roll_back(settle.slot, slot, member, kept, settle.score, settle.reason, now_ms, settle.fold)
        elif settle.verdict is SlotVerdict.DEAD:
            _die(settle.slot, slot, member, kept, settle.reason, now_ms, settle.fold)
        return True

    async def recover(self, recovers: Sequence[Recover], now_ms: int) -> list[int | errors.NotOwner]:
        """See `SortedStore.recover`."""
        return [self._recover(recover, now_ms) for recover in recovers]

    def _recover(self, recover: Recover, now_ms: int) -> int | errors.NotOwner:
        slot = self._slot(recover.slot)
        if stale := _stale(recover.slot, slot, recover.epoch):
            return stale
        while (rested := slot.rested(now_ms)) is not None:
            member, score = rested
            _roll_back(recover.slot, slot, member, slot.leave(member), score, "", now_ms, slot.fold)
        everything = slot.epoch is None or recover.epoch > slot.epoch
        slot.epoch = recover.epoch
        held = frozenset(recover.held)
        lost = [
            (member, prepared.token % 1000)
            for member, prepared in slot.prepared.items()
            if (everything or member not in held)
            and (
                ((everything or recover.lost) and not slot.is_resting(member))
                or (recover.older_than_ms is not None and prepared.claimed_ms < recover.older_than_ms)
            )
        ]
        for member, left in lost:
            kept = slot.leave(member)
            if left:
                _roll_back(recover.slot, slot, member, kept, left, recover.reason, now_ms, slot.fold)
            else:
                _die(recover.slot, slot, member, kept, recover.reason, now_ms, slot.fold)
        return len(lost)

    async def inspect(self, slots: Sequence[Slot], now_ms: int) -> list[SlotState]:
        """See `SortedStore.inspect`."""
        return [_state(slot, self._world.sorted.get(slot.name), now_ms) for slot in slots]

    async def dead(
        self, slot: Slot, after: tuple[int, bytes] = (0, b""), limit: int = 100, max_bytes: int = PAGE_BYTES
    ) -> list[DeadMember]:
        """See `SortedStore.dead`."""
        found = self._world.sorted.get(slot.name)
        return [] if found is None else _dead_page(slot, found, after, limit, max_bytes)

    async def waiting(self, slot: Slot, skip: int = 0, limit: int = 100, max_bytes: int = PAGE_BYTES) -> list[Waiting]:
        """See `SortedStore.waiting`."""
        found = self._world.sorted.get(slot.name)
        if found is None:
            return []
        page = found.in_order(skip + limit)[skip:]
        size = page_size((_size(slot, member, kept.body, kept.note) for member, kept in page), max_bytes)
        return [Waiting(member, kept.score, kept.body, kept.note, kept.merged) for member, kept in page[:size]]

    def _slot(self, slot: Slot) -> SortedSlot:
        found = self._world.sorted.get(slot.name)
        if found is None:
            found = self._world.sorted[slot.name] = SortedSlot(slot.address, slot.kind)
        return found


def _stale(slot: Slot, found: SortedSlot, epoch: int) -> errors.NotOwner | None:
    if found.epoch is None or epoch >= found.epoch:
        return None
    return refusals.not_owner(f"slot {slot.name!r}", epoch, found.epoch)


def _roll_back(
    slot: Slot, found: SortedSlot, member: bytes, kept: Kept, score: float, reason: str, now_ms: int, fold: Fold
) -> None:
    again = kept.failed(now_ms, reason).put_back(score)
    failure = _wait_again(slot, found, member, again, fold)
    if failure is not None:
        _die(slot, found, member, again, str(failure), now_ms, fold)


def _die(slot: Slot, found: SortedSlot, member: bytes, kept: Kept, reason: str, now_ms: int, fold: Fold) -> None:
    """Make a member dead; merge it with a dead twin if there is one."""
    twin = found.dead.get(member)
    if twin is not None:
        older = twin.kept.failed(twin.dead_ms, twin.reason)
        history = (*older.history, *kept.history)[-RETRIES:]
        try:
            kept = _merge(slot, fold, older, kept)
        except errors.InvalidMessage as exc:
            reason = f"{reason}; the earlier body could not be folded in: {exc}"
        kept = kept._replace(history=history)
    found.bury(member, Dead(now_ms, reason, kept))


def _wait_again(slot: Slot, found: SortedSlot, member: bytes, kept: Kept, fold: Fold) -> errors.InvalidMessage | None:
    """Let a member wait; merge it with a waiting twin if there is one; return the error if the merge fails."""
    twin = found.waiting.get(member)
    try:
        found.wait(member, kept if twin is None else _merge(slot, fold, kept, twin))
    except errors.InvalidMessage as exc:
        return exc
    return None


def _merge(slot: Slot, fold: Fold, older: Kept, newer: Kept) -> Kept:
    """Return two twins merged into one member, with the score of the newer."""
    history = tuple(sorted(older.history + newer.history, key=itemgetter(0))[-RETRIES:])
    retries = lower(older.retries, newer.retries)
    if not slot.apart:
        return newer._replace(history=history, retries=retries)
    body = folds.apply(fold, older.body, newer.body)
    return Kept(newer.score, body, newer.note, older.merged + newer.merged, history, retries)


def _state(slot: Slot, found: SortedSlot | None, now_ms: int) -> SlotState:
    if found is None:
        return SlotState(0, 0, 0, 0, None, None)
    waiting = len(found.waiting)
    by_time = slot.kind is not SlotKind.PRIORITY
    due = sum(kept.score <= now_ms for kept in found.waiting.values()) if by_time else waiting
    first = found.in_order(1)
    oldest_ms = min((prepared.claimed_ms for prepared in found.prepared.values()), default=None)
    return SlotState(
        waiting,
        due,
        len(found.prepared),
        len(found.dead),
        first[0][1].score if first else None,
        oldest_ms,
        found.resting,
    )


def _dead_page(slot: Slot, found: SortedSlot, after: tuple[int, bytes], limit: int, max_bytes: int) -> list[DeadMember]:
    begin = bisect_right(found.dead_order, after)
    page = found.dead_order[begin : begin + limit]
    dead = [(member, found.dead[member].kept) for _, member in page]
    size = page_size((_size(slot, member, kept.body, kept.note) for member, kept in dead), max_bytes)
    return [
        DeadMember(slot, member, dead.kept.body, dead.kept.note, dead.reason, dead.kept.history, dead_ms)
        for dead_ms, member in page[:size]
        for dead in (found.dead[member],)
    ]


def _size(slot: Slot, member: bytes, body: bytes, note: bytes) -> int:
    """Return the bytes of a claimed member with its note; a member that is its own body counts once."""
    return len(member) + (len(body) + len(note) if slot.apart else 0)
