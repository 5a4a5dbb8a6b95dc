"""The API as one ASGI application over an open app."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import fastapi
import msgspec
from starlette.routing import BaseRoute

from emq import App
from emq_push.service.service import PushService
from emq_web import (
    cluster,
    dead_letters,
    deliveries,
    documenting,
    endpoints,
    event_types,
    families,
    keys,
    lag,
    messages,
    polling,
    probes,
    problems,
    replays,
    tenants,
)
from emq_web.admission import Admission
from emq_web.fast_lane import FastLane
from emq_web.limits import Limits, Rates
from emq_web.pages import router as pages
from emq_web.paths import Paths
from emq_web.probes import Probes
from emq_web.scheduling import catalog, now, parts, tasks
from emq_web.scheduling.desk import PoolDesk

DOCUMENT = "/v1/openapi.json"
TITLE = "EMQ push service"
DESCRIPTION = """Delivers messages to the HTTP endpoints of many tenants, each at its own rate. Takes tasks for pools of
resources.

Errors are problems by RFC 9457 with a stable `code`. Times are by RFC 3339. Lists have `limit`, `cursor` and `next`.
"""


class _Application(fastapi.FastAPI):
    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document, which is made once."""
        is_new = self.openapi_schema is None
        document: dict[str, Any] = super().openapi()
        if is_new:
            documenting.complete(document)
        return document


def build(service: PushService, limits: Limits | None = None) -> fastapi.FastAPI:
    """Return the application.

    Args:
        service: over an app that stays open for as long as the application runs.
        limits: None for those of the settings.
    """
    limits = limits or Limits(requests_per_s=service.parts.app.settings.api_requests_per_s)
    routes, paths = _routes()
    application = _Application(
        title=TITLE,
        description=DESCRIPTION,
        version="1",
        routes=[paths, *routes],
        # Their pages load scripts from other servers.
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        separate_input_output_schemas=False,
    )
    application.add_route(DOCUMENT, _document_of(application), include_in_schema=False)
    application.state.paths = paths
    application.state.service = service
    application.state.desk = PoolDesk(service)
    application.state.sign_ins = Rates(limits.sign_ins_per_s, at_once=limits.sign_ins_at_once, policy="sign-ins")
    application.add_middleware(FastLane, service=service)  # within `Admission`
    application.add_middleware(Admission, service=service, limits=limits)
    application.add_middleware(Probes, opened=service.parts.app)  # outside of `Admission`
    problems.install(application)
    pages.install(application, service)
    return application


def document() -> dict[str, Any]:
    """Return the OpenAPI document of this version, of which no API need run."""
    return build(PushService(App("memory:"))).openapi()


def _document_of(application: fastapi.FastAPI) -> Callable[[fastapi.Request], Awaitable[fastapi.Response]]:
    """Return what answers with the OpenAPI document, which it encodes once: anybody may ask for it, without a key."""
    encoded = functools.cache(lambda: msgspec.json.encode(application.openapi()))

    async def answer(_: fastapi.Request) -> fastapi.Response:
        return fastapi.Response(encoded(), media_type="application/json")

    return answer


@functools.cache
def _routes() -> tuple[Sequence[BaseRoute], Paths]:
    """Return the routes of the API and its pages, and their paths; all applications of a process share them.

    FastAPI builds the models of a path at its first request, which takes longer than many requests.
    """
    api = fastapi.APIRouter(
        responses=problems.RESPONSES, generate_unique_id_function=lambda route: route.endpoint.__name__
    )
    of_push = (
        *(tenants, endpoints, polling, event_types, messages, keys, families),
        *(deliveries, replays, dead_letters, lag, cluster),
    )
    routers = [part.router for part in (*of_push, catalog, tasks, parts, now)]
    routers += [messages.publishing, dead_letters.actions, keys.audit, *pages.ROUTERS]
    for router in routers:
        api.include_router(router)
    others = dict.fromkeys((DOCUMENT, probes.LIVE, probes.READY), probes.METHODS)
    return tuple(api.routes), Paths([route for router in routers for route in router.routes], others)
