"""Which counter a group has, and how it follows its topic."""

from __future__ import annotations

import math
from collections import deque

from emq.quota.borrowing import BorrowingCounter, Sister
from emq.quota.counter import Counter, WindowCounter
from emq.quota.smooth import Paces, SmoothCounter
from emq.topics import shares
from emq.topics.model import Topic


def lends(topic: Topic) -> bool:
    """Whether the topic's groups on one host use what their sisters leave.

    They do where the topic says so, and while it shrinks: a group that retires has its share until every host knows
    that nothing is left in it, and meanwhile its sisters use that.
    """
    return topic.options.pacing == "window" and (topic.options.borrow or topic.groups > topic.active_groups)


def counter_for(topic: Topic, group: int, sisters: deque[Sister], now: float) -> Counter:
    """A new counter, which grants nothing in the second it is made in."""
    if topic.options.pacing == "smooth":
        return SmoothCounter(_paces(topic, group), now)
    if not lends(topic):
        return WindowCounter(topic.course(group), now)
    most = None if topic.options.borrow else _most(topic, group)
    # A lower qps counts at once: what the old one would still allow is lent to nobody.
    same_qps = len({division.qps for division in topic.timeline}) == 1
    return BorrowingCounter(topic.course(group), now, sisters, most, lends_spare=same_qps)


def _most(topic: Topic, group: int) -> int:
    """While a topic shrinks, no active group gets beyond what it will have once that is over, and no retired one beyond
    what a group may have."""
    if group < topic.active_groups:
        return topic.divided(()).share(group).ceiling
    return math.floor(min(topic.group_qps, topic.qps))


def follow(counter: Counter, topic: Topic, group: int, sisters: deque[Sister], now: float) -> Counter:
    """The counter after a change of the topic; what it has granted in this second still counts."""
    if isinstance(counter, SmoothCounter) and topic.options.pacing == "smooth":
        counter.set_paces(_paces(topic, group), now)
        return counter
    made = counter_for(topic, group, sisters, now)
    if isinstance(counter, WindowCounter) and isinstance(made, WindowCounter):
        made.take_over(counter)
        made.set_quota(topic.course(group), now)
    return made


def _paces(topic: Topic, group: int) -> Paces:
    burst = topic.options.burst
    return [(division.since_s, shares.pace(division, group, burst)) for division in topic.timeline]
