"""The caps of topics and their groups, for the checkers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from emq.topics import shares
from emq.topics.budgets import above
from emq.topics.model import MICRO, Topic
from emq.topics.shares import Share
from emq.trail.checks import Quota


def limits(topics: Iterable[Topic]) -> tuple[dict[str, Quota], dict[str, float]]:
    """Return quotas, and bursts of smooth topics, by `<topic>` and by `<topic>/<group>`, from the present catalog.

    The caps are exact in every aligned second for which the catalog remembers the division of the topic. Before that
    the topic has no cap, and each group has the largest cap that any group of the topic may have, rounded up. A group
    that borrows has no cap of its own. A budget's cap is named `budget <topic>`; it bounds all topics below together.
    """
    quotas: dict[str, Quota] = {}
    bursts: dict[str, float] = {}
    for topic in topics:
        if topic.shared_s:
            quotas[_budget(topic.name)] = _known([(division.since_s, division.qps) for division in topic.timeline])
        quotas[topic.name] = _known([(division.since_s, division.qps) for division in topic.timeline])
        if topic.options.pacing == "smooth":
            bursts[topic.name] = max(shares.smooth_burst(d, topic.options.burst) for d in topic.timeline)
            for group in range(topic.groups):
                paces = [(d.since_s, shares.pace(d, group, topic.options.burst)) for d in topic.timeline]
                quotas[topic.group(group)] = _known([(since_s, pace.quota) for since_s, pace in paces])
                bursts[topic.group(group)] = max(pace.most for _, pace in paces)
        elif not topic.options.borrow:
            for group in range(topic.groups):
                quotas[topic.group(group)] = _course(topic, group)
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


def _known(course: Sequence[tuple[int, float]]) -> Quota:
    """Return the values with the times from which they were in force."""
    if len(course) == 1 and not course[0][0]:
        return course[0][1]  # the topic was never changed
    before = [(0, UNKNOWN)] if course[0][0] else []
    return [*before, *((since_s * MICRO, value) for since_s, value in course)]


def _course(topic: Topic, group: int) -> Quota:
    course = topic.course(group)
    if len(course) == 1 and not course[0][0]:
        return course[0][1]  # the topic was never changed
    most = max(share.ceiling for _, share in course)
    before = Share(max(most, math.ceil(topic.group_qps)), 1, 0)
    return [(0, before), *((since_s * MICRO, share) for since_s, share in course if since_s)]
