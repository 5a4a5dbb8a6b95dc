"""The messages of a replayed file: its rows in their order, at their times."""

from __future__ import annotations

import datetime
import itertools
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from emq.runtime import errors
from emq.topics import rules
from emq_spark.load.batch import Batch, Slice
from emq_spark.load.plan import Replay
from emq_spark.load.synthetic import SLICE_ROWS, STEP_S

FLIGHTS = "demo:flights"
_PER_S = {"s": 1.0, "ms": 1e3, "us": 1e6}


class Row(NamedTuple):
    """A row of the file.

    Attributes:
        number: number of the row in the file, from 0.
        at_s: seconds from the first row's publish to this row's, at the replay's speed.
    """

    number: int
    at_s: float
    topic: str
    payload: bytes
    key: str | None
    priority: str | None


@dataclass
class Survey:
    """The summary of a file.

    Attributes:
        topics: number of rows by topic.
        priorities: names of priorities in the file.
        span_s: seconds from the first row to the last, at the replay's speed.
        checksum: checksum that tells a later attempt whether the file is another or has changed.
    """

    topics: Counter[str] = field(default_factory=Counter)
    priorities: set[str] = field(default_factory=set)
    span_s: float = 0.0
    checksum: int = 0


def survey(replay: Replay, duration_s: float | None) -> Survey:
    """Read the file through once. Raises as `rows`, and for names that no topic can have."""
    found = Survey()
    for row in rows(replay, duration_s):
        if row.topic not in found.topics:
            try:
                rules.validate_name(row.topic)
            except errors.InvalidTopic as exc:
                raise _wrong(replay, row.number, str(exc)) from exc
        found.topics[row.topic] += 1
        if row.priority is not None:
            found.priorities.add(row.priority)
        found.span_s = row.at_s
        found.checksum = zlib.crc32(row.payload, zlib.crc32(f"{row.topic} {row.at_s}".encode(), found.checksum))
    return found


def rows(replay: Replay, duration_s: float | None = None) -> Iterator[Row]:
    """Yield the rows of the file.

    Args:
        duration_s: seconds after which rows are left out; None for all rows.

    Raises:
        InvalidSettings: the file cannot be read, a column is missing, or rows are not in order of time; the text names
            the row.
    """
    first_s, last_s = None, 0.0
    for number, (values, body) in enumerate(_records(replay)):
        time_s = _time_s(replay, number, _value(replay, number, values, replay.time))
        first_s = time_s if first_s is None else first_s
        at_s = (time_s - first_s) / replay.speed
        if at_s < last_s:
            raise _wrong(replay, number, f"{replay.time} goes back; sort the file by it")
        if duration_s is not None and at_s >= duration_s:
            return
        last_s = at_s
        try:
            topic = replay.to.format_map(_Filled(values))
        except _IsNull as exc:
            raise _wrong(replay, number, f"'to' = {replay.to!r} cannot be filled in, {exc} is null") from exc
        except (KeyError, IndexError, ValueError, AttributeError, TypeError) as exc:
            raise _wrong(replay, number, f"'to' = {replay.to!r} cannot be filled in from {_names(values)}") from exc
        yield Row(
            number,
            at_s,
            topic,
            body() if replay.payload is None else _payload(_value(replay, number, values, replay.payload)),
            None if replay.key is None else _text(_value(replay, number, values, replay.key)),
            None if replay.priority is None else _text(_value(replay, number, values, replay.priority)),
        )


class _IsNull(Exception):
    """A column that must have a value is null; the argument is the column's name."""


