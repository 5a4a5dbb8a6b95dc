"""The client that a user of the adapter base writes, and the base's options."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from emq.runtime import errors
from emq.topics.model import DEFAULT_MAX_QUEUE_QPS


class PutGetClient(Protocol):
    """The storage: physical queues addressed by name and offset.

    Both methods raise `StoreUnavailable` if nothing was applied. `put` may also raise `OutcomeUnknown` and `StoreFull`.
    Calls are concurrent, but one adapter instance never calls `put` twice at once for one queue.
    """

    async def put(self, queue: str, body: bytes) -> int:
        """Append `body` (any bytes, also none) and return its offset, above the offsets of all puts that returned.
        The first put makes the queue."""

    async def get(self, queue: str, offset: int) -> bytes | None:
        """Return the body at `offset`, or None if there is no message now."""


@dataclass(frozen=True)
class Options:
    """The adapter base's treatment of its storage.

    Attributes:
        first_offset: offset that the storage gives to a queue's first message.
        max_queue_qps: most operations on one physical queue in any second, puts and gets together; at least 2. The
            default is the limit of the original's storage.
        hole_window: number of offsets above a missing one at which the base looks to tell a hole from the tail; at
            least 1. If more messages in a row were lost, readers wait until a put through this instance shows that the
            queue goes on.
        hole_grace_s: seconds for which an offset must have been missing, with a message above it, before it counts as
            a hole, since its write may still be under way. Readers miss a message whose write takes longer.
        poll_first_s: seconds until the first poll of an exhausted queue; each further poll waits twice as long.
        poll_longest_s: most seconds between two polls of an exhausted queue.
        concurrency: most operations under way at once over all queues.
        answer_s: seconds that the storage may take for one operation; after that, a PUT has an unknown outcome.
    """

    first_offset: int = 1
    max_queue_qps: float = DEFAULT_MAX_QUEUE_QPS
    hole_window: int = 16
    hole_grace_s: float = 2.0
    poll_first_s: float = 0.05
    poll_longest_s: float = 5.0
    concurrency: int = 64
    answer_s: float = 5.0

    def __post_init__(self) -> None:
        rules = (
            ("first_offset", self.first_offset >= 0, "0 or more"),
            ("max_queue_qps", math.isfinite(self.max_queue_qps) and self.max_queue_qps >= 2, "at least 2"),
            ("hole_window", self.hole_window >= 1, "at least 1"),
            ("hole_grace_s", math.isfinite(self.hole_grace_s) and self.hole_grace_s >= 0, "0 or more"),
            ("poll_first_s", 0 < self.poll_first_s <= self.poll_longest_s, "above 0 and at most poll_longest_s"),
            ("poll_longest_s", math.isfinite(self.poll_longest_s), "a finite number"),
            ("concurrency", self.concurrency >= 1, "at least 1"),
            ("answer_s", math.isfinite(self.answer_s) and self.answer_s > 0, "above 0"),
        )
        for name, holds, right in rules:
            if not holds:
                raise errors.InvalidSettings(f"put_get option {name} is {getattr(self, name)}; it must be {right}")
