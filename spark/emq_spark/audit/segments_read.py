"""Finds the segments that an audit reads: the new ones, and the missing, damaged and foreign ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from emq.runtime import errors
from emq.trail import segments
from emq.trail.runs import CutShort, SourceRun, source_of
from emq_spark.audit.options import AuditOptions
from emq_spark.load import ledger_reading
from emq_spark.load.ledger import Run


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
    def cut_short(self) -> list[CutShort]:
        """The open runs of the sources in `unclosed`."""
        found = (run.cut_short(name) for name, run in sorted(self.sources.items()) if not run.closed)
        return [run for run in found if run.source in self.unclosed]

    @property
    def lasts(self) -> list[tuple[str, int]]:
        """Source and last event (microseconds since the epoch) of each run."""
        return [(source_of(name), run.last_us) for name, run in self.sources.items()]


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
        name = segments.NAME.fullmatch(path.name)
        run = found.sources.get(f"{name[1]}-{name[2]}") if name else None
        if name and run is not None and run.has(int(name[3])):
            if other := next((p for p in found.headers if p.endswith(f"/{path.name}")), None):
                found.flaws.append(f"{path.name}: it is there twice, in {Path(other).parent} and {path.parent}")
            continue
        if str(path) in without:
            found.flaws.append(f"{path.name}: {without[str(path)]}")
            continue
        try:
            header, rows = segments.measure(path)
        except segments.Flaw as flaw:
            found.flaws.append(f"{path.name}: {flaw}")
        else:
            run = found.sources.setdefault(header.run, SourceRun())
            run.add(header.seq, header.first_us, header.last_us, header.dropped, header.closed)
            found.rows += rows
            found.trail.append(str(path))
            found.headers[str(path)] = header


def _judge_sources(found: Input, options: AuditOptions) -> None:
    names = set(map(source_of, found.sources))
    if strange := sorted(options.crashed - names):
        there = ", ".join(sorted(names)) or "none"
        raise errors.InvalidSettings(
            f"there is no source {strange[0]!r} that could have crashed; the sources are {there}"
        )
    for name, run in sorted(found.sources.items()):
        source = source_of(name)
        found.flaws += run.flaws(name)
        if run.closed:
            continue
        if source in options.crashed or options.live:
            found.unclosed.add(source)
        else:
            found.flaws.append(
                f"{name}: {run.unclosed}; if it was killed, say so (--crashed {source}), if it still runs, too (--live)"
            )


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
