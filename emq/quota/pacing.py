"""Makes the counter of a group, and changes it when the topic changes."""

from __future__ import annotations

import math
from collections import deque

from emq.quota.borrowing import BorrowingCounter, Sister
from emq.quota.counter import Counter, WindowCounter
from emq.quota.smooth import Paces, SmoothCounter
from emq.topics import shares
from emq.topics.model import Topic


def lends(topic: Topic) -> bool:
    """Return True if the topic's groups on one host use the starts that their sisters leave.

    They do if the topic says so, and while the topic shrinks: a retired group keeps its share until every host knows
    that the group is empty, and meanwhile its sisters use the share.
    """
    return topic.options.pacing == "window" and (topic.options.borrow or topic.groups > topic.active_groups)


def counter_for(topic: Topic, group: int, sisters: deque[Sister], now: float) -> Counter:
    """Make a new counter, which grants nothing in the second in which it is made."""
    if topic.options.pacing == "smooth":
        return SmoothCounter(_paces(topic, group), now)
    if not lends(topic):
        return WindowCounter(topic.course(group), now)
    most = None if topic.options.borrow else _most(topic, group)
    # A lower qps counts at once: no group lends the starts that the old qps would still allow.
    same_qps = len({division.qps for division in topic.timeline}) == 1
    return BorrowingCounter(topic.course(group), now, sisters, most, lends_spare=same_qps)


def _most(topic: Topic, group: int) -> int:
    """Return the most starts a second, with borrowed ones, of a group while its topic shrinks.

    For an active group: its starts after the shrinking. For a retired one: the starts that any group may have.
    """
    if group < topic.active_groups:
        return topic.divided(()).share(group).ceiling
    return math.floor(min(topic.group_qps, topic.qps))


def borrowed(topic: Topic, group: int) -> float:
    """Return how many starts a second a group may reach with borrowed ones; 0 for a group that borrows nothing."""
    if topic.options.borrow:
        return topic.qps
    return float(_most(topic, group)) if lends(topic) else 0.0


def follow(counter: Counter, topic: Topic, group: int, sisters: deque[Sister], now: float) -> Counter:
    """Return the counter to use after a change of the topic; starts granted in this second still count."""
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
