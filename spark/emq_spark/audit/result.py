"""The result of an audit: verdict, counts, findings, and the reasons if the proof is void."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from pyspark.sql import Row

from emq.runtime import plurals
from emq_spark.audit import offsets
from emq_spark.audit.charts import Charts
from emq_spark.audit.findings import EVIDENCE, NAMES, Kind
from emq_spark.audit.options import AuditOptions
from emq_spark.audit.segments_read import Input
from emq_spark.audit.state import Done, Saved

BROKEN, VOID = 1, 3


@dataclass(frozen=True)
class Audit:
    """The result of one audit.

    Attributes:
        counts: counts by name, over all audits of a state.
        kinds: new findings.
        violations: number of violations by promise, over all audits of a state.
        flaws: reasons why the proof is void, one line each.
        notes: remarks for the reader, one line each.
        unjudged: promises that the audit could not judge, with the reason.
        charts: data of the report's charts, from this audit's events.
        done: counts of the messages that are not handed on to the next audit.
    """

    counts: Mapping[str, int]
    kinds: Sequence[Kind]
    violations: dict[str, int]
    flaws: Sequence[str]
    notes: Sequence[str]
    unjudged: Mapping[str, str]
    charts: Charts
    done: Done

    @property
    def broken(self) -> dict[str, int]:
        """New violations by promise."""
        return {p: n for p in NAMES if (n := sum(k.count for k in self.kinds if k.promise == p and not k.excused))}

    @property
    def ok(self) -> bool:
        """True if no promise was newly broken and the proof is not void."""
        return not self.broken and not self.flaws

    @property
    def believed(self) -> str:
        """Text such as "139 of 2,259 messages (6 %) believed to checkpoints", or "".

        These messages count as delivered although no trail shows their end.
        """
        unseen, published = self.counts["finished_unseen"], self.counts["published"]
        if not unseen:
            return ""
        share = f"{100 * unseen / published:.0f} %" if 200 * unseen >= published else "below 1 %"
        return f"{unseen:,} of {plurals.count(published, 'message')} ({share}) believed to checkpoints"

    @property
    def exit_status(self) -> int:
        """1 if a promise was broken, else 3 if the proof is void, else 0."""
        return BROKEN if self.broken else VOID if self.flaws else 0

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain values, fit for JSON."""
        return {
            "ok": self.ok,
            "void": bool(self.flaws),
            "promises": {
                p: {
                    "promise": text,
                    "verdict": "broken" if p in self.broken else "not judged" if p in self.unjudged else "kept",
                    "violations": self.broken.get(p, 0),
                    "violations_so_far": self.violations.get(p, 0),
                }
                for p, text in NAMES.items()
            },
            "believed": self.believed,
            "counts": dict(self.counts),
            "findings": [msgspec.to_builtins(kind) for kind in self.kinds],
            "flaws": list(self.flaws),
            "notes": list(self.notes),
            "unjudged": dict(self.unjudged),
        }


def make(
    options: AuditOptions,
    found: Input,
    before: Saved,
    counts: Mapping[str, int],
    places: Mapping[str, int],
    kinds: Sequence[Kind],
    waits: Sequence[Row],
    charts: Charts,
) -> Audit:
    """Put the result together.

    Args:
        counts: counts of this audit's messages, see `emq_spark.audit.steps`, and of its ledgers by outcome.
        places: number of open messages by place.
        waits: see `emq_spark.audit.overview.Overview`.
    """
    ended = {place: places.get(place, 0) for place in offsets.ended(options.live)}
    done = _counted(before.done, found, counts, ended, "done_")
    done.published += sum(ended.values())
    flaws = [*found.flaws, *_skews(waits, options), *_contradictions(kinds)]
    violations = dict(before.violations)
    for kind in kinds:
        if not kind.excused and kind.promise != EVIDENCE:
            violations[kind.promise] = violations.get(kind.promise, 0) + kind.count
    totals = {
        **msgspec.structs.asdict(_counted(before.done, found, counts, places)),
        "in_store": sum(places.get(place, 0) for place in (offsets.QUEUED, offsets.LANE, offsets.CLAIMED)),
        "unfinished": places.get(offsets.UNKNOWN, 0),
        "lost": sum(places.get(place, 0) for place in offsets.LOST),
        "surplus": counts["surplus"],
    }
    notes = _notes(options, found, totals, places, kinds)
    publishes = counts.get("ledger_published", 0)
    messages = plurals.count(totals["published"], "message")
    if not before.audits and publishes > totals["published"]:
        notes.append(
            f"{plurals.count(publishes, 'publish', 'publishes')} were of {messages}: contents that a sorted topic was "
            "sent "
            "again are one message"
        )
    if uncapped := counts["uncapped"]:
        notes.append(f"no catalog has the caps of {plurals.count(uncapped, 'group')}, so these were not judged")
    return Audit(totals, kinds, violations, flaws, notes, _unjudged(options, totals), charts, done)


