"""The ledger of a load run: each publish with its time and outcome, as Parquet segments (files).

    <directory>/run=<run>/part-<partition>-<attempt>-<n>.parquet    publishes of one attempt at a task
    <directory>/run=<run>/run.json                                  summary, written at the end: it lists all segments

Spark reads the `run=` directories as partitions of a table. Each segment is written whole or not at all; its metadata
(`emq.run`, `emq.partition`, `emq.attempt`, `emq.n`, `emq.rows`) identify it. A task that is tried again begins a new
attempt with the same `seq` numbers. Segments of an attempt that died stay, because their messages were published.

| column | type | meaning |
|---|---|---|
| run | string | id of the run |
| partition | int32 | Spark partition that published the message |
| seq | int64 | number of the message in the run, the same when a task is tried again |
| topic | string | topic |
| group | int32 | index of the group in the topic; null if unknown |
| priority | int8 | index of the priority, 0 is the highest |
| offset | int64 | place in the queue; null for a message without one |
| id | string | message id; null if the publish was refused |
| key | string | message key, null for none |
| sent_us | int64 | begin of the publish, microseconds since the epoch |
| answered_us | int64 | return of the publish, microseconds since the epoch; null if it did not return |
| due_ms | int64 | due time of the message, milliseconds since the epoch; null if due at once |
| outcome | string | one of `OUTCOMES` |
| error | string | error text of a publish that was refused or has an unknown outcome |
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from emq.runtime import errors
from emq.trail import segments

PUBLISHED: Final = "published"
MERGED: Final = "merged"
UNKNOWN: Final = "unknown"
REFUSED: Final = "refused"
OUTCOMES: Final = (PUBLISHED, MERGED, UNKNOWN, REFUSED)

SCHEMA: Final = pa.schema(
    [
        ("run", pa.string()),
        ("partition", pa.int32()),
        ("seq", pa.int64()),
        ("topic", pa.string()),
        ("group", pa.int32()),
        ("priority", pa.int8()),
        ("offset", pa.int64()),
        ("id", pa.string()),
        ("key", pa.string()),
        ("sent_us", pa.int64()),
        ("answered_us", pa.int64()),
        ("due_ms", pa.int64()),
        ("outcome", pa.string()),
        ("error", pa.string()),
    ]
)

RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
SEGMENT = re.compile(r"part-(\d+)-(\d+)-(\d+)\.parquet")
"""A segment's name: partition, attempt, and number in that attempt."""

SUMMARY = "run.json"
_REPETITIVE = ("run", "partition", "topic", "group", "priority", "key", "outcome", "error", "sent_us", "answered_us")
_RISING = {"seq": "DELTA_BINARY_PACKED", "offset": "DELTA_BINARY_PACKED"}
_UNDER_WAY = ".tmp"


class Part(msgspec.Struct, frozen=True):
    """One partition's entry in the summary of a run, about the attempt that ended in order.

    Attributes:
        partition: number of the partition.
        attempt: number of the attempt that ended in order.
        segments: number of segments that this attempt wrote, numbered from 0.
        rows: messages in these segments.
        asked: messages a second in the plan, over the whole run.
        achieved: messages a second that were published.
        earlier: (attempt, segments) of each attempt that died after it had written segments.
    """

    partition: int
    attempt: int
    segments: int
    rows: int
    asked: float = 0.0
    achieved: float = 0.0
    earlier: tuple[tuple[int, int], ...] = ()


class Run(msgspec.Struct, frozen=True):
    """The summary of a run.

    Attributes:
        run: id of the run.
        seed: seed; a later run with this seed repeats this one.
        plan: the plan as it was given, or the name of the file that was replayed.
        started_us, ended_us: microseconds since the epoch; `ended_us` is 0 while the run goes on.
        complete: True if every partition has ended in order.
        parts: one entry for each partition.
    """

    run: str
    seed: int
    plan: str
    started_us: int
    ended_us: int = 0
    complete: bool = False
    parts: tuple[Part, ...] = ()


