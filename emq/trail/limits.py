"""What topics and their groups may start, for the checkers."""

from __future__ import annotations

from collections.abc import Iterable

from emq import shares
from emq.model import Topic
from emq.shares import Share
from emq.trail.checks import Quota


def limits(topics: Iterable[Topic]) -> tuple[dict[str, Quota], dict[str, float]]:
    """Quotas, and bursts of smooth topics, by `<topic>` and by `<topic>/<group>`, as the topics are set now.

    A topic's own cap is exact in every aligned second. A group that has a fraction of a start may have had another
    phase before the topic's groups changed, so it is held to its quota rounded up; a group that borrows is held to
    nothing of its own.
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
        elif not topic.options.borrow and topic.groups == topic.active_groups:
            for group in range(topic.groups):
                quotas[topic.group(group)] = group_limit(division.share(group))
    return quotas, bursts


def group_limit(share: Share) -> Share:
    """What a group may start in any second, whatever its phase was."""
    return share if share.is_whole else Share(share.ceiling, 1, 0)
