"""What topics and their groups may start, for the checkers."""

from __future__ import annotations

import math
from collections.abc import Iterable

from emq import shares
from emq.model import MICRO, Topic
from emq.shares import Share
from emq.trail.checks import Quota


def limits(topics: Iterable[Topic]) -> tuple[dict[str, Quota], dict[str, float]]:
    """Quotas, and bursts of smooth topics, by `<topic>` and by `<topic>/<group>`, as the topics are set now.

    A topic's own cap is exact in every aligned second, and so is a group's since the topic was changed last. Before
    that it may have had another share: it is held to what any group of the topic may have, rounded up. A group that
    borrows is held to nothing of its own.
    """
    quotas: dict[str, Quota] = {}
    bursts: dict[str, float] = {}
    for topic in topics:
        quotas[topic.name] = topic.qps
        division, burst = topic.division, topic.options.burst
        if topic.options.pacing == "smooth":
            bursts[topic.name] = shares.smooth_burst(division, burst)
            for group in range(topic.groups):
                pace = shares.pace(division, group, burst)
                quotas[topic.group(group)], bursts[topic.group(group)] = pace.quota, pace.most
        elif not topic.options.borrow:
            for group in range(topic.groups):
                quotas[topic.group(group)] = _course(topic, group)
    return quotas, bursts


def _course(topic: Topic, group: int) -> Quota:
    course = topic.course(group)
    if len(course) == 1 and not course[0][0]:
        return course[0][1]  # the topic was never changed
    most = max(share.ceiling for _, share in course)
    before = Share(max(most, math.ceil(topic.group_qps)), 1, 0)
    return [(0, before), *((since_s * MICRO, share) for since_s, share in course if since_s)]
