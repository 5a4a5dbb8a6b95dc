"""Messages of queues that nobody has begun: what is started in their place tells of priorities and keys, too (P, K).

A check that looks at starts alone never sees the one that is passed over for ever.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pyarrow.compute as pc  # type: ignore[import-untyped]

from emq.trail import events
from emq.trail.rows import join, lists, only


class Waiting(NamedTuple):
    """`name` is `<topic>/<id>`, `place` is `<topic>/<group>`; the rest as in the trail's columns."""

    place: str
    topic: str
    group: int
    priority: int
    offset: int
    name: str
    key: str | None
    published_us: int


Crashes = Callable[[str], Sequence[tuple[float, float]]]
"""Of a place, when its owners may have done what nothing tells of: (from, until), microseconds since the epoch."""


def of(table: Any, crashes: Crashes) -> list[Waiting]:
    """What was published into a queue, and of which nothing more is known.

    What was dropped, skipped, or lost by its store is left out, and what a killed host may have begun unseen.

    Args:
        table: the trail, with a column `name`.
    """
    rows = only(table, events.PUBLISHED)
    rows = rows.filter(pc.is_valid(rows["offset"]))
    known = only(table, events.STARTED, events.SETTLED, events.RETRIED, events.DEAD, events.RECALLED, events.MERGED)
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
