"""The operations of API and pages on pools: read and change them, submit tasks, read their owners' snapshots.

No host runs here. Each change is written to the audit log in its own transaction.
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from emq.runtime import errors, inputs, plurals
from emq_push.service.service import PushService
from emq_scheduling import administering, finding
from emq_scheduling.forecast import what_if
from emq_scheduling.forecast.prediction import HORIZON_S
from emq_scheduling.model import Pool
from emq_scheduling.pools import rules
from emq_scheduling.pools.catalog import PoolCatalog, Stored
from emq_scheduling.records.cancels import Cancels
from emq_scheduling.records.records import Records, TaskStatus
from emq_scheduling.records.snapshot import PoolState, Snapshot
from emq_scheduling.records.snapshots import Snapshots
from emq_scheduling.submission import Receipt, Submission
from emq_scheduling.submitting import Submitter
from emq_web.problems import Problem

TRIES = 20
"""Attempts of a change without a version before it gives up because others change the pool as well."""

MOST_NAMED = 50
"""Most entries of one table that the audit log names for one change."""

MOST_FORECASTS = 5
"""Most forecasts at the same time: one is made, in a thread, and the others wait."""
MOST_OF_ONE = 4
"""Most of them for one account, so that nobody takes the forecasts from all others."""


class Changed(msgspec.Struct, frozen=True):
    """A pool after a change.

    Attributes:
        is_new: it did not exist before.
        warnings: what is legal, but odd.
    """

    stored: Stored
    is_new: bool
    warnings: Sequence[str]


class PoolDesk:
    """Pools over an app, which is open when the first method is called.

    Attributes:
        catalog, snapshots, records: to read.
    """

    def __init__(self, service: PushService) -> None:
        self._parts = service.parts
        self._submitters: dict[str, Submitter] = {}
        self._forecasting = asyncio.Lock()
        self._forecasts: Counter[str] = Counter()

    @functools.cached_property
    def catalog(self) -> PoolCatalog:
        return PoolCatalog(self._parts.app.database, self._parts.environment)

    @functools.cached_property
    def snapshots(self) -> Snapshots:
        return Snapshots(self._parts.app.database, self._parts.environment)

    @functools.cached_property
    def records(self) -> Records:
        return Records(self._parts.app.database, self._parts.environment)

    def now(self) -> float:
        """Return the time in seconds since the epoch."""
        return self._parts.app.clock.now()

    # ------------------------------------------------------------------------------------------------------- changes

    async def put(self, pool: Pool, version: int | None, actor: str) -> Changed:
        """Create or change a pool.

        Args:
            version: the one that the pool must have now; 0 if there must be no such pool; None for any.

        Raises:
            InvalidPool: a value is wrong; the text names it.
            Problem: the pool has another version.
        """
        return await self._change(pool.name, lambda _: pool, version, actor)

    async def change(self, name: str, fn: Callable[[Pool], Pool], version: int | None, actor: str) -> Changed:
        """Change a pool as it is now; `fn` returns the changed pool, and may be called several times.

        Raises:
            UnknownPool: there is no such pool.
            InvalidPool: the changed pool is wrong.
            Problem: the pool has another version.
        """

        def changed(pool: Pool | None) -> Pool:
            if pool is None:
                raise errors.UnknownPool(f"there is no pool {inputs.shown(name)}; create it first")
            return fn(pool)

        return await self._change(name, changed, version, actor)

    async def _change(self, name: str, fn: Callable[[Pool | None], Pool], version: int | None, actor: str) -> Changed:
        for _ in range(TRIES):
            found = await self._found(name)
            have = 0 if found is None else found.version
            if version is not None and version != have:
                raise _other_version(name, version, have)
            pool = fn(None if found is None else found.pool)
            if found is not None and pool == found.pool:
                return Changed(found, False, await self.warnings(pool))
            try:
                stored = await self.catalog.put(pool, have, also=self._audited(found, pool, actor))
            except errors.ChangedMeanwhile:
                continue
            return Changed(stored, found is None, await self.warnings(stored.pool))
        raise errors.ChangedMeanwhile(f"pool {name!r} was changed by others {TRIES} times meanwhile; try again")

    async def delete(self, name: str, version: int | None, actor: str, *, force: bool) -> None:
        """Delete a pool, with its tasks that are not done.

        Raises:
            UnknownPool: there is no such pool.
            TasksWaiting: tasks wait or run, and `force` is False.
            Problem: the pool has another version.
        """
        found = await self.catalog.get(name)
        if version is not None and version != found.version:
            raise _other_version(name, version, found.version)

        def audited(connection: sa.Connection) -> None:
            self._parts.audit(connection, actor, "pool.deleted", name)

        try:
            await administering.delete(self._parts.app, name, version, force=force, also=audited)
        except errors.ChangedMeanwhile as exc:
            raise Problem(412, "other_version", str(exc)) from None

    async def _found(self, name: str) -> Stored | None:
        try:
            return await self.catalog.get(name)
        except errors.UnknownPool:
            return None

    async def warnings(self, pool: Pool) -> list[str]:
        """Return legal but odd settings of a pool, with the tasks that wait in it."""
        snapshot = await self.snapshots.load(pool.name)
        return rules.warnings(pool, None if snapshot is None else snapshot.state.waiting)

    def _audited(self, before: Stored | None, pool: Pool, actor: str) -> Callable[[sa.Connection], None]:
        action = "pool.created" if before is None else "pool.changed"
        changes = differences(Pool(pool.name) if before is None else before.pool, pool)
        return lambda connection: self._parts.audit(connection, actor, action, pool.name, changes=changes)

    # --------------------------------------------------------------------------------------------------------- tasks

    async def submit(self, pool: str, tasks: Sequence[Submission]) -> list[Receipt | errors.EMQError]:
        """Submit tasks; return the receipt or the error of each, in order. Raises `UnknownPool`."""
        submitter = self._submitters.get(pool)
        if submitter is None:
            submitter = Submitter(self._parts.app, pool, self.catalog, self.snapshots)
            await submitter.known()
            self._submitters[pool] = submitter
        return await submitter.submit(tasks)

    async def status(self, pool: str, task: str, task_type: str, tenant: str) -> TaskStatus:
        """Return the status of a task; see `emq_scheduling.finding.status`. Raises `UnknownPool`, `UnknownTask`."""
        await self.check_known(pool)
        return await finding.status(self._parts.app, pool, task, task_type, tenant)

    async def cancel(self, pool: str, task: str) -> None:
        """Ask for a task not to be started. Raises `UnknownPool`."""
        await self.check_known(pool)
        await Cancels(self._parts.app.database, self._parts.environment).ask(pool, [task])

    async def check_known(self, pool: str) -> None:
        """Raise `UnknownPool` if there is no such pool."""
        if not await self.catalog.version(pool):
            await self.catalog.get(pool)

    async def close(self) -> None:
        """End reading in the background. Safe to repeat."""
        for submitter in self._submitters.values():
            await submitter.close()
        self._submitters.clear()

    # ----------------------------------------------------------------------------------------------------- forecasts

    async def what_if(
        self, account: str, pool: Pool, state: PoolState, changed: Pool, horizon_s: float = HORIZON_S
    ) -> what_if.WhatIf:
        """Forecast a pool before and after a change, in a thread, one forecast at a time.

        Args:
            account: of the caller; see `emq_push.records.keys.Key.account`.

        Raises:
            Problem: too many forecasts wait.
        """
        n = self._forecasts.total()
        if n >= MOST_FORECASTS or self._forecasts[account] >= MOST_OF_ONE:
            text = f"{plurals.count(n, 'forecast')} under way; try again in a moment"
            raise Problem(503, "busy", text, headers={"Retry-After": "2"})
        self._forecasts[account] += 1
        try:
            async with self._forecasting:
                return await asyncio.to_thread(what_if.what_if, pool, state, changed, horizon_s)
        finally:
            self._forecasts -= Counter((account,))

    def state_of(self, snapshot: Snapshot | None) -> PoolState:
        """Return the first state of a forecast; nothing waits in a pool that nobody has scheduled yet."""
        return PoolState(self.now()) if snapshot is None else snapshot.state


def differences(before: Pool, after: Pool) -> dict[str, Any]:
    """Return the differences by table and name: the new values, None for a removed entry."""
    found: dict[str, Any] = {} if before.zone == after.zone else {"zone": after.zone}
    for table in ("resources", "types", "calendars", "tenants", "limits"):
        old, new = getattr(before, table), getattr(after, table)
        names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
        if names:
            found[table] = {name: msgspec.to_builtins(new.get(name)) for name in names[:MOST_NAMED]}
        if len(names) > MOST_NAMED:
            found[f"more_{table}"] = len(names) - MOST_NAMED
    return found


def _other_version(name: str, wanted: int, have: int) -> Problem:
    if not have:
        text = f"there is no pool {name!r} now, and the request is for version {wanted}"
    elif not wanted:
        text = f"pool {name!r} exists already, at version {have}"
    else:
        text = f"pool {name!r} is at version {have}, not {wanted}; read it again, and repeat the change"
    return Problem(412, "other_version", text)
