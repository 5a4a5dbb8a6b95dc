"""The interface by which producers and hosts record events; free of pyarrow, so that the core can import it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from emq.message import Message


class TrailSink(Protocol):
    """Records the events of messages. No method waits, touches a disk or raises; call all from one thread.

    Times are microseconds since the epoch by the caller's clock. Check `enabled` first if building the arguments costs
    time.

    Attributes:
        enabled: False when nothing is recorded.
    """

    enabled: bool

    def published(
        self,
        topic: str,
        group: int,
        priority: int,
        offsets: Sequence[int] | None,
        ids: Sequence[str],
        keys: Sequence[str | None] | None,
        published_us: int,
        now_us: int,
        due_ms: Sequence[int] | None = None,
    ) -> None:
        """A publish returned: these messages are in the store.

        Args:
            offsets: one for each id, or None if there are none (a delayed message, a sorted topic).
            ids: message ids; kept by reference until written, so do not change the sequences afterwards.
            keys: one for each id, or None if no message has a key.
            published_us: time when the publish began, as stored with the messages.
            now_us: time when the publish returned.
            due_ms: due time of each message in milliseconds since the epoch; None if none is delayed.
        """

    def doubted(self, topic: str, group: int, priority: int, ids: Sequence[str], now_us: int) -> None:
        """A publish of these messages failed; they may or may not be in the store."""

    def merged(self, topic: str, group: int, ids: Sequence[str], published_us: int, now_us: int) -> None:
        """Publishes to a sorted topic returned, and the store merged each with a waiting message of the same id.

        Args:
            ids: as for `published`.
            published_us: time when the publish began.
        """

    def started(self, m: Message, epoch: int) -> None:
        """`m` was handed to the handler at `m.started_us` by the owner of `epoch`."""

    def settled(self, m: Message, now_us: int) -> None:
        """`m`, with its attempt count as started, was handled successfully."""

    def retried(self, m: Message, now_us: int, due_ms: int, reason: str) -> None:
        """`m`, with its attempt count as started, failed and is due again at `due_ms` (milliseconds)."""

    def dead(self, m: Message, now_us: int, reason: str) -> None:
        """`m`, with its attempt count as started, went to the dead letters.

        Args:
            reason: if attempts were left, begins with one of the reasons in `emq.trail.events`.
        """

    def skipped(self, topic: str, group: int, priority: int, start: int, end: int, now_us: int) -> None:
        """The owner took the offsets [start, end) of the queue for holes and will not deliver them."""

    def dropped(
        self, topic: str, group: int, priority: int, start: int, end: int, now_us: int, reason: str = "max_length"
    ) -> None:
        """The offsets [start, end) of the queue were dropped on purpose."""

    def lost(self, topic: str, group: int, priority: int, start: int, end: int, now_us: int) -> None:
        """The store came back from a crash: some or all of the messages from offset `start` on are gone.

        Args:
            end: the owner knew of messages below this offset. The store gives out offsets from `start` on again.
        """

    def recalled(self, topic: str, group: int, priority: int, ids: Sequence[str], now_us: int) -> None:
        """These waiting messages were taken back before they were started."""

    def replayed(self, topic: str, group: int, priority: int, ids: Sequence[str], now_us: int) -> None:
        """These dead letters were put back to be delivered again."""

    def owned(self, topic_group: str, epoch: int, now_us: int) -> None:
        """This source consumes the group `<topic>/<group>` from now on."""

    def released(self, topic_group: str, epoch: int, now_us: int) -> None:
        """This source has stopped consuming the group `<topic>/<group>`."""


class NullTrail:
    """Records nothing; the default."""

    enabled = False

    def published(
        self,
        topic: str,
        group: int,
        priority: int,
        offsets: Sequence[int] | None,
        ids: Sequence[str],
        keys: Sequence[str | None] | None,
        published_us: int,
        now_us: int,
        due_ms: Sequence[int] | None = None,
    ) -> None:
        pass

    def doubted(self, topic: str, group: int, priority: int, ids: Sequence[str], now_us: int) -> None:
        pass

    def merged(self, topic: str, group: int, ids: Sequence[str], published_us: int, now_us: int) -> None:
        pass

    def started(self, m: Message, epoch: int) -> None:
        pass

    def settled(self, m: Message, now_us: int) -> None:
        pass

    def retried(self, m: Message, now_us: int, due_ms: int, reason: str) -> None:
        pass

    def dead(self, m: Message, now_us: int, reason: str) -> None:
        pass

    def skipped(self, topic: str, group: int, priority: int, start: int, end: int, now_us: int) -> None:
        pass

    def dropped(
        self, topic: str, group: int, priority: int, start: int, end: int, now_us: int, reason: str = "max_length"
    ) -> None:
        pass

    def lost(self, topic: str, group: int, priority: int, start: int, end: int, now_us: int) -> None:
        pass

    def recalled(self, topic: str, group: int, priority: int, ids: Sequence[str], now_us: int) -> None:
        pass

    def replayed(self, topic: str, group: int, priority: int, ids: Sequence[str], now_us: int) -> None:
        pass

    def owned(self, topic_group: str, epoch: int, now_us: int) -> None:
        pass

    def released(self, topic_group: str, epoch: int, now_us: int) -> None:
        pass
