"""Bounds on a host's memory: messages of a queue, messages in flight of a topic, and bytes of the host."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from emq.topics.model import Topic

HORIZON_S = 1.0
"""Seconds of its quota that a queue buffers ahead. Small, because a change of the catalog does not reach buffered
messages."""

MIN_BUFFER = 8
"""Least capacity of a buffer, in messages, so that a round trip brings several messages even with a tiny quota."""
MAX_BUFFER = 500
"""Most messages buffered for one queue, however large its quota."""

BUFFER_MESSAGES = 200_000
BUFFER_BYTES = 256 << 20


@dataclass(slots=True, eq=False)
class Gauge:
    """Counts the messages and bytes in a host's memory, and compares them with their bounds.

    Topics share both bounds as they share the places in flight (`emq.quota.places.sharing`), so that the full buffers
    of some topics never stop the others. If a group may buffer nothing more, a queue with an empty buffer may still
    read one message while its topic has nothing in flight, and a queue of a quick topic a few
    (`emq.groups.buffer_room.scant_room`). So the true bound is higher by one message, or up to `SCANT_BYTES`, for each
    owned queue.

    Attributes:
        messages, bytes: number of buffered messages, and their bytes.
        flying: bytes in flight, of messages whose handler did not return at once.
    """

    max_messages: int = BUFFER_MESSAGES
    max_bytes: int = BUFFER_BYTES
    messages: int = field(default=0, init=False)
    bytes: int = field(default=0, init=False)
    flying: int = field(default=0, init=False)

    def pressed(self) -> bool:
        """Return True if memory is so full that the share of some topic may be used up."""
        return self.messages * 4 > self.max_messages or (self.bytes + self.flying) * 4 > self.max_bytes


def buffer_capacity(quota: float, horizon_s: float, may_expire: bool = False) -> int:
    """Return the messages to keep buffered for one queue: `horizon_s` seconds of its group's quota, 8 to 500.

    If messages may expire, 500: the host can dead-letter an expired message only once the message is buffered.
    """
    if may_expire:
        return MAX_BUFFER
    return min(MAX_BUFFER, max(MIN_BUFFER, math.ceil(quota * horizon_s)))


def queue_capacity(capacity: int, priority: int, priorities: int) -> int:
    """Return the messages to keep buffered for one queue: `capacity` for the lowest priority, else up to twice that.

    A buffer is filled again when it is half empty. So the buffer of a higher priority always holds a second's quota
    while the store has more, and no lower priority gets a part of the second.
    """
    return capacity if priority + 1 >= priorities else min(MAX_BUFFER, 2 * capacity)


def in_flight_limit(topic: Topic) -> int:
    """Return the topic's `max_in_flight`; by default five seconds of its qps, at least 8 and at most 1,000.

    So an endpoint that needs up to 5 s for a message still reaches the full rate, and a slow topic cannot fill the
    host.
    """
    if topic.options.max_in_flight is not None:
        return topic.options.max_in_flight
    return min(1000, max(8, math.ceil(topic.qps * 5)))
