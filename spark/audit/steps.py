"""The steps of an audit, in order, and what each hands to the next.

seconds     what happened in each second: caps in aligned seconds, ownerships (Q, O)
messages    what became of each message (L, D, X); what is not ordinary is kept for the next steps
offsets     open messages against the store, checkpoints against the trail (L, M, X)
repeats     messages settled, started or dead too often: within what a crash may repeat, or not (D, M, X)
sweeps      smooth caps, priority, keys (Q, P, K)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from emq.topics.model import Topic
from emq.trail import events
from emq.trail.owners import Ownership, by_group, conflicts
from spark.audit import (
    caps as audit_caps,
)
from spark.audit import (
    charts,
    contents,
    dead_letters,
    duplicates,
    histories,
    interleaved,
    keys,
    messages,
    next_audit,
    offsets,
    priority,
    seconds,
    unique,
)
from spark.audit import (
    crashes as audit_crashes,
)
from spark.audit import (
    events as audit_events,
)
from spark.audit import (
    findings as audit_findings,
)
from spark.audit import (
    lives as audit_lives,
)
from spark.audit import (
    owners as audit_owners,
)
from spark.audit import (
    result as audit_result,
)
from spark.audit import (
    waiting as audit_waiting,
)
from spark.audit.frames import Frames
from spark.audit.options import AuditOptions
from spark.audit.result import Audit
from spark.audit.segments_read import Input
from spark.audit.state import State
from spark.load import ledger

Progress = Callable[[str], None]

Owners = Mapping[tuple[str, int], Sequence[Ownership]]


class Steps:
    """One audit.

    Args:
        scratch: a directory for what is computed once and used often; the caller removes it.
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
        self._scratch = scratch
        self._say = on_progress
        self._frames = Frames(spark, found, state, options, scratch)
        self._catalogs: list[Sequence[Topic]] = []
        if options.topics is not None:
            self._catalogs = [options.topics, *options.earlier, *(seen.topics for seen in state.saved.catalogs)]
        self._caps = audit_caps.of_catalogs(self._catalogs)
        self._steps = 0

    def run(self, findings: Path | None) -> Audit:
        """All steps; `findings` as for `spark.audit.offset_audit.audit`."""
        frames = self._frames
        self._say("counting by second")
        waits = seconds.waits(frames.new).collect()
        owners = by_group(frames.owners)
        self._judge_owners(owners)
        uncapped = self._judge_aligned_caps()
        self._judge_ledger()
        self._say("following each message")
        unusual, counts = self._messages()
        unknown = self._unknown()
        self._say("comparing with the store")
        placed, places = self._judge_offsets(unusual, owners)
        self._say("looking at messages that are not ordinary")
        self._judge_histories(unusual, counts, owners)
        self._say("looking at repeats")
        self._judge_repeats(unusual, counts, owners, unknown)
        self._say("sweeping over groups and keys")
        self._judge_smooth_caps()
        waiting = None if self._options.live else audit_waiting.of(placed, self._found.unclosed)
        self._judge_priority(owners, waiting)
        self._judge_keys(waiting)
        self._judge_contents()
        self._say("summing up")
        found = self._new_findings()
        if findings is not None:
            found.drop("fingerprint").coalesce(4).write.mode("overwrite").parquet(str(findings.absolute()))
        result = audit_result.make(
            self._options,
            self._found,
            self._state.saved,
            {**counts, **self._ledger_counts(), "uncapped": uncapped},
            places,
            audit_findings.kinds(found),
            waits,
            charts.of(
                frames.seconds,
                waits,
                audit_owners.pauses(owners.values()),
                self._caps,
                found,
                self._options.topics or (),
            ),
        )
        next_audit.hand_on(self._state, frames, self._found, self._options, result, unusual, placed, found, unknown)
        return result

    # ------------------------------------------------------------------------------------------------------- findings

    def _report(self, frame: DataFrame) -> None:
        self._steps += 1
        audit_findings.complete(frame).write.parquet(self._place_of(self._steps))

    def _place_of(self, step: int) -> str:
        return str(self._scratch / f"findings-{step}")

    def _new_findings(self) -> DataFrame:
        """Those of this audit that no earlier one reported."""
        self._report(self._spark.createDataFrame([], audit_findings.SCHEMA))
        places = [self._place_of(step) for step in range(1, self._steps + 1)]
        found = audit_findings.fingerprinted(
            self._spark.read.schema(audit_findings.SCHEMA).parquet(*map(audit_events.literal, places))
        )
        if self._state.saved.audits:
            found = found.join(self._state.carried("known", "fingerprint long"), "fingerprint", "left_anti")
        return found

    # ---------------------------------------------------------------------------------------------------- by second

    def _judge_owners(self, owners: Owners) -> None:
        rows = [
            {
                "promise": "O",
                "kind": conflict.kind,
                "topic": conflict.after.topic,
                "group": conflict.after.group,
                "source": conflict.before.source,
                "other": conflict.after.source,
                "at_us": conflict.after.since_us,
                "text": conflict.text,
            }
            for group in owners.values()
            for conflict in conflicts(group, self._options.slack_us, not self._found.flaws)
        ]
        self._report(audit_findings.of_rows(self._spark, rows))
        if not self._found.flaws:
            starts = self._frames.starts
            spans = self._frames.kept("spans", interleaved.spans(starts))
            self._report(interleaved.faults(starts, spans, self._frames.owned, self._options.slack_us))

    def _judge_aligned_caps(self) -> int:
        """Answers how many groups there are whose caps no catalog says."""
        if not self._caps:
            return 0
        caps = audit_caps.frame(self._spark, self._caps)
        frames = self._frames
        over = frames.kept("over", audit_caps.exceeded(frames.seconds, caps))
        self._report(audit_caps.aligned(over, frames.starts, self._options.slack_us))
        return audit_caps.unknown(self._frames.seconds, caps)

    # ---------------------------------------------------------------------------------------------------- by message

    def _messages(self) -> tuple[DataFrame, dict[str, int]]:
        """Messages that later steps have to look at, and counts of all."""
        frames = self._frames
        lives = audit_lives.judged(frames.steps, self._options.slack_us).withColumn("is_life", F.lit(True))
        every = frames.messages.withColumns(
            {"is_life": F.lit(False), "restarted": F.col("first_starts") > 1}
        ).unionByName(lives, allowMissingColumns=True)
        recent = F.col("is_open") | (F.col("last_us") >= frames.since_us)
        every = every.withColumn("goes_on", recent if frames.carries else F.lit(False))
        every = every.join(F.broadcast(self._dead()), ["topic", "id"], "left").withColumn(
            "in_dead", F.col("letters") > 0
        )
        every = every.fillna(False, ["in_dead"])
        counted = Observation("messages")
        observed = every.observe(counted, *messages.counts())
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

    def _judge_ledger(self) -> None:
        """Numbers that a ledger tells of twice, though no attempt of the run has died."""
        sure = [run.run for run in self._found.runs.values() if not any(part.earlier for part in run.parts)]
        mine = self._frames.sent.where(F.col("run").isin(sure))
        place = ("run", "partition")
        sums = self._frames.kept("numbers", unique.sums(mine, place, "seq"))
        doubtful = unique.at(mine, unique.doubtful(sums, place), place)
        counted = doubtful.groupBy(*place, "seq").agg(F.count("*").alias("n"), F.max("id").alias("id"))
        text = F.format_string("number %d of run %s is in the ledger %d times", "seq", "run", "n")
        twice = counted.where(F.col("n") > 1)
        self._report(audit_findings.found_in(twice, audit_findings.EVIDENCE, "a number twice", "id", text=text))
        if any(row["odd"] for row in self._frames.outcomes):
            self._report(audit_events.odd_rows(self._frames.sent))

    def _dead(self) -> DataFrame:
        """The dead letters of the store: topic, id, and how many letters there are of each."""
        store = self._options.store
        letters = [(letter[0], letter[1]) for letter in (store.dead if store is not None else ())]
        dead = self._spark.createDataFrame(letters, "topic string, id string")
        return dead.groupBy("topic", "id").agg(F.count("*").alias("letters"))

    def _judge_histories(self, unusual: DataFrame, counts: Mapping[str, int], owners: Owners) -> None:
        if not counts["odd"]:
            return
        attempts: dict[str, int] = {}
        for t in (t for topics in self._catalogs for t in topics if not t.is_sorted):
            attempts[t.name] = min(t.options.max_attempts, attempts.get(t.name, t.options.max_attempts))
        crashes: dict[tuple[str, int], list[tuple[float, float]]] = {}
        for topic, group, _, _, ended_us, _, until_us in self._crashed_ownerships(owners):
            crashes.setdefault((topic, group), []).append((ended_us - self._options.crash_us, until_us))
        found = histories.judged(
            self._frames.rows,
            unusual.where("is_odd"),
            counts["odd"],
            max_attempts=attempts,
            crashes=crashes,
            copied=self._copied(),
            slack_us=self._options.slack_us,
            is_whole=not self._found.flaws,
            losses=self._losses(),
            silent=self._found.silent,
        )
        self._report(found)

    def _losses(self) -> dict[tuple[str, int, int | None], int]:
        rows = audit_events.only(self._frames.ranges, events.LOST)
        lowest = rows.groupBy("topic", "group", "priority").agg(F.min("offset").alias("offset")).collect()
        return {(row["topic"], row["group"], row["priority"]): row["offset"] for row in lowest}

    def _judge_contents(self) -> None:
        rows, slack_us = self._frames.rows, self._options.slack_us
        expiries = self._frames.kept("expiries", contents.expiries(rows))
        self._report(contents.expired(expiries, slack_us, self._found.silent))
        if contents.are_due(rows):
            self._report(contents.too_early(self._frames.contents, slack_us))

    def _crashed_ownerships(self, owners: Owners) -> list[tuple[str, int, str, int, int, bool, int]]:
        found = self._found
        return list(audit_crashes.ownerships(owners.values(), found.last_of, found.unclosed, self._options.slack_us))

    def _copied(self) -> list[str]:
        """Topics some of whose messages may have been published twice without a record of the first publish."""
        died = any(part.earlier for run in self._found.runs.values() for part in run.parts)
        rows = self._frames.outcomes
        unnamed = (row for row in rows if row["outcome"] == ledger.UNKNOWN and row["nameless"])
        return sorted({row["topic"] for row in (rows if died else unnamed) if row["topic"] is not None})

    def _judge_offsets(self, unusual: DataFrame, owners: Owners) -> tuple[DataFrame, dict[str, int]]:
        """Open messages with their places, and how many there are in each."""
        options, store = self._options, self._options.store
        open_ = unusual.where("is_open")
        blind = self._spark.createDataFrame(self._blind(owners), offsets.BLIND_GROUPS)
        drops = {t.name for topics in self._catalogs for t in topics if t.options.overflow == "drop_oldest"}
        refusing = sorted({t.name for topics in self._catalogs for t in topics} - drops)
        placed = offsets.placed(
            open_,
            self._frames.ranges,
            store,
            blind,
            offsets.reach(self._frames.starts, self._found.unclosed),
            drops=drops,
            live=options.live,
            slack_us=options.slack_us,
        )
        placed = self._frames.kept("placed", placed)
        self._report(offsets.lost(placed))
        self._report(offsets.overrun(placed))
        published = offsets.published(self._frames.rows)
        sums = self._frames.kept("offsets", offsets.offsets_of(published))
        ranges = self._frames.ranges
        self._report(offsets.one_offset(published, sums, audit_events.only(ranges, events.LOST)))
        self._report(offsets.dropped(audit_events.only(ranges, events.DROPPED), refusing))
        if self._catalogs:
            self._report(dead_letters.never(unusual, self._catalogs))
        if store is not None:
            gone = {t.name for t in self._catalogs[0]} if self._catalogs else None
            rows = offsets.regressed(store.queues, self._state.saved.queues, gone)
            self._report(dead_letters.delivered(unusual))
            self._report(dead_letters.several(unusual))
            if not self._state.saved.audits and not options.live:
                self._report(dead_letters.unknown(unusual, store, self._found.first_us))
            self._report(audit_findings.of_rows(self._spark, rows))
            if not options.purged:
                until_us = store.at_us - options.slack_us if options.live else audit_events.NEVER_US
                self._report(dead_letters.absent(unusual, store, until_us))
        return placed, {row["place"]: row["count"] for row in placed.groupBy("place").count().collect()}

    def _blind(self, owners: Owners) -> list[tuple[str, int, int, int]]:
        """Rows of `spark.audit.offsets.BLIND_GROUPS`."""
        unwritten_s = self._options.unwritten_s
        quotas = {(cap.topic, cap.group): cap.whole + 1 for cap in self._caps}
        found: dict[tuple[str, int], tuple[int, int]] = {}
        for (topic, group), of_group in owners.items():
            for i, o in enumerate(of_group):
                if o.source in self._found.unclosed:
                    quota = quotas.get((topic, group), quotas.get((topic, -1)))
                    most = math.ceil(quota * unwritten_s) if quota is not None else 1 << 61
                    newer = [later.since_us for later in of_group[i + 1 :] if later.epoch > o.epoch]
                    until_us = min(newer, default=audit_events.NEVER_US) + self._options.slack_us
                    before, latest_us = found.get((topic, group), (0, 0))
                    found[topic, group] = min(1 << 61, before + most), max(latest_us, until_us)
        return [(*place, *bound) for place, bound in found.items()]

    def _judge_repeats(
        self, unusual: DataFrame, counts: Mapping[str, int], owners: Owners, unknown: Mapping[str, int]
    ) -> None:
        rows, options = self._frames.rows, self._options
        if counts["surplus"] or counts["died_again"]:
            crashed = self._spark.createDataFrame(self._crashed_ownerships(owners), audit_crashes.CRASHED)
            again = unusual.where(F.col("surplus") + F.col("died_again") > 0)
            repeats = audit_crashes.repeats(rows, again, crashed, options.crash_us)
            again = self._frames.kept(
                "repeated", again.join(F.broadcast(repeats), ["topic", "id"], "left").fillna(0, ["repeats"])
            )
            self._report(duplicates.explained(rows, again, crashed, unknown))
            self._report(dead_letters.twice(again))
        if counts["restarted"]:
            losses = audit_events.only(self._frames.ranges, events.LOST)
            self._report(offsets.rewound(self._frames.starts, unusual.where("restarted"), losses))

    def _unknown(self) -> dict[str, int]:
        """By topic, how many publishes have an unknown outcome; of all audits together."""
        found = dict(self._state.saved.unknown)
        for row in self._frames.outcomes:
            if row["outcome"] == ledger.UNKNOWN:
                found[row["topic"]] = found.get(row["topic"], 0) + row["n"]
        return found

    def _ledger_counts(self) -> dict[str, int]:
        found: Counter[str] = Counter()
        for row in self._frames.outcomes:
            found[f"ledger_{row['outcome']}"] += row["n"]
        return dict(found)

    # ---------------------------------------------------------------------------------------------- by group and key

    def _judge_smooth_caps(self) -> None:
        if any(cap.most for cap in self._caps):
            caps = audit_caps.frame(self._spark, self._caps)
            starts = self._frames.starts
            stretches = self._frames.kept("stretches", audit_caps.stretches(starts, caps))
            self._report(audit_caps.sliding(stretches, starts, self._options.slack_us))

    def _judge_priority(self, owners: Owners, waiting: DataFrame | None) -> None:
        others = {t.name for topics in self._catalogs for t in topics if t.options.priority_policy != "strict"}
        rows = self._frames.rows.where(~F.col("topic").isin(others))
        starts = audit_events.only(rows, events.STARTED)
        lowest = starts.agg(F.max("priority")).collect()[0][0]
        if not lowest:
            return
        if waiting is not None:
            strict = waiting.where(~F.col("topic").isin(others))
            left = audit_waiting.as_starts(strict, owners.values())
            starts = starts.unionByName(left, allowMissingColumns=True)
        starts = priority.waiting(starts, self._frames.owned)
        suspects = self._frames.kept("suspects", priority.suspects(starts, lowest + 1))
        if not suspects.isEmpty():
            ends = audit_events.only(rows, *audit_events.ENDINGS).where(F.col("key").isNotNull())
            both = starts.unionByName(ends, allowMissingColumns=True)
            self._report(priority.inversions(both, suspects))

    def _judge_keys(self, waiting: DataFrame | None) -> None:
        rows, cut_short, slack_us = self._frames.rows, self._found.cut_short, self._options.slack_us
        deliveries = keys.deliveries(rows, cut_short)
        followed = keys.followed(deliveries, audit_caps.resized(self._catalogs), slack_us)
        faults = self._frames.kept("faults", followed)
        self._report(keys.overlaps(faults))
        self._report(keys.disorder(faults, audit_events.only(self._frames.ranges, events.LOST)))
        if waiting is not None and not (keyed := audit_waiting.with_key(waiting)).isEmpty():
            self._report(keys.passed_over(keyed, self._frames.starts))
        others = {
            t.name for topics in self._catalogs for t in topics if t.options.ordering != "slot" or not t.is_sorted
        }
        if serial := sorted({t.name for topics in self._catalogs for t in topics} - others):
            runs = keys.deliveries(keys.by_slot(rows, serial), cut_short, failures_run=False)
            self._report(keys.overlaps(keys.followed(runs, (), slack_us)))
