"""Segments: the Parquet files of a trail. They are written whole or not at all; readers report their flaws."""

from __future__ import annotations

import contextlib
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from emq.runtime import errors
from emq.trail import events, forms, runs, schema

SOURCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,99}")
"""The form of a source's name. The first character is a letter or digit, because readers such as Spark take files that
begin with a dot or an underscore for hidden."""

NAME = re.compile(rf"({SOURCE.pattern})-(\d+)-(\d{{6,}})\.parquet")
_UNDER_WAY = ".tmp"
_CHECK = "emq.check"
"""Key of the checksum over the names and values of the header, in the order of the names."""


class Header(NamedTuple):
    """The file metadata of a segment (keys `emq.<field>`, all values decimal numbers or text; `emq.check`: their CRC).

    Attributes:
        source: id of the host or producer.
        run_us: time when this run of the source opened the trail, microseconds since the epoch; tells restarts apart.
        seq: number of the segment in the run, from 0 without gaps; segment 0 is empty and written at the opening.
        first_us: lowest `time_us` in the segment; of an empty segment, the time of writing.
        last_us: highest `time_us` in the segment; of an empty segment, the time of writing.
        dropped: number of the run's events lost so far, because the disk was slow, full or broken.
        closed: True for the last segment of a run that ended in order.
        version: version of the schema.
    """

    source: str
    run_us: int
    seq: int
    first_us: int
    last_us: int
    dropped: int = 0
    closed: bool = False
    version: int = schema.VERSION

    @property
    def run(self) -> str:
        return f"{self.source}-{self.run_us}"

    @property
    def name(self) -> str:
        return f"{self.run}-{self.seq:06d}.parquet"

    def encode(self) -> dict[str, str]:
        return with_check({k: str(int(v) if isinstance(v, bool) else v) for k, v in self._asdict().items()})

    @classmethod
    def decode(cls, metadata: dict[bytes, bytes] | None) -> Header:
        """Return the header in a file's metadata. Raise `KeyError` or `ValueError` if none is, or if it is damaged."""
        texts = checked(metadata, cls._fields)
        numbers = {k: int(v) for k, v in texts.items() if k not in ("source", "closed")}
        return cls(source=texts["source"], closed=texts["closed"] == "1", **numbers)


