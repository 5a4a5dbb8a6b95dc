"""The clients of pools, with each operation of `emq_clients.pools.operations` as a method."""

from __future__ import annotations

import asyncio

from emq_clients.failures import ApiError
from emq_clients.pools import answers, operations
from emq_clients.transport import Api, AsyncApi, Method

POLL_S = 0.5
"""Seconds between two looks at a task whose end is awaited."""


class Operations:
    """The methods of both clients.

    A task is submitted with an id, so that a repeat stores it once.
    """

    put_pool = Method(operations.put_pool)
    change_pool = Method(operations.change_pool)
    pool = Method(operations.pool)
    pools = Method(operations.pools)
    delete_pool = Method(operations.delete_pool)
    snapshot = Method(operations.snapshot)
    what_if = Method(operations.what_if)
    put_entry = Method(operations.put_entry)
    change_entry = Method(operations.change_entry)
    entry = Method(operations.entry)
    delete_entry = Method(operations.delete_entry)
    set_limits = Method(operations.set_limits)
    pause_resource = Method(operations.pause_resource)
    resume_resource = Method(operations.resume_resource)
    task = staticmethod(operations.task)
    submit = Method(operations.submit)
    submit_many = Method(operations.submit_many)
    status = Method(operations.status)
    cancel = Method(operations.cancel)
    attempts = Method(operations.attempts)


class AsyncPoolClient(Operations, AsyncApi):
    """A client of pools for code with an event loop; see `AsyncApi` and `Operations`."""

    async def result(
        self, pool: str, task: str, *, task_type: str = "", tenant: str = "", timeout_s: float = 30.0
    ) -> answers.TaskStatus:
        """Wait until a task has ended; return its status. It is looked at every half second.

        Args:
            task_type, tenant: as for `status`.

        Raises:
            TimeoutError: it has not ended in time; it goes on.
        """
        return await _ended(self, pool, task, task_type, tenant, timeout_s)


class PoolClient(Operations, Api):
    """A client of pools for code without an event loop; see `Api` and `Operations`."""

    def result(
        self, pool: str, task: str, *, task_type: str = "", tenant: str = "", timeout_s: float = 30.0
    ) -> answers.TaskStatus:
        """Wait until a task has ended, as `AsyncPoolClient.result` does."""
        return self.run(lambda client: _ended(client, pool, task, task_type, tenant, timeout_s))


async def _ended(
    client: AsyncApi, pool: str, task: str, task_type: str, tenant: str, timeout_s: float
) -> answers.TaskStatus:
    look = operations.status(pool, task, task_type=task_type, tenant=tenant)
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    found = await client.send(look)
                except ApiError as exc:
                    if exc.code != "unknown_task":  # of one that waits behind many others, for one
                        raise
                else:
                    if found.has_ended:
                        return found
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        text = f"task {task!r} of pool {pool!r} has not ended within {timeout_s:g} s; it goes on"
        raise TimeoutError(text) from None
