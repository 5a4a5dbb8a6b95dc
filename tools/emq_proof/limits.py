"""The caps of topics and their groups, for the checkers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from emq.topics import tokens
from emq.topics.budgets import above
from emq.topics.model import MICRO, Topic
from emq.topics.shares import Share
from emq_proof.checks import Quota


def limits(topics: Iterable[Topic]) -> tuple[dict[str, Quota], dict[str, float]]:
    """Return quotas, and bursts of smooth topics, by topic, from the present catalog.

    The caps are exact in every aligned second for which the catalog remembers the division of the topic. Before that
    the topic has no cap. A group has no cap of its own: the groups of a topic on one host draw from one counter. A
    budget's cap is named `budget <topic>`; it bounds all topics below together.
    """
    quotas: dict[str, Quota] = {}
    bursts: dict[str, float] = {}
    for topic in topics:
        if topic.shared_s:
            quotas[_budget(topic.name)] = _known(_caps(topic))
        quotas[topic.name] = _known(_caps(topic))
        if topic.options.pacing == "smooth":
            bursts[topic.name] = max(tokens.smooth_burst(d, topic.options.burst) for d in topic.timeline)
    return quotas, bursts


def budgets(topics: Iterable[Topic]) -> dict[str, list[str]]:
    """Return the names in `limits` of the budgets in which a topic's starts count, by the topic."""
    known = {topic.name: topic for topic in topics}
    found = {}
    for topic in known.values():
        own = [topic.name] if topic.shared_s else []
        if names := own + above(topic, known):
            found[topic.name] = [_budget(name) for name in names]
    return found


def _budget(name: str) -> str:
    return f"budget {name}"  # no topic's name has a space


UNKNOWN: Final = Share(1 << 40, 1, 0)
"""A cap above any number of starts."""


def _caps(topic: Topic) -> list[tuple[int, float | Share]]:
    return [(division.since_s, division.total if division.origin_s else division.qps) for division in topic.timeline]


def _known(course: Sequence[tuple[int, float | Share]]) -> Quota:
    """Return the values with the times from which they were in force."""
    if len(course) == 1 and not course[0][0]:
        return course[0][1]  # the topic was never changed
    before = [(0, UNKNOWN)] if course[0][0] else []
    return [*before, *((since_s * MICRO, value) for since_s, value in course)]
