"""The public face: pools of resources on an app, performers, and tasks."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from emq.runtime import errors
from emq.storage.message import Message
from emq_scheduling import finding, given, topics
from emq_scheduling.hosting.attempts import Performer, Run
from emq_scheduling.hosting.pool_host import PoolHost
from emq_scheduling.model import Costs
from emq_scheduling.pools import values
from emq_scheduling.pools.catalog import PoolCatalog
from emq_scheduling.records.cancels import Cancels
from emq_scheduling.records.ends import EndLog
from emq_scheduling.records.records import Records, TaskStatus
from emq_scheduling.records.retention import Retention
from emq_scheduling.records.snapshot import Snapshot
from emq_scheduling.records.snapshots import Snapshots
from emq_scheduling.submission import Receipt, Submission
from emq_scheduling.submitting import Submitter
from emq_scheduling.tasks import Task

if TYPE_CHECKING:
    from emq.app import App

F = TypeVar("F", bound=Callable[[Task, Run], Awaitable[object]])

ANY = "*"
"""The type of a performer that does every type of its pool without a performer of its own."""


class Scheduling:
    """Pools of resources on an app.

    Make it before the app is opened, and bind performers for the pools that this program's hosts are to schedule. A
    program that only submits binds none.

        app = emq.App("sqlite:///sms.db")
        scheduling = Scheduling(app)

        @scheduling.performer("sms")
        async def send(task: Task, run: Run) -> None:
            await channels[run.resource].send(task.payload)
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._performers: dict[str, dict[str, Performer]] = {}
        self._submitters: dict[str, Submitter] = {}
        self._hosts: dict[str, PoolHost] = {}
        self._ends: EndLog | None = None
        app.on_startup(host_only=True)(self._hosting)
        app.on_shutdown(self._close)

    # --------------------------------------------------------------------------------------------------------- hosts

    def performer(self, pool: str, task_type: str = ANY) -> Callable[[F], F]:
        """Decorate a function that does the tasks of a pool: `async def send(task: Task, run: Run) -> object`.

        The function does the task on the resource `run.resource`, and returns its result: bytes, or a value that JSON
        can hold; the records keep its first 4 KiB. An exception is a failed attempt, which is tried again by the type's
        `backoff_s`; see `emq_scheduling.outcomes` for those that say more. It may be called twice for a task, after a
        crash.

        Args:
            task_type: one type of the pool, or "*" for all that have no performer of their own.

        Raises:
            InvalidPool: the name cannot be that of a pool.
            InvalidSettings: the pool has a performer for this type already, or the function is not `async def`.
        """
        values.check_name("pool", pool)

        def bind(function: F) -> F:
            is_async = inspect.iscoroutinefunction(function)
            if not is_async:
                raise errors.InvalidSettings(f"performer {function!r} must be `async def`, with a task and a run")
            known = self._performers.get(pool)
            if known is None:
                known = self._performers[pool] = {}
                expired, withdraws = (functools.partial(f, pool) for f in (self._expired, self._withdraws))
                self._app.handler(f"{pool}.*", on_expired=expired, withdraws=withdraws)(self._handler(pool))
            if task_type in known:
                raise errors.InvalidSettings(f"pool {pool!r} has a performer for type {task_type!r} already; bind one")
            known[task_type] = function
            return function

        return bind

    def _expired(self, pool: str, message: Message) -> None:
        if (host := self._hosts.get(pool)) is not None:
            host.expired(message)

    def _withdraws(self, pool: str, message: Message) -> bool:
        host = self._hosts.get(pool)
        return host is not None and host.withdraws(message)

    def _handler(self, pool: str) -> Callable[[Message], object]:
        async def handle(message: Message) -> None:
            host = self._hosts.get(pool)
            if host is None:
                raise errors.GiveBack(f"pool {pool!r} is not scheduled here yet", pause_s=0.2)
            await host.handle(message)

        return handle

    async def _hosting(self) -> AsyncIterator[None]:
        """The hook of hosts: schedule pools until the host has let go of all groups."""
        app = self._app
        catalog = self.pools
        async with contextlib.AsyncExitStack() as stack:
            ends = EndLog(lambda: app.database, app.settings.environment, app.host_name)
            self._ends = await stack.enter_async_context(ends.running())
            app.records.append(ends)
            stack.callback(app.records.remove, ends)
            retention = Retention(lambda: app.database, app.settings.environment, app.clock)
            tasks = [asyncio.create_task(retention.run(), name="emq scheduling retention")]
            for name, performers in self._performers.items():
                choose = lambda kind, known=performers: known.get(kind) or known.get(ANY)  # noqa: E731
                host = self._hosts[name] = PoolHost(app, name, catalog, ends, choose)
                assert app.host is not None
                app.host.letting_go.keep_while(topics.root_name(name), host.is_busy)
                tasks.append(asyncio.create_task(host.run(), name=f"emq pool {name}"))
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                self._hosts.clear()

    # --------------------------------------------------------------------------------------------------------- tasks

    async def submit(
        self,
        pool: str,
        task_type: str,
        payload: bytes | str,
        *,
        tenant: str = "",
        key: str | None = None,
        id: str | None = None,
        deadline_s: float | None = None,
        zone: str | None = None,
        costs: Costs | None = None,
        keep: bool = False,
        reply_to: str | None = None,
        keys: dict[str, str] | None = None,
        tries: Sequence[str] | None = None,
        patience_s: float | None = None,
    ) -> Receipt:
        """Submit a task; return once it is stored.

        Args:
            tenant: tenants with waiting tasks share the resources by their weights; empty for none.
            key: tasks of one type, tenant and key run one at a time, in order.
            id: an id of the caller's; None for a new one.
            deadline_s: seconds within which the task must be done, instead of the type's `longest_wait_s`.
            zone: the recipient's time zone, by which the hours of the type count.
            costs: units by limit name that it is charged at its start, instead of those of its type.
            keep: let tasks of the key keep to one resource while that has room within a second.
            reply_to: a topic, which exists, to which the result is published, as JSON, before the task is settled.
            keys: values by name, such as {"account": "a7"}, by which the pool's limits by key count the task.
            tries: types and resources to try one after the other, such as ["large@a", "large@b", "small"], the first of
                the task's own type (`emq_scheduling.fallbacks`); None for any resource of its type.
            patience_s: with `tries`, seconds that it waits for room at each of them before it goes on; None for ever.

        Raises:
            TaskRefused: the pool cannot do the task, or not in time; `code` and the text say why. Nothing is stored.
            UnknownPool: there is no such pool.
            InvalidMessage, InvalidPool: an argument is out of range.
            OutcomeUnknown: it may be stored; submit it again with the same `id`.
        """
        of = (tenant, key, id, deadline_s, zone, costs, keep, reply_to, keys, tries, patience_s)
        given = Submission(task_type, payload, *of)
        try:
            return await self._submitter(pool).submit_one(given)
        except errors.UnknownPool:
            self._submitters.pop(pool, None)  # keep nothing of pools that do not exist: callers may ask for any name
            raise

    async def submit_many(self, pool: str, tasks: Iterable[Submission]) -> list[Receipt | errors.EMQError]:
        """Submit many tasks at once; return the receipt or the error of each, in order."""
        try:
            return await self._submitter(pool).submit(list(tasks))
        except errors.UnknownPool:
            self._submitters.pop(pool, None)
            raise

    async def cancel(self, pool: str, *ids: str) -> None:
        """Ask for tasks not to be started; `status` tells how they ended.

        Tasks in the window of the pool's host end as cancelled within about a second. Tasks farther back end when the
        host reads them, and delay no others; those that wait for the hours of their type or for their next attempt, end
        when that time comes. A running task goes on.
        """
        given.check_ids(ids)
        await Cancels(self._app.database, self._app.settings.environment).ask(pool, ids)

    async def status(self, pool: str, id: str, *, task_type: str = "", tenant: str = "") -> TaskStatus:
        """Return the status of a task, also if it has not started.

        A waiting task is found for 10 minutes after `submit`; then only among the first 10,000
        (`emq_scheduling.finding`).

        Args:
            task_type, tenant: with which it was submitted; empty if not known. Give both where a pool has many tenants:
                each type and tenant has a topic of its own, and without both, at most 100 topics are looked at.

        Raises:
            UnknownTask: it has no record, and was not found to wait.
            UnknownPool: it has no record, and there is no such pool.
            InvalidMessage, InvalidPool: an id or a name cannot be that of a task, type or tenant.
        """
        given.check_ids((id,))
        given.check_texts(task_type, tenant)
        return await finding.status(self._app, pool, id, task_type, tenant)

    async def result(
        self,
        pool: str,
        id: str,
        *,
        task_type: str = "",
        tenant: str = "",
        timeout_s: float = 30.0,
        poll_s: float = 0.2,
    ) -> TaskStatus:
        """Wait until a task has ended, and return its status. Each look reads the records alone, not the store.

        Args:
            task_type, tenant: of the task, where tasks of others may have the same id; empty for any.

        Raises:
            TimeoutError: it has not ended in time; it goes on.
        """
        given.check_ids((id,))
        given.check_texts(task_type, tenant)
        records = Records(self._app.database, self._app.settings.environment)
        async with asyncio.timeout(timeout_s):
            while True:
                status = await records.find(pool, id, task_type, tenant)
                if status is not None and status.state in ("done", "dead", "expired", "cancelled"):
                    return status
                await asyncio.sleep(poll_s)

    async def snapshot(self, pool: str) -> Snapshot | None:
        """Return the latest snapshot of the pool's owner; None if no host ever scheduled it."""
        return await Snapshots(self._app.database, self._app.settings.environment).load(pool)

    @property
    def pools(self) -> PoolCatalog:
        """The catalog of pools, to read and change them."""
        return PoolCatalog(self._app.database, self._app.settings.environment)

    def _submitter(self, pool: str) -> Submitter:
        values.check_name("pool", pool)
        found = self._submitters.get(pool)
        if found is None:
            snapshots = Snapshots(self._app.database, self._app.settings.environment)
            found = self._submitters[pool] = Submitter(self._app, pool, self.pools, snapshots)
        return found

    async def _close(self) -> None:
        for submitter in self._submitters.values():
            await submitter.close()
        self._submitters.clear()
