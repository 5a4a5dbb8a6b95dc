"""The paths of the pages. Each renders what a module named for its screen has put together."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, cast

import fastapi
from fastapi.routing import APIRoute
from starlette.responses import Response

from emq import errors
from emq.api import problems
from emq.api.access import Service
from emq.api.pages import first_screen, gate, hosts_screen
from emq.api.pages.gate import Visitor
from emq.api.pages.rendering import PREFIX, Files, Pages, redirect
from emq.inspect import snapshots
from emq.push.service.service import PushService


class PageRoute(APIRoute):
    """Answers errors with pages, and sends who is not signed in to the page for that."""

    def get_route_handler(self) -> Callable[[fastapi.Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: fastapi.Request) -> Response:
            try:
                return await handler(request)
            except gate.NotSignedIn:
                wanted = request.url.path if request.method == "GET" else f"{PREFIX}/"
                return redirect(request, f"{PREFIX}/sign-in?next={wanted}")
            except fastapi.exceptions.RequestValidationError as exc:
                return await failed(request, problems.Problem(422, "", str(exc.errors()[0]["msg"])))
            except Exception as exc:
                return await failed(request, problems.of_error(exc))

        return handle


def pages_of(request: fastapi.Request) -> Pages:
    return cast("Pages", request.app.state.pages)


async def visitor_of(request: fastapi.Request, service: Service) -> Visitor:
    return await gate.visitor_of(request, service)


async def admin_of(visitor: Annotated[Visitor, fastapi.Depends(visitor_of)]) -> Visitor:
    visitor.check_admin()
    return visitor


Rendering = Annotated[Pages, fastapi.Depends(pages_of)]
SignedIn = Annotated[Visitor, fastapi.Depends(visitor_of)]
Admin = Annotated[Visitor, fastapi.Depends(admin_of)]

router = fastapi.APIRouter(prefix=PREFIX, route_class=PageRoute, include_in_schema=False)
unknown = fastapi.APIRouter(prefix=PREFIX, route_class=PageRoute, include_in_schema=False)
"""Comes last: all other paths."""


def install(application: fastapi.FastAPI, service: PushService) -> None:
    """Add the pages to the API's application."""
    files = Files()
    application.state.files = files
    application.state.pages = Pages(service.parts.environment, files)
    application.include_router(router)
    application.include_router(unknown)

    @application.get("/", include_in_schema=False)
    async def begin(request: fastapi.Request) -> Response:
        return redirect(request, f"{PREFIX}/")


async def failed(request: fastapi.Request, problem: problems.Problem) -> Response:
    """Return the page that shows a problem."""
    visitor = None
    with contextlib.suppress(gate.NotSignedIn, errors.EMQError):
        visitor = await gate.visitor_of(request, request.app.state.service)
    title, text = problems.title_of(problem.status), problem.detail
    return pages_of(request).answer(request, "failed.html", problem.status, visitor=visitor, title=title, text=text)


@router.get("/static/{name}")
async def static(name: str, request: fastapi.Request) -> Response:
    return cast("Files", request.app.state.files).answer(name)


@router.get("/sign-in")
async def sign_in_page(request: fastapi.Request, pages: Rendering, next: str = "") -> Response:
    return _sign_in_page(request, pages, next)


@router.post("/sign-in")
async def sign_in(request: fastapi.Request, pages: Rendering, service: Service) -> Response:
    form = await gate.form_of(request, None)
    try:
        session = await gate.sign_in(service, form.get("key", ""))
    except problems.Problem as exc:
        return _sign_in_page(request, pages, form.get("next", ""), exc.detail, exc.status)
    answer = redirect(request, gate.inner_path(form.get("next", "")))
    answer.set_cookie(
        gate.COOKIE,
        session,
        max_age=round(gate.SESSION_S),
        path=PREFIX,
        secure=gate.is_secure(request),
        httponly=True,
        samesite="lax",
    )
    return answer


def _sign_in_page(request: fastapi.Request, pages: Pages, after: str, wrong: str = "", status: int = 200) -> Response:
    hours = round(gate.SESSION_S / 3600)
    return pages.answer(request, "sign_in.html", status, visitor=None, place="", next=after, wrong=wrong, hours=hours)


@router.post("/sign-out")
async def sign_out(request: fastapi.Request, service: Service, visitor: SignedIn) -> Response:
    await gate.form_of(request, visitor)
    await service.keys.delete(visitor.key.id, visitor.actor)
    answer = redirect(request, f"{PREFIX}/sign-in")
    answer.delete_cookie(gate.COOKIE, path=PREFIX)
    return answer


@router.get("/")
async def now(request: fastapi.Request, pages: Rendering, service: Service, visitor: SignedIn) -> Response:
    if not visitor.sees_all:
        return redirect(request, f"{PREFIX}/tenants/{visitor.tenant}")
    found = first_screen.of(await snapshots.load(service.parts.app))
    return pages.answer(request, pages.either(request, "first_screen"), visitor=visitor, now=found)


@router.get("/hosts")
async def hosts(request: fastapi.Request, pages: Rendering, service: Service, visitor: Admin) -> Response:
    found = hosts_screen.of(await snapshots.load(service.parts.app))
    return pages.answer(request, pages.either(request, "hosts"), visitor=visitor, hosts=found)


@unknown.get("{path:path}")
async def no_page(path: str) -> Response:
    raise problems.Problem(404, "", f"There is no page {PREFIX}{path[:100]}.")
