"""The data frames of one audit: new events, events that an earlier audit handed on, and counts of both."""

from __future__ import annotations

import functools
from pathlib import Path

import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pyspark.sql import Column, DataFrame, Observation, Row, SparkSession
from pyspark.sql import functions as F

from emq.trail import events
from emq_spark.audit import crashes as audit_crashes
from emq_spark.audit import events as audit_events
from emq_spark.audit import local_rows
from emq_spark.audit import messages as audit_messages
from emq_spark.audit import overview as audit_overview
from emq_spark.audit import owners as audit_owners
from emq_spark.audit import seconds as audit_seconds
from emq_spark.audit.options import AuditOptions
from emq_spark.audit.overview import Overview
from emq_spark.audit.segments_read import Input
from emq_spark.audit.state import State


class Frames:
    """Data frames of one audit; costly ones are computed once and written to `scratch`.

    Attributes:
        new: events of the new segments of trails and ledgers.
        rows: `new` and the events that an earlier audit handed on.
        since_us: events before this time are not handed on; microseconds since the epoch.
    """

    def __init__(self, spark: SparkSession, found: Input, state: State, options: AuditOptions, scratch: Path) -> None:
        self._spark = spark
        self._state = state
        self._found = found
        self._slack_us = options.slack_us
        self._scratch = scratch
        self._rows: dict[str, int] = {}
        self.carries = options.state is not None
        self.since_us = found.last_us - options.carried_us
        self.sent = audit_events.of_ledger(spark, found.ledger)
        trail = audit_events.of_trail(spark, found.trail)
        self.new = audit_events.united(trail, self.sent)
        self.recent = state.carried("recent", audit_events.TRAIL)
        self.rows = self.new.unionByName(self.recent)

    @property
    def _none(self) -> DataFrame:
        """No events."""
        return local_rows.nothing(self._spark, audit_events.TRAIL)

    def kept(self, name: str, frame: DataFrame) -> DataFrame:
        """Compute the frame now, write it to `scratch`, and return a frame that reads it from there."""
        place = self.place(name)
        frame.write.mode("overwrite").parquet(str(place))
        self._rows[name] = sum(pq.read_metadata(path).num_rows for path in place.glob("part-*.parquet"))
        if not self._rows[name]:
            return local_rows.nothing(self._spark, frame.schema)
        return self._spark.read.schema(frame.schema).parquet(audit_events.literal(place))

    def place(self, name: str) -> Path:
        """Return the directory in which a frame is kept."""
        return self._scratch / name

    def some(self, name: str, frame: DataFrame) -> DataFrame | None:
        """Do as `kept`; return None if the frame has no rows."""
        kept = self.kept(name, frame)
        return kept if self._rows[name] else None

    @functools.cached_property
    def overview(self) -> Overview:
        """The result of one pass over all events."""
        return audit_overview.of(self.new, self.recent)

    @functools.cached_property
    def seconds(self) -> DataFrame:
        """Counts by second, see `emq_spark.audit.seconds`."""
        found = audit_seconds.counted(self.new).unionByName(self._state.carried("seconds", audit_seconds.SCHEMA))
        return self.kept("seconds", found)

    @functools.cached_property
    def _owners(self) -> tuple[DataFrame, dict[str, int]]:
        found = audit_owners.table(self.seconds)
        found = audit_owners.merged(found, self._state.carried("owners", audit_owners.FIELDS))
        found = audit_owners.beside(found, is_whole=not self._found.flaws)
        counted = Observation("owners")
        marks = {"suspect": F.col("suspect"), "crashed": audit_crashes.is_crash(), "moved": audit_owners.is_move()}
        sums = [audit_events.count(mark).alias(name) for name, mark in marks.items()]
        kept = self.kept("owners", found.observe(counted, *sums))
        return kept, {name: int(value or 0) for name, value in counted.get.items()}

    @property
    def owners(self) -> DataFrame:
        """All ownerships, see `emq_spark.audit.owners.beside`."""
        return self._owners[0]

    @property
    def owner_counts(self) -> dict[str, int]:
        """Number of ownerships that may be in conflict (`suspect`), ended abruptly (`crashed`), or are moves."""
        return self._owners[1]

    @functools.cached_property
    def crashed(self) -> DataFrame:
        """The ownerships that ended abruptly, see `emq_spark.audit.crashes.ownerships`."""
        if not self.owner_counts["crashed"]:
            return local_rows.nothing(self._spark, audit_crashes.CRASHED)
        found = audit_crashes.ownerships(self.owners, self._found.lasts, self._found.unclosed, self._slack_us)
        return self.kept("crashed", found)

    @functools.cached_property
    def doubtful(self) -> DataFrame:
        """The groups that a killed host had, or whose store has lost messages: topic, group."""
        killed = sorted({source for source, *_ in self._found.cut_short})
        found = self.losses.select("topic", "group")
        if killed:
            found = found.union(self.owners.where(F.col("source").isin(killed)).select("topic", "group"))
        return found.distinct()

    @functools.cached_property
    def messages(self) -> DataFrame:
        """Counts of messages whose ids are published once."""
        # To recognise ids that come back costs more than the rest, and most audits have none.
        chosen = (~_comes_back() | audit_events.is_copy()) if self.overview.comes_back else F.lit(True)
        found = audit_messages.aggregate(self.new.where(F.col("id").isNotNull() & chosen))
        if self._state.saved.audits:
            found = audit_messages.merged(found, self._state.carried("messages", audit_messages.COUNTED))
        return audit_messages.judged(found, self._slack_us)

    @functools.cached_property
    def ranges(self) -> DataFrame:
        """Offsets that were dropped, skipped, lost or forgotten. They are few and used often, so they are kept."""
        if not self.overview.ranges:
            return self._none
        return self.kept("ranges", audit_events.only(self.rows, *audit_events.RANGES))

    @property
    def losses(self) -> DataFrame:
        """Offsets that a store has lost."""
        return audit_events.only(self.ranges, events.LOST)

    @property
    def forgotten(self) -> DataFrame:
        """Queues of topics that ended, which a store has forgotten."""
        return audit_events.only(self.ranges, events.FORGOTTEN)

    @property
    def begun_again(self) -> DataFrame:
        """Offsets that a store has lost, or that begin again because it has forgotten the queue."""
        return audit_events.only(self.ranges, events.LOST, events.FORGOTTEN)

    @functools.cached_property
    def outcomes(self) -> list[Row]:
        """Outcomes of publishes by the ledgers: topic, outcome, n (rows), nameless (rows without an id), odd (rows that
        no load writes)."""
        counted = {"nameless": F.col("id").isNull(), "odd": audit_events.is_odd_row()}
        sums = [audit_events.count(condition).alias(name) for name, condition in counted.items()]
        return self.sent.groupBy("topic", "outcome").agg(F.count("*").alias("n"), *sums).collect()

    @property
    def contents(self) -> DataFrame:
        """Events of ids that come back."""
        return self.rows.where(_comes_back()) if self.overview.comes_back else self._none

    @functools.cached_property
    def starts(self) -> DataFrame:
        return audit_events.only(self.rows, events.STARTED)

    def carried_rows(self, lives: DataFrame) -> DataFrame:
        """Return the events to hand on: the newest, and those of ids that come back and are open or have new events."""
        of_slots = F.coalesce(_comes_back(), F.lit(False))
        recent = (F.col("time_us") >= self.since_us) & ((F.col("event") != audit_events.SENT) | of_slots)
        old = self.rows.where(of_slots & ~recent).withColumn("origin", audit_events.origin())
        still = lives.where(F.col("is_open") | (F.col("last_us") >= self.since_us))
        kept = old.join(still.select("topic", F.col("id").alias("origin")), ["topic", "origin"], "left_semi")
        return self.rows.where(recent).unionByName(kept.drop("origin"))


def _comes_back() -> Column:
    return audit_events.is_slot_id()
