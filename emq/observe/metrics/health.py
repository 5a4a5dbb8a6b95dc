"""Whether a process lives, and whether its host is ready. Asks no server, so answers come at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from emq.database import Database
from emq.host.host import Host
from emq.observe.opened import Opened
from emq.runtime import plurals

SILENT_S = 2.0
"""Seconds without an answer after which the database counts as out of reach, before the call itself fails."""


class Check(NamedTuple):
    """Attributes:
    ok: whether all is well.
    reason: the state for people; says what is wrong if `ok` is False.
    """

    name: str
    ok: bool
    reason: str


def live(app: Opened) -> list[Check]:
    """Return the checks of a process that need not be restarted. Servers out of reach do not count: EMQ waits."""
    dead = {} if app.host is None else app.host.guard.dead
    reason = "; ".join(f"{name}: {why}" for name, why in dead.items())
    return [Check("event loop", True, "runs"), Check("loops", not dead, reason or "none has died")]


def ready(app: Opened) -> list[Check]:
    """Return the checks of a host that consumes."""
    if app.waits_for is not None:
        return [Check("open", False, f"waits for {app.waits_for}")]
    if not app.is_open:
        return [Check("open", False, "store and database are not open yet")]
    if app.host is None:
        return [Check("host", False, "this process does not consume yet")]
    return _of_host(app.host)


def trouble(database: Database) -> str | None:
    """Return why the database cannot be reached, or leaves a call without an answer; None if all is well."""
    if database.unreachable is None and database.silent_s > SILENT_S:
        return f"{database.shown} has not answered a call for {database.silent_s:.1f} s"
    return database.unreachable


def is_ok(checks: Sequence[Check]) -> bool:
    return all(check.ok for check in checks)


def report(checks: Sequence[Check]) -> str:
    """Return one line for each check, and a last line for all of them."""
    lines = [f"[{'+' if check.ok else '-'}] {check.name}: {' '.join(check.reason.split())}\n" for check in checks]
    return "".join(lines) + ("ok\n" if is_ok(checks) else "failed\n")


def _of_host(host: Host) -> list[Check]:
    membership, groups, missing = host.membership, len(host.ownership.groups), host.consumption.unconsumed()
    plan, lease = membership.plan, membership.lease
    left_s = lease.until - host.statistics().time
    store = host.store_unreachable
    database, timekeeper = trouble(host.database), host.timekeeper
    resting = "; ".join(f"{name}: {why}" for name, why in host.guard.resting.items())
    return [
        Check("running", not host.is_stopping, "stops" if host.is_stopping else "since the host was started"),
        Check("joined", host.is_member, f"as {membership.host}" if host.is_member else "not a member of its cluster"),
        Check(
            "plan",
            host.running.is_set(),
            f"version {plan.version if plan else 0}, {plurals.count(groups, 'group')}"
            if host.running.is_set()
            else "the first assignment is not carried out yet",
        ),
        Check("groups", not host.consumption.is_late(missing), str(missing)),
        Check("store", store is None, store or "answers"),
        Check("database", database is None, database or "answers"),
        Check(
            "clock",
            timekeeper is None or timekeeper.is_known,
            (timekeeper and timekeeper.state().trouble) or "known",
        ),
        Check(
            "lease",
            left_s > 0,
            ("valid" if math.isinf(left_s) else f"valid for {left_s:.1f} s")
            if left_s > 0
            else "over: the cluster does not answer, or the time is not known; nothing is started",
        ),
        Check("loops", not resting, resting or "all run"),
    ]
