"""The findings of an audit's steps, gathered as Parquet below the scratch directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from emq_spark.audit import events, findings, local_rows
from emq_spark.audit.frames import Frames
from emq_spark.audit.state import State


class Reports:
    """Findings of one audit."""

    def __init__(self, spark: SparkSession, state: State, frames: Frames) -> None:
        self._spark = spark
        self._state = state
        self._frames = frames
        self._asked = 0
        self._found: list[str] = []

    def add(self, found: DataFrame) -> None:
        """Compute and keep findings. Each call costs a Spark job, so do not call it for a frame known to be empty."""
        self._asked += 1
        name = f"findings-{self._asked}"
        if self._frames.some(name, findings.complete(found)) is not None:
            self._found.append(events.literal(self._frames.place(name)))

    def add_rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Keep findings that the driver made."""
        if rows:
            self.add(findings.of_rows(self._spark, rows))

    def __bool__(self) -> bool:
        """True if there is a finding."""
        return bool(self._found)

    def new(self) -> DataFrame:
        """Return the findings that no earlier audit reported, with their fingerprints."""
        found = local_rows.nothing(self._spark, findings.SCHEMA)
        if self._found:
            reader = self._spark.read.schema(findings.SCHEMA)
            found = reader.parquet(*self._found)
        found = findings.fingerprinted(found)
        if self._state.saved.audits:
            found = found.join(self._state.carried("known", "fingerprint long"), "fingerprint", "left_anti")
        return found
