"""Tails of queues after this process's last puts; they show that a store has lost messages that no host had read.

An owner notices the loss of messages that it has read (`emq.storage.marks`), but only the producer knows unread ones.
Offsets of a queue only grow. So if a put gets a lower offset than an earlier put whose answer it has seen, the store
has lost the messages in between.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from emq.producer.routes import Route
from emq.runtime.clock import Clock
from emq.topics.model import Topic
from emq.trail import events
from emq.trail.sink import TrailSink

log = logging.getLogger(__name__)

SAY_AGAIN_S = 1.0
"""Seconds between two log lines about lost messages, because a store loses messages of many queues at once."""


class Tails:
    """Keeps the tails of the queues to which one process publishes, in the routes of their topics.

    Attributes:
        shrunk: number of times that a queue was found shorter than before.
    """

    def __init__(self, trail: TrailSink, clock: Clock) -> None:
        self._trail = trail
        self._clock = clock
        self._said = 0.0
        self.shrunk = 0

    def known(self, route: Route, group: int, priority: int) -> int:
        """Return the queue's tail as far as known, else 0. Call this before you send a put."""
        return route.memory.tails.get((group, priority), 0)

    def put(self, route: Route, group: int, priority: int, known: int, offsets: Sequence[int], sent_us: int) -> None:
        """Note the answer of a put.

        Args:
            route, group, priority: name the queue.
            known: the tail that was known when the put was sent.
            offsets: offsets that the put got.
            sent_us: when the put was sent, microseconds since the epoch.
        """
        if not offsets:
            return
        tails = route.memory.tails
        if offsets[0] < known:
            tails[group, priority] = offsets[-1] + 1
            self._lost(route.topic, group, priority, offsets[0], known, sent_us)
        else:
            tails[group, priority] = max(tails.get((group, priority), 0), offsets[-1] + 1)

    def _lost(self, topic: Topic, group: int, priority: int, start: int, end: int, sent_us: int) -> None:
        self.shrunk += 1
        now = self._clock.now()
        if not self._said <= now < self._said + SAY_AGAIN_S:
            self._said = now
            log.warning(
                "queue %s: its store came back from a crash without offsets %d to %d, which were published here; other"
                " queues may have lost messages too. To lose nothing, publish with a durability that the store keeps",
                topic.queue(group, priority),
                start,
                end - 1,
            )
        if self._trail.enabled:
            self._trail.record(events.Lost(sent_us, topic.name, group, priority, start, end))
