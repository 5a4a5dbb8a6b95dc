"""The API as one ASGI application over an open app."""

from __future__ import annotations

import fastapi

from emq.api import problems, tenants
from emq.api.pages import router as pages
from emq.push.service.service import PushService

TITLE = "EMQ push service"
DESCRIPTION = """Delivers messages to the HTTP endpoints of many tenants, each at its own rate.

Errors are problems by RFC 9457 with a stable `code`. Times are by RFC 3339. Lists have `limit`, `cursor` and `next`.
"""


def build(service: PushService) -> fastapi.FastAPI:
    """Return the application.

    Args:
        service: over an app that stays open for as long as the application runs.
    """
    application = fastapi.FastAPI(
        title=TITLE,
        description=DESCRIPTION,
        version="1",
        responses=problems.RESPONSES,
        # Their pages load scripts from other servers.
        docs_url=None,
        redoc_url=None,
        openapi_url="/v1/openapi.json",
        redirect_slashes=False,
    )
    application.state.service = service
    problems.install(application)
    for part in (tenants,):
        application.include_router(part.router)
    pages.install(application, service)
    return application