def with_check(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata of a file with these texts, and with a checksum over them.

    Pages of a Parquet file have checksums, its footer with the metadata has none.
    """
    return {**{f"emq.{name}": text for name, text in texts.items()}, _CHECK: _checksum(texts)}


def checked(metadata: Mapping[bytes, bytes] | None, names: Sequence[str]) -> dict[str, str]:
    """Return the texts of these names in a file's metadata.

    Raises:
        KeyError: a text is missing.
        ValueError: the texts do not match their checksum, or have none.
    """
    given = metadata or {}
    texts = {name: given[f"emq.{name}".encode()].decode() for name in names}
    check = given.get(_CHECK.encode())
    if check is None:
        raise ValueError("its header has no checksum, as this version writes it")
    if check.decode() != _checksum(texts):
        raise ValueError("its header does not match the checksum")
    return texts


def _checksum(texts: Mapping[str, str]) -> str:
    return str(zlib.crc32("\n".join(f"{name}={texts[name]}" for name in sorted(texts)).encode()))


def write(directory: Path, header: Header, table: Any) -> None:
    """Write one segment. The file appears under its name complete or not at all.

    This function does not wait for the disk. A crash of the process cannot tear a segment. A crash of the machine can,
    but this is too rare to wait every second; readers find such a segment by its checksums.

    Raises:
        OSError, pyarrow.ArrowException: nothing was written; count the events as dropped.
    """
    path = directory / header.name
    temporary = path.with_name(path.name + _UNDER_WAY)
    try:
        pq.write_table(
            table.replace_schema_metadata(header.encode()),
            temporary,
            compression="zstd",
            use_dictionary=list(schema.REPETITIVE),
            write_page_checksum=True,
        )
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


class Ledger(NamedTuple):
    """All segments of a directory.

    Attributes:
        table: the events, in no particular order.
        segments: number of files read.
        flaws: reasons why the ledger is not complete, one line each; empty if it is complete.
        cut_short: the runs that were not closed.
        is_whole: True if nothing is missing except the ends of runs that were not closed.
    """

    table: Any
    segments: int
    flaws: tuple[str, ...]
    cut_short: tuple[runs.CutShort, ...] = ()
    is_whole: bool = True


def paths(directory: Path) -> list[Path]:
    """Return the files of a directory that should be segments, by name.

    Raises:
        InvalidSettings: there is no such directory; correct the path.
    """
    if not directory.is_dir():
        raise errors.InvalidSettings(f"there is no trail directory {str(directory)!r}; name one that a trail wrote to")
    return sorted(p for p in directory.iterdir() if p.name[0] not in "._" and not p.name.endswith(_UNDER_WAY))


def read(directory: Path) -> Ledger:
    """Read every segment of `directory`; name missing and broken segments, and files that are not segments.

    Raises:
        InvalidSettings: there is no such directory; correct the path.
    """
    tables, turns, flaws = [schema.SCHEMA.empty_table()], [], []
    found: dict[str, runs.SourceRun] = defaultdict(runs.SourceRun)
    for path in paths(directory):
        try:
            header, table = _read_segment(path)
        except Flaw as flaw:
            flaws.append(f"{path.name}: {flaw}")
        else:
            found[header.run].add(header.seq, header.first_us, header.last_us, header.dropped, header.closed)
            turns.append((header, _turn(table)))
            tables.append(table)
    if not found:
        flaws.append("there is no readable segment")
    flaws += [*out_of_turn(turns), *at_one_time(turns)]
    flaws += [flaw for name, run in sorted(found.items()) for flaw in run.flaws(name)]
    left = [(name, run) for name, run in sorted(found.items()) if not run.closed]
    ends = [f"{name}: {run.unclosed}, the source crashed or still runs" for name, run in left]
    cut_short = tuple(run.cut_short(name) for name, run in left)
    return Ledger(pa.concat_tables(tables), len(turns), (*flaws, *ends), cut_short, not flaws)


class Flaw(Exception):
    """The reason why a file does not count as a segment."""


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, Header]]:
    """Open a segment as a Parquet file, and read its header.

    Raises:
        Flaw: the file is no segment, or its header or the data that the caller reads is damaged.
    """
    if not NAME.fullmatch(path.name) or not path.is_file():
        raise Flaw("foreign, not a segment of a trail")
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            header = Header.decode(file.schema_arrow.metadata)
            if header.name != path.name:
                raise Flaw(f"foreign, it says that it is {header.name}")
            if header.version != schema.VERSION:
                raise Flaw(f"of schema version {header.version}, this program reads {schema.VERSION}")
            yield file, header
    except KeyError:
        raise Flaw("foreign, it carries no trail metadata") from None
    except (OSError, ValueError, pa.ArrowException) as exc:
        raise Flaw(f"truncated or damaged ({str(exc).splitlines()[0]})") from exc


def measure(path: Path) -> tuple[Header, int]:
    """Return the header of a segment and its number of events, without a look at the events.

    Raises:
        Flaw: the file is no segment, or damaged.
    """
    with _opened(path) as (file, header):
        return header, file.metadata.num_rows


def _read_segment(path: Path, columns: Sequence[str] = schema.SCHEMA.names) -> tuple[Header, Any]:
    """Return header and events of a segment; raise `Flaw` if the events contradict the header or each other."""
    with _opened(path) as (file, header):
        if flaw := forms.wrong_columns(file.schema_arrow):
            raise Flaw(flaw)
        table = file.read(columns=list(columns)).replace_schema_metadata(None)
        if flaw := _contradiction(header, table):
            raise Flaw(flaw)
        return header, table


class Looked(NamedTuple):
    """The findings of a look at the rows of a segment.

    Attributes:
        flaw: a text about rows that contradict the header or other rows; None if no row does.
        turn: times of the first and last event that hosts record as it happens; None without such an event.
    """

    flaw: str | None
    turn: tuple[int, int] | None = None


def look(path: Path) -> Looked:
    """Read the checked columns of a segment (`forms.COLUMNS`). Readers of the other columns find damage there."""
    try:
        _, table = _read_segment(path, forms.COLUMNS)
    except Flaw as flaw:
        return Looked(str(flaw))
    return Looked(None, _turn(table))


def out_of_turn(turns: Iterable[tuple[Header, tuple[int, int] | None]]) -> list[str]:
    """Return a line for each segment whose events are dated before those of an earlier segment of its run.

    Args:
        turns: header and `Looked.turn` of each segment, in any order.
    """
    flaws = []
    latest: dict[tuple[str, int], int] = {}
    for header, turn in sorted(turns, key=lambda each: each[0].seq):
        run = header.source, header.run_us
        if turn is not None:
            if turn[0] < latest.get(run, turn[0]) - LEAP_US:
                flaws.append(f"{header.name}: its events are dated before those of earlier segments of its run")
            latest[run] = max(turn[1], latest.get(run, turn[1]))
    return flaws


def at_one_time(turns: Iterable[tuple[Header, tuple[int, int] | None]]) -> list[str]:
    """Return a line for each run of a source that delivered at the time of another run, as if two hosts had its name.

    Args:
        turns: as for `out_of_turn`.
    """
    runs: dict[tuple[str, int], tuple[int, int]] = {}
    for header, turn in turns:
        if turn is not None:
            first_us, last_us = runs.get((header.source, header.run_us), turn)
            runs[header.source, header.run_us] = min(first_us, turn[0]), max(last_us, turn[1])
    flaws = []
    latest: dict[str, tuple[int, int]] = {}
    for (source, run_us), (first_us, last_us) in sorted(runs.items(), key=lambda item: item[1]):
        other_us, until_us = latest.get(source, (0, first_us))
        if until_us > first_us + LEAP_US:
            flaws.append(f"{source}: its runs {other_us} and {run_us} delivered messages at the same time")
        latest[source] = max((run_us, last_us), latest.get(source, (run_us, last_us)), key=lambda run: run[1])
    return flaws


LEAP_US = forms.LEAP_US

_IN_TURN = (events.STARTED, events.SETTLED, events.RETRIED, events.RETURNED, events.DEAD)
"""Events that a host records as they happen."""


def _contradiction(header: Header, table: Any) -> str | None:
    if not table.num_rows:
        return None
    if wrong := forms.wrong_rows(table):
        return wrong
    strangers = sorted(set(pc.unique(table["source"].cast(pa.string())).to_pylist()) - {header.source}, key=str)
    if strangers:
        return f"foreign, rows of {strangers[0]} under the header of {header.source}"
    times = pc.min_max(table["time_us"]).as_py()
    if (times["min"], times["max"]) != (header.first_us, header.last_us):
        said = f"{header.first_us} to {header.last_us}"
        return f"its rows are of {times['min']} to {times['max']} us, and its header says {said}"
    in_turn = _in_turn(table)
    back_us = pc.max(pc.subtract(pc.cumulative_max(in_turn), in_turn)).as_py() or 0
    if back_us > LEAP_US:
        return f"events are dated up to {back_us / 1e6:.3f} s before what was recorded before them"
    return None


def _in_turn(table: Any) -> Any:
    return table.filter(pc.is_in(table["event"].cast(pa.string()), pa.array(_IN_TURN)))["time_us"]


def _turn(table: Any) -> tuple[int, int] | None:
    times = pc.min_max(_in_turn(table)).as_py()
    return None if times["min"] is None else (times["min"], times["max"])
