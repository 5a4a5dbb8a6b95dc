"""Messages of queues that no host has started: a start in their place may break priorities and key order (P, K).

A check of starts alone never sees a message that is never started.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pyarrow.compute as pc  # type: ignore[import-untyped]

from emq.trail import events
from emq_proof.rows import join, lists, only


class Waiting(NamedTuple):
    """A message that no host has started, as far as the trail knows.

    `name` is `<topic>/<id>`, `place` is `<topic>/<group>`; `emq.trail.schema` explains the others.
    """

    place: str
    topic: str
    group: int
    priority: int
    offset: int
    name: str
    key: str | None
    published_us: int


Crashes = Callable[[str], Sequence[tuple[float, float]]]
"""Takes a place; returns the times in which its owners may have acted without a record: (from, until), microseconds
since 1970."""


def of(table: Any, crashes: Crashes) -> list[Waiting]:
    """Return the messages that were published into a queue and have no later event.

    This leaves out messages that were dropped, skipped or lost by the store, and messages that a killed host may have
    started without a record.

    Args:
        table: the trail, with a column `name`.
        crashes: see `Crashes`.
    """
    rows = only(table, events.PUBLISHED)
    rows = rows.filter(pc.is_valid(rows["offset"]))
    known = only(
        table,
        events.STARTED,
        events.SETTLED,
        events.RETRIED,
        events.RETURNED,
        events.DEAD,
        events.RECALLED,
        events.MERGED,
    )
    rows = rows.filter(pc.invert(pc.is_in(rows["name"], pc.unique(known["name"]))))
    if not rows.num_rows:
        return []
    rows = rows.append_column("place", join(rows["topic"], rows["group"]))
    gone = _gone(table)
    return [
        found
        for found in map(Waiting._make, zip(*lists(rows, *Waiting._fields), strict=True))
        if not any(begin <= found.offset < end for begin, end in gone[found.topic, found.group, found.priority])
        and all(until_us < found.published_us for _, until_us in crashes(found.place))
    ]


def _gone(table: Any) -> dict[tuple[str, int, int], list[tuple[int, int]]]:
    found: dict[tuple[str, int, int], list[tuple[int, int]]] = defaultdict(list)
    names = ("event", "topic", "group", "priority", "offset", "until")
    for event, topic, group, priority, begin, end in zip(
        *lists(only(table, events.DROPPED, events.SKIPPED, events.LOST), *names), strict=True
    ):
        found[topic, group, priority].append((begin, end if event != events.LOST else 1 << 62))
    return found