class _Filled:
    """The values to fill into a topic's name; null raises an error and does not become the text `None`."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> Any:
        value = self._values[name]
        if value is None:
            raise _IsNull(name)
        return value


class Replayed:
    """The rows of one partition, which has some of the topics; see `emq_spark.load.batch.Source`.

    Each partition reads the whole file.

    Args:
        replay: the replay.
        found: the result of `survey`.
        run: id of the run, with which the messages' ids begin.
    """

    def __init__(
        self, replay: Replay, duration_s: float | None, found: Survey, run: str, partition: int, partitions: int
    ) -> None:
        self._replay = replay
        self._duration_s = duration_s
        self._run = run
        self._partition = partition
        self._partitions = partitions
        self._total = found.topics.total()
        self.rows = sum(n for topic, n in found.topics.items() if self._mine(topic))
        self.per_s = self.rows / max(found.span_s, STEP_S)
        self.step_s = STEP_S

    def _mine(self, topic: str) -> bool:
        return zlib.crc32(topic.encode()) % self._partitions == self._partition

    def slices(self) -> Iterator[Slice]:
        held: list[Row] = []
        end_s = STEP_S
        # Rows that are appended to the file after the survey are not part of the load.
        for row in itertools.islice(rows(self._replay, self._duration_s), self._total):
            if held and (row.at_s >= end_s or len(held) >= SLICE_ROWS):
                yield Slice(min(end_s, row.at_s), self._batches(held))
                held = []
            if not self._mine(row.topic):
                continue
            if row.at_s >= end_s:
                end_s = (row.at_s // STEP_S + 1) * STEP_S
            held.append(row)
        if held:
            yield Slice(end_s, self._batches(held))

    def _batches(self, held: list[Row]) -> list[Batch]:
        alike: dict[tuple[str, str | None], list[Row]] = {}
        for row in held:
            alike.setdefault((row.topic, row.priority), []).append(row)
        return [
            Batch(
                topic,
                [row.number for row in same],
                [row.payload for row in same],
                [f"{self._run}.{row.number:x}" for row in same],
                priority,
                None if self._replay.key is None else [row.key for row in same],
            )
            for (topic, priority), same in alike.items()
        ]


# ------------------------------------------------------------------------------------------------------------ reading

_Record = tuple[Mapping[str, Any], Callable[[], bytes]]
"""A row by column, and a function that turns the whole row into a payload."""


def _records(replay: Replay) -> Iterator[_Record]:
    if replay.file == FLIGHTS:
        return _flights()
    return _parquet(replay) if replay.file.endswith(".parquet") else _lines(replay)


def _flights() -> Iterator[_Record]:
    from emq_demo import flights

    for flight in flights.load():
        values = {**msgspec.structs.asdict(flight), "priority": flights.priority(flight)}
        yield values, lambda flight=flight: flights.payload(flight)  # type: ignore[misc]


def _parquet(replay: Replay) -> Iterator[_Record]:
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    try:
        with pq.ParquetFile(replay.file) as file:
            for batch in file.iter_batches(SLICE_ROWS):
                for values in batch.to_pylist():
                    yield values, lambda values=values: msgspec.json.encode(values)  # type: ignore[misc]
    except (OSError, pa.ArrowException) as exc:
        raise _unreadable(replay, str(exc)) from exc


def _lines(replay: Replay) -> Iterator[_Record]:
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    try:
        with Path(replay.file).open("rb") as file:
            for number, line in enumerate(line for line in map(bytes.strip, file) if line):
                try:
                    yield decode(line), lambda line=line: line  # type: ignore[misc]
                except msgspec.DecodeError as exc:
                    raise _wrong(replay, number, f"it is not a JSON object ({exc})") from exc
    except OSError as exc:
        raise _unreadable(replay, exc.strerror or str(exc)) from exc


def _value(replay: Replay, number: int, values: Mapping[str, Any], column: str) -> Any:
    try:
        return values[column]
    except KeyError:
        raise _wrong(replay, number, f"there is no {column!r}; it has {_names(values)}") from None


def _time_s(replay: Replay, number: int, value: object) -> float:
    try:
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return value / _PER_S[replay.unit]
        found = datetime.datetime.fromisoformat(value) if isinstance(value, str) else value
        if isinstance(found, datetime.datetime):
            return (found if found.tzinfo else found.replace(tzinfo=datetime.UTC)).timestamp()
    except (ValueError, OverflowError):
        pass
    raise _wrong(replay, number, f"{replay.time} = {value!r} is not a time; give a number, or ISO 8601")


def _payload(value: object) -> bytes:
    if isinstance(value, str | bytes):
        return value.encode() if isinstance(value, str) else value
    return msgspec.json.encode(value)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _names(values: Mapping[str, Any]) -> str:
    return ", ".join(values)


def _wrong(replay: Replay, number: int, text: str) -> errors.InvalidSettings:
    return errors.InvalidSettings(f"replay.file {replay.file!r}: row {number + 1}: {text}")


def _unreadable(replay: Replay, reason: str) -> errors.InvalidSettings:
    reason = reason.splitlines()[0]
    return errors.InvalidSettings(f"replay.file {replay.file!r} cannot be read ({reason}); name a file that can")
