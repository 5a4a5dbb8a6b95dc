"""Bounds on the messages and bytes that a host has in memory."""

from __future__ import annotations

BUFFER_MESSAGES = 200_000
BUFFER_BYTES = 256 << 20


class Gauge:
    """Counts the messages and bytes that a host has in memory, against their bounds.

    Topics share both bounds as they share the places in flight (`emq.places.sharing`), so that the full buffers of
    some topics never stop the others. If a group may buffer nothing more, a queue with an empty buffer may still read
    one message while its topic has nothing in flight. So the true bound is higher by one message for each owned queue.

    Attributes:
        messages, bytes: number of buffered messages, and their bytes.
        flying: bytes in flight, of messages whose handler did not return at once.
    """

    __slots__ = ("bytes", "flying", "max_bytes", "max_messages", "messages")

    def __init__(self, max_messages: int = BUFFER_MESSAGES, max_bytes: int = BUFFER_BYTES) -> None:
        self.messages = 0
        self.bytes = 0
        self.flying = 0
        self.max_messages = max_messages
        self.max_bytes = max_bytes

    def pressed(self) -> bool:
        """Return True if memory is so full that the share of some topic may be used up."""
        return self.messages * 4 > self.max_messages or (self.bytes + self.flying) * 4 > self.max_bytes
