"""The family of the benchmark and its topics; only this module knows how a topic comes to be, asleep or awake."""

from __future__ import annotations

import emq
from bench.cluster.crew import InvalidRun
from bench.support.backlog import NUMBER_BYTES
from bench.support.stage import Stage
from emq.producer.outgoing import Outgoing
from emq.runtime import errors
from emq.topics.families import Bounds, Family
from emq.topics.model import Topic, TopicOptions

PREFIX = "tenant."
NAME = f"{PREFIX}*"

QPS, OWN_QPS = 50.0, 40.0
"""Starts a second of each topic, by the family and as a setting of the topic's own; both make one group."""

AT_ONCE = 10_000
"""Topics in one transaction."""


def name_of(number: int) -> str:
    return f"{PREFIX}{number:07}"


def message_to(number: int) -> Outgoing:
    """Return a message to the topic of this number, which tells the number."""
    return Outgoing(name_of(number), number.to_bytes(NUMBER_BYTES, "big"))


async def create(app: emq.App, *, most: int, idle_s: float | None) -> None:
    """Create the family, without topics.

    Args:
        most: topics that it may have at a time.
        idle_s: as in `emq.topics.options.TopicOptions`.

    Raises:
        InvalidRun: the catalog is not empty, so its topics would be measured, too.
    """
    if await app.families.list() or await app.catalog.beginning("", 1):
        raise InvalidRun("the catalog has topics already; give --database and --store that hold nothing")
    await app.families.create(Family(Topic(NAME, QPS, options=TopicOptions(idle_s=idle_s)), Bounds(max_topics=most)))


async def make(stage: Stage, topics: int, *, asleep: bool = False) -> None:
    """Make topics of the family in the catalog alone, in large batches.

    Args:
        asleep: give each topic a setting of its own, for which the catalog needs a row, and let it sleep.
    """
    made = 0
    async with stage.app() as app, stage.progress("making topics", topics, lambda: made):
        while made < topics:
            numbers = range(made, min(topics, made + AT_ONCE))
            await app.catalog.create_many([Topic(name_of(i), OWN_QPS if asleep else QPS) for i in numbers])
            if asleep:
                versions = await app.catalog.families.versions([name_of(i) for i in numbers])
                await app.catalog.families.sleep(versions, lambda *_: None)
            made = numbers.stop


async def publish(app: emq.App, numbers: range) -> None:
    """Publish a message to each of some topics, with few calls to the store. Raises what kept one from the store."""
    for outcome in await app.send(map(message_to, numbers)):
        if isinstance(outcome, errors.EMQError):
            raise outcome
