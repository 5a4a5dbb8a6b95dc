"""What the steps of an audit have found, gathered as Parquet below its scratch directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark import audit_events, audit_findings, audit_local
from spark.audit_state import State


class Reports:
    """Findings of one audit.

    Args:
        scratch: a directory for them; the caller removes it.
    """

    def __init__(self, spark: SparkSession, state: State, scratch: Path) -> None:
        self._spark = spark
        self._state = state
        self._scratch = scratch
        self._places: list[str] = []

    def add(self, found: DataFrame) -> None:
        """Compute and keep findings. Each costs a job, so what surely finds nothing is better not asked."""
        place = str(self._scratch / f"findings-{len(self._places)}")
        audit_findings.complete(found).write.parquet(place)
        self._places.append(place)

    def add_rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Keep findings that the driver made."""
        if rows:
            self.add(audit_findings.of_rows(self._spark, rows))

    def new(self) -> DataFrame:
        """Those that no earlier audit reported, with their fingerprints."""
        found = audit_local.nothing(self._spark, audit_findings.SCHEMA)
        if self._places:
            reader = self._spark.read.schema(audit_findings.SCHEMA)
            found = reader.parquet(*map(audit_events.literal, self._places))
        found = audit_findings.fingerprinted(found)
        if self._state.saved.audits:
            found = found.join(self._state.carried("known", "fingerprint long"), "fingerprint", "left_anti")
        return found
