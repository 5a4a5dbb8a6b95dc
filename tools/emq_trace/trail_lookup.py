"""Looking up one message in a trail of any size.

Ids are random, so no index of a file can tell where an id is. The lookup reads the column of ids (some 10 bytes a row)
of one row group after the other, so memory stays bounded, and the other columns only of row groups with a hit. It skips
damaged and foreign files; `emq trail verify` names them. It does not see the last second of events, which a running
host has not written yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from emq.storage.message import MARK
from emq.trail import events, segments
from emq.trail.events import COPY, Event

Progress = Callable[[int, int], None]
"""Takes the number of segments read, and the number of all segments."""


def of_message(
    directory: Path,
    message_id: str,
    on_progress: Progress = lambda _done, _all: None,
    *,
    by_identity: bool = False,
) -> list[Event]:
    """Return all events of an id, of all messages that have it, and of its copies in a lane, in order of time.

    A publish counts from its beginning.

    Args:
        by_identity: `message_id` is the identity of one message.

    The same id may occur in several topics if they are sorted.

    Raises:
        InvalidSettings: there is no such directory; correct the path.
    """

    def chosen(ids: Any) -> Any:
        longer = (pc.starts_with(ids, message_id + mark) for mark in (COPY, MARK))
        return reduce(pc.or_, longer, pc.equal(ids, message_id))

    found = _scan(directory, "id", chosen, on_progress)
    named = [e for e in found if events.is_named(e.id or "", message_id, by_identity=by_identity)]
    return sorted(named, key=lambda e: (e.published_us or e.time_us) if e.event == events.PUBLISHED else e.time_us)


def of_group(
    directory: Path,
    topic: str,
    group: int,
    place: tuple[int, int] | None,
    on_progress: Progress = lambda _done, _all: None,
) -> list[Event]:
    """Return the changes of a group's owner, and its skipped or dropped ranges of offsets, in order of time.

    Args:
        place: priority and offset of a message, for the ranges with this offset; None for no ranges.
    """
    wanted = pa.array([events.OWNED, events.RELEASED, *([events.SKIPPED, events.DROPPED] if place else [])])
    found = _scan(directory, "event", lambda names: pc.is_in(names, wanted), on_progress)
    return sorted((e for e in found if _concerns(e, topic, group, place)), key=lambda e: e.time_us)


def _concerns(e: Event, topic: str, group: int, place: tuple[int, int] | None) -> bool:
    if (e.topic, e.group) != (topic, group):
        return False
    if place is None or e.event in (events.OWNED, events.RELEASED):
        return True
    priority, offset = place
    return e.priority == priority and (e.offset or 0) <= offset < (e.until or 0)


def _scan(directory: Path, column: str, choose: Callable[[Any], Any], on_progress: Progress) -> Iterator[Event]:
    paths = segments.paths(directory)
    for done, path in enumerate(paths):
        on_progress(done, len(paths))
        try:
            yield from _hits(path, column, choose)
        except (OSError, ValueError, KeyError, pa.ArrowException):
            continue
    on_progress(len(paths), len(paths))


def _hits(path: Path, column: str, choose: Callable[[Any], Any]) -> list[Event]:
    """Return the rows of a segment that `choose` (from a column to a mask) picks; read other columns only for these."""
    found: list[Event] = []
    with pq.ParquetFile(path) as file:
        segments.Header.decode(file.schema_arrow.metadata)  # raises for a foreign file
        for i in range(file.num_row_groups):
            mask = choose(file.read_row_group(i, columns=[column])[column])
            if pc.any(mask).as_py():
                table = file.read_row_group(i, columns=list(Event._fields)).filter(mask)
                found += [Event(**row) for row in table.to_pylist()]
    return found
