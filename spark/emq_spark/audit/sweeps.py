"""The last steps of an audit: sweeps over groups and keys in order of time (Q, P, K)."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from emq.trail import events
from emq_spark.audit import caps as audit_caps
from emq_spark.audit import events as audit_events
from emq_spark.audit import keys, priority
from emq_spark.audit import waiting as audit_waiting
from emq_spark.audit.frames import Frames
from emq_spark.audit.options import AuditOptions
from emq_spark.audit.reports import Reports
from emq_spark.audit.segments_read import Input


class Sweeps:
    """Sweeps of one audit.

    Args:
        catalogs: all catalogs that were in force; empty if they are not known.
    """

    def __init__(
        self,
        spark: SparkSession,
        frames: Frames,
        reports: Reports,
        found: Input,
        options: AuditOptions,
        catalogs: Sequence[audit_caps.Catalog],
    ) -> None:
        self._spark = spark
        self._frames = frames
        self._reports = reports
        self._found = found
        self._options = options
        self._catalogs = catalogs

    def judge_smooth_caps(self, caps: Sequence[audit_caps.Cap]) -> None:
        """Judge the caps of smooth topics (Q)."""
        if any(cap.most for cap in caps):
            starts = self._frames.starts
            found = audit_caps.stretches(starts, audit_caps.frame(self._spark, caps))
            stretches = self._frames.kept("stretches", found)
            if self._frames.has("stretches"):
                self._reports.add(audit_caps.sliding(stretches, starts, self._options.slack_us))

    def judge_priority(self, waiting: DataFrame | None) -> None:
        """Judge priority (P).

        Args:
            waiting: messages that were never started, see `emq_spark.audit.waiting`; None if none are known.
        """
        others = {t.name for topics in self._catalogs for t in topics if t.options.priority_policy != "strict"}
        rows = self._frames.rows.where(~F.col("topic").isin(others))
        starts = audit_events.only(rows, events.STARTED)
        lowest = self._frames.overview.lowest
        if not lowest:
            return
        if waiting is not None:
            strict = waiting.where(~F.col("topic").isin(others))
            left = audit_waiting.as_starts(strict, self._frames.owners)
            starts = starts.unionByName(left, allowMissingColumns=True)
        starts = priority.waiting(starts, self._frames.owners)
        suspects = self._frames.kept("suspects", priority.suspects(starts, lowest + 1))
        if self._frames.has("suspects"):
            ends = audit_events.only(rows, *audit_events.ENDINGS).where(F.col("key").isNotNull())
            both = starts.unionByName(ends, allowMissingColumns=True)
            self._reports.add(priority.inversions(both, suspects))

    def judge_keys(self, waiting: DataFrame | None) -> None:
        """Judge the order of keys (K); `waiting` as for `judge_priority`."""
        rows, cut_short, slack_us = self._frames.rows, self._found.cut_short, self._options.slack_us
        deliveries = keys.deliveries(rows, cut_short)
        followed = keys.followed(deliveries, slack_us)
        faults = self._frames.kept("faults", followed)
        if self._frames.has("faults"):
            doubtful = self._frames.doubtful
            self._reports.add(keys.overlaps(faults, doubtful))
            self._reports.add(keys.disorder(faults, self._frames.losses))
            self._reports.add(keys.overtaken(faults, rows, doubtful, slack_us))
        if waiting is not None and not (keyed := audit_waiting.with_key(waiting)).isEmpty():
            self._reports.add(keys.passed_over(keyed, self._frames.starts))
        others = {
            t.name for topics in self._catalogs for t in topics if t.options.ordering != "slot" or not t.is_sorted
        }
        if serial := sorted({t.name for topics in self._catalogs for t in topics} - others):
            runs = keys.deliveries(keys.by_slot(rows, serial), cut_short, failures_run=False)
            self._reports.add(keys.overlaps(keys.followed(runs, slack_us)))
