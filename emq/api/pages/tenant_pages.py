"""The paths of a tenant's pages that only show something."""

from __future__ import annotations

from typing import Any, NamedTuple

import fastapi
from starlette.responses import Response

from emq.api.pages import changes, tenant_screen
from emq.api.pages.desk import Desk
from emq.api.pages.rendering import number
from emq.api.pages.routing import ADesk, Admin, Rendering, SignedIn, new_router
from emq.api.pages.tenant_screen import Subject
from emq.push.records.replays import OPEN, PAUSED, Replay
from emq.push.service.reading import DeliveryFilter, ShownDelivery
from emq.push.service.refusals import Invalid
from emq.push.service.replaying import shown_state
from emq.push.service.states import State

DELIVERIES = 20
"""Deliveries on a page."""

ATTEMPTS = 50
"""Most attempts on a page."""

REPLAYS = 5
"""Most replays on a page."""

TENANTS = 50
"""Tenants on a page."""

router = new_router()


class DeliveryList(NamedTuple):
    """Attributes:
    names: what people call the tenant's endpoints, by id.
    state: the chosen one; empty for all.
    cursor: of this page; empty for the first one.
    next: of the next page; empty on the last one.
    """

    rows: list[ShownDelivery]
    names: dict[str, str]
    state: str
    cursor: str
    next: str


class ReplayRow(NamedTuple):
    """A replay as the page shows it; `actions` are what somebody may ask of it now."""

    id: str
    state: str
    replayed: int
    total: str
    left_out: int
    rate: float
    created_us: int
    trouble: str
    actions: tuple[str, ...]


@router.get("/tenants")
async def tenants(
    request: fastapi.Request, pages: Rendering, desk: ADesk, visitor: Admin, find: str = "", after: str = ""
) -> Response:
    rows = await desk.tenants.find(find.strip()[:64], TENANTS + 1, after)
    more = rows[TENANTS - 1].id if len(rows) > TENANTS else ""
    return pages.answer(request, "tenants.html", visitor=visitor, rows=rows[:TENANTS], find=find, next=more)


@router.get("/tenants/{tenant}")
async def tenant(
    tenant: str,
    request: fastapi.Request,
    pages: Rendering,
    desk: ADesk,
    visitor: SignedIn,
    state: str = "",
    cursor: str = "",
    done: str = "",
) -> Response:
    of = await subject(desk, visitor, tenant)
    context: dict[str, Any] = {
        "of": of,
        "rate": await tenant_screen.rate_now(desk, of),
        "backlog": await tenant_screen.backlog_now(desk, of),
        "list": await _deliveries(desk, of, state, cursor) if of.is_tenant else None,
        "replays": await _replays(desk, of) if of.is_tenant else [],
        "done": changes.DONE.get(done, ""),
    }
    return pages.answer(request, "tenant.html", visitor=visitor, **context)


@router.get("/tenants/{tenant}/rate-now")
async def rate_now(tenant: str, request: fastapi.Request, pages: Rendering, desk: ADesk, visitor: SignedIn) -> Response:
    of = await subject(desk, visitor, tenant)
    return pages.answer(request, "tenant_rate.html", rate=await tenant_screen.rate_now(desk, of))


@router.get("/tenants/{tenant}/backlog-now")
async def backlog_now(
    tenant: str, request: fastapi.Request, pages: Rendering, desk: ADesk, visitor: SignedIn
) -> Response:
    of = await subject(desk, visitor, tenant)
    found = await tenant_screen.backlog_now(desk, of)
    return pages.answer(request, "tenant_backlog.html", visitor=visitor, of=of, backlog=found)


@router.get("/tenants/{tenant}/replays")
async def replays(tenant: str, request: fastapi.Request, pages: Rendering, desk: ADesk, visitor: SignedIn) -> Response:
    of = await subject(desk, visitor, tenant)
    return pages.answer(request, "tenant_replays.html", visitor=visitor, of=of, replays=await _replays(desk, of))


@router.get("/tenants/{tenant}/deliveries")
async def deliveries(
    tenant: str, request: fastapi.Request, pages: Rendering, desk: ADesk, visitor: SignedIn, state: str = ""
) -> Response:
    of = await subject(desk, visitor, tenant)
    found = await _deliveries(desk, of, state, "")
    return pages.answer(request, "tenant_deliveries.html", of=of, list=found)


@router.get("/tenants/{tenant}/deliveries/{delivery}")
async def delivery(
    tenant: str,
    delivery: str,
    request: fastapi.Request,
    pages: Rendering,
    desk: ADesk,
    visitor: SignedIn,
    done: str = "",
) -> Response:
    of = await subject(desk, visitor, tenant)
    shown = await desk.reading.delivery(of.name, delivery)
    attempts = await desk.reading.attempts(of.name, delivery, ATTEMPTS)
    context: dict[str, Any] = {"of": of, "shown": shown, "attempts": attempts.rows}
    return pages.answer(request, "delivery.html", visitor=visitor, done=changes.DONE.get(done, ""), **context)


async def subject(desk: Desk, visitor: SignedIn, name: str) -> Subject:
    """Return whom a page is about. Raises `NotFound` for what the visitor may not see."""
    visitor.check_sees(name)
    return await tenant_screen.subject(desk, name, any_topic=visitor.sees_all)


async def _deliveries(desk: Desk, of: Subject, state: str, cursor: str) -> DeliveryList:
    if state and state not in {known.value for known in State}:
        raise Invalid("invalid_request", f"{state[:40]!r} is not a state of deliveries")
    wanted = DeliveryFilter(state=State(state) if state else None)
    page = await desk.reading.deliveries(of.name, wanted, DELIVERIES, cursor)
    return DeliveryList([*page.rows], await tenant_screen.endpoint_names(desk, of), state, cursor, page.next)


async def _replays(desk: Desk, of: Subject) -> list[ReplayRow]:
    return [_row(one) for one in (await desk.replays.page(of.name, REPLAYS)).rows]


def _row(one: Replay) -> ReplayRow:
    state, body = shown_state(one), one.body
    actions: tuple[str, ...] = ()
    if one.state in OPEN and state in OPEN:
        actions = ("resume" if state == PAUSED else "pause", "cancel")
    total = number(body.total) + ("" if body.is_total_exact else " or more")
    return ReplayRow(
        one.id, state, body.replayed, total, body.left_out, body.rate_per_s, one.created_us, body.trouble, actions
    )
