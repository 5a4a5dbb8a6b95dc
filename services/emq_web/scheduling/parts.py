"""`/v1/pools/{pool}/resources`, `types`, `calendars`, `tenants`, `limits`: live changes of one entry, by name.

A change of an entry is a change of its pool: the answer shows the pool's new version.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import fastapi
import msgspec

from emq.runtime import errors
from emq.runtime.inputs import shown as in_text
from emq_clients.pools import answers
from emq_push.merging import merged
from emq_scheduling.model import Calendar, KeyLimit, Pool, Resource, TaskType, Tenant
from emq_scheduling.pools import documents
from emq_web import models, versions
from emq_web.problems import Problem
from emq_web.scheduling import access, schemas
from emq_web.scheduling.desk import Changed, PoolDesk

router = models.Router(prefix="/v1/pools/{pool}", tags=["pools"])

Name = Annotated[str, fastapi.Path(max_length=100, description="the entry's name")]


models.answer(answers.Entry, "PartShown", without=("warnings",))
CHANGED = models.answer(answers.Entry, "PartChanged")
models.answer(answers.EntryDeleted, "PartDeleted")


class Table:
    """The entries of one kind.

    Args:
        field: of the pool.
        what: an entry in words.
        kind: its struct.
    """

    def __init__(self, field: str, what: str, kind: type[msgspec.Struct]) -> None:
        self.field = field
        self.what = what
        self.kind = kind

    def entry(self, pool: Pool, name: str) -> msgspec.Struct:
        """Return an entry. Raises `Problem` if there is none of the name."""
        found: msgspec.Struct | None = getattr(pool, self.field).get(name)
        if found is None:
            known = list(getattr(pool, self.field))
            there = f"it has {', '.join(known[:8])}{', ...' if len(known) > 8 else ''}" if known else "it has none"
            text = f"pool {pool.name!r} has no {self.what} {in_text(name)}; {there}"
            raise Problem(404, f"unknown_{self.what}", text)
        return found

    def source(self, pool: str, name: str) -> str:
        """Return the begin of errors about an entry."""
        return f"pool {in_text(pool)}: {self.what} {in_text(name)}"

    def read(self, values: object, pool: str, name: str) -> msgspec.Struct:
        """Return the values of a body as an entry. Raises `InvalidPool`."""
        return schemas.converted(documents.expanded_entry(self.field, values), self.kind, self.source(pool, name))

    def with_entry(self, pool: Pool, name: str, entry: msgspec.Struct) -> Pool:
        """Return the pool with an entry added or replaced."""
        return msgspec.structs.replace(pool, **{self.field: {**getattr(pool, self.field), name: entry}})

    def without(self, pool: Pool, name: str) -> Pool:
        """Return the pool without an entry. Raises `Problem` if there is none of the name, or others need it."""
        self.entry(pool, name)
        if users := self._users(pool, name):
            listed = f"{', '.join(users[:8])}{', ...' if len(users) > 8 else ''}"
            raise Problem(409, "in_use", f"{self.source(pool.name, name)} is used by {listed}; change these first")
        left = {key: value for key, value in getattr(pool, self.field).items() if key != name}
        return msgspec.structs.replace(pool, **{self.field: left})

    def _users(self, pool: Pool, name: str) -> list[str]:
        uses: dict[str, Callable[[Resource], bool]] = {
            "resources": lambda each: each.parent == name,
            "types": lambda each: name in each.takes,
            "calendars": lambda each: each.calendar == name,
        }
        used = uses.get(self.field)
        found = [] if used is None else [key for key, each in pool.resources.items() if used(each)]
        if self.field == "types":
            found += [f"limit {key}" for key, each in pool.limits.items() if name in each.types]
        return found


RESOURCES = Table("resources", "resource", Resource)
TABLES = (
    RESOURCES,
    Table("types", "type", TaskType),
    Table("calendars", "calendar", Calendar),
    Table("tenants", "tenant", Tenant),
    Table("limits", "limit", KeyLimit),
)


class _At(NamedTuple):
    """An admin's request to change an entry.

    Attributes:
        version: the one of the pool that the request is for; 0 for what must not exist, None for any.
    """

    pool: str
    name: str
    desk: PoolDesk
    actor: str
    response: fastapi.Response
    version: int | None

    async def change(self, fn: Callable[[Pool], Pool]) -> Changed:
        """Change the pool, and note its new version in the response; see `PoolDesk.change`."""
        changed = await self.desk.change(self.pool, fn, self.version, self.actor)
        versions.tag(self.response, changed.stored.version)
        return changed

    async def created_or_changed(self, table: Table, entry: msgspec.Struct) -> answers.Entry:
        """Put an entry into the pool; the version 0 (`If-None-Match`) means that the pool must not have it."""
        is_new: list[bool] = []

        def change(found: Pool) -> Pool:
            is_new[:] = [self.name not in getattr(found, table.field)]
            if self.version == 0 and not is_new[0]:
                raise Problem(412, "other_version", f"{table.source(self.pool, self.name)} exists already")
            return table.with_entry(found, self.name, entry)

        answer = await self._replace(version=self.version or None).entry(table, change)
        self.response.status_code = 201 if is_new[0] else 200
        return answer

    async def entry(self, table: Table, fn: Callable[[Pool], Pool]) -> answers.Entry:
        """Change the pool; return the entry as it is then."""
        changed = await self.change(fn)
        value = msgspec.to_builtins(table.entry(changed.stored.pool, self.name))
        return answers.Entry(self.name, changed.stored.version, value, [*changed.warnings])


async def _at(name: Name, of: access.PoolAdmin, response: fastapi.Response, version: versions.Version) -> _At:
    return _At(of.pool, name, of.desk, of.caller.actor, response, version)


At = Annotated[_At, fastapi.Depends(_at)]


async def set_paused(
    desk: PoolDesk, pool: str, resource: str, paused: bool, actor: str, version: int | None = None
) -> Changed:
    """Pause or resume a resource, and those below it."""
    return await desk.change(pool, lambda found: _with_paused(found, resource, paused), version, actor)


def _with_paused(pool: Pool, resource: str, paused: bool) -> Pool:
    entry = RESOURCES.entry(pool, resource)
    return RESOURCES.with_entry(pool, resource, msgspec.structs.replace(entry, paused=paused))


def _add(table: Table) -> None:
    """Add the operations of one kind of entries."""
    path = f"/{table.field}/{{name:path}}"
    made: dict[int | str, dict[str, Any]] = {201: {"model": CHANGED, "description": "created"}}

    @router.put(
        path,
        name=f"Put {table.what}",
        operation_id=f"put_pool_{table.what}",
        response_model=CHANGED,
        responses=made,
        openapi_extra=schemas.body(schemas.of(table.kind)),
    )
    async def put(at: At, request: fastapi.Request) -> answers.Entry:
        """Create an entry, or change it as a whole: what the body leaves out gets its default."""
        return await at.created_or_changed(table, table.read(await schemas.read(request), at.pool, at.name))

    @router.patch(
        path,
        name=f"Change {table.what}",
        operation_id=f"change_pool_{table.what}",
        response_model=CHANGED,
        openapi_extra=schemas.body(schemas.of(table.kind, partial=True)),
    )
    async def patch(at: At, request: fastapi.Request) -> answers.Entry:
        """Change an entry by JSON Merge Patch: what the body leaves out stays, null gives the default again.

        A list replaces the former one. "none" as `timeout_s` of a type is no limit.
        """
        given = await schemas.read(request)
        if not isinstance(given, dict):
            source = table.source(at.pool, at.name)
            raise errors.InvalidPool(f"{source}: the body must be an object with the fields to change")

        def change(found: Pool) -> Pool:
            values = merged(msgspec.to_builtins(table.entry(found, at.name)), given)
            return table.with_entry(found, at.name, table.read(values, at.pool, at.name))

        return await at.entry(table, change)

    @router.get(path, name=f"Get {table.what}", operation_id=f"get_pool_{table.what}")
    async def get(name: Name, of: access.PoolReader, response: fastapi.Response) -> answers.Entry:
        """Show an entry as it is stored."""
        stored = await of.desk.catalog.get(of.pool)
        versions.tag(response, stored.version)
        value = msgspec.to_builtins(table.entry(stored.pool, name))
        return answers.Entry(name=name, version=stored.version, value=value)

    @router.delete(path, name=f"Delete {table.what}", operation_id=f"delete_pool_{table.what}")
    async def delete(at: At) -> answers.EntryDeleted:
        """Delete an entry that no resource uses. What runs ends, and no waiting task is lost; warnings name those."""
        changed = await at.change(lambda found: table.without(found, at.name))
        return answers.EntryDeleted(version=changed.stored.version, warnings=[*changed.warnings])


@router.post("/resources/{name:path}:pause", response_model=CHANGED)
async def pause_pool_resource(at: At) -> answers.Entry:
    """Start nothing more on a resource and what is below it. What runs ends; what waits goes to others."""
    return await at.entry(RESOURCES, lambda found: _with_paused(found, at.name, True))


@router.post("/resources/{name:path}:resume", response_model=CHANGED)
async def resume_pool_resource(at: At) -> answers.Entry:
    """Start tasks on a paused resource again."""
    return await at.entry(RESOURCES, lambda found: _with_paused(found, at.name, False))


for _table in TABLES:
    _add(_table)
