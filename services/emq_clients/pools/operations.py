"""The operations of pools as plain functions that build requests; both clients have them as methods.

Arguments that are None are left out, so that the service's default counts. Pools and their entries are given as
mappings, or as the structs of `emq_scheduling`.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack

import msgspec

from emq.runtime import errors
from emq_clients.pools import answers
from emq_clients.requests import Page, Paging, Request, body, match, once, path

Table = Literal["resources", "types", "calendars", "tenants", "limits"]
"""The kinds of entries of a pool."""

# --------------------------------------------------------------------------------------------------------------- pools


def put_pool(pool: Mapping[str, Any] | msgspec.Struct, *, version: int | None = None) -> Request[answers.StoredPool]:
    """Create a pool, or change it as a whole; what is left out gets its default.

    Args:
        pool: with its name.
        version: change only this version, 0 to create only; None for any.

    Raises:
        InvalidPool: the pool has no name.
    """
    name = pool.get("name") if isinstance(pool, Mapping) else getattr(pool, "name", None)
    if not isinstance(name, str) or not name:
        raise errors.InvalidPool(f"the pool has the name {name!r}; give it one, such as 'sms'")
    where, content = path("pools", name), msgspec.json.encode(pool)
    return Request("PUT", where, answers.StoredPool, content, match(version))


def change_pool(pool: str, changes: Mapping[str, Any], *, version: int | None = None) -> Request[answers.StoredPool]:
    """Change the given fields and entries of a pool by JSON Merge Patch. `version` as for `put_pool`.

    Args:
        changes: None removes an entry, or gives a field its default; "none" as `timeout_s` is no limit.
    """
    where, content = path("pools", pool), msgspec.json.encode(changes)
    return Request("PATCH", where, answers.StoredPool, content, match(version))


def pool(pool: str) -> Request[answers.StoredPool]:
    """Return a pool as it is stored; `msgspec.convert(answer.pool, emq_scheduling.Pool)` makes a typed one of it."""
    return Request("GET", path("pools", pool), answers.StoredPool)


def pools(**paging: Unpack[Paging]) -> Request[Page[answers.PoolSummary]]:
    """Return a page of pools by name, each with its state in one line."""
    return Request("GET", path("pools", **paging), Page[answers.PoolSummary])


def delete_pool(pool: str, *, force: bool | None = None, version: int | None = None) -> Request[None]:
    """Delete a pool; with `force` also its tasks that are not done."""
    where = path("pools", pool, force="true" if force else None)
    return Request("DELETE", where, type(None), headers={**once(), **match(version)})


def snapshot(pool: str) -> Request[answers.Snapshot]:
    """Return the latest snapshot of a pool's owner: limits, use, waits, predictions, health."""
    return Request("GET", path("pools", pool, "snapshot"), answers.Snapshot)


def what_if(
    pool: str,
    changes: Sequence[str],
    *,
    horizon_s: float | None = None,
    waiting: Mapping[str, int] | None = None,
    arrivals: Mapping[str, float] | None = None,
) -> Request[answers.WhatIf]:
    """Forecast a pool as it is, and with changes, which are not made.

    Args:
        changes: such as `remove long-code` or `limit acme messages=50/second`, one after the other.
        horizon_s: end of the forecasts, in seconds from now.
        waiting: tasks by type, instead of those that wait now.
        arrivals: tasks a second by type, instead of those measured.
    """
    content = body(changes=changes, horizon_s=horizon_s, waiting=waiting, arrivals=arrivals)
    return Request("POST", path("pools", pool, "what-if"), answers.WhatIf, content)


# ------------------------------------------------------------------------------------------------------------- entries


def put_entry(
    pool: str, table: Table, name: str, value: Mapping[str, Any] | msgspec.Struct, *, version: int | None = None
) -> Request[answers.Entry]:
    """Create a resource, task type, calendar or tenant, or change it as a whole.

    Args:
        version: change only this version of the pool, 0 to create only; None for any.
    """
    where, content = path("pools", pool, table, name), msgspec.json.encode(value)
    return Request("PUT", where, answers.Entry, content, match(version))


def change_entry(
    pool: str, table: Table, name: str, changes: Mapping[str, Any], *, version: int | None = None
) -> Request[answers.Entry]:
    """Change the given fields of an entry by JSON Merge Patch, as `change_pool`; a list replaces the former."""
    where, content = path("pools", pool, table, name), msgspec.json.encode(changes)
    return Request("PATCH", where, answers.Entry, content, match(version))


def entry(pool: str, table: Table, name: str) -> Request[answers.Entry]:
    """Return an entry of a pool."""
    return Request("GET", path("pools", pool, table, name), answers.Entry)


def delete_entry(pool: str, table: Table, name: str, *, version: int | None = None) -> Request[answers.EntryDeleted]:
    """Delete an entry that no resource uses."""
    where = path("pools", pool, table, name)
    return Request("DELETE", where, answers.EntryDeleted, headers={**once(), **match(version)})


