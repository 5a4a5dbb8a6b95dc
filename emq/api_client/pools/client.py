"""The clients of pools, with each operation of `emq.api_client.pools.operations` as a method."""

from __future__ import annotations

from emq.api_client.pools import operations
from emq.api_client.transport import Api, AsyncApi, awaited, synchronous


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
