"""A queue of a group that a host owns: how far it is read, and how far its progress is saved."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING

from emq.groups.capacity import buffer_capacity
from emq.groups.offset_tracker import Note, OffsetTracker
from emq.storage.marks import Marks

if TYPE_CHECKING:
    from emq.groups.owned import OwnedGroup


@dataclass(slots=True, eq=False, repr=False)
class OwnedQueue:
    """A physical queue of an owned group.

    Attributes:
        priority: index into the topic's priorities.
        position: the offset to read from next.
        tracker: the finished offsets.
        marks: messages read last; they show whether the store has lost messages that were read.
        saved: the watermark of the last checkpoint. The watermark is the first offset that is not finished.
        covered: number of finished offsets that the last checkpoint covers; a crash does not repeat them.
        trimmed: offset below which the store was told to drop messages.
        notes: of a topic with a retention: past times with the watermarks of those times, oldest first.
        more: True if the store probably holds messages from `position` on; False while the queue is armed.
        listed: the queue waits to be read, or is being read.
        woken: the queue received messages since the last read was sent.
        dirty: the progress has changed since the last checkpoint.
        capacity: messages to keep buffered; see `queue_capacity`.
        expected: messages that the next read may find, estimated from the last read; 0 before the first.
    """

    group: OwnedGroup
    priority: int
    tracker: OffsetTracker
    horizon_s: InitVar[float]
    marks: Marks = field(default_factory=Marks)
    name: str = field(init=False)
    position: int = field(init=False)
    saved: int = field(init=False)
    covered: int = field(init=False)
    trimmed: int = field(init=False)
    notes: tuple[Note, ...] = ()
    more: bool = True
    woken: bool = False
    listed: bool = False
    dirty: bool = False
    capacity: int = field(init=False)
    expected: int = 0

    def __post_init__(self, horizon_s: float) -> None:
        self.name = self.group.owner.topic.queue(self.group.index, self.priority)
        self.position = self.saved = self.trimmed = self.tracker.watermark
        self.covered = self.tracker.total()
        self.capacity = buffer_capacity(self.group.quota, horizon_s)

    def wake(self) -> None:
        """Note that the store has received messages of the queue."""
        self.more = self.woken = True

    def enlist(self) -> None:
        """Note that the queue waits to be read."""
        self.listed = True

    def delist(self) -> None:
        """Note that the queue was read, or wants no messages now."""
        self.listed = False

    def begin_read(self) -> None:
        """Note that a read is sent; a later wake-up may be for messages that this read does not find."""
        self.woken = False

    def advance(self, upto: int, exhausted: bool) -> None:
        """Note that a read ended before offset `upto`.

        Args:
            upto: the offset from which to read next.
            exhausted: the read came to the queue's end, and the store armed the queue.
        """
        self.group.ahead += upto - self.position
        self.position = upto
        self.more = self.woken or not exhausted

    def mark_dirty(self) -> None:
        """Note that the progress changed for the first time since the last checkpoint."""
        self.dirty = True

    def begin_save(self) -> None:
        """Note that the progress so far is about to be saved."""
        self.dirty = False

    def cover(self, finished: int) -> None:
        """Note that a checkpoint covers `finished` finished offsets."""
        self.group.ahead -= finished - self.covered
        self.covered = finished
