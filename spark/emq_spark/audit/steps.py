"""The steps of an audit, in order, with the letters of the promises that each step judges.

seconds     count the events of each second; judge caps in aligned seconds, and ownerships (Q, O)
messages    follow each message to its end (L, D, X); keep unusual messages for the next steps
offsets     compare open messages with the store, and checkpoints with the trail (L, M, X)
repeats     compare messages settled, started or dead too often with the repeats that crashes explain (D, M, X)
sweeps      judge smooth caps, priority and keys (Q, P, K)
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from emq.topics.model import Topic
from emq.trail import events
from emq_spark.audit import caps as audit_caps
from emq_spark.audit import (
    charts,
    dead_letters,
    duplicates,
    histories,
    interleaved,
    keys,
    local_rows,
    messages,
    next_audit,
    numbering,
    offsets,
    priority,
)
from emq_spark.audit import crashes as audit_crashes
from emq_spark.audit import events as audit_events
from emq_spark.audit import findings as audit_findings
from emq_spark.audit import lives as audit_lives
from emq_spark.audit import owners as audit_owners
from emq_spark.audit import result as audit_result
from emq_spark.audit import waiting as audit_waiting
from emq_spark.audit.frames import Frames
from emq_spark.audit.options import AuditOptions
from emq_spark.audit.reports import Reports
from emq_spark.audit.result import Audit
from emq_spark.audit.segments_read import Input
from emq_spark.audit.state import State
from emq_spark.load import ledger

Progress = Callable[[str], None]


class Steps:
    """One audit.

    Args:
        scratch: directory for frames that are computed once and used often; the caller removes the directory.
    """

    def __init__(
        self,
        spark: SparkSession,
        found: Input,
        state: State,
        options: AuditOptions,
        scratch: Path,
        on_progress: Progress,
    ) -> None:
        self._spark = spark
        self._found = found
        self._state = state
        self._options = options
        self._say = on_progress
        self._frames = Frames(spark, found, state, options, scratch)
        self._catalogs: list[Sequence[Topic]] = []
        if options.topics is not None:
            self._catalogs = [options.topics, *options.earlier, *(seen.topics for seen in state.saved.catalogs)]
        self._caps = audit_caps.of_catalogs(self._catalogs)
        self._reports = Reports(spark, state, self._frames)

    def run(self, findings: Path | None) -> Audit:
        """Run all steps; `findings` as for `emq_spark.audit.offset_audit.audit`."""
        frames = self._frames
        self._say("counting by second")
        waits = frames.overview.waits
        self._judge_owners()
        uncapped = self._judge_aligned_caps()
        self._say("following each message")
        unusual, counts = self._messages()
        unknown = self._unknown()
        self._say("comparing with the store")
        placed, places = self._judge_offsets(unusual, counts)
        self._say("looking at messages that are not ordinary")
        self._judge_histories(unusual, counts)
        self._say("looking at repeats")
        self._judge_repeats(unusual, counts, unknown)
        self._say("sweeping over groups and keys")
        self._judge_smooth_caps()
        waiting = None if self._options.live or not counts["open"] else audit_waiting.of(placed, self._found.unclosed)
        self._judge_priority(waiting)
        self._judge_keys(waiting)
        self._judge_contents()
        self._say("summing up")
        by_outcome: Counter[str] = Counter()
        for row in frames.outcomes:
            by_outcome[f"ledger_{row['outcome']}"] += row["n"]
        found = self._reports.new()
        if findings is not None:
            found.drop("fingerprint").coalesce(4).write.mode("overwrite").parquet(str(findings.absolute()))
        result = audit_result.make(
            self._options,
            self._found,
            self._state.saved,
            {**counts, **by_outcome, "uncapped": uncapped},
            places,
            audit_findings.kinds(found) if self._reports else [],
            waits,
            charts.of(
                frames.seconds,
                waits,
                audit_owners.pauses(frames.owners),
                frames.owner_counts["moved"],
                self._caps,
                found,
                self._options.topics or (),
            ),
        )
        next_audit.hand_on(self._state, frames, self._found, self._options, result, unusual, placed, found, unknown)
        return result

    # ---------------------------------------------------------------------------------------------------- by second

    def _judge_owners(self) -> None:
        owners, is_whole = self._frames.owners, not self._found.flaws
        if self._frames.owner_counts["suspect"]:
            self._reports.add(audit_owners.conflicts(owners, self._options.slack_us, is_whole=is_whole))
        if is_whole:
            if self._frames.overview.needs_owner:
                self._reports.add(audit_owners.by_strangers(self._frames.rows, owners))
            starts = self._frames.starts
            spans = self._frames.kept("spans", interleaved.spans(starts))
            suspects = interleaved.suspects(spans, owners, self._frames.forgotten, self._options.slack_us)
            if (kept := self._frames.some("interleaved", suspects)) is not None:
                self._reports.add(interleaved.faults(starts, kept))

    def _judge_aligned_caps(self) -> int:
        """Judge the caps in aligned seconds; return the number of groups without a cap in any catalog."""
        if not self._caps:
            return 0
        caps = audit_caps.frame(self._spark, self._caps)
        frames = self._frames
        charged = audit_caps.charges(self._catalogs)
        seconds = audit_caps.with_budgets(self._spark, frames.seconds, charged)
        if (over := frames.some("over", audit_caps.exceeded(seconds, caps))) is not None:
            starts = audit_caps.with_budgets(self._spark, frames.starts, charged)
            self._reports.add(audit_caps.aligned(over, starts, self._options.slack_us))
        return audit_caps.unknown(self._frames.seconds, caps)

    # ---------------------------------------------------------------------------------------------------- by message

    def _messages(self) -> tuple[DataFrame, dict[str, int]]:
        """Return the messages that later steps have to look at, and counts of all messages."""
        frames = self._frames
        lives = audit_lives.of(self._lives).withColumn("is_life", F.lit(True))
        every = frames.messages.withColumns(
            {"is_life": F.lit(False), "restarted": F.col("first_starts") > 1}
        ).unionByName(lives, allowMissingColumns=True)
        recent = F.col("is_open") | (F.col("last_us") >= frames.since_us)
        every = every.withColumn("goes_on", recent if frames.carries else F.lit(False))
        letters = F.broadcast(dead_letters.counted(self._spark, self._options.store))
        every = every.join(letters, ["topic", "id"], "left").withColumn("in_dead", F.col("letters") > 0)
        every = every.fillna(False, ["in_dead"])
        counted = Observation("messages")
        observed = every.observe(counted, *messages.counts(), F.max("failed_attempt").alias("failed"))
        unusual = observed.where(
            F.col("is_open")
            | F.col("is_dead")
            | F.col("extra")
            | (F.col("surplus") + F.col("died_again") > 0)
            | F.col("failed_attempt").isNotNull()
            | F.coalesce("restarted", F.lit(False))
            | F.col("is_odd")
            | F.col("in_dead")
            | F.col("goes_on")
        )
        kept = frames.kept("messages", unusual)
        return kept, {name: int(value or 0) for name, value in counted.get.items()}

    def _judge_histories(self, unusual: DataFrame, counts: Mapping[str, int]) -> None:
        if not counts["odd"]:
            return
        found = histories.judged(
            self._frames.rows,
            unusual.where("is_odd"),
            counts["odd"],
            max_attempts=dead_letters.limits(self._catalogs, min),
            crashed=self._frames.crashed,
            crash_us=self._options.crash_us,
            copied=self._copied(),
            slack_us=self._options.slack_us,
            is_whole=not self._found.flaws,
            losses=histories.losses_by_queue(self._frames.losses),
        )
        self._reports.add(found)

    def _judge_contents(self) -> None:
        """Judge the ids that come back; `_messages` judged their lives."""
        if self._frames.overview.comes_back:
            self._reports.add(audit_lives.faults(self._lives))
        if self._frames.overview.is_due:
            self._reports.add(audit_lives.too_early(self._frames.contents, self._options.slack_us))

    @functools.cached_property
    def _lives(self) -> DataFrame:
        """The lives and faults of ids that come back, see `emq_spark.audit.lives.judged`."""
        frames, fewest = self._frames, dead_letters.limits(self._catalogs, min)
        if not frames.overview.comes_back:
            return local_rows.nothing(self._spark, audit_lives.FOUND)
        is_whole, slack_us = not self._found.flaws, self._options.slack_us
        found = audit_lives.judged(frames.contents, frames.crashed, fewest, slack_us, is_whole=is_whole)
        return frames.kept("lives", found)

    def _copied(self) -> list[str]:
        """Return the topics with messages that may have been published twice without a record of the first publish."""
        died = any(part.earlier for run in self._found.runs.values() for part in run.parts)
        rows = self._frames.outcomes
        unnamed = (row for row in rows if row["outcome"] == ledger.UNKNOWN and row["nameless"])
        return sorted({row["topic"] for row in (rows if died else unnamed) if row["topic"] is not None})

    def _judge_offsets(self, unusual: DataFrame, counts: Mapping[str, int]) -> tuple[DataFrame, dict[str, int]]:
        """Return the open messages with their places, and the number of messages in each place."""
        frames = self._frames
        placed, places = self._placed(unusual) if counts["open"] else (offsets.nowhere(unusual), {})
        self._judge_unique()
        if frames.overview.ranges:
            drops = audit_events.only(frames.ranges, events.DROPPED)
            refusing = self._topics() - self._topics(lambda topic: topic.options.overflow == "drop_oldest")
            self._reports.add(offsets.dropped(drops, sorted(refusing)))
        self._judge_dead(unusual, counts)
        return placed, places

    def _judge_unique(self) -> None:
        """Report offsets that are repeated, and repeated numbers of a ledger whose run lost no task attempt."""
        frames = self._frames
        sure = [run.run for run in self._found.runs.values() if not any(part.earlier for part in run.parts)]
        sent = frames.sent.where(F.col("run").isin(sure))
        published = numbering.published(frames.rows)
        sums = frames.kept("offsets", numbering.offsets_of(published, numbering.numbers(sent)))
        if (doubtful := frames.some("doubtful", numbering.doubtful(sums))) is not None:
            self._reports.add(numbering.twice(sent, doubtful))
            self._reports.add(numbering.one_offset(published, doubtful, frames.begun_again, self._options.slack_us))
        if any(row["odd"] for row in frames.outcomes):
            self._reports.add(audit_events.odd_rows(frames.sent))

    def _topics(self, holds: Callable[[Topic], bool] = lambda _: True) -> set[str]:
        """Return the topics for which this held in any catalog."""
        return {topic.name for topics in self._catalogs for topic in topics if holds(topic)}

    def _placed(self, open_: DataFrame) -> tuple[DataFrame, dict[str, int]]:
        """Return the open messages with their places, as `_judge_offsets`; report the lost messages."""
        options, frames = self._options, self._frames
        placed = offsets.placed(
            open_.where("is_open"),
            frames.ranges,
            options.store,
            self._blind(),
            offsets.reach(frames.starts, self._found.unclosed),
            drops=self._topics(lambda topic: topic.options.overflow == "drop_oldest"),
            live=options.live,
            slack_us=options.slack_us,
        )
        placed = frames.kept("placed", placed)
        places = {row["place"]: row["count"] for row in placed.groupBy("place").count().collect()}
        if not places.keys().isdisjoint(offsets.LOST):
            self._reports.add(offsets.lost(placed))
            self._reports.add(offsets.overrun(placed))
        return placed, places

    def _judge_dead(self, unusual: DataFrame, counts: Mapping[str, int]) -> None:
        options, store = self._options, self._options.store
        limits = dead_letters.limits(self._catalogs)
        if counts["failed"] >= min(limits.values(), default=1 << 31):
            self._reports.add(dead_letters.never(unusual, limits))
        if store is None:
            return
        gone = {t.name for t in self._catalogs[0]} if self._catalogs else None
        ended = self._frames.forgotten.select("topic", "group", "priority")
        forgotten = {(row["topic"], row["group"], row["priority"]) for row in ended.collect()}
        self._reports.add_rows(offsets.regressed(store.queues, self._state.saved.queues, gone, forgotten))
        if store.dead:
            self._reports.add(dead_letters.delivered(unusual))
            self._reports.add(dead_letters.several(unusual))
        if store.dead and not self._state.saved.audits and not options.live:
            self._reports.add(dead_letters.unknown(unusual, store, self._found.first_us))
        if counts["dead"] and not options.purged:
            until_us = store.at_us - options.slack_us if options.live else audit_events.NEVER_US
            self._reports.add(dead_letters.absent(unusual, store, until_us))

    def _blind(self) -> DataFrame:
        """Return the groups of killed hosts, see `emq_spark.audit.offsets.BLIND_GROUPS`."""
        if not self._found.unclosed:
            return local_rows.nothing(self._spark, offsets.BLIND_GROUPS)
        quotas = [(cap.topic, cap.whole + 1) for cap in self._caps if cap.group == -1]
        caps = local_rows.frame(self._spark, quotas, "topic string, quota long")
        return offsets.blind(self._frames.owners, caps, self._found.unclosed, self._options)

    def _judge_repeats(self, unusual: DataFrame, counts: Mapping[str, int], unknown: Mapping[str, int]) -> None:
        rows, options = self._frames.rows, self._options
        if counts["surplus"] or counts["died_again"]:
            crashed = self._frames.crashed
            again = unusual.where(F.col("surplus") + F.col("died_again") > 0)
            repeats = audit_crashes.repeats(rows, again, crashed, options.crash_us)
            again = self._frames.kept(
                "repeated", again.join(F.broadcast(repeats), ["topic", "id"], "left").fillna(0, ["repeats"])
            )
            once = offsets.not_lost(again, self._frames.losses, options.slack_us)
            self._reports.add(duplicates.explained(rows, once, crashed, unknown))
            self._reports.add(dead_letters.twice(again))
        if counts["restarted"]:
            restarted = unusual.where("restarted")
            self._reports.add(offsets.rewound(self._frames.starts, restarted, self._frames.losses, options.slack_us))

    # ------------------------------------------------------------------------------------- sweeps over groups and keys

    def _judge_smooth_caps(self) -> None:
        if any(cap.most for cap in self._caps):
            starts = self._frames.starts
            found = audit_caps.stretches(starts, audit_caps.frame(self._spark, self._caps))
            if (stretches := self._frames.some("stretches", found)) is not None:
                self._reports.add(audit_caps.sliding(stretches, starts, self._options.slack_us))

    def _judge_priority(self, waiting: DataFrame | None) -> None:
        """Judge priority (P).

        Args:
            waiting: messages that were never started, see `emq_spark.audit.waiting`; None if none are known.
        """
        others = self._topics(lambda topic: topic.options.priority_policy != "strict")
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
        if (suspects := self._frames.some("suspects", priority.suspects(starts, lowest + 1))) is not None:
            ends = audit_events.only(rows, *audit_events.ENDINGS).where(F.col("key").isNotNull())
            both = starts.unionByName(ends, allowMissingColumns=True)
            self._reports.add(priority.inversions(both, suspects))

    def _judge_keys(self, waiting: DataFrame | None) -> None:
        """Judge the order of keys (K); `waiting` as for `_judge_priority`."""
        rows, cut_short, slack_us = self._frames.rows, self._found.cut_short, self._options.slack_us
        followed = keys.followed(keys.deliveries(rows, cut_short), slack_us)
        if (faults := self._frames.some("faults", followed)) is not None:
            doubtful = self._frames.doubtful
            self._reports.add(keys.overlaps(faults, doubtful))
            self._reports.add(keys.disorder(faults, self._frames.begun_again))
            self._reports.add(keys.overtaken(faults, rows, doubtful, slack_us))
        if waiting is not None and not (keyed := audit_waiting.with_key(waiting)).isEmpty():
            self._reports.add(keys.passed_over(keyed, self._frames.starts, self._frames.begun_again))
        others = self._topics(lambda topic: topic.options.ordering != "slot" or not topic.is_sorted)
        if serial := sorted(self._topics() - others):
            runs = keys.deliveries(keys.by_slot(rows, serial), cut_short, failures_run=False)
            self._reports.add(keys.overlaps(keys.followed(runs, slack_us)))

    # ----------------------------------------------------------------------------------------------------------- counts

    def _unknown(self) -> dict[str, int]:
        """Return by topic the number of publishes with an unknown outcome, over all audits of the state."""
        found = dict(self._state.saved.unknown)
        for row in self._frames.outcomes:
            if row["outcome"] == ledger.UNKNOWN:
                found[row["topic"]] = found.get(row["topic"], 0) + row["n"]
        return found
