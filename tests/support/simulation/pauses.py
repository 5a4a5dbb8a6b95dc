"""Topics that are paused: nothing of them starts, and all of it goes on afterwards."""

from __future__ import annotations

from collections.abc import Iterator

from support.simulation.evidence import Evidence, Start
from support.simulation.rules import Rules
from support.simulation.sleeps import KNOWN_S, asleep_s
from support.simulation.violation import Violation

AGAIN_S = 3.0
"""By when a topic goes on: the same, and the rest of a second whose quota is used, as small quotas are at once."""


def judge(evidence: Evidence, rules: Rules) -> Iterator[Violation]:
    for topic, since, until in evidence.paused:
        # A host that cannot read the catalog, or is stopped, goes on with what it knows.
        if not rules.informed and since < rules.settled_at:
            continue
        starts = [start for start in evidence.starts if start.work.topic == topic]
        early = next((s for s in starts if s.at < until and _awake_s(evidence, s, since) > KNOWN_S), None)
        if early is not None:
            late_s = early.at - since
            text = f"{early.work.name} started though the topic was paused for {late_s:.3f} s"
            yield Violation("pause", early.group, f"{text}, at {early.at:.3f} s")
        if since < rules.settled_at:
            continue
        waiting = {start.group: start for start in reversed(starts) if start.at >= until}
        for group, start in waiting.items():
            published = evidence.confirmed_at.get(start.work.name)
            if published is not None and published < until and start.at > until + AGAIN_S:
                text = f"it started {start.at - until:.3f} s after the topic was to go on"
                yield Violation("pause", group, f"{text}, at {start.at:.3f} s")


def _awake_s(evidence: Evidence, start: Start, since: float) -> float:
    """How long the host of a start could have looked at the catalog until then; below 0 for a start before that."""
    return start.at - since - asleep_s(evidence.sleeps, start.host, since, start.at)
