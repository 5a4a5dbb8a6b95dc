"""Occurrences of schedules in topics that merge within a time range: they wait in slots, as published messages do."""

from __future__ import annotations

import zlib
from typing import NamedTuple

from emq.runtime import errors
from emq.storage import folds, message
from emq.storage.message import Message
from emq.storage.slot_store import SlotAdd
from emq.topics.model import Kind, Topic


class Placed(NamedTuple):
    """Attributes:
    add: puts the occurrence into its slot, or merges it with an equal member there.
    group: the slot's index.
    id: the message's id, which follows from its content.
    due_ms: time at which the occurrence is published, milliseconds since the epoch; its time range begins then.
    """

    add: SlotAdd
    group: int
    id: str
    due_ms: int


def merges(topic: Topic) -> bool:
    """Return True if occurrences wait in the topic's slots. Else they wait in lanes and keep their ids."""
    return topic.kind is Kind.RANGE_MERGE


def check(topic: Topic, body: bytes) -> None:
    """Raise `InvalidMessage` if the topic merges occurrences and cannot take this body."""
    if merges(topic):
        if topic.options.time_range_ms is None:
            raise errors.InvalidMessage(
                f"topic {topic.name!r} has no time_range_ms, for which each occurrence waits; set it first"
            )
        folds.check(topic.fold, body)


def placed(topic: Topic, m: Message, due_ms: int, ttl_us: int) -> Placed:
    """Return the place in a slot where an occurrence waits.

    Args:
        topic: a topic that merges within a time range.
        m: the schedule's entry.
        due_ms: due time of the occurrence, milliseconds since the epoch.
        ttl_us: time to live of the occurrence from the end of the time range, in microseconds; 0 for none.
    """
    member = m.payload
    index = zlib.crc32(member if m.key is None else m.key.encode()) % topic.slots
    slot, score = topic.slot(index), due_ms + int(topic.options.time_range_ms or 0)
    add = SlotAdd(slot, member, score, topic.keep, fold=topic.fold)
    if slot.apart:
        expires_us = score * 1000 + ttl_us if ttl_us else 0
        note = message.encode_note(message.Note(m.key, due_ms * 1000, m.headers, expires_us))
        add = add._replace(body=m.payload, note=note)
    return Placed(add, index, message.slot_id(index, member), due_ms)
