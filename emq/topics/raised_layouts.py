"""Make queues refuse messages that were routed by an earlier layout of their topic; see `emq.topics.key_layouts`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from emq.runtime import errors
from emq.storage.answers import FAILURES, of_each
from emq.storage.log_store import Bounds, LogStore, Trim
from emq.topics.model import Topic
from emq.topics.passages import Passage, PassageStore

QUEUES = 1_000
"""Most queues in one call of the store."""

Old = tuple[Topic, int, int | None]
"""A topic as it is now, one of its groups, and the epoch of the group's owner; None for administration."""


class Raised(NamedTuple):
    """Groups by name.

    Attributes:
        tails: groups whose queues refuse earlier layouts now: for each of the queues, by priority, an offset behind
            which no message of these layouts is.
        refused: groups that the store refused, because they have a newer owner.
    """

    tails: dict[str, Sequence[int]]
    refused: set[str]


async def raise_queues(log_store: LogStore, passages: PassageStore, groups: Sequence[Old]) -> Raised:
    """Make the queues of groups refuse messages routed by earlier layouts, and note the tails of these queues.

    If the store does not answer for a group, the group is left for the next call.

    Raises:
        DatabaseUnavailable: some queues may have been raised; repeat the call.
    """
    found = Raised({}, set())
    at = 0
    while at < len(groups):
        part = groups[at : at + max(1, QUEUES // max(1, len(groups[at][0].priorities)))]
        at += len(part)
        trims = [Trim(q, 0, epoch, layout=t.layout) for t, group, epoch in part for q in t.queues(group)]
        answers = iter(await of_each(log_store.trim(trims), len(trims)))
        raised: list[tuple[Topic, int]] = []
        for topic, group, _ in part:
            of_group = [next(answers) for _ in topic.priorities]
            if any(isinstance(answer, errors.NotOwner) for answer in of_group):
                found.refused.add(topic.group(group))
            elif not any(isinstance(answer, FAILURES) for answer in of_group):
                raised.append((topic, group))
        tails = await _tails(log_store, raised)
        await passages.note([*_passages(raised, tails)])
        found.tails.update(tails)
    return found


async def _tails(log_store: LogStore, raised: Sequence[tuple[Topic, int]]) -> dict[str, Sequence[int]]:
    queues = [q for topic, group in raised for q in topic.queues(group)]
    bounds = iter(await of_each(log_store.bounds(queues), len(queues)) if queues else ())
    await asyncio.sleep(0)
    found: dict[str, Sequence[int]] = {}
    for topic, group in raised:
        of_group = [next(bounds) for _ in topic.priorities]
        tails = [b.tail for b in of_group if isinstance(b, Bounds)]
        if len(tails) == len(of_group):
            found[topic.group(group)] = tails
    return found


def _passages(raised: Sequence[tuple[Topic, int]], tails: Mapping[str, Sequence[int]]) -> Iterator[Passage]:
    for topic, group in raised:
        if (of_group := tails.get(topic.group(group))) is not None:
            earlier = (layout for layout in topic.earlier if group < layout.groups)
            yield from (Passage(topic.name, group, layout.number, of_group) for layout in earlier)
