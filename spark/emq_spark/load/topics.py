"""The topics of a load: create the missing ones, and check the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from emq import App
from emq.runtime import errors, plurals
from emq.topics.model import Topic
from emq_spark.load import curve
from emq_spark.load.plan import Plan
from emq_spark.load.replay import Survey

NAMED = 5


def needed(plan: Plan, survey: Survey) -> Iterator[tuple[Topic, frozenset[str]]]:
    """Yield each topic as the load would create it, and the priorities of its messages.

    Args:
        survey: survey of the file, for a replay.
    """
    for tenants in plan.tenants:
        names = tuple(tenants.priorities)
        for number, rate in enumerate(curve.rates(tenants).tolist(), 1):
            yield tenants.topic.topic(tenants.topic_name(number), rate, names), frozenset(names)
    if plan.replay is not None:
        kind, used = plan.replay.topic, frozenset(survey.priorities)
        for name, count in sorted(survey.topics.items()):
            yield kind.topic(name, count / max(survey.span_s, 1.0)), used


async def prepare(app: App, topics: Iterable[tuple[Topic, frozenset[str]]], *, create: bool) -> int:
    """Make sure that a load's topics exist; return the number of created ones.

    Args:
        app: an app that is entered.
        create: create the topics that are missing.

    Raises:
        UnknownTopic: topics are missing, and the load must not create them.
        InvalidTopic: a topic cannot be created as planned, or an existing topic does not fit the plan.
    """
    wanted = list(topics)
    there = {topic.name: topic for topic in await app.catalog.list()}
    missing = [topic for topic, _ in wanted if topic.name not in there]
    if missing and not create:
        some = ", ".join(repr(topic.name) for topic in missing[:NAMED])
        raise errors.UnknownTopic(
            f"{plurals.count(len(missing), 'topic')} of the plan {plurals.are(len(missing))} missing, "
            f"such as {some}, in the {app.place}; create them, or leave "
            "out --no-create"
        )
    for topic, priorities in wanted:
        _check(topic, there.get(topic.name, topic), priorities)
    if missing:
        await app.admin.create(missing, exist_ok=True)
    return len(missing)


def _check(planned: Topic, found: Topic, priorities: frozenset[str]) -> None:
    if found.kind is not planned.kind:
        raise errors.InvalidTopic(
            f"topic {found.name!r} is of kind {found.kind}, the plan wants {planned.kind}; name another topic"
        )
    if odd := sorted(priorities - set(found.priorities)):
        raise errors.InvalidTopic(
            f"topic {found.name!r} has no priority {odd[0]!r}, which the plan uses; it has "
            f"{', '.join(found.priorities) or 'none'}; list all of them as topic.priorities, or name another topic"
        )
    if found.is_sorted and (found.options.merge, found.options.ordering) != (
        planned.options.merge,
        planned.options.ordering,
    ):
        raise errors.InvalidTopic(
            f"topic {found.name!r} has merge {found.options.merge!r} and ordering {found.options.ordering!r}, the plan "
            f"wants {planned.options.merge!r} and {planned.options.ordering!r}; name another topic"
        )
