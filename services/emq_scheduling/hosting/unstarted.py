"""The ends of tasks that never start: their records and replies."""

from __future__ import annotations

from emq.runtime import errors
from emq_scheduling.hosting.attempts import Dropped, record_of
from emq_scheduling.hosting.replies import Replies
from emq_scheduling.records.ends import CANCELLED, EndLog
from emq_scheduling.tasks import Task


class Unstarted:
    """Records the tasks of one pool that end without a start, and replies to their submitters."""

    def __init__(self, ends: EndLog, replies: Replies) -> None:
        self._ends = ends
        self._replies = replies

    async def dropped(self, task: Task, why: Dropped, now_us: int, version: int) -> None:
        """The scheduler has dropped a task.

        Raises:
            Reject: the task becomes a dead letter, since it was not cancelled.
        """
        self._ends.add(record_of(task, why.outcome, version, ended_us=now_us, error=str(why)))
        await self._replies.send(task, why.outcome, error=str(why))
        if why.outcome != CANCELLED:
            raise errors.Reject(str(why)) from None

    def expired(self, task: Task, outcome: str, now_us: int, version: int) -> None:
        """EMQ has made a task a dead letter that expired before the scheduler had it. Returns at once.

        Args:
            outcome: "expired"; or "cancelled" if somebody had asked for that.

        A flood of such tasks must not fill the memory. So if thousands of records wait for the database, or of replies
        for the store, the task has only its dead letter.
        """
        why = "expired: its type's ttl_s was over before its turn came"
        if not self._ends.is_full:
            self._ends.add(record_of(task, outcome, version, ended_us=now_us, error=why))
        self._replies.send_later(task, outcome, why)
