"""How far queues reached when this process put to them last; tells that a store has lost what nobody had read yet.

An owner notices that messages are gone which it has read (`emq.storage.marks`). What waited in the store unread, nobody
but its producer has seen. The offsets of a queue only grow. So a put that was sent after the answer of another, and
that gets a lower offset, tells that the store came back from a crash without the messages in between.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from emq.clock import Clock
from emq.topics.model import Topic
from emq.trail.sink import TrailSink

log = logging.getLogger(__name__)

SAY_AGAIN_S = 1.0
"""A store loses messages of many queues at once; one line a second says so."""

Place = tuple[str, int, int]
"""topic, group, priority"""


class Tails:
    """The tails of one process's queues.

    Attributes:
        shrunk: how often a queue was found to be shorter than it was.
    """

    def __init__(self, trail: TrailSink, clock: Clock) -> None:
        self._trail = trail
        self._clock = clock
        self._tails: dict[str, dict[tuple[int, int], int]] = {}
        self._said = 0.0
        self.shrunk = 0

    def known(self, topic: str, group: int, priority: int) -> int:
        """The queue's tail as far as known; ask before a put is sent."""
        of_topic = self._tails.get(topic)
        return 0 if of_topic is None else of_topic.get((group, priority), 0)

    def put(self, topic: Topic, group: int, priority: int, known: int, offsets: Sequence[int], sent_us: int) -> None:
        """A put was answered.

        Args:
            known: the tail that was known when it was sent.
            sent_us: when it was sent.
        """
        if not offsets:
            return
        of_topic = self._tails.setdefault(topic.name, {})
        if offsets[0] < known:
            of_topic[group, priority] = offsets[-1] + 1
            self._lost(topic, group, priority, offsets[0], known, sent_us)
        else:
            of_topic[group, priority] = max(of_topic.get((group, priority), 0), offsets[-1] + 1)

    def forget(self, topic: str) -> None:
        """The topic was deleted."""
        self._tails.pop(topic, None)

    def _lost(self, topic: Topic, group: int, priority: int, start: int, end: int, sent_us: int) -> None:
        self.shrunk += 1
        now = self._clock.now()
        if not self._said <= now < self._said + SAY_AGAIN_S:
            self._said = now
            log.warning(
                "queue %s: its store came back from a crash without offsets %d to %d, which were published here; so did"
                " perhaps others. Set the durability of publishes to what the store keeps to lose nothing",
                topic.queue(group, priority),
                start,
                end - 1,
            )
        if self._trail.enabled:
            self._trail.lost(topic.name, group, priority, start, end, sent_us)
