"""Changes of a topic: the topic that follows from a change, and the changes that EMQ refuses."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from emq.runtime import documents, errors, inputs
from emq.topics import model, shares
from emq.topics.model import Topic, TopicOptions, called
from emq.topics.shares import MICRO, Division

_OPTIONS = frozenset(TopicOptions.__struct_fields__)
_CHANGEABLE = ("qps", "group_qps", "state", "options")
REFUSED = {
    "name": "its queues are stored under its name; create a new topic or family instead",
    "priorities": (
        "its queues are named for them, and messages of a dropped or renamed one would never be consumed; "
        "create a new topic or family instead"
    ),
    "kind": "its messages are stored by it; create a new topic or family instead",
    "slots": "messages are found by it (checksum modulo slots); waiting ones would be lost; make a new topic or family",
    "active_groups": "it follows from qps and group_qps; change these",
    "groups": "it follows from qps and group_qps; change these",
    "divisions": "it follows from qps and group_qps; change these",
    "layout": "it follows from the number of groups",
    "earlier": "hosts drop an earlier layout when nothing of it is left",
    "shared_s": "it follows from the topics that name this one as their budget",
    "family": "it follows from the topic's name when the topic is created",
    "own": "it follows from the settings that somebody sets for the topic",
    "asleep_s": "hosts put idle topics to sleep, and publishes wake them",
}
"""Fields that may not change, and why."""


def validate(subject: str, changes: Iterable[str]) -> None:
    """Raise `InvalidTopic` if `subject` (such as `topic 'shop'`) has no such settings, or one may not change."""
    for key in changes:
        if key in REFUSED:
            raise errors.InvalidTopic(f"{subject}: {key} may not change: {REFUSED[key]}")
        if key not in _CHANGEABLE and key not in _OPTIONS:
            names = (*_CHANGEABLE, *TopicOptions.__struct_fields__)
            hint = inputs.alike(key, names) or f"; the settings are {', '.join(names)}"
            raise errors.InvalidTopic(f"{subject} has no setting {key!r}{hint}")


def divided(before: Topic, after: Topic, draining: Collection[int] | None, now_s: float) -> Topic:
    """Return `after`, with the divisions that lead from `before` to it.

    As long as messages of an earlier number of groups wait, a higher qps lowers no group's share.
    """
    if draining is None:
        division = before.division
        draining = [g for g in range(after.groups) if division.position(g) is not None]
    wanted = after.divided(draining)
    if after.earlier:
        wanted = _not_lowered(before.division, wanted)
    divisions = shares.successors(before.timeline, wanted, now_s)
    plain = after.divided(range(after.groups))
    if len(divisions) == 1 and divisions[0].same_shares(plain):
        divisions = ()
    return msgspec.structs.replace(after, divisions=divisions)


def _not_lowered(before: Division, after: Division) -> Division:
    """Return the division, changed so that no group has a lower share than before, unless qps falls.

    While messages wait that came before a raise, they lie in the former groups. If more groups share and the former
    ones are on other hosts, even shares would slow this backlog down. Here the lowest shares are raised first. The
    shares stay even if there are fewer starts than groups. A raise may be too small to give each group a start that had
    none before; then the largest shares give it. If several former shares have fractions, they may fall by less than
    one start a second, since only one of the new shares can have a fraction.
    """
    groups = [*range(after.active), *after.draining]
    starts, fraction = divmod(round(after.qps * MICRO), MICRO)
    if after.qps < before.qps or len(groups) > starts + bool(fraction):
        return after
    least = [before.micros_of(group) for group in groups]
    if all(after.micros_of(group) >= n for group, n in zip(groups, least, strict=True)):
        return after
    whole, with_fraction = [-(-n // MICRO) for n in least], after.active - 1
    if sum(whole) > starts and any(n % MICRO for n in least):  # the group that has a fraction keeps it
        whole = [n // MICRO for n in least]
        with_fraction = next(i for i, n in enumerate(least) if n % MICRO)
    owed = [int(i != with_fraction or not fraction) for i in range(len(groups))]  # each group gets some start
    most = next(most for most in range(starts, -1, -1) if sum(_between(owed, whole, most)) <= starts)
    whole = _between(owed, whole, most)
    left = starts - sum(whole)
    level = next(level for level in range(starts + 1) if sum([max(0, level + 1 - n) for n in whole]) > left)
    raised = [max(n, level) for n in whole]
    for i in [i for i, n in enumerate(raised) if n == level][: starts - sum(raised)]:
        raised[i] += 1
    return msgspec.structs.replace(
        after, uneven=tuple(n * MICRO + (fraction if i == with_fraction else 0) for i, n in enumerate(raised))
    )


def _between(least: Sequence[int], numbers: Sequence[int], most: int) -> list[int]:
    return [max(low, min(number, most)) for low, number in zip(least, numbers, strict=True)]


def at_rest(topic: Topic) -> Topic:
    """Return a topic that sleeps with nothing but its settings: it holds no message that needs more."""
    return msgspec.structs.replace(topic, groups=topic.active_groups, divisions=(), earlier=())


def again(topic: Topic, layout: int, ended_s: float, now_s: float) -> Topic:
    """Return a new topic whose name belonged to a topic that was deleted, or fell asleep, at `ended_s`.

    Its layout is above every layout of the former topic, since queues may still refuse those. It starts nothing until
    every host knows that the former topic is gone.
    """
    divisions = shares.beginning(topic.division, shares.learned_s(ended_s), now_s)
    return msgspec.structs.replace(topic, layout=layout, divisions=divisions)


def created(topic: Topic, now_s: float) -> Topic:
    """Return a topic that is created at `now_s`; with a qps below 1 its first start is due when all hosts know it."""
    if topic.qps >= 1 or topic.divisions:
        return topic
    return msgspec.structs.replace(topic, divisions=(shares.first_due(topic.division, shares.learned_s(now_s)),))


def kept(before: Topic, after: Topic) -> Topic:
    """Return `after`. Raise `InvalidTopic` if it stores messages in another way than those that wait."""
    if after.options.merge != before.options.merge:
        raise errors.InvalidTopic(f"{called(before.name)}: merge may not change: {REFUSED['kind']}")
    if after.options.buckets != before.options.buckets:
        raise errors.InvalidTopic(
            f"{called(before.name)}: buckets may not change: two hosts would have a group for a while; create a new "
            "topic or family instead"
        )
    if after.options.budget != before.options.budget:
        raise errors.InvalidTopic(
            f"{called(before.name)}: budget may not change from {before.options.budget!r} to {after.options.budget!r}: "
            "two budgets would count its starts at the same time; create a new topic or family instead"
        )
    return after


def replaced(before: Topic, after: Topic) -> Topic:
    """Return `after`, with what EMQ keeps for a topic, and split into groups.

    Raises:
        InvalidTopic: a setting differs that may not change.
    """
    for field in ("priorities", "kind", "slots"):
        if getattr(before, field) != getattr(after, field):
            raise errors.InvalidTopic(f"{called(before.name)}: {field} may not change: {REFUSED[field]}")
    topic = msgspec.structs.replace(
        kept(before, after),
        active_groups=before.active_groups,
        groups=before.groups,
        layout=before.layout,
        earlier=before.earlier,
        expiring=before.expiring,
        shared_s=before.shared_s,
        family=before.family,
        asleep_s=before.asleep_s,
    )
    return model.split(topic)


def retired(topic: Topic) -> Topic:
    """Return the topic without the groups above `active_groups`; write this once all their queues are sealed."""
    return msgspec.structs.replace(topic, groups=topic.active_groups)


def caught_up(topic: Topic, layout: int) -> Topic:
    """Return the topic with a layout above `layout`, which messages in the store have.

    The catalog has forgotten that layout if its database was restored from an older copy.
    """
    if topic.layout >= layout:
        return topic
    earlier = (*topic.earlier, model.Layout(topic.layout, topic.active_groups))
    return msgspec.structs.replace(topic, layout=layout + 1, earlier=earlier)


def without_layouts(topic: Topic, numbers: Collection[int]) -> Topic:
    """Return the topic without earlier layouts of which no message is left."""
    left = tuple(layout for layout in topic.earlier if layout.number not in numbers)
    return msgspec.structs.replace(topic, earlier=left)


def expiring(topic: Topic) -> Topic:
    """Return the topic with the note that its messages may have a time to live of their own."""
    return msgspec.structs.replace(topic, expiring=True)


def merged(topic: Topic, changes: Mapping[str, Any]) -> Topic:
    """Return the topic with these settings: fields, or single options by their names."""
    options = changes.get("options", topic.options)
    if isinstance(options, TopicOptions):
        options = {field: getattr(options, field) for field in _OPTIONS}
    whole = {key: value for key, value in changes.items() if key not in _OPTIONS and key != "options"}
    single = {key: value for key, value in changes.items() if key in _OPTIONS}
    try:
        options = documents.converted({**options, **single}, TopicOptions, called(topic.name), errors.InvalidTopic)
        return msgspec.structs.replace(topic, **whole, options=options)
    except TypeError as exc:
        raise errors.InvalidTopic(f"{called(topic.name)}: {exc}") from exc
