"""The trail's own proof of the day: what `emq trail verify` would say, with what the day knows beyond the trail."""

from __future__ import annotations

import itertools
from pathlib import Path

import day_judge
from day_judge import EXPECTED_DEATHS, KNOWN_LATE_US
from day_record import Evidence

from emq.topics.model import Topic, quotas
from emq.topics.shares import Share
from emq_proof import proof

PARTS = {
    "L": ("lost",),
    "D": ("duplicates", "deliveries"),
    "Q": ("cap_violations",),
    "P": ("priority_inversions",),
    "K": ("key_order",),
    "O": ("owners",),
    "M": ("offsets",),
    "T": ("times",),
    "X": ("dead_twice", "deaths"),
}
"""Where a proof tells what broke a promise."""


def trail_violations(directory: Path, e: Evidence) -> list[str]:
    """Violations that the proof finds; what a killed life had not written down yet is taken from the journal."""
    again = day_judge.at_risk(e)
    ids = {run.id for run in e.runs if (run.topic, run.name) in again}
    # What expires is never run. It lies in the dead letters and is judged there, also if nobody wrote that down.
    expired = {(d.topic, d.name) for d in e.deaths if d.reason == EXPECTED_DEATHS[""]}
    buried = {s.id for s in e.sent if (s.topic, s.name) in expired and s.begun_us < max(e.killed.values(), default=0)}
    caps, bursts = _caps(e)
    topics = {name: [version.topic for version in versions] for name, versions in e.versions.items()}
    expected = proof.Expectations(
        still_queued=ids | buried,
        quotas=caps,
        bursts=bursts,
        strict=e.strict,
        serial=[name for name, found in topics.items() if found[0].is_sorted and found[0].options.ordering == "slot"],
        max_attempts={
            name: min(topic.options.max_attempts for topic in found)
            for name, found in topics.items()
            if not found[0].is_sorted
        },
        duplicates_allowed=len(ids),
    )
    found = proof.prove(directory, expected)
    told = found.to_dict()
    broken = {promise for promise, held in found.promises.items() if not held}
    # What a killed host had not saved may run again beside the next of a key that moves, and the trail may lack its
    # end; `day_judge` judges it by the journal.
    if all(_of_killed(line, ids) for line in found.key_order.examples):
        broken.discard("K")
    lines = [f"trail, {promise} is broken: {told[part]}" for promise in sorted(broken) for part in PARTS[promise]]
    voids = [why for why in found.void_reasons if not any(why.startswith(f"{life}-") for life in e.killed)]
    return lines + [f"trail: {why}" for why in voids]


def _of_killed(line: str, ids: set[str]) -> bool:
    rest, other = line.partition("/")[2], line.partition(" while ")[2].partition("/")[2]
    return bool({rest.split(" ")[0], other.split(" ")[0]} & ids)


def _cap(topic: Topic) -> float | Share:
    """Return a topic's starts a second; below 1, the seconds in which it starts one follow its creation."""
    division = topic.division
    return division.total if division.origin_s else topic.qps


def _caps(e: Evidence) -> tuple[dict[str, list[tuple[int, float | Share]]], dict[str, float]]:
    """The quota of each topic, as its hosts knew it: a lower one counts from when the last had heard of it."""
    caps: dict[str, list[tuple[int, float]]] = {}
    bursts = {}
    for name, versions in e.versions.items():
        first = versions[0].topic
        steps = [(0, _cap(first))]
        for before, version in itertools.pairwise(versions):
            lowered = version.topic.qps < before.topic.qps
            steps.append((version.from_us + (KNOWN_LATE_US if lowered else -1_000_000), _cap(version.topic)))
        caps[name] = steps
        if first.options.pacing == "smooth":
            bursts[name] = max(sum(1 + q / 10 for q in quotas(version.topic)) for version in versions)
    return caps, bursts
