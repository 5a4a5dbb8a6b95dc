"""The interface by which producers and hosts record events; free of pyarrow, so that the core can import it."""

from __future__ import annotations

from typing import Protocol

from emq.storage.message import Message
from emq.trail.events import Record


class TrailSink(Protocol):
    """Records the events of messages. No method waits, touches a disk or raises; call all from one thread.

    Times are microseconds since the epoch by the caller's clock. Check `enabled` first where the arguments cost time to
    build.

    Attributes:
        enabled: False when nothing is recorded.
    """

    enabled: bool

    def record(self, event: Record) -> None:
        """Record an event. The two events of every delivery have methods of their own, which build no object."""

    def started(self, m: Message, epoch: int) -> None:
        """Record that the owner of `epoch` handed `m` to the handler at `m.started_us`."""

    def settled(self, m: Message, now_us: int) -> None:
        """Record that the handler succeeded with `m`, whose attempt count is that of this attempt."""


class NullTrail:
    """Records nothing; the default."""

    enabled = False

    def record(self, event: Record) -> None:
        pass

    def started(self, m: Message, epoch: int) -> None:
        pass

    def settled(self, m: Message, now_us: int) -> None:
        pass
