"""The members of a slot as messages, and the verdict by which a member goes back unstarted."""

from __future__ import annotations

from emq.groups.owned import OwnedSlot
from emq.storage import message, reasons
from emq.storage.slot_store import RETRIES, SlotClaimed, SlotKind, SlotSettle, SlotVerdict


def decoded(slot: OwnedSlot, claimed: SlotClaimed, now_us: int) -> list[message.Message]:
    """Return the claimed members as messages, ready since `now_us`; note in the group when the first one expires."""
    group = slot.group
    topic, index = group.owner.topic, group.index
    keyed, apart, name = topic.options.ordering != "none", slot.slot.apart, topic.name
    ttl_us = int((topic.options.ttl_s or 0) * 1e6)
    messages = []
    expiries: list[int] = []
    for member, score, token, body, note, merged, beyond, history in claimed.entries:
        m = message.Message(
            message.slot_id(index, member),
            body,
            attempt=RETRIES + 1 - token % 1000 + beyond,
            topic=name,
            group=index,
            score=score,
            merged=merged,
            ready_us=now_us,
            member=member,
            token=token,
            size=len(member) + len(note) + (0 if body is member else len(body)),
        )
        if history:
            m.history, m.error, m.first_us = list(history), reasons.parted(history[-1][1]).text, history[0][0] * 1000
            m.size += sum([len(reason) for _, reason in history])
        if apart and note:
            told = message.decode_note(note)
            m.key = told.key if keyed else None
            m.published_us, m.headers, m.expires_us = told.published_us, told.headers, told.expires_us
            message.note_size(m, m.size)
        if ttl_us:
            at_us = _ready_since_us(slot, m) + ttl_us
            m.expires_us = min(m.expires_us or at_us, at_us)
        if m.expires_us:
            expiries.append(m.expires_us)
        messages.append(m)
    if expiries:
        group.note_expiry(min(expiries))
    return messages


def give_back(
    slot: OwnedSlot, member: bytes, token: int, score: float, verdict: SlotVerdict = SlotVerdict.RETRY
) -> SlotSettle:
    """Return the verdict that puts a claimed member back as it was before.

    If a newer publish of the same member waits, the two are folded.
    """
    group = slot.group
    topic = group.owner.topic
    return SlotSettle(slot.slot, member, verdict, token, group.epoch, score, fold=topic.fold, keep=topic.keep)


def _ready_since_us(slot: OwnedSlot, m: message.Message) -> int:
    """Return when a member became ready: at its time; for kind priority, at its publish, or now if unknown."""
    if slot.slot.kind is SlotKind.PRIORITY:
        return m.published_us or m.ready_us
    return int(m.score * 1000) if m.score > RETRIES else m.ready_us
