"""The paths of the pages. Each renders the data of the module of its screen."""

from __future__ import annotations

import contextlib
from typing import cast

import fastapi
from starlette.responses import Response

from emq_push.service.keys import SESSION_S
from emq_push.service.service import PushService
from emq_web import problems
from emq_web.access import Service, address_of
from emq_web.limits import Rates
from emq_web.pages import (
    again,
    delivery_search,
    endpoint_changes,
    endpoint_pages,
    family_pages,
    first_screen,
    gate,
    hosts_screen,
    key_pages,
    looks,
    notice_pages,
    pool_changes,
    pool_pages,
    pool_what_if,
    tenant_pages,
    type_pages,
)
from emq_web.pages.rendering import PREFIX, Files, Pages, redirect, segment
from emq_web.pages.routing import AdminView, Rendering, View, new_router

router = new_router()
begin = fastapi.APIRouter(include_in_schema=False)
unknown = new_router()
"""All other paths below `PREFIX`."""


def install(application: fastapi.FastAPI, service: PushService) -> None:
    """Give an application with the paths of the pages what they need."""
    look = looks.load(service.parts.app.settings.api_portal)
    files = Files(look.files)
    application.state.files = files
    application.state.pages = Pages(service.parts.environment, files, look)


@begin.get("/")
async def go_to_pages(request: fastapi.Request) -> Response:
    return redirect(request, f"{PREFIX}/")


@router.get("/static/{name}")
async def static(name: str, request: fastapi.Request) -> Response:
    return cast("Files", request.app.state.files).answer(name)


@router.get("/sign-in")
async def sign_in_page(request: fastapi.Request, pages: Rendering, service: Service, next: str = "") -> Response:
    if not gate.is_framed(request):  # a frame may have a new link, whose text no server sees
        with contextlib.suppress(gate.NotSignedIn):
            await gate.visitor_of(request, service)
            return redirect(request, gate.inner_path(next))
    return _sign_in_page(request, pages, next)


@router.post("/sign-in")
async def sign_in(request: fastapi.Request, pages: Rendering, service: Service) -> Response:
    form = await gate.form_of(request, None)
    await gate.check_signed_out(request, service)
    cast("Rates", request.app.state.sign_ins).take(address_of(request.scope))
    try:
        session = await gate.sign_in(service, form.get("key", ""), framed=gate.is_framed(request))
    except problems.Problem as exc:
        return _sign_in_page(request, pages, form.get("next", ""), exc.detail, exc.status)
    answer = redirect(request, gate.inner_path(form.get("next", "")))
    gate.keep(request, answer, session, SESSION_S)
    return answer


def _sign_in_page(request: fastapi.Request, pages: Pages, after: str, wrong: str = "", status: int = 200) -> Response:
    hours = round(SESSION_S / 3600)
    return pages.answer(request, "sign_in.html", status, visitor=None, place="", next=after, wrong=wrong, hours=hours)


@router.post("/sign-out")
async def sign_out(screen: View) -> Response:
    await screen.form()
    await screen.service.keys.delete(screen.visitor.key.id, screen.visitor.actor)
    answer = redirect(screen.request, f"{PREFIX}/sign-in")
    gate.keep(screen.request, answer, "", 0)
    return answer


@router.get("/")
async def now(screen: View) -> Response:
    if not screen.visitor.sees_all:
        return redirect(screen.request, f"{PREFIX}/tenants/{segment(screen.visitor.tenant)}")
    seen = (await screen.service.hosts.now()).seen
    of_pools = await pool_pages.pools_of(screen, first_screen.named(seen))
    return screen.answer_either("first_screen", now=first_screen.of(seen, of_pools))


@router.get("/hosts")
async def hosts(screen: AdminView) -> Response:
    found = hosts_screen.of((await screen.service.hosts.now()).seen)
    return screen.answer_either("hosts", hosts=found)


@unknown.get("{path:path}")
async def no_page(path: str) -> Response:
    raise problems.Problem(404, "", f"There is no page {PREFIX}{path[:100]}.")


_PARTS = (
    tenant_pages,
    endpoint_pages,
    endpoint_changes,
    type_pages,
    again,
    delivery_search,
    family_pages,
    key_pages,
    notice_pages,
    pool_pages,
    pool_changes,
    pool_what_if,
)
ROUTERS = (router, *(part.router for part in _PARTS), unknown, begin)
