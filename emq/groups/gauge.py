"""Bounds on the messages and bytes that a host has in memory."""

from __future__ import annotations

from dataclasses import dataclass, field

BUFFER_MESSAGES = 200_000
BUFFER_BYTES = 256 << 20


@dataclass(slots=True, eq=False)
class Gauge:
    """Counts the messages and bytes that a host has in memory, against their bounds.

    Topics share both bounds as they share the places in flight (`emq.places.sharing`), so that the full buffers of
    some topics never stop the others. If a group may buffer nothing more, a queue with an empty buffer may still read
    one message while its topic has nothing in flight. So the true bound is higher by one message for each owned queue.

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
