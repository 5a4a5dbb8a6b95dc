"""What all paths of the pages share: who is signed in, how pages are rendered, and pages for errors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, cast

import fastapi
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.responses import Response

from emq import errors
from emq.api import problems
from emq.api.access import Service
from emq.api.pages import gate
from emq.api.pages.desk import Desk
from emq.api.pages.gate import Visitor
from emq.api.pages.rendering import PREFIX, Pages, redirect


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
            except RequestValidationError as exc:
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


def desk_of(request: fastapi.Request) -> Desk:
    return cast("Desk", request.app.state.desk)


Rendering = Annotated[Pages, fastapi.Depends(pages_of)]
SignedIn = Annotated[Visitor, fastapi.Depends(visitor_of)]
Admin = Annotated[Visitor, fastapi.Depends(admin_of)]
ADesk = Annotated[Desk, fastapi.Depends(desk_of)]


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
