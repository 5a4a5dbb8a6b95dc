"""The offset audit: reconciles what was published, stored, delivered and dead, and names what broke a promise.

    options = AuditOptions(trails=[Path("trail")], ledgers=[Path("ledger")], topics=topics, store=view)
    result = audit(local_session("audit"), options)

Plain data frames throughout, each step linear in the events (a sort or an aggregation by message, group or key), so
that it runs on a laptop and unchanged on a cluster. `spark.audit.steps` has the steps in their order.
"""

from __future__ import annotations

import math
import re
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from emq import errors
from emq.trail.segments import Looked, at_one_time, out_of_turn
from spark.audit import damaged_segments, segments_read
from spark.audit import state as audit_state
from spark.audit.options import AuditOptions as AuditOptions
from spark.audit.result import Audit as Audit
from spark.audit.steps import Progress, Steps

ROWS_A_PARTITION = 1_000_000
"""Events that one task sorts or aggregates: what bounds memory, whatever the size of the whole."""

_SCRATCH = "emq-audit-"
_FINDINGS = re.compile(r"\.?(_SUCCESS|part-\d{5}-.*\.parquet)(\.crc)?")

DAMAGED = 20
"""Segments with damaged data that are left out and named before the audit gives up."""


def audit(
    spark: SparkSession,
    options: AuditOptions,
    findings: Path | None = None,
    on_progress: Progress = lambda _: None,
) -> Audit:
    """Audit what lies in the directories of `options`.

    A segment whose data turns out to be damaged is left out and named, which voids the proof.

    Args:
        findings: a directory to be written anew, with the findings as Parquet (`spark.audit.findings.SCHEMA`).
        on_progress: told what is being done.

    Raises:
        InvalidSettings: a directory, run or source that is not there, a state that cannot be read, or a directory for
            findings that holds something else; correct it.
    """
    if findings is not None:
        _check_findings(findings)
    if options.state is not None:
        options.state.mkdir(parents=True, exist_ok=True)
        for left in options.state.glob(f"{_SCRATCH}*"):
            shutil.rmtree(left, ignore_errors=True)
    state = audit_state.State(spark, options.state)
    without: dict[str, str] = {}
    looks: dict[str, Looked] = {}
    damaged = 0
    while True:
        on_progress("looking through the segments")
        found = segments_read.find(options, state.saved.sources, state.saved.ledger_names, without)
        looks |= damaged_segments.looks(spark, [path for path in found.trail if path not in looks])
        if flawed := {path: str(looks[path].flaw) for path in found.trail if looks[path].flaw}:
            without |= flawed
            continue
        turns = [(header, looks[path].turn) for path, header in found.headers.items()]
        found.flaws += [*out_of_turn(turns), *at_one_time(turns)]
        scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=options.state))
        before = _fit(spark, found.rows)
        try:
            return Steps(spark, found, state, options, scratch, on_progress).run(findings)
        except (PySparkException, Py4JJavaError) as exc:
            again = _named(str(exc), (*found.trail, *found.ledger))
            damaged += len(again)
            if not again or damaged > DAMAGED:
                raise
            without |= dict.fromkeys(again, "truncated or damaged (its data cannot be read)")
        finally:
            for name, value in before.items():
                spark.conf.set(name, value)
            shutil.rmtree(scratch, ignore_errors=True)


def _check_findings(directory: Path) -> None:
    """It is emptied first, so it must not be one that something else lies in."""
    if directory.exists() and not directory.is_dir():
        raise errors.InvalidSettings(f"findings {str(directory)!r} must be a directory, or not be there yet")
    for path in directory.iterdir() if directory.exists() else ():
        if not _FINDINGS.fullmatch(path.name):
            raise errors.InvalidSettings(
                f"findings {str(directory)!r} holds {path.name!r}, which no audit wrote; name a directory of its own"
            )


def _fit(spark: SparkSession, rows: int) -> dict[str, str]:
    """Let each task have so many events, compile nothing for few of them, and read all of them whatever the footers of
    their files say is in them, which no checksum covers; answers the settings as they were."""
    few = rows < ROWS_A_PARTITION
    wanted = {
        "spark.sql.shuffle.partitions": str(max(2, math.ceil(rows / ROWS_A_PARTITION))),
        "spark.sql.codegen.wholeStage": str(not few).lower(),
        "spark.sql.codegen.factoryMode": "NO_CODEGEN" if few else "FALLBACK",
        "spark.sql.adaptive.enabled": str(not few).lower(),
        "spark.sql.parquet.filterPushdown": "false",
    }
    before = {name: spark.conf.get(name) or "" for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    return before


def _named(text: str, paths: Iterable[str]) -> set[str]:
    """The segments that an error of Spark says it could not read."""
    names = {name.rpartition("/")[2] for name in re.findall(r"reading file (\S+\.parquet)", text)}
    return {path for path in paths if path.rpartition("/")[2] in names}
