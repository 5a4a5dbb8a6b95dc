"""The push service's API over an app in memory, as its tests call it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import pytest

from emq import App
from emq.runtime import settings
from emq.runtime.settings import Address
from emq_push.service.service import PushService
from emq_web import application, serving
from emq_web.limits import Limits

URL = "http://api.test"


class Api:
    """Sends requests to the API as somebody with a key.

    Attributes:
        app, service: what the API works with.
        admin: the admin key.
    """

    def __init__(self, app: App, service: PushService, http: httpx.AsyncClient, admin: str) -> None:
        self.app = app
        self.service = service
        self.http = http
        self.admin = admin

    async def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        key: str | None = None,
        status: int | None = None,
        **more: Any,
    ) -> Any:
        """Send a request; return the body of the answer.

        Args:
            key: None for the admin key; empty for none.
            status: the status that the answer must have; None for any below 400.
        """
        response = await self.raw(method, path, body, key=key, **more)
        if status is None:
            assert response.status_code < 400, response.text
        else:
            assert response.status_code == status, response.text
        return response.json() if response.content else None

    async def raw(
        self, method: str, path: str, body: Any = None, *, key: str | None = None, **more: Any
    ) -> httpx.Response:
        headers = {} if key == "" else {"Authorization": f"Bearer {key or self.admin}"}
        headers |= more.pop("headers", {})
        if body is not None:
            more["json"] = body
        return await self.http.request(method, path, headers=headers, **more)

    async def key_of(self, role: Any, tenant: str = "") -> str:
        """Make a key; return its text."""
        return (await self.service.keys.create(role, "test", tenant=tenant))[1]

    async def listed(self, path: str, **params: Any) -> list[dict[str, Any]]:
        """Return all entries of a list, page by page."""
        page = await self("GET", path, params=params)
        found: list[dict[str, Any]] = page["data"]
        while page["next"] is not None:
            page = await self("GET", path, params={**params, "cursor": page["next"]})
            found += page["data"]
        return found


@contextlib.asynccontextmanager
async def opened(*tenants: str, puts: Mapping[str, Any] | None = None, **options: Any) -> AsyncIterator[Api]:
    """Open an app in memory with the API over it.

    Args:
        tenants: are created, with 100 requests a second each.
        puts: what else is created, by path.
        options: settings.
    """
    merged = settings.merged(settings.Settings(store="memory:"), **options)
    async with App(options=merged) as app:
        service = await PushService.open(app)
        _, admin = await service.keys.create("admin", "test")
        async with served(app, service, admin) as api:
            made = {f"/v1/tenants/{tenant}": {"qps": 100} for tenant in tenants}
            for path, body in {**made, **(puts or {})}.items():
                await api("PUT", path, body, status=201)
            yield api
        await service.close()


def fixture(*tenants: str, **options: Any) -> Any:
    """Return a fixture that opens an app with the API over it; see `opened`."""

    @pytest.fixture
    async def api() -> AsyncIterator[Api]:
        async with opened(*tenants, **options) as made:
            yield made

    return api


@contextlib.asynccontextmanager
async def listening(**options: Any) -> AsyncIterator[tuple[str, Api]]:
    """Open an app in memory, and serve its API on loopback; yields the address and the API.

    Args:
        options: settings.
    """
    async with opened(**options) as api, serving.serving(api.app, Address("127.0.0.1", 0)) as address:
        yield f"http://{address}", api


@contextlib.asynccontextmanager
async def served(app: App, service: PushService, admin: str, limits: Limits | None = None) -> AsyncIterator[Api]:
    """Serve the API of an open app within this process."""
    transport = httpx.ASGITransport(application.build(service, limits), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=URL) as http:
        yield Api(app, service, http, admin)


@contextlib.asynccontextmanager
async def another(api: Api, limits: Limits | None = None) -> AsyncIterator[Api]:
    """Serve the same app once more, as another worker would: with nothing in its memory."""
    service = await PushService.open(api.app)
    async with served(api.app, service, api.admin, limits) as made:
        yield made
    await service.close()
