"""The paths of a tenant's pages that only show something."""

from __future__ import annotations

from typing import Any, NamedTuple

from starlette.responses import Response

from emq.topics.model import Topic
from emq_push.records.replays import OPEN, PAUSED, Replay
from emq_push.service.reading import DeliveryFilter, ShownDelivery
from emq_push.service.refusals import Invalid
from emq_push.service.replaying import shown_state
from emq_push.service.service import PushService
from emq_push.service.states import State
from emq_web.pages import changes, pool_pages, tenant_screen
from emq_web.pages.gate import Visitor
from emq_web.pages.rendering import number
from emq_web.pages.routing import AdminView, Screen, View, new_router
from emq_web.pages.tenant_screen import Subject

DELIVERIES = 20
"""Deliveries on a page."""

ATTEMPTS = 50
"""Most attempts on a page."""

REPLAYS = 5
"""Most replays on a page."""

TENANTS = 50
"""Tenants on a page."""

LOOKED_AT = 500
"""Topics looked at together for those that belong to no pool."""

router = new_router()


class DeliveryList(NamedTuple):
    """Attributes:
    names: of the tenant's endpoints for people, by id.
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
    """A replay for the page; `actions` are those that the visitor may take now."""

    replay: Replay
    state: str
    total: str
    actions: tuple[str, ...]


@router.get("/tenants")
async def tenants(screen: AdminView, find: str = "", after: str = "") -> Response:
    begin = find.strip()[:64]
    rows = await screen.service.tenants.find(begin, TENANTS + 1, after)
    more = rows[TENANTS - 1].id if len(rows) > TENANTS else ""
    plain = [] if rows or after else await _plain_topics(screen, begin)
    return screen.answer("tenants.html", rows=rows[:TENANTS], plain=plain, find=find, next=more)


@router.get("/tenants/{tenant}")
async def tenant(
    tenant: str,
    screen: View,
    state: str = "",
    cursor: str = "",
    done: str = "",
) -> Response:
    of = await subject(screen.service, screen.visitor, tenant)
    context: dict[str, Any] = {
        "of": of,
        "pool": (await pool_pages.pools_of(screen, [] if of.is_tenant else [of.topic])).get(of.name, ""),
        "rate": await tenant_screen.rate_now(screen.service, of),
        "backlog": await tenant_screen.backlog_now(screen.service, of),
        "list": await _deliveries(screen.service, of, state, cursor) if of.is_tenant else None,
        "replays": await _replays(screen.service, of) if of.is_tenant else [],
        "done": changes.DONE.get(done, ""),
    }
    return screen.answer("tenant.html", **context)


@router.get("/tenants/{tenant}/rate-now")
async def rate_now(tenant: str, screen: View) -> Response:
    of = await subject(screen.service, screen.visitor, tenant)
    return screen.answer("tenant_rate.html", rate=await tenant_screen.rate_now(screen.service, of))


@router.get("/tenants/{tenant}/backlog-now")
async def backlog_now(tenant: str, screen: View) -> Response:
    of = await subject(screen.service, screen.visitor, tenant)
    found = await tenant_screen.backlog_now(screen.service, of)
    return screen.answer("tenant_backlog.html", of=of, backlog=found)


@router.get("/tenants/{tenant}/replays")
async def replays(tenant: str, screen: View) -> Response:
    of = await subject(screen.service, screen.visitor, tenant)
    return screen.answer("tenant_replays.html", of=of, replays=await _replays(screen.service, of))


@router.get("/tenants/{tenant}/deliveries")
async def deliveries(tenant: str, screen: View, state: str = "") -> Response:
    of = await subject(screen.service, screen.visitor, tenant)
    found = await _deliveries(screen.service, of, state, "")
    return screen.answer("tenant_deliveries.html", of=of, list=found)


@router.get("/tenants/{tenant}/deliveries/{delivery:path}")
async def delivery(
    tenant: str,
    delivery: str,
    screen: View,
    done: str = "",
) -> Response:
    of = await subject(screen.service, screen.visitor, tenant)
    shown = await screen.service.reading.delivery(of.name, delivery)
    attempts = await screen.service.reading.attempts(of.name, delivery, ATTEMPTS)
    names = await tenant_screen.endpoint_names(screen.service, of)
    context: dict[str, Any] = {"of": of, "shown": shown, "attempts": attempts.rows, "names": names}
    return screen.answer("delivery.html", done=changes.DONE.get(done, ""), **context)


async def _plain_topics(screen: Screen, begin: str) -> list[Topic]:
    """Return the first topics of a name: for an installation that has topics, and no tenants."""
    catalog = screen.service.parts.app.catalog
    found: list[Topic] = []
    last = ""
    while len(found) < TENANTS and (names := await catalog.beginning(begin, LOOKED_AT, last)):
        topics, last = await catalog.some(names), names[-1]
        of_pools = await pool_pages.pools_of(screen, topics.values())
        found += [topics[name] for name in sorted(topics) if name not in of_pools]
    return found[:TENANTS]


async def subject(service: PushService, visitor: Visitor, name: str) -> Subject:
    """Return the subject of a page. Raises `NotFound` if the visitor may not see it."""
    visitor.check_sees(name)
    return await tenant_screen.subject(service, name, any_topic=visitor.sees_all)


def state_in(text: str) -> State | None:
    """Return the state that somebody chose; None for all. Raises `Invalid` if it is none."""
    if text and text not in {known.value for known in State}:
        raise Invalid("invalid_request", f"{text[:40]!r} is not a state of deliveries")
    return State(text) if text else None


async def _deliveries(service: PushService, of: Subject, state: str, cursor: str) -> DeliveryList:
    wanted = DeliveryFilter(state=state_in(state))
    page = await service.reading.deliveries(of.name, wanted, DELIVERIES, cursor)
    return DeliveryList([*page.rows], await tenant_screen.endpoint_names(service, of), state, cursor, page.next)


async def _replays(service: PushService, of: Subject) -> list[ReplayRow]:
    return [_row(one) for one in (await service.replays.page(of.name, REPLAYS)).rows]


def _row(one: Replay) -> ReplayRow:
    state, body = shown_state(one), one.body
    actions: tuple[str, ...] = ()
    if one.state in OPEN and state in OPEN:
        actions = ("resume" if state == PAUSED else "pause", "cancel")
    total = number(body.total) + ("" if body.is_total_exact else " or more")
    return ReplayRow(one, state, total, actions)
