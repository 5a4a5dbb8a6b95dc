"""The clients of pools, with each operation of `emq_clients.pools.operations` as a method."""

from __future__ import annotations

import asyncio
import time

from emq_clients.failures import ApiError
from emq_clients.pools import answers, operations
from emq_clients.transport import Api, AsyncApi, awaited, synchronous

POLL_S = 0.5
"""Seconds between two looks at a task whose end is awaited."""


class AsyncPoolClient(AsyncApi):
    """A client of pools for code with an event loop; see `AsyncApi`.

    A task is submitted with an id, so that a repeat stores it once. Changes of one version and deletions are sent once.
    """

    put_pool = awaited(operations.put_pool)
    pool = awaited(operations.pool)
    pools = awaited(operations.pools)
    delete_pool = awaited(operations.delete_pool)
    snapshot = awaited(operations.snapshot)
    what_if = awaited(operations.what_if)
    put_entry = awaited(operations.put_entry)
    change_entry = awaited(operations.change_entry)
    entry = awaited(operations.entry)
    delete_entry = awaited(operations.delete_entry)
    set_limits = awaited(operations.set_limits)
    pause_resource = awaited(operations.pause_resource)
    resume_resource = awaited(operations.resume_resource)
    task = staticmethod(operations.task)
    submit = awaited(operations.submit)
    submit_many = awaited(operations.submit_many)
    status = awaited(operations.status)
    cancel = awaited(operations.cancel)
    attempts = awaited(operations.attempts)

    async def result(
        self, pool: str, task: str, *, task_type: str = "", tenant: str = "", timeout_s: float = 30.0
    ) -> answers.TaskStatus:
        """Wait until a task has ended; return its status. It is looked at every half second.

        Args:
            task_type, tenant: as for `status`.

        Raises:
            TimeoutError: it has not ended in time; it goes on.
        """
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    found = await self.status(pool, task, task_type=task_type, tenant=tenant)
                except ApiError as exc:
                    _raise_unless_unknown(exc)
                else:
                    if found.has_ended:
                        return found
                await asyncio.sleep(POLL_S)


class PoolClient(Api):
    """A client of pools for code without an event loop; see `Api`."""

    put_pool = synchronous(operations.put_pool)
    pool = synchronous(operations.pool)
    pools = synchronous(operations.pools)
    delete_pool = synchronous(operations.delete_pool)
    snapshot = synchronous(operations.snapshot)
    what_if = synchronous(operations.what_if)
    put_entry = synchronous(operations.put_entry)
    change_entry = synchronous(operations.change_entry)
    entry = synchronous(operations.entry)
    delete_entry = synchronous(operations.delete_entry)
    set_limits = synchronous(operations.set_limits)
    pause_resource = synchronous(operations.pause_resource)
    resume_resource = synchronous(operations.resume_resource)
    task = staticmethod(operations.task)
    submit = synchronous(operations.submit)
    submit_many = synchronous(operations.submit_many)
    status = synchronous(operations.status)
    cancel = synchronous(operations.cancel)
    attempts = synchronous(operations.attempts)

    def result(
        self, pool: str, task: str, *, task_type: str = "", tenant: str = "", timeout_s: float = 30.0
    ) -> answers.TaskStatus:
        """Wait until a task has ended, as `AsyncPoolClient.result` does. One request may last beyond the time."""
        until = time.monotonic() + timeout_s
        while True:
            try:
                found = self.status(pool, task, task_type=task_type, tenant=tenant)
            except ApiError as exc:
                _raise_unless_unknown(exc)
            else:
                if found.has_ended:
                    return found
            if time.monotonic() + POLL_S > until:
                raise TimeoutError(f"task {task!r} of pool {pool!r} has not ended within {timeout_s:g} s; it goes on")
            time.sleep(POLL_S)


def _raise_unless_unknown(exc: ApiError) -> None:
    """Raise an error, unless it says that a task was not found, as one that waits behind many others."""
    if exc.code != "unknown_task":
        raise exc
