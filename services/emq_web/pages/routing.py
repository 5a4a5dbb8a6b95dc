"""The base of all paths of the pages: the signed-in visitor, rendering, and pages for errors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, NamedTuple, cast

import fastapi
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.responses import Response

from emq.runtime import errors
from emq_push.service.service import PushService
from emq_web import problems
from emq_web.access import Service
from emq_web.pages import gate
from emq_web.pages.gate import Visitor
from emq_web.pages.rendering import PREFIX, Pages, redirect
from emq_web.scheduling.desk import PoolDesk


class PageRoute(APIRoute):
    """Answers errors with pages, and sends visitors who are not signed in to the page for it."""

    def get_route_handler(self) -> Callable[[fastapi.Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: fastapi.Request) -> Response:
            try:
                return await handler(request)
            except gate.NotSignedIn:
                wanted = request.url.path if request.method == "GET" else f"{PREFIX}/"
                return redirect(request, f"{PREFIX}/sign-in?next={wanted}")
            except RequestValidationError as exc:
                return await failed(request, problems.Problem(422, "", str(exc.errors()[0]["msg"])))
            except Exception as exc:
                return await failed(request, problems.of_error(exc))

        return handle


def pages_of(request: fastapi.Request) -> Pages:
    return cast("Pages", request.app.state.pages)


class Screen(NamedTuple):
    """A request of a signed-in visitor, with the objects to answer it."""

    request: fastapi.Request
    pages: Pages
    service: PushService
    visitor: Visitor

    @property
    def desk(self) -> PoolDesk:
        """The objects of the pages of pools."""
        return cast("PoolDesk", self.request.app.state.desk)

    def answer(self, template: str, **context: Any) -> Response:
        """Return a page."""
        return self.pages.answer(self.request, template, visitor=self.visitor, **context)

    def answer_either(self, name: str, **context: Any) -> Response:
        """Return a page, or to htmx the part of it that is renewed (`<name>_now.html`)."""
        is_part = self.request.headers.get("hx-request") == "true"
        return self.answer(f"{name}_now.html" if is_part else f"{name}.html", **context)

    def go(self, path: str) -> Response:
        """Send the browser to another page, by its path below `PREFIX`."""
        return redirect(self.request, f"{PREFIX}{path}")

    async def form(self) -> dict[str, str]:
        """Return the posted form. Raises `Problem` unless it comes from a page of ours."""
        return await gate.form_of(self.request, self.visitor)


async def screen_of(request: fastapi.Request, service: Service) -> Screen:
    visitor = await gate.visitor_of(request, service)
    gate.check_text(request.query_params.values())
    return Screen(request, pages_of(request), service, visitor)


async def screen_of_admin(screen: Annotated[Screen, fastapi.Depends(screen_of)]) -> Screen:
    screen.visitor.check_admin()
    return screen


Rendering = Annotated[Pages, fastapi.Depends(pages_of)]
View = Annotated[Screen, fastapi.Depends(screen_of)]
AdminView = Annotated[Screen, fastapi.Depends(screen_of_admin)]


def new_router() -> fastapi.APIRouter:
    """Return a router whose paths are pages."""
    return fastapi.APIRouter(prefix=PREFIX, route_class=PageRoute, include_in_schema=False)


async def failed(request: fastapi.Request, problem: problems.Problem) -> Response:
    """Return the page that shows a problem."""
    visitor = None
    with contextlib.suppress(gate.NotSignedIn, errors.EMQError):
        visitor = await gate.visitor_of(request, request.app.state.service)
    title, text = problems.title_of(problem.status), problem.detail
    return pages_of(request).answer(request, "failed.html", problem.status, visitor=visitor, title=title, text=text)
