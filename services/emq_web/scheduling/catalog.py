"""`/v1/pools` and `/v1/pools/{pool}`."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import fastapi
import msgspec

from emq.runtime import errors
from emq.runtime.inputs import shown as in_text
from emq_clients.pools import answers
from emq_clients.requests import Page
from emq_push.merging import merged
from emq_push.records import cursors
from emq_scheduling.model import Pool
from emq_scheduling.pools import documents
from emq_scheduling.pools.catalog import Stored
from emq_web import forms, models, versions
from emq_web.access import Submitter
from emq_web.scheduling import access, schemas, verdicts
from emq_web.scheduling.desk import Changed, PoolDesk

router = models.Router(prefix="/v1/pools", tags=["pools"])


models.answer(answers.PoolSummary, "PoolSummary")
models.answer(Page[answers.PoolSummary], "PoolPage")
SHOWN = models.answer(answers.StoredPool, "PoolShown")


class Summaries(NamedTuple):
    """A page of pools; `next` is empty on the last one."""

    rows: list[answers.PoolSummary]
    next: str


async def summaries(desk: PoolDesk, limit: int, after: str) -> Summaries:
    """Return pools by name, each with one line that says how it does."""
    found = await desk.catalog.list(after, limit + 1)
    page, more = found[:limit], found[limit:]
    snapshots = await desk.snapshots.some([each.pool.name for each in page])
    now, rows = desk.now(), []
    for stored in page:
        pool, snapshot = stored.pool, snapshots.get(stored.pool.name)
        verdict = verdicts.of(pool, snapshot, now)
        state = None if snapshot is None or snapshot.is_stale(now) else snapshot.state
        rows.append(
            answers.PoolSummary(
                name=pool.name,
                version=stored.version,
                changed=forms.time(stored.changed_us),
                resources=len(pool.resources),
                types=len(pool.types),
                state=verdict.state,
                verdict=verdict.text,
                waiting=None if state is None else sum(state.waiting.values()),
                started_per_s=None if state is None else sum(state.started.values()),
            )
        )
    return Summaries(rows, page[-1].pool.name if more else "")


def shown(stored: Stored, warnings: list[str]) -> answers.StoredPool:
    """Return a pool as answers show it."""
    return answers.StoredPool(
        name=stored.pool.name,
        version=stored.version,
        changed=forms.time(stored.changed_us),
        warnings=warnings,
        pool=msgspec.to_builtins(stored.pool),
    )


def answer(changed: Changed, response: fastapi.Response) -> answers.StoredPool:
    """Return the answer to a change, and note version and status in the response."""
    response.status_code = 201 if changed.is_new else 200
    versions.tag(response, changed.stored.version)
    return shown(changed.stored, [*changed.warnings])


@router.get("")
async def list_pools(desk: access.Desk, _: Submitter, at: forms.ListAt) -> Page[answers.PoolSummary]:
    """List pools by name, each with one line that says how it does."""
    after = str(cursors.decode_marked("pools", at.cursor, str)[0]) if at.cursor else ""
    page = await summaries(desk, at.limit, after)
    return Page(data=page.rows, next=cursors.encode((cursors.mark("pools"), page.next)) if page.next else None)


@router.put(
    "/{pool}",
    responses={201: {"model": SHOWN, "description": "created"}},
    openapi_extra=schemas.body(schemas.of(Pool)),
)
async def put_pool(
    of: access.PoolAdmin, request: fastapi.Request, response: fastapi.Response, version: versions.Version
) -> answers.StoredPool:
    """Create a pool, or change it as a whole: what the body leaves out gets its default.

    The owner of the pool follows within about a second. Use the counts that it has kept: a lower limit holds at once.
    """
    wanted = _read(await schemas.read(request), of.pool)
    return answer(await of.desk.put(wanted, version, of.caller.actor), response)


def _read(values: object, pool: str) -> Pool:
    source = f"pool {in_text(pool)}"
    found = documents.read(values, source)
    if found.name != pool:
        raise errors.InvalidPool(f"{source}: the body has the name {in_text(found.name)}; make it that of the path")
    return found


@router.patch("/{pool}", openapi_extra=schemas.body(schemas.of(Pool, partial=True)))
async def change_pool(
    of: access.PoolAdmin, request: fastapi.Request, response: fastapi.Response, version: versions.Version
) -> answers.StoredPool:
    """Change a pool by JSON Merge Patch: what the body leaves out stays, null removes an entry, or gives the default.

    "none" as `timeout_s` of a type is no limit.
    """
    given = await schemas.read(request)
    if not isinstance(given, dict):
        raise errors.InvalidPool(f"pool {in_text(of.pool)}: the body must be an object with the fields to change")

    def change(found: Pool) -> Pool:
        return _read(merged(msgspec.to_builtins(found), given), of.pool)

    return answer(await of.desk.change(of.pool, change, version, of.caller.actor), response)


@router.get("/{pool}")
async def get_pool(of: access.PoolReader, response: fastapi.Response) -> answers.StoredPool:
    """Show a pool as it is stored. The ETag of the answer is for `If-Match`."""
    stored = await of.desk.catalog.get(of.pool)
    versions.tag(response, stored.version)
    return shown(stored, await of.desk.warnings(stored.pool))


@router.delete("/{pool}", status_code=204, response_model=None)
async def delete_pool(
    of: access.PoolAdmin,
    version: versions.Version,
    force: Annotated[bool, fastapi.Query(description="also if tasks wait or run; they go, too")] = False,
) -> None:
    """Delete a pool, with its tasks that are not done."""
    await of.desk.delete(of.pool, version, of.caller.actor, force=force)
