"""Live changes of pools from their pages: a limit of a resource, and pauses."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from emq.runtime import errors
from emq_push.service.refusals import Invalid, NotFound
from emq_scheduling.model import Limit, Pool, Resource
from emq_scheduling.pools import rules
from emq_scheduling.records.snapshot import limit_key
from emq_web.pages.changes import Change, Field, is_pause, number_in, pause_change
from emq_web.pages.pools_screen import PERIODS
from emq_web.pages.rendering import PREFIX, number, segment
from emq_web.pages.routing import AdminView, Screen, new_router
from emq_web.scheduling import parts

router = new_router()

MOST = 1e12
"""Most units of a limit that a form takes."""


@router.get("/pools/{pool}/limit")
async def ask_limit(pool: str, screen: AdminView, resource: str = "", limit: str = "", amount: str = "") -> Response:
    found = (await screen.desk.catalog.get(pool)).pool
    before = _limit(_resource(found, resource), resource, limit)
    unit = f"{before.name} {PERIODS[before.per]}{before.note}"
    lines, wrong, after = [f"Now: at most {number(before.amount)} {unit}."], "", None
    if above := _above(found, resource, before.name):
        lines.append(f"The limits of {above} hold, too.")
    if amount:
        try:
            after = _amount(amount)
            rules.check(_with_amount(found, resource, limit, after))
        except (Invalid, errors.InvalidPool) as exc:
            after, wrong = None, str(exc)
    hidden = {"resource": resource, "limit": limit}
    title = f"{before.name} of {resource}"
    if after is None:
        field = Field("amount", f"New limit, {PERIODS[before.per]}", amount or f"{before.amount:.15g}", "number")
        change = Change(title, "limit", lines, "Go on", hidden, [field._replace(required=True)], wrong=wrong)
    else:
        lines = [
            f"From {number(before.amount)} to {number(after)} {unit}, within about a second.",
            "What is used already counts: a lower limit holds at once.",
        ]
        if after == 0:
            lines.append("With 0, nothing that costs any of it starts there.")
        hidden["amount"] = f"{after:.15g}"
        change = Change(title, "limit", lines, "Change the limit", hidden, confirms=True, grave=after == 0)
    return _page(screen, found, change)


@router.post("/pools/{pool}/limit")
async def set_limit(pool: str, screen: AdminView) -> Response:
    form = await screen.form()
    resource, limit, amount = form.get("resource", ""), form.get("limit", ""), _amount(form.get("amount", ""))

    def change(found: Pool) -> Pool:
        return _with_amount(found, resource, limit, amount)

    await screen.desk.change(pool, change, None, screen.visitor.actor)
    return _back(screen, pool, "limit")


@router.get("/pools/{pool}/pause")
async def ask_pause(pool: str, screen: AdminView, resource: str = "") -> Response:
    found = (await screen.desk.catalog.get(pool)).pool
    is_paused = _resource(found, resource).paused
    pausing = ["What runs on it ends; nothing more starts on it until somebody resumes it."]
    if any(each.parent == resource for each in found.resources.values()):
        pausing.append("Nothing more starts on the resources below it, either.")
    if not is_paused:
        pausing += _left_without(found, resource)
    resuming = ["It starts tasks again within about a second."]
    change = pause_change(resource, is_paused, pausing, resuming, {"resource": resource})
    return _page(screen, found, change)


@router.post("/pools/{pool}/pause")
async def set_paused(pool: str, screen: AdminView) -> Response:
    form = await screen.form()
    paused = is_pause(form)
    await parts.set_paused(screen.desk, pool, form.get("resource", ""), paused, screen.visitor.actor)
    return _back(screen, pool, "resource_paused" if paused else "resource_resumed")


def _page(screen: Screen, pool: Pool, change: Change) -> Response:
    home = f"{PREFIX}/pools/{segment(pool.name)}"
    return screen.answer("change.html", of=pool, change=change, home=home, section="pools")


def _back(screen: Screen, pool: str, done: str) -> Response:
    return screen.go(f"/pools/{segment(pool)}?done={done}")


def _resource(pool: Pool, name: str) -> Resource:
    found = pool.resources.get(name)
    if found is None:
        raise NotFound("unknown_resource", f"The pool {pool.name!r} has no resource {name[:80]!r}.")
    return found


def _limit(resource: Resource, name: str, key: str) -> Limit:
    for limit in resource.limits:
        if limit_key(limit) == key:
            return limit
    raise NotFound("unknown_limit", f"The resource {name!r} has no limit {key[:80]!r}.")


def _with_amount(pool: Pool, resource: str, key: str, amount: float) -> Pool:
    entry = _resource(pool, resource)
    _limit(entry, resource, key)
    limits = tuple(
        msgspec.structs.replace(each, amount=amount) if limit_key(each) == key else each for each in entry.limits
    )
    changed = msgspec.structs.replace(entry, limits=limits)
    return msgspec.structs.replace(pool, resources={**pool.resources, resource: changed})


def _above(pool: Pool, resource: str, limit: str) -> str:
    """Return the parents that have a limit of the name, too, in words."""
    names = [name for name in pool.parents(resource) if any(e.name == limit for e in pool.resources[name].limits)]
    return ", ".join(names)


def _left_without(pool: Pool, resource: str) -> list[str]:
    """Return a line with the types that no resource would take while this one is paused."""
    entry = msgspec.structs.replace(pool.resources[resource], paused=True)
    paused = msgspec.structs.replace(pool, resources={**pool.resources, resource: entry})
    before = set(rules.warnings(pool))
    return [f"Then {each}." for each in rules.warnings(paused) if each not in before][:3]


def _amount(text: str) -> float:
    found = number_in(text)
    if not 0 <= found <= MOST:
        raise Invalid("invalid_request", f"A limit is a number of units, 0 or more, not {text[:40]!r}.")
    return found
