"""A message that waits to be settled, and the requests by which a store settles it."""

from __future__ import annotations

from emq.dispatch import retry
from emq.groups.owned import OwnedGroup, OwnedSlot
from emq.storage import message, slot_store
from emq.storage.lane_store import LaneAdd, LaneSettle, LaneVerdict
from emq.trail import events


class Pending:
    """A message that waits to be settled, and the decision on it.

    Attributes:
        decision: None for an acknowledgement.
        proven: True if the message was claimed after the verdict or the add was sent. So the store has carried out that
            call, and the trail was told. A repeat would act on the new claim, so the call must not be repeated.
        since_ms: when the host claimed the entry from the lane and could start it, or first sent the message there;
            None before that.
        is_settled: True once the store has taken the verdict.
        in_doubt: True if the answer to a verdict on a member was lost; the slot counts it as `unsure`.
        vanished: True if the lane has no prepared entry of the message: either the store forgot it in a crash, or it
            carried out an unanswered call.
    """

    __slots__ = ("decision", "group", "in_doubt", "is_settled", "message", "proven", "since_ms", "vanished")

    def __init__(self, group: OwnedGroup, m: message.Message, decision: retry.Decision | None) -> None:
        self.group = group
        self.message = m
        self.decision = decision
        self.proven = False
        self.in_doubt = False
        self.since_ms: int | None = m.ready_us // 1000 if m.offset < 0 else None
        self.vanished = False
        self.is_settled = False

    @property
    def is_carried_out(self) -> bool:
        """True if the call must not be repeated, because the store has carried it out, or because that cannot be told.

        Since a verdict on a member was sent, a producer may have added the member again, and this host may have claimed
        it again, under the same token if both claims fell in one second. A repeated verdict would act on the new claim.
        If the host holds the member twice, the store carried out the verdict. If the answer of a claim of that second
        was lost as well, the slot is rolled back, so that a member still in prepare is delivered again.
        """
        if self.proven or not self.in_doubt:
            return self.proven
        slot, m = self.slot, self.message
        return m.token // 1000 in slot.suspect or slot.held.get(m.member or b"", 0) > 1

    @property
    def must_wait(self) -> bool:
        """True while a claim is under way that may hold the member of a verdict in doubt."""
        return self.in_doubt and self.slot.claiming

    @property
    def slot(self) -> OwnedSlot:
        """The slot of a message that is a member."""
        assert self.group.slot is not None
        return self.group.slot

    @property
    def size(self) -> int:
        """Approximate bytes of the call that settles the message."""
        m = self.message
        return (_size_of(m) if self.decision is not None else 0) + (len(m.member) if m.member is not None else 0)

    @property
    def moves(self) -> bool:
        """True if the message must be added to its group's lane before it leaves its present place."""
        return self.message.member is None and (self.message.offset >= 0 or self.vanished)


def _size_of(m: message.Message) -> int:
    try:
        return message.size_of(m)
    except BaseException:  # the handler may have set payload or headers to any object
        return m.size


def _body(pending: Pending) -> bytes:
    """Encode the message for its lane.

    A retry carries the number of the next attempt, a dead letter the number of the last attempt. If the handler has set
    a field to a value that cannot be stored, the message becomes a dead letter without that field.
    """
    m, decision = pending.message, pending.decision
    if decision is None:
        return b""
    while field := message.whole(m):
        decision = _unfit(pending, f"the handler set {field} to a value that cannot be stored")
        setattr(m, field, _WITHOUT[field])
    try:
        return _encoded(m, decision)
    except Exception:  # a bad message must not keep others from being settled
        fields = message.reset_unstorable(m)
        return _encoded(m, _unfit(pending, f"{', '.join(fields)} had values that cannot be stored"))


def _unfit(pending: Pending, why: str) -> retry.Decision:
    assert pending.decision is not None
    reason = f"{why}; it failed with: {pending.decision.reason}"
    pending.decision = retry.Decision(None, reason[: retry.MAX_REASON], cause=events.UNFIT)
    return pending.decision


def _encoded(m: message.Message, decision: retry.Decision) -> bytes:
    attempt = m.attempt
    try:
        m.attempt = attempt + (decision.due_ms is not None)
        return message.encode_retry(m)
    finally:
        m.attempt = attempt


_WITHOUT = {"payload": b"", "headers": None}


def slot_verdict(pending: Pending) -> slot_store.SlotSettle:
    """Return the verdict on a member of a slot."""
    group, m, decision = pending.group, pending.message, pending.decision
    assert m.member is not None
    slot = pending.slot.slot
    if decision is None:
        return slot_store.SlotSettle(slot, m.member, slot_store.SlotVerdict.ACK, m.token, group.epoch)
    verdict, score = slot_store.SlotVerdict.REST if decision.rests else slot_store.SlotVerdict.RETRY, decision.score
    if score is None:
        verdict, score = slot_store.SlotVerdict.DEAD, 0
    fold, rest_ms = group.owner.topic.fold, decision.due_ms or 0
    return slot_store.SlotSettle(
        slot, m.member, verdict, m.token, group.epoch, score, decision.reason_with_place, fold, rest_ms=rest_ms
    )


def lane_verdict(pending: Pending) -> LaneSettle:
    """Return the verdict on an entry of a lane."""
    group, m, decision = pending.group, pending.message, pending.decision
    if decision is None:
        return LaneSettle(group.name, m.uid, LaneVerdict.ACK, group.epoch)
    body = _body(pending)
    decision = pending.decision or decision
    if decision.due_ms is None:
        return LaneSettle(group.name, m.uid, LaneVerdict.DEAD, group.epoch, body=body, reason=decision.recorded)
    # After the claim, so after its due time: with the same time and body it would be taken for a repeat.
    due_ms = max(decision.due_ms, m.ready_us // 1000 + 1)
    return LaneSettle(group.name, m.uid, LaneVerdict.RETRY, group.epoch, due_ms, body, priority=m.priority)


def lane_add(pending: Pending, now_ms: int) -> LaneAdd:
    """Return the add of a failed message to its lane; note when it is first sent."""
    group, m, decision = pending.group, pending.message, pending.decision
    assert decision is not None
    body, since_ms = _body(pending), pending.since_ms
    if since_ms is None:
        pending.since_ms = now_ms
    decision = pending.decision or decision
    if decision.due_ms is None:
        now_ms = (m.started_us or m.ready_us) // 1000
        return LaneAdd(group.name, m.uid, body, now_ms, decision.recorded, group.epoch, since_ms=since_ms)
    return LaneAdd(group.name, m.uid, body, decision.due_ms, epoch=group.epoch, priority=m.priority, since_ms=since_ms)
