"""The tasks in which handlers run."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger(__name__)

CANCELLED_S = 4.0
"""Seconds for which a stop waits for cancelled handlers to end."""


class HandlerTasks:
    """Begins the tasks of a dispatcher, and cancels those that run when the host stops.

    Attributes:
        running: the tasks that have not ended; each is taken out by who began it.
    """

    def __init__(self) -> None:
        self.running: set[asyncio.Task[None] | None] = set()
        self._context = contextvars.copy_context()
        self._cancelling = False

    def open(self) -> None:
        """Give all handlers the context variables that are set now, whoever wakes the dispatcher later."""
        self._context = contextvars.copy_context()

    def begin(self, *steps: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a stint, or each message of a volley, as a task in which no variable of another one's context is set.

        Returns:
            The last of the tasks.
        """
        create, context, running = asyncio.get_running_loop().create_task, self._context, self.running
        for each in steps:
            task = create(each, context=context.copy())
            if not task.done():  # as it may be if the program has chosen eager tasks
                running.add(task)
        return task

    async def cancel(self) -> None:
        """Cancel the handlers that still run. Their messages stay unfinished and will be delivered again.

        A handler that does not end within `CANCELLED_S` is left to itself, so that the host can save its progress.
        """
        self._cancelling = True
        tasks = [task for task in self.running if task is not None]
        for task in tasks:
            task.cancel()
        if not tasks:
            return
        _, running = await asyncio.wait(tasks, timeout=CANCELLED_S)
        if running:
            log.error(
                "calls of handlers that go on %g s after they were cancelled: %d; does a handler catch CancelledError?",
                CANCELLED_S,
                len(running),
            )

    def are_cancelled(self, failure: BaseException) -> bool:
        """Return True if the host is cancelling its tasks. A handler that cancels itself or its task has failed."""
        if not isinstance(failure, asyncio.CancelledError):
            return False
        task = asyncio.current_task()
        while not self._cancelling and task is not None and task.cancelling():
            task.uncancel()  # the timeouts of later handlers in this stint would take the cancellation for theirs
        return self._cancelling


def is_closed(failure: BaseException) -> bool:
    """Return True while Python closes a task's coroutine, as at the end of the event loop: no await is allowed then.

    A handler that raises GeneratorExit itself does so inside the running task.
    """
    if not isinstance(failure, GeneratorExit):
        return False
    try:
        return asyncio.current_task() is None
    except RuntimeError:
        return True
