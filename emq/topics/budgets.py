"""Budgets: topics that share the qps of another topic.

A topic may name another topic as its *budget* (`TopicOptions.budget`), and that topic may have a budget of its own. The
topic at the top is the *root*. The root and all topics below it are one *unit*: one host consumes all of their groups,
so that this host's counters are exact (`emq.quota.budget`).

**Why a budget holds from its first topic on.** Until a topic is named as a budget, its groups may be on several hosts,
and each has a counter of its own. Hosts learn of the first such topic one by one. So `shared_s` of the root is
`LEARN_S` seconds later: until then topics below it start nothing, and its own groups stay within its qps by their own
counters. From then on every host knows, and only the owner of the root's first group starts messages of the unit. The
mark stays for as long as the root exists, since hosts would also learn one by one that the last topic below it is gone.
A host that cannot read the catalog for longer than `LEARN_S` goes on with the counters that it knows, as after any
change of a topic; see `emq.topics.shares`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from emq.runtime import errors
from emq.topics import shares
from emq.topics.model import Topic, called

MAX_DEPTH = 8
"""Most budgets above a topic. Each costs every start of the topic a step."""


def above(topic: Topic, topics: Mapping[str, Topic]) -> list[str]:
    """Return the names of the budgets above a topic, the nearest first. The last name may be unknown in `topics`.

    Raises:
        InvalidTopic: there are more than `MAX_DEPTH` of them, as there are in a circle.
    """
    found: list[str] = []
    at: Topic | None = topic
    while at is not None and at.options.budget is not None:
        found.append(at.options.budget)
        if len(found) > MAX_DEPTH:
            circle = topic.name in found
            why = "are in a circle" if circle else f"are more than {MAX_DEPTH}"
            raise errors.InvalidTopic(
                f"{called(topic.name)}: the budgets above it ({', '.join(found[:3])} ...) {why}; name another budget"
            )
        at = topics.get(at.options.budget)
    return found


def unit_of(topic: Topic, topics: Mapping[str, Topic]) -> str | None:
    """Return the name of the unit, which is its root's; None for a topic whose groups are allocated one by one."""
    if topic.options.budget is None:
        return topic.name if topic.shared_s else None
    return above(topic, topics)[-1]


def loads(topic: Topic, groups: Iterable[int]) -> dict[str, float]:
    """Return the load of groups of a topic, in starts a second, by which the planner evens out the hosts.

    A topic below a budget adds no load: the qps of its root bounds the starts of the whole unit.
    """
    if topic.options.budget is not None:
        return {topic.group(i): 0.0 for i in groups}
    division = topic.division
    return {topic.group(i): division.quota(i) for i in groups}


def begun(new: Sequence[Topic], there: Mapping[str, Topic], now_s: float) -> tuple[list[Topic], list[Topic]]:
    """Return new topics with the times from which they may start messages, and the former topics that they change.

    Args:
        new: topics to be created, in any order.
        there: the budgets above them that exist already.

    Raises:
        UnknownTopic: a topic names a budget that does not exist and is not among the new topics.
        InvalidTopic: topics are budgets of each other in a circle, or more than `MAX_DEPTH` are above each other. Or
            the root is there, and its groups are in several buckets.
    """
    known = {**there, **{topic.name: topic for topic in new}}
    changed: dict[str, Topic] = {}
    for topic in new:
        names = above(topic, known)
        if names and names[-1] not in known:
            raise errors.UnknownTopic(
                f"{called(topic.name)}: there is no topic {names[-1]!r} to be its budget; create that topic first"
            )
        if not names:
            continue
        root = known[names[-1]]
        if root.family and root.groups > 1 and not root.shared_s and root.name in there:
            # Its groups would move to one bucket, and nobody would wait until their hosts have let go of them.
            raise errors.InvalidTopic(
                f"{called(topic.name)}: topic {root.name!r} of family {root.family!r} has {root.groups} groups, so it "
                "cannot become a budget any more; raise its group_qps so that it has one, or create another budget "
                "together with the topics below it"
            )
        since_s = root.shared_s or (shares.learned_s(now_s) if root.name in there else 1)
        for name in names:
            if not known[name].shared_s:
                known[name] = changed[name] = msgspec.structs.replace(known[name], shared_s=since_s)
        known[topic.name] = _not_before(known[topic.name], since_s, now_s)
    return [known[topic.name] for topic in new], [changed[name] for name in changed if name in there]


def _not_before(topic: Topic, since_s: int, now_s: float) -> Topic:
    """Return a new topic that starts nothing before the second `since_s`, or before its own later time."""
    since_s = max(since_s, topic.timeline[-1].since_s)
    return msgspec.structs.replace(topic, divisions=shares.beginning(topic.division, since_s, now_s))


def in_order(topics: Iterable[Topic]) -> list[Topic]:
    """Return the topics, each behind its budget if that is among them, else in their order.

    Raises:
        InvalidTopic: as `above`.
    """
    topics = list(topics)
    known = {topic.name: topic for topic in topics}
    return sorted(topics, key=lambda topic: len(above(topic, known)))
