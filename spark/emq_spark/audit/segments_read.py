"""Finds the segments that an audit reads: the new ones, and the missing, damaged and foreign ones."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from emq import errors, plurals
from emq.trail import schema, segments
from emq_spark.audit.options import AuditOptions
from emq_spark.load import ledger_reading
from emq_spark.load.ledger import Run

_NAME = re.compile(rf"({segments.SOURCE.pattern})-(\d+)-(\d{{6,}})\.parquet")


class SourceRun(msgspec.Struct):
    """The knowledge about one run of a source, over all audits so far.

    Attributes:
        spans: numbers of the segments that were read, as half-open ranges, ascending.
        closed: True if its last segment says that it ended in order.
        dropped: number of events that the source lost.
        first_us, last_us: times of its first and last event, microseconds since the epoch.
        last_seq: number of the first segment that says that the run ended; -1 without one.
    """

    spans: list[tuple[int, int]] = msgspec.field(default_factory=list)
    closed: bool = False
    dropped: int = 0
    first_us: int = 0
    last_us: int = 0
    last_seq: int = -1

    def has(self, seq: int) -> bool:
        return any(start <= seq < end for start, end in self.spans)

    def add(self, header: segments.Header) -> None:
        self.first_us = min(self.first_us or header.first_us, header.first_us)
        self.last_us = max(self.last_us, header.last_us)
        self.dropped = max(self.dropped, header.dropped)
        if header.closed:
            self.closed, self.last_seq = True, header.seq if self.last_seq < 0 else min(self.last_seq, header.seq)
        merged: list[tuple[int, int]] = []
        for start, end in sorted([*self.spans, (header.seq, header.seq + 1)]):
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((start, end))
        self.spans = merged


@dataclass
class Input:
    """The input of an audit.

    Attributes:
        trail, ledger: paths of the new segments.
        headers: headers of the trail's new segments, by path.
        runs: the load runs by id.
        sources: the runs of sources by `<source>-<run_us>`, after this audit.
        ledger_names: `<run>/<file>` of all ledger segments read so far.
        rows: number of events and messages in the new segments.
        flaws: reasons why the proof is void, one line each.
        unclosed: sources whose open trail is not a flaw, because they were killed or still run.
    """

    trail: list[str] = field(default_factory=list)
    ledger: list[str] = field(default_factory=list)
    headers: dict[str, segments.Header] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    sources: dict[str, SourceRun] = field(default_factory=dict)
    ledger_names: set[str] = field(default_factory=set)
    rows: int = 0
    flaws: list[str] = field(default_factory=list)
    unclosed: set[str] = field(default_factory=set)

    @property
    def first_us(self) -> int:
        return min((run.first_us for run in self.sources.values()), default=0)

    @property
    def last_us(self) -> int:
        return max((run.last_us for run in self.sources.values()), default=0)

    @property
    def cut_short(self) -> list[tuple[str, int, int]]:
        """Source, first and last event (microseconds since the epoch) of each open run of a source in `unclosed`."""
        runs = ((name.rpartition("-")[0], run) for name, run in sorted(self.sources.items()) if not run.closed)
        return [(source, run.first_us, run.last_us) for source, run in runs if source in self.unclosed]

    @property
    def lasts(self) -> list[tuple[str, int]]:
        """Source and last event (microseconds since the epoch) of each run."""
        return [(name.rpartition("-")[0], run.last_us) for name, run in self.sources.items()]


def find(
    options: AuditOptions,
    sources: dict[str, SourceRun],
    ledger_names: Collection[str],
    without: Mapping[str, str] | None = None,
) -> Input:
    """Look through all directories.

    Args:
        sources, ledger_names: segments that earlier audits have read; not changed.
        without: by path, the reason why a segment turned out to be useless.

    Raises:
        InvalidSettings: a directory or a run does not exist.
    """
    without = without or {}
    known = {name: msgspec.structs.replace(run, spans=list(run.spans)) for name, run in sources.items()}
    found = Input(sources=known, ledger_names=set(ledger_names))
    for directory in options.trails:
        _find_trail(found, directory, without)
    if not found.sources:
        found.flaws.append("there is no readable segment of a trail")
    _judge_sources(found, options)
    for directory in options.ledgers:
        _find_ledger(found, directory, options.runs, without)
    if len(found.runs) > 1 and not options.runs:
        found.flaws.append(
            f"ledgers of different runs are mixed: {', '.join(sorted(found.runs))}; name those that are meant (--run)"
        )
    return found


def _find_trail(found: Input, directory: Path, without: Mapping[str, str]) -> None:
    for path in segments.paths(directory):
        name = _NAME.fullmatch(path.name)
        run = found.sources.get(f"{name[1]}-{name[2]}") if name else None
        if name and run is not None and run.has(int(name[3])):
            if other := next((p for p in found.headers if p.endswith(f"/{path.name}")), None):
                found.flaws.append(f"{path.name}: it is there twice, in {Path(other).parent} and {path.parent}")
            continue
        read = without.get(str(path)) or _header(path)
        if isinstance(read, str):
            found.flaws.append(f"{path.name}: {read}")
        else:
            header, rows = read
            found.rows += rows
            found.sources.setdefault(f"{header.source}-{header.run_us}", SourceRun()).add(header)
            found.trail.append(str(path))
            found.headers[str(path)] = header


def _header(path: Path) -> tuple[segments.Header, int] | str:
    """Return the header of a segment and its number of events, or a text about the defect of the file."""
    if not _NAME.fullmatch(path.name) or not path.is_file():
        return "foreign, not a segment of a trail"
    try:
        with pq.ParquetFile(path) as file:
            header = segments.Header.decode(file.schema_arrow.metadata)
            rows = file.metadata.num_rows
    except KeyError:
        return "foreign, it carries no trail metadata"
    except (OSError, ValueError, pa.ArrowException) as exc:
        return f"truncated or damaged ({str(exc).splitlines()[0]})"
    if header.name != path.name:
        return f"foreign, it says that it is {header.name}"
    if header.version != schema.VERSION:
        return f"of schema version {header.version}, this program reads {schema.VERSION}"
    return header, rows


def _judge_sources(found: Input, options: AuditOptions) -> None:
    names = {name.rpartition("-")[0] for name in found.sources}
    if strange := sorted(options.crashed - names):
        there = ", ".join(sorted(names)) or "none"
        raise errors.InvalidSettings(
            f"there is no source {strange[0]!r} that could have crashed; the sources are {there}"
        )
    for name, run in sorted(found.sources.items()):
        source = name.rpartition("-")[0]
        if missing := _missing(run.spans):
            some = ", ".join(map(str, missing[:10])) + (" ..." if len(missing) > 10 else "")
            found.flaws.append(
                f"{name}: {plurals.count(len(missing), 'segment')} {plurals.are(len(missing))} missing (numbers {some})"
            )
        if run.dropped:
            found.flaws.append(f"{name}: {plurals.count(run.dropped, 'event')} {plurals.were(run.dropped)} dropped")
        if run.closed and 0 <= run.last_seq < run.spans[-1][1] - 1:
            found.flaws.append(f"{name}: segment {run.spans[-1][1] - 1} comes after the last one of its run")
        if run.closed:
            continue
        if source in options.crashed or options.live:
            found.unclosed.add(source)
        else:
            found.flaws.append(
                f"{name}: not closed after segment {run.spans[-1][1] - 1}; if it was killed, say so "
                f"(--crashed {source}), if it still runs, too (--live)"
            )


def _missing(spans: Sequence[tuple[int, int]]) -> list[int]:
    gaps: list[int] = []
    reached = 0
    for start, end in spans:
        gaps += range(reached, start)
        reached = end
    return gaps


def _find_ledger(found: Input, directory: Path, runs: Sequence[str], without: Mapping[str, str]) -> None:
    chosen: Iterable[str] = () if "*" in runs else runs
    there = ledger_reading.find(directory, tuple(chosen))
    found.flaws += there.flaws
    found.runs.update(there.runs)
    for segment in there.segments:
        name = f"{segment.run}/{segment.path.name}"
        if str(segment.path) in without:
            found.flaws.append(f"ledger {segment.run}: {segment.path.name}: {without[str(segment.path)]}")
        elif name not in found.ledger_names:
            found.ledger_names.add(name)
            found.ledger.append(str(segment.path))
            found.rows += segment.rows
