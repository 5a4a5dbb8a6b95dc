"""A push service with two tenants, traffic and troubles, and its pages in a real browser."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import sqlalchemy as sa

from emq import App
from emq.host.host import Host
from emq.host.lag_parts import Part
from emq.observe import snapshots
from emq.runtime import settings
from emq.runtime.settings import Address
from emq.storage.message import Message
from emq_push.records import tables
from emq_push.records.endpoints import EndpointSettings
from emq_push.service.service import PushService
from emq_web import serving
from support.browsing import Board
from support.push_tenant import Tenant

if TYPE_CHECKING:
    from playwright.async_api import Browser


class Dashboard(Board):
    """Attributes:
    endpoints: ids of the endpoints of `acme`, by their descriptions.
    """

    def __init__(
        self, app: App, host: Host, service: PushService, base: str, endpoints: dict[str, str], browser: Browser
    ) -> None:
        super().__init__(app, host, service, base, browser)
        self.endpoints = endpoints


@contextlib.asynccontextmanager
async def dashboard(browser: Browser) -> AsyncIterator[Dashboard]:
    """Serve the pages of an app that consumes; yields once hosts have counted the backlog and saved the count.

    The tenant `acme` sends more than its rate to one endpoint, and has an endpoint out of order and twelve dead letters
    at a third; the tenant `globex` is well.
    """
    app = App(options=settings.merged(settings.Settings(store="memory:", push_allow="127.0.0.1")))

    @app.handler("*")
    async def deliver(_: Message) -> None:
        await asyncio.sleep(0.01)

    async with app, app.running() as host:
        service = await PushService.open(app)
        await service.tenants.change("acme", {"qps": 50, "name": "Acme Corporation"}, "test", creates=True)
        await service.tenants.change("globex", {"qps": 20}, "test", creates=True)
        ids = await _acme(app, service)
        await asyncio.sleep(1.5)  # until the host has the groups
        host.throttles.close(f"acme.{ids['Legacy']}", 600, "out of order: 502 Bad Gateway")
        for name, n in (("Orders", 4_000), ("Legacy", 40)):
            await app.publish_many(f"acme.{ids[name]}", [b"{}"] * n)
        async with asyncio.timeout(10):
            while host.lag.counts[Part.PARKED] < 40:  # until the host has been woken for each of them
                await asyncio.sleep(0.01)
                await host.lag.look()
        await host.lag.look()
        async with asyncio.timeout(10):
            # Pages show what the host saved, not what it knows.
            while not any(seen.host.lag.get(Part.PARKED, 0) >= 40 for seen in await snapshots.load(app)):
                await asyncio.sleep(0.05)
        async with serving.serving(app, Address("127.0.0.1", 0)) as where:
            yield Dashboard(app, host, service, f"http://{where}", ids, browser)


async def _acme(app: App, service: PushService) -> dict[str, str]:
    """Make the tenant's endpoints and its past; return the endpoints' ids by their descriptions."""
    ids = {}
    for name, qps in (("Orders", 30.0), ("Billing", 15.0), ("Legacy", 5.0)):
        wanted = EndpointSettings(url=f"http://127.0.0.1:9/{name.lower()}", description=name, qps=qps)
        ids[name] = (await service.endpoints.create("acme", wanted, "test")).endpoint.id
    acme = Tenant(app, "acme")
    await acme.add(30, "delivered", endpoint=ids["Orders"])
    await acme.add(12, "dead", endpoint=ids["Billing"], first=100, event_type="invoice.sent")
    now_us = acme.parts.now_us()
    attempts = [
        {
            "environment": acme.parts.environment,
            "topic": acme.topic(ids["Billing"]),
            "message": "m00111",
            "started_us": now_us - (4 - number) * 60_000_000,
            "number": number,
            "took_us": 130_000 * number,
            "status": status,
            "outcome": outcome,
            "reason": reason,
            "answer": answer,
            "host": "host-1",
        }
        for number, status, outcome, reason, answer in (
            (1, 500, "retry", "500 Internal Server Error", '{"error": "the ledger is locked"}'),
            (2, 500, "retry", "500 Internal Server Error", '{"error": "the ledger is locked"}'),
            (3, 0, "dead", "no answer within 10 s", ""),
        )
    ]
    await app.database.run(lambda c: c.execute(sa.insert(tables.attempts), attempts))
    return ids
