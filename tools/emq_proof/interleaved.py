"""Find two owners of a group at one time by offsets alone (O), which no difference between two clocks can hide.

An owner starts the messages of a queue in the order of their offsets, except those with a key. An owner that lets go of
its group in order has started all messages below its last start. So if the next owner starts a lower one, both took
from the queue at the same time. `emq_proof.owners` finds two owners by their times, if these are further apart than
clocks may differ.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pyarrow.compute as pc  # type: ignore[import-untyped]

from emq.topics.shares import LEARN_S
from emq.trail import events
from emq_proof.owners import Owners
from emq_proof.rows import join, lists, only

NEW_TOPIC_US = round(LEARN_S * 1e6)
"""Microseconds after a topic's deletion in which no host starts messages of a new topic of its name (see
`emq.topics.shares`)."""

_QUEUE = ("place", "priority")
_OWNER = (*_QUEUE, "source", "epoch")


class Span(NamedTuple):
    """First starts of messages without a key, of one queue by one owner.

    Attributes:
        place: `<topic>/<group>`.
        low, high: lowest and highest offset.
        first_us, last_us: times of the first and last start, microseconds since 1970.
    """

    place: str
    priority: int
    source: str
    epoch: int
    low: int
    high: int
    first_us: int
    last_us: int


def faults(table: Any, owners: Owners, slack_us: int) -> Iterator[str]:
    """Yield one line for each pair of owners that took from a queue at the same time.

    Args:
        table: the trail.
        owners: owners of all groups, by the trail.
        slack_us: largest difference between the clocks of two hosts.
    """
    rows = only(table, events.STARTED)
    rows = rows.filter(pc.and_(pc.is_null(rows["key"]), pc.equal(rows["attempt"], 1)))
    rows = rows.filter(pc.and_(pc.greater_equal(rows["offset"], 0), pc.is_valid(rows["epoch"])))
    rows = rows.append_column("place", join(rows["topic"], rows["group"]))
    limits = [("offset", "min"), ("offset", "max"), ("time_us", "min"), ("time_us", "max")]
    summed = rows.group_by(list(_OWNER)).aggregate(limits)
    names = (*_OWNER, *(f"{column}_{limit}" for column, limit in limits))
    queues: dict[tuple[str, int], list[Span]] = defaultdict(list)
    for span in map(Span._make, zip(*lists(summed, *names), strict=True)):
        queues[span.place, span.priority].append(span)
    forgotten: dict[tuple[str, int], list[int]] = defaultdict(list)
    ends = only(table, events.FORGOTTEN)
    ends = ends.append_column("place", join(ends["topic"], ends["group"]))
    for place, priority, at_us in zip(*lists(ends, *_QUEUE, "time_us"), strict=True):
        forgotten[place, priority].append(at_us)
    for queue, spans in sorted(queues.items()):
        for former, later in suspects(spans, owners, slack_us):
            # An owner of both the queue that the store forgot and the next one started offsets of each.
            if not any(former.first_us <= at_us <= later.last_us for at_us in forgotten.get(queue, ())):
                yield from _passed_over(rows, former, later)


def suspects(spans: Iterable[Span], owners: Owners, slack_us: int) -> Iterator[tuple[Span, Span]]:
    """Yield pairs of owners that may have taken from one queue at the same time: the former, and one after it."""
    ascending = sorted(spans, key=lambda span: span.epoch)
    for i, former in enumerate(ascending):
        if not owners.has_released(former.place, former.source, former.epoch):
            continue  # this owner's progress is not known
        for later in ascending[i + 1 :]:
            others = later.source != former.source and later.epoch > former.epoch
            if others and later.low < former.high and later.first_us < former.last_us + NEW_TOPIC_US - slack_us:
                yield former, later


def _passed_over(rows: Any, former: Span, later: Span) -> Iterator[str]:
    passed = sorted(offset for offset in _offsets(rows, later) - _offsets(rows, former) if offset < former.high)
    if passed:
        yield line(former.place, former.priority, former.source, former.high, later.source, passed[0], len(passed))


def _offsets(rows: Any, span: Span) -> set[int]:
    values = (span.place, span.priority, span.source, span.epoch)
    for name, value in zip(_OWNER, values, strict=True):
        rows = rows.filter(pc.equal(rows[name], value))
    return set(rows["offset"].to_pylist())


def line(place: str, priority: int, former: str, high: int, later: str, offset: int, count: int) -> str:
    """Return the text about a pair of owners that took from a queue at the same time.

    Args:
        high: highest offset that the former owner started.
        offset: lowest offset that the former owner passed over and the later owner started.
        count: number of such offsets.
    """
    return (
        f"{place}, priority {priority}: {former} had started offset {high} before it let go of the group, and "
        f"{later}, which took it then, started {count} below it, beginning with {offset}"
    )
