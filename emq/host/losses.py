"""The log of groups that a store refused to this host.

A store refuses a group in two cases: another host owns the group now, or somebody deletes its topic. A deletion takes
the topic's groups over before it removes the topic from the catalog. So only a look at the catalog, a moment later,
tells the two cases apart. The log warns of the first one only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from emq.groups.owned import OwnedGroup, OwnedTopic
from emq.runtime import plurals

log = logging.getLogger(__name__)

SAY_S = 2.0
"""Seconds from a loss to its line in the log. A host reads the catalog twice a second, so it knows deletions then."""

NAMED = 3
"""Deleted topics that one line names."""


@dataclass(slots=True)
class _Lost:
    """The groups of one topic that were lost lately; `first` stands for all in the log."""

    first: OwnedGroup
    owners: dict[OwnedTopic, None] = field(default_factory=dict)
    groups: int = 0


class Losses:
    """Counts lost groups, and logs the cause: in one line, and once for a deleted topic.

    Attributes:
        groups: groups lost to a newer owner since the start; those of deleted topics are left out.
    """

    def __init__(self) -> None:
        self.groups = 0
        self._undecided: dict[str, _Lost] = {}
        self._deleted: dict[str, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, group: OwnedGroup, *, is_deleted: bool) -> None:
        """Note that a store refused the group; `is_deleted` if the host knows already that its topic was deleted."""
        topic = group.owner.topic.name
        if is_deleted:
            self._note_deletion(topic, [group.owner])
        else:
            lost = self._undecided.setdefault(topic, _Lost(group))
            lost.groups += 1
            lost.owners[group.owner] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SAY_S, self.say)

    def deleted(self, topics: Iterable[str]) -> None:
        """Note that topics were deleted, which explains the latest losses of their groups."""
        for topic in topics:
            if (lost := self._undecided.pop(topic, None)) is not None:
                self._note_deletion(topic, lost.owners)

    def say(self) -> None:
        """Write the lines of the latest losses now, and count those to newer owners."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deleted, self._deleted = sorted(self._deleted), {}
        if deleted:
            more = f" and {plurals.others(len(deleted) - NAMED)}" if len(deleted) > NAMED else ""
            log.info(
                "%s %s%s %s deleted while this host consumed %s; messages in flight are not tried again",
                "topic" if len(deleted) == 1 else "topics",
                ", ".join(deleted[:NAMED]),
                more,
                plurals.were(len(deleted)),
                "it" if len(deleted) == 1 else "them",
            )
        undecided, self._undecided = list(self._undecided.values()), {}
        if undecided:
            first, groups = undecided[0].first, sum(lost.groups for lost in undecided)
            self.groups += groups
            more = f" (and {plurals.others(groups - 1)})" if groups > 1 else ""
            text = "group %s has a newer owner than epoch %d; let go of it%s"
            log.warning(text, first.name, first.epoch, more)

    def _note_deletion(self, topic: str, owners: Iterable[OwnedTopic]) -> None:
        """Log a deletion once; messages in flight meet it one after the other."""
        for owner in owners:
            if not owner.is_deletion_said:
                owner.is_deletion_said = True
                self._deleted[topic] = None
