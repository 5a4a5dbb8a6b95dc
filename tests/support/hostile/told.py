"""A trail told row by row, so that it can also say what no host of EMQ would write."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from emq.trail import events, schema, segments

MS = 1000
S = 1_000_000
T0_S = 1_000_000_000
T0_US = T0_S * S

Row = dict[str, Any]

CONTENT = f"0-{'a' * 24}"
"""An id like those of sorted topics."""

NEXT: dict[str, Any] = {"source": "next", "epoch": 2}
"""Fields of rows of the owner to which a group has moved."""

REJECTED = f"{events.REJECTED}no"


def at(ms: float) -> int:
    return T0_US + round(ms * MS)


class Told:
    """Rows of many sources; times in milliseconds after T0. The producer and `host` close their trails in order."""

    def __init__(self, topic: str = "shop") -> None:
        self.topic = topic
        self.rows: list[Row] = []
        self.killed: set[str] = set()
        self.idle: set[str] = set()

    @classmethod
    def of(cls, plant: Callable[[Told], Any], topic: str = "shop") -> Told:
        """Tell a story; `host` owns the group from its beginning, unless it says `nobody_owns`."""
        told = cls(topic)
        told.own()
        plant(told)
        return told

    def nobody_owns(self) -> None:
        self.rows.clear()

    def add(self, event: str, ms: float, source: str = "host", group: int | None = 0, **fields: Any) -> Row:
        row = dict.fromkeys(schema.SCHEMA.names)
        row |= {"event": event, "time_us": at(ms), "source": source, "topic": self.topic, "group": group, **fields}
        self.rows.append(row)
        return row

    def own(self, ms: float = -10, source: str = "host", epoch: int = 1, group: int = 0) -> None:
        self.add(events.OWNED, ms, source, group, epoch=epoch)

    def release(self, ms: float, source: str = "host", epoch: int = 1, group: int = 0) -> None:
        self.add(events.RELEASED, ms, source, group, epoch=epoch)

    def move(self, released_ms: float, owned_ms: float) -> None:
        """The group moves in order, from `host` to `next`."""
        self.release(released_ms)
        self.own(owned_ms, **NEXT)

    def publish(self, name: str, ms: float = -5, offset: int | None = 0, **fields: Any) -> Row:
        given = {"priority": 0, "published_us": at(ms), "source": "producer", **fields}
        return self.add(events.PUBLISHED, ms, id=name, offset=offset, **given)

    def start(self, name: str, ms: float, offset: int = 0, **fields: Any) -> Row:
        given = {"priority": 0, "attempt": 1, "epoch": 1, "ready_us": at(ms) - 10, "published_us": at(-5), **fields}
        return self.add(events.STARTED, ms, id=name, offset=offset, **given)

    def end(self, start: Row, ms: float, event: str = events.SETTLED, **fields: Any) -> Row:
        same = {name: start[name] for name in ("group", "priority", "offset", "id", "key", "attempt", "source")}
        return self.add(event, ms, **{**same, **fields})

    def deliver(self, name: str, ms: float, offset: int = 0, took: float = 1, **fields: Any) -> tuple[Row, Row]:
        """Start and settle."""
        start = self.start(name, ms, offset, **fields)
        return start, self.end(start, ms + took)

    def retry(self, name: str, due_ms: float, *, key: str | None = None) -> None:
        """Publish, start and put back; `deliver` the next attempt."""
        self.publish(name, key=key)
        self.end(self.start(name, 10, key=key), 20, events.RETRIED, due_ms=at(due_ms) // 1000)

    def die(self, name: str, *, key: str | None = None, replayed_ms: float | None = None) -> None:
        """Publish, start and reject, and replay if a time is given."""
        self.publish(name, key=key)
        self.end(self.start(name, 10, key=key), 20, events.DEAD, reason=REJECTED)
        if replayed_ms is not None:
            self.add(events.REPLAYED, replayed_ms, "cli", priority=0, id=name)

    def message(self, name: str, ms: float, offset: int = 0, **fields: Any) -> None:
        """Publish, start and settle."""
        same = {field: fields[field] for field in ("key", "priority", "group") if field in fields}
        self.publish(name, offset=offset, **same)
        self.deliver(name, ms, offset, **fields)

    def write(self, directory: Path) -> None:
        by_source: dict[str, list[Row]] = defaultdict(list)
        for row in self.rows:
            by_source[row["source"]].append(row)
        for source in {*by_source, *self.idle}:
            rows = sorted(by_source[source], key=lambda row: row["time_us"])
            write(directory, source, pa.Table.from_pylist(rows, schema=schema.SCHEMA), source not in self.killed)


def write(directory: Path, source: str, table: Any, closed: bool = True, run_us: int = T0_US, **header: Any) -> Path:
    """Write a run of two segments: the empty first one, and one with all rows."""
    directory.mkdir(parents=True, exist_ok=True)
    first = segments.Header(source, run_us, 0, run_us, run_us)
    segments.write(directory, first, schema.SCHEMA.empty_table())
    times = [time_us for time_us in table["time_us"].to_pylist() if time_us is not None] or [run_us]
    told = segments.Header(source, run_us, 1, min(times), max(times), 0, closed)._replace(**header)
    segments.write(directory, told, table)
    return directory / told.name
