"""Publishes the ends of tasks to the topics that their submitters named; records those of tasks that never start."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from typing import TYPE_CHECKING

from emq.runtime import errors
from emq_scheduling.hosting.attempts import Dropped, record_of
from emq_scheduling.records.ends import CANCELLED, EndLog
from emq_scheduling.tasks import Task
from emq_scheduling.topics import root_name

if TYPE_CHECKING:
    from emq.app import App

log = logging.getLogger(__name__)

MOST_LATER = 10_000
"""Replies that wait to be sent for tasks which have expired in the store; more are not sent."""

AT_ONCE = 100
"""Of these, sent at one time."""

AGAIN_S = 0.5
"""Seconds between tries to send a reply."""

TELL_S = 10.0
"""Seconds between log lines about replies that wait."""

_PASSING = (errors.StoreUnavailable, errors.StoreFull, errors.TopicFull, errors.DatabaseUnavailable)
"""Errors after which a reply is sent later."""


class Replies:
    """The replies of one pool's tasks.

    Args:
        pool: its name.
    """

    def __init__(self, app: App, pool: str) -> None:
        self._app = app
        self._pool = pool
        self._told_at = -math.inf
        self._later: deque[tuple[Task, str, str]] = deque()
        self._sender: asyncio.Task[None] | None = None

    def send_later(self, task: Task, outcome: str, error: str) -> None:
        """Publish the end of a task that nobody waits for here. If too many such replies wait, this one is not sent."""
        if task.reply_to is None:
            return
        if not self.has_room:
            self._tell(f"{MOST_LATER} of expired tasks do already, so more are not sent")
            return
        self._later.append((task, outcome, error))
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send_later())

    @property
    def has_room(self) -> bool:
        """Whether `send_later` sends another reply."""
        return len(self._later) < MOST_LATER

    async def sent(self, within_s: float) -> None:
        """Wait until the postponed replies are sent, or the time is over."""
        if self._sender is not None:
            await asyncio.wait((self._sender,), timeout=within_s)

    async def _send_later(self) -> None:
        while self._later:
            batch = [self._later.popleft() for _ in range(min(AT_ONCE, len(self._later)))]
            sends = (self.send(task, outcome, error=error) for task, outcome, error in batch)
            for found in await asyncio.gather(*sends, return_exceptions=True):
                if isinstance(found, BaseException):
                    self._tell(found)

    async def send(self, task: Task, outcome: str, result: object = None, error: str = "") -> None:
        """Publish the end of a task before it is settled, so that a crash repeats the reply rather than loses it."""
        if task.reply_to is None:
            return
        body = {"task": task.id, "pool": task.pool, "type": task.type, "outcome": outcome, "result": _plain(result)}
        if error:
            body["error"] = error
        try:
            try:
                await self._publish(task, outcome, body)
            except errors.InvalidMessage as exc:  # the task is done, so a bad result must not repeat it
                await self._publish(task, outcome, {**body, "result": None, "error": f"its result was not sent: {exc}"})
        except (errors.UnknownTopic, errors.TopicClosed, errors.InvalidTopic, errors.InvalidMessage) as exc:
            log.warning("task %s: nobody is told that it is %s: %s", task.id, outcome, exc)

    async def _publish(self, task: Task, outcome: str, body: dict[str, object]) -> None:
        """Publish a reply; repeat while the store is away or full, since the task has ended.

        Raises:
            GiveBack: the host lets go of the pool meanwhile, so that the next owner does the task again.
        """
        assert task.reply_to is not None
        epoch = self._app.epoch_of(root := root_name(self._pool))
        while True:
            try:
                await self._app.publish(task.reply_to, body, key=task.key, message_id=f"{task.id}:{outcome}")
                return
            except _PASSING as exc:
                if epoch is None or self._app.epoch_of(root) != epoch:
                    raise errors.GiveBack(f"its reply was not sent: {exc}") from exc
                self._tell(exc)
            await asyncio.sleep(AGAIN_S)

    def _tell(self, why: object) -> None:
        if (now := time.monotonic()) >= self._told_at + TELL_S:
            self._told_at = now
            log.warning("pool %r: replies of its tasks wait: %s", self._pool, why)


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

    def withdrawn(self, task: Task, now_us: int, version: int) -> bool:
        """A cancelled task was read, and need not start. Returns at once; False if too much waits to be written.

        The scheduler then drops the task when it comes, which waits until there is room.
        """
        if self._ends.is_full or (task.reply_to is not None and not self._replies.has_room):
            return False
        self._ends.add(record_of(task, CANCELLED, version, ended_us=now_us, error=CANCELLED))
        self._replies.send_later(task, CANCELLED, CANCELLED)
        return True

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


def _plain(result: object) -> object:
    return result.decode("utf-8", "replace") if isinstance(result, bytes) else result