def _unjudged(options: AuditOptions, totals: Mapping[str, int]) -> dict[str, str]:
    found = {}
    unfinished = totals["unfinished"]
    if unfinished and not options.live:
        found["L"] = (
            f"{plurals.count(unfinished, 'unfinished message')} may be in the store, or lost; name it (--store)"
        )
    if options.topics is None:
        found["Q"] = "quotas are not known; give the catalog, or --topics FILE"
    return found


def _skews(waits: Sequence[Row], options: AuditOptions) -> list[str]:
    behind: dict[str, int] = {}
    for row in waits:
        behind[row["source"]] = max(behind.get(row["source"], 0), row["behind_us"])
    return [
        f"the clock of {source} is at least {us / 1e6:.3f} s behind its publishers', more than --max-skew "
        f"{options.max_skew_s:g}: starts of two hosts cannot be compared"
        for source, us in sorted(behind.items())
        if us > options.slack_us
    ]


def _contradictions(kinds: Sequence[Kind]) -> list[str]:
    return [
        f"{plurals.count(kind.count, 'time')} {kind.kind}, such as {kind.examples[0]}"
        for kind in kinds
        if kind.promise == EVIDENCE and not kind.excused
    ]


def _counted(before: Done, found: Input, counts: Mapping[str, int], places: Mapping[str, int], of: str = "") -> Done:
    """Add to the counts of earlier audits.

    Args:
        of: "done_" to count only the messages that are not handed on; `places` then has the open ones among them.
    """
    return Done(
        events=before.events + found.rows,
        segments=before.segments + len(found.trail) + len(found.ledger),
        published=before.published + counts[f"{of}published"],
        merged=before.merged + counts.get("ledger_merged", 0),
        delivered=before.delivered + counts[f"{of}delivered"],
        dead=before.dead + counts[f"{of}dead"] + places.get(offsets.DEAD, 0),
        dropped=before.dropped + counts[f"{of}recalled"] + places.get(offsets.DROPPED, 0),
        lost_by_store=before.lost_by_store + places.get(offsets.FORGOTTEN, 0),
        finished_unseen=before.finished_unseen + places.get(offsets.BLIND, 0),
        publishes_unknown=before.publishes_unknown + counts.get("ledger_unknown", 0),
        publishes_refused=before.publishes_refused + counts.get("ledger_refused", 0),
        not_published_here=before.not_published_here + counts[f"{of}extra"],
    )


_ALLOWED = {
    ("D", "duplicate"): ("repeat", "after a crash, of messages in flight or that ended in the {crash_s:g} s before it"),
    ("D", "of unknown publishes"): ("settle", "beyond the known publishes, explained by publishes of unknown outcome"),
    ("D", "from two places"): (
        "message",
        "delivered from two places, perhaps because of publishes without a record",
    ),
    ("X", "dead twice"): ("death", "repeated after a crash, before the offset was checkpointed"),
}
"""Noun and text about the excused findings, by promise and kind."""


def _notes(
    options: AuditOptions, found: Input, totals: Mapping[str, int], places: Mapping[str, int], kinds: Sequence[Kind]
) -> list[str]:
    notes = []
    if options.store is None:
        unfinished = plurals.count(totals["unfinished"], "unfinished message")
        notes.append(f"store and database were not asked: {unfinished} may be there, or lost")
    if extra := totals["not_published_here"]:
        unknown = totals["publishes_unknown"]
        known = (
            f"{plurals.count(unknown, 'publish', 'publishes')} of unknown outcome"
            if unknown
            else "another publisher has no ledger here"
        )
        delivered = plurals.count(extra, "delivered message")
        notes.append(f"{delivered} {plurals.are(extra)} in no ledger and no producer's trail: {known}")
    for kind in kinds:
        if kind.excused:
            noun, text = _ALLOWED[kind.promise, kind.kind]
            notes.append(f"{plurals.count(kind.count, noun)} {text.format(crash_s=options.crash_s)}")
    if forgotten := places.get(offsets.FORGOTTEN, 0):
        lost = plurals.count(forgotten, "message")
        notes.append(f"{lost} {plurals.were(forgotten)} lost by a store, which came back from a crash without them")
    if blind := places.get(offsets.BLIND, 0):
        finished = plurals.count(blind, "message")
        notes.append(f"{finished} {plurals.were(blind)} finished by the checkpoints of hosts whose trail was cut short")
    if found.unclosed:
        why = "still run" if options.live else "were killed"
        notes.append(f"trails that were not closed, of hosts that {why}: {', '.join(sorted(found.unclosed))}")
    return notes
