"""Occurrences of schedules in topics that merge within a time range: they wait in slots, as published messages do."""

from __future__ import annotations

import zlib
from typing import NamedTuple

from emq import message
from emq.message import Message
from emq.storage.slot_store import Add
from emq.topics.model import Kind, Topic


class Placed(NamedTuple):
    """Attributes:
    add: puts the occurrence into its slot, or merges it with its like there.
    group: the slot's index.
    id: the message's, which follows from its content.
    due_ms: when the occurrence is published; its time range begins then.
    """

    add: Add
    group: int
    id: str
    due_ms: int


def merges(topic: Topic) -> bool:
    """Whether occurrences wait in slots. In the other kinds their time is the schedule's, and they keep their ids."""
    return topic.kind is Kind.RANGE_MERGE


def placed(topic: Topic, m: Message, due_ms: int, ttl_us: int) -> Placed:
    """Where an occurrence waits.

    Args:
        m: the schedule's entry.
        ttl_us: its time to live from the end of the time range, in microseconds; 0 for none.
    """
    member = m.payload
    index = zlib.crc32(member if m.key is None else m.key.encode()) % topic.slots
    slot, score = topic.slot(index), due_ms + int(topic.options.time_range_ms or 0)
    add = Add(slot, member, score, topic.keep, fold=topic.fold)
    if slot.apart:
        expires_us = score * 1000 + ttl_us if ttl_us else 0
        note = message.encode_note(message.Note(m.key, due_ms * 1000, m.headers, expires_us))
        add = add._replace(body=m.payload, note=note)
    return Placed(add, index, message.slot_id(index, member), due_ms)