def set_limits(
    pool: str, resource: str, limits: Sequence[Mapping[str, Any] | msgspec.Struct], *, version: int | None = None
) -> Request[answers.Entry]:
    """Give a resource other limits instead of all that it has: `[{"name": "messages", "amount": 5, "per": "second"}]`.

    The host follows within about a second, and keeps its counts, so a lower limit holds at once.
    """
    return change_entry(pool, "resources", resource, {"limits": list(limits)}, version=version)


def pause_resource(pool: str, resource: str, *, version: int | None = None) -> Request[answers.Entry]:
    """Start nothing more on a resource and those below it; waiting tasks go to others."""
    return _do(pool, resource, "pause", version)


def resume_resource(pool: str, resource: str, *, version: int | None = None) -> Request[answers.Entry]:
    """Start tasks on a paused resource again."""
    return _do(pool, resource, "resume", version)


def _do(pool: str, resource: str, action: str, version: int | None) -> Request[answers.Entry]:
    where = path("pools", pool, "resources", f"{resource}:{action}")
    return Request("POST", where, answers.Entry, None, match(version))


# --------------------------------------------------------------------------------------------------------------- tasks


class TaskFields(TypedDict, total=False):
    """The fields of a task besides its type and its payload.

    Attributes:
        id: your own; left out, the client makes one, by which its repeats are recognised for 10 minutes.
        tenant: tenants with waiting tasks share the resources by their weights.
        key: tasks of one type, tenant and key run one at a time, in order.
        deadline_s: seconds within which the task must be done, instead of the type's `longest_wait_s`.
        zone: the recipient's time zone, by which the hours of the type count.
        costs: units by limit name that it is charged at its start, instead of those of its type.
        keep: let tasks of the key keep to one resource while that has room soon.
        reply_to: a topic to which the result is published.
        keys: values by name, such as {"account": "a7"}, by which the pool's limits by key count it.
        tries: types and resources to try one after the other, such as ["large@a", "large@b", "small"]; the first is of
            the task's own type.
        patience_s: with `tries`, seconds that it waits for room at each of them before it goes on.
    """

    id: str | None
    tenant: str | None
    key: str | None
    deadline_s: float | None
    zone: str | None
    costs: Mapping[str, float] | None
    keep: bool | None
    reply_to: str | None
    keys: Mapping[str, str] | None
    tries: Sequence[str] | None
    patience_s: float | None


def task(task_type: str, payload: Any, **fields: Unpack[TaskFields]) -> dict[str, Any]:
    """Return a task for `submit_many`; see `TaskFields`."""
    given = {name: value for name, value in fields.items() if value is not None}
    return {"id": uuid.uuid4().hex, "type": task_type, "payload": payload, **given}


def submit(pool: str, task_type: str, payload: Any, **fields: Unpack[TaskFields]) -> Request[answers.TaskReceipt]:
    """Submit a task. It is stored when the answer comes; a task that the pool does not take is an `ApiError`.

    If an answer is lost, the client repeats the request. The repeat may be refused for its deadline although the first
    request stored the task; `status` tells.

    Args:
        payload: any value of JSON; `msgspec.Raw` for JSON as bytes.
        fields: see `TaskFields`.
    """
    content = msgspec.json.encode(task(task_type, payload, **fields))
    return Request("POST", path("pools", pool, "tasks"), answers.TaskReceipt, content)


def submit_many(pool: str, tasks: Sequence[Mapping[str, Any]]) -> Request[answers.TaskOutcomes]:
    """Submit up to 500 tasks, as `task` returns them; each has its own receipt or problem in the answer."""
    content = msgspec.json.encode({"tasks": tasks})
    return Request("POST", path("pools", pool, "tasks"), answers.TaskOutcomes, content)


def status(
    pool: str, task: str, *, task_type: str | None = None, tenant: str | None = None
) -> Request[answers.TaskStatus]:
    """Return the status of a task.

    Args:
        task_type, tenant: those of its submit. Give both in a pool with more than 100 types and tenants: else only
            waiting tasks without a tenant are found.
    """
    where = path("pools", pool, "tasks", task, type=task_type, tenant=tenant)
    return Request("GET", where, answers.TaskStatus)


def cancel(pool: str, task: str) -> Request[answers.CancelAsked]:
    """Ask for a task not to be started. One that runs already goes on."""
    return Request("POST", path("pools", pool, "tasks", f"{task}:cancel"), answers.CancelAsked)


def attempts(
    pool: str,
    *,
    resource: str | None = None,
    task_type: str | None = None,
    outcome: str | None = None,
    **paging: Unpack[Paging],
) -> Request[Page[answers.Attempt]]:
    """Return a page of attempts, and of tasks that ended without one, the latest start first."""
    where = path("pools", pool, "tasks", resource=resource, type=task_type, outcome=outcome, **paging)
    return Request("GET", where, Page[answers.Attempt])
