"""The offset audit: it compares the messages published, stored, delivered and dead, and names each broken promise.

    options = AuditOptions(trails=[Path("trail")], ledgers=[Path("ledger")], topics=topics, store=view)
    result = audit(local_session("audit"), options)

The audit uses plain data frames only. Each step is one sort or aggregation by message, group or key, so the audit runs
on a laptop and, unchanged, on a cluster. `emq_spark.audit.steps` has the steps in their order.
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

from emq.runtime import errors
from emq.trail import segments
from emq.trail.segments import Looked, at_one_time, out_of_turn
from emq_spark.audit import damaged_segments, segments_read
from emq_spark.audit import state as audit_state
from emq_spark.audit.options import AuditOptions as AuditOptions
from emq_spark.audit.result import Audit as Audit
from emq_spark.audit.steps import Progress, Steps
from emq_spark.load import ledger_reading

ROWS_A_PARTITION = 1_000_000
"""Events that one task sorts or aggregates. This number bounds the memory, however many events there are."""

_SCRATCH = "emq-audit-"
_FINDINGS = re.compile(r"\.?(_SUCCESS|part-\d{5}-.*\.parquet)(\.crc)?")

DAMAGED = 20
"""Most segments with damaged data that the audit leaves out and names before it gives up."""


def audit(
    spark: SparkSession,
    options: AuditOptions,
    findings: Path | None = None,
    on_progress: Progress = lambda _: None,
) -> Audit:
    """Audit the segments in the directories of `options`.

    The audit leaves out a segment whose data is damaged and names it in `flaws`, which voids the proof.

    Args:
        findings: directory for the findings as Parquet (`emq_spark.audit.findings.SCHEMA`); its old findings are
        replaced. on_progress: called with the name of each step when the step begins.

    Raises:
        InvalidSettings: a directory, run or source is missing, a state cannot be read, or the directory for findings
            holds other files; correct the setting.
    """
    check(options, findings)
    if options.state is not None:
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


def check(options: AuditOptions, findings: Path | None = None) -> None:
    """Check the options that need no Spark, so that a mistake is reported before Java starts.

    Raises:
        InvalidSettings: as `audit`.
    """
    if findings is not None:
        _check_findings(findings)
    for directory in options.trails:
        segments.paths(directory)
    for directory in options.ledgers:
        ledger_reading.places(directory, () if "*" in options.runs else options.runs)
    if options.state is not None:
        try:
            options.state.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise errors.InvalidSettings(
                f"audit state {str(options.state)!r} cannot be written ({exc.strerror}); name another directory"
            ) from exc
        audit_state.saved_in(options.state)


def _check_findings(directory: Path) -> None:
    """Refuse a directory that holds other files than findings, because the audit empties the directory first."""
    if directory.exists() and not directory.is_dir():
        raise errors.InvalidSettings(f"findings {str(directory)!r} must be a directory, or not be there yet")
    for path in directory.iterdir() if directory.exists() else ():
        if not _FINDINGS.fullmatch(path.name):
            raise errors.InvalidSettings(
                f"findings {str(directory)!r} holds {path.name!r}, which no audit wrote; name a directory of its own"
            )


def _fit(spark: SparkSession, rows: int) -> dict[str, str]:
    """Fit Spark's settings to the number of events, and return the settings as they were.

    Each task gets up to `ROWS_A_PARTITION` events. Spark compiles no code for few events. Spark reads every row and
    ignores the statistics in the footers of the files, because no checksum covers them.
    """
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
    """Return those of `paths` that an error text of Spark names as unreadable."""
    names = {name.rpartition("/")[2] for name in re.findall(r"reading file (\S+\.parquet)", text)}
    return {path for path in paths if path.rpartition("/")[2] in names}
