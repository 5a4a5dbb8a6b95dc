"""Find the ledgers of load runs, with their missing, damaged and foreign segments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from emq.runtime import errors, plurals
from emq.trail import segments as trail_segments
from emq_spark.load.ledger import SCHEMA, SEGMENT, SUMMARY, Run


class Segment(msgspec.Struct, frozen=True):
    """A readable segment, with the fields of its metadata."""

    path: Path
    run: str
    partition: int
    attempt: int
    n: int
    rows: int


class Found(msgspec.Struct, frozen=True):
    """The contents of a directory of ledgers.

    Attributes:
        runs: summaries by run id.
        segments: the readable segments.
        flaws: reasons why the ledgers are not complete, one line each.
    """

    runs: dict[str, Run]
    segments: tuple[Segment, ...]
    flaws: tuple[str, ...]


def find(directory: Path | str, runs: Sequence[str] = ()) -> Found:
    """Read the ledgers of a directory, with their missing, damaged and foreign segments.

    Args:
        directory: a directory that holds `run=...` directories, or a `run=...` directory itself.
        runs: ids of the runs to read; empty for all runs in the directory.

    Raises:
        InvalidSettings: the directory or a run in it does not exist.
    """
    there = places(directory, runs)
    found: dict[str, Run] = {}
    segments: list[Segment] = []
    flaws: list[str] = []
    for name in runs or there:
        summary, mine, wrong = _read_run(there[name], name)
        segments += mine
        flaws += wrong
        if summary is not None:
            found[name] = summary
    return Found(found, tuple(segments), tuple(flaws))


def places(directory: Path | str, runs: Sequence[str] = ()) -> dict[str, Path]:
    """Return the directories of the runs by id. Raises `InvalidSettings` as `find`."""
    directory = Path(directory)
    if not directory.is_dir():
        raise errors.InvalidSettings(f"there is no ledger directory {str(directory)!r}; name one that a load wrote to")
    found = [directory] if directory.name.startswith("run=") else sorted(directory.glob("run=*"))
    there = {place.name.removeprefix("run="): place for place in found}
    if not there:
        raise errors.InvalidSettings(f"ledger directory {str(directory)!r} holds no run=...; name one a load wrote to")
    if missing := [run for run in runs if run not in there]:
        raise errors.InvalidSettings(f"there is no run {missing[0]!r} in {str(directory)!r}; it has {', '.join(there)}")
    return there


def _read_run(place: Path, run: str) -> tuple[Run | None, list[Segment], list[str]]:
    flaws: list[str] = []
    segments = []
    for path in sorted(place.iterdir()):
        if path.name == SUMMARY or path.name[0] in "._":
            continue
        found = _segment(path, run)
        if isinstance(found, str):
            flaws.append(f"ledger {run}: {path.name}: {found}")
        else:
            segments.append(found)
    summary = _summary(place / SUMMARY, run)
    if isinstance(summary, str):
        return None, segments, [*flaws, f"ledger {run}: {summary}"]
    return summary, segments, [*flaws, *_gaps(summary, segments)]


def _segment(path: Path, run: str) -> Segment | str:
    """Return a segment, or a text about its defect."""
    if not SEGMENT.fullmatch(path.name) or not path.is_file():
        return "foreign, not a segment of a ledger"
    try:
        with pq.ParquetFile(path) as file:
            names = [name for name in Segment.__struct_fields__ if name != "path"]
            texts = trail_segments.checked(file.schema_arrow.metadata, names)
            rows = file.metadata.num_rows
            columns = file.schema_arrow.remove_metadata()
    except KeyError:
        return "foreign, it carries no ledger metadata"
    except (OSError, ValueError, pa.ArrowException) as exc:
        return f"truncated or damaged ({str(exc).splitlines()[0]})"
    segment = Segment(path, texts.pop("run"), **{k: int(v) for k, v in texts.items()})
    if segment.run != run:
        return f"of run {segment.run}, not {run}: ledgers of different runs are mixed"
    if path.name != f"part-{segment.partition}-{segment.attempt}-{segment.n}.parquet":
        return "renamed, its metadata names another"
    if columns != SCHEMA:
        return "of another schema than this program reads"
    return (
        segment
        if rows == segment.rows
        else f"{plurals.count(rows, 'message')}, {segment.rows} {plurals.were(segment.rows)} written"
    )


def _summary(path: Path, run: str) -> Run | str:
    try:
        summary = msgspec.json.decode(path.read_bytes(), type=Run)
    except FileNotFoundError:
        return f"there is no {SUMMARY}: the load has not ended, or was cut short"
    except (OSError, msgspec.DecodeError) as exc:
        return f"{SUMMARY} is damaged ({exc})"
    return summary if summary.run == run else f"{SUMMARY} is of run {summary.run}: ledgers of different runs are mixed"


def _gaps(run: Run, segments: Sequence[Segment]) -> list[str]:
    """Return the flaws of a run: its missing, surplus and incomplete segments, one line each."""
    flaws = [] if run.complete else [f"ledger {run.run}: not complete, the load has not ended in order"]
    there = {(s.partition, s.attempt, s.n): s.rows for s in segments}
    told = {
        (part.partition, attempt, n)
        for part in run.parts
        for attempt, written in (*part.earlier, (part.attempt, part.segments))
        for n in range(written)
    }
    if run.complete and (more := sorted(there.keys() - told)):
        first = "-".join(map(str, more[0]))
        flaws.append(
            f"ledger {run.run}: {plurals.count(len(more), 'segment')} {plurals.are(len(more))} there "
            f"that {SUMMARY} does not tell of (part-{first})"
        )
    for part in run.parts:
        found = len(flaws)
        for attempt, written in (*part.earlier, (part.attempt, part.segments)):
            missing = [str(n) for n in range(written) if (part.partition, attempt, n) not in there]
            if missing:
                of = f", attempt {attempt}" if part.earlier else ""
                flaws.append(
                    f"ledger {run.run}: partition {part.partition}{of}: "
                    f"{plurals.count(len(missing), 'segment')} {plurals.are(len(missing))} missing or "
                    f"unreadable (numbers {', '.join(missing[:10])}{' ...' if len(missing) > 10 else ''})"
                )
        total = sum(there.get((part.partition, part.attempt, n), 0) for n in range(part.segments))
        if len(flaws) == found and total != part.rows:
            flaws.append(
                f"ledger {run.run}: partition {part.partition}: {total} of {plurals.count(part.rows, 'message')} "
                f"{plurals.are(total)} there"
            )
    return flaws