def directory_of(directory: Path | str, run: str) -> Path:
    """Return the directory of a run's ledger.

    Raises:
        InvalidSettings: the id is not valid in a file name; choose another.
    """
    if not RUN.fullmatch(run):
        raise errors.InvalidSettings(
            f"run id {run!r} must be 1 to 100 letters, digits and ._- and begin with a letter or digit"
        )
    return Path(directory) / f"run={run}"


class Writer:
    """Writes the segments of one attempt at one partition. Use it from one thread only.

    Args:
        directory: directory of all runs; created if missing. On a cluster all executors must see the directory.
        run, partition, attempt: run, partition and attempt of the task.
        rotate_rows: messages in a segment, at least 1; a crash loses the records of at most this many messages.
    """

    def __init__(
        self, directory: Path | str, run: str, partition: int, attempt: int, rotate_rows: int = 200_000
    ) -> None:
        if rotate_rows < 1:
            raise errors.InvalidSettings(f"rotate_rows {rotate_rows} must be at least 1")
        self._directory = directory_of(directory, run)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._names = {"run": run, "partition": partition}
        self._partition = partition
        self._attempt = attempt
        self._rotate_rows = rotate_rows
        self._tables: list[Any] = []
        self._waiting = 0
        self.segments = 0
        self.rows = 0

    def append(self, rows: int, columns: Mapping[str, Sequence[Any] | str | int | None]) -> None:
        """Add messages.

        Args:
            rows: number of messages.
            columns: by name, a sequence of `rows` values, or one value for all messages; a missing column is null.

        Raises:
            ValueError: a name is not a column, or an outcome is not in `OUTCOMES`.
            OSError, pyarrow.ArrowException: a value does not fit, or a segment could not be written.
        """
        if unknown := columns.keys() - set(SCHEMA.names):
            raise ValueError(
                f"column {min(unknown)!r} is not a column of a ledger; the columns are {', '.join(SCHEMA.names)}"
            )
        outcomes = columns.get("outcome")
        given = {outcomes} if isinstance(outcomes, str) or outcomes is None else set(outcomes)  # type: ignore[arg-type]
        if wrong := given - set(OUTCOMES):
            raise ValueError(f"outcome {min(map(str, wrong))!r} must be one of {', '.join(OUTCOMES)}")
        values = {**columns, **self._names}
        arrays = [_array(values.get(field.name), field.type, rows) for field in SCHEMA]
        self._tables.append(pa.Table.from_arrays(arrays, schema=SCHEMA))
        self._waiting += rows
        if self._waiting >= self._rotate_rows:
            self._write()

    def close(self, asked: float = 0.0, achieved: float = 0.0) -> Part:
        """Write the remaining messages; return the partition's entry in the summary of the run."""
        if self._waiting:
            self._write()
        return Part(self._partition, self._attempt, self.segments, self.rows, asked, achieved)

    def _write(self) -> None:
        table = pa.concat_tables(self._tables)
        path = self._directory / f"part-{self._partition}-{self._attempt}-{self.segments}.parquet"
        header = {**self._names, "attempt": self._attempt, "n": self.segments, "rows": table.num_rows}
        metadata = segments.with_check({name: str(value) for name, value in header.items()})
        temporary = path.with_name(f"_{path.name}{_UNDER_WAY}")
        try:
            pq.write_table(
                table.replace_schema_metadata(metadata),
                temporary,
                compression="zstd",
                use_dictionary=list(_REPETITIVE),
                column_encoding=_RISING,
                write_page_checksum=True,
            )
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        self.segments += 1
        self.rows += table.num_rows
        self._tables, self._waiting = [], 0


def _array(values: Any, kind: Any, rows: int) -> Any:
    if values is None:
        return pa.nulls(rows, kind)
    if isinstance(values, str | int):
        return pa.repeat(pa.scalar(values, kind), rows)
    return pa.array(values, kind)


def write_run(directory: Path | str, run: Run) -> None:
    """Write a run's summary in place of an earlier one; the change is atomic."""
    place = directory_of(directory, run.run)
    place.mkdir(parents=True, exist_ok=True)
    temporary = place / f"_{SUMMARY}{_UNDER_WAY}"
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(run)))
    temporary.replace(place / SUMMARY)
