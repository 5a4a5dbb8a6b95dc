"""A pool of SMS channels under three accounts with a flood of marketing and a channel out of order, and its pages."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from emq import App
from emq.runtime import settings
from emq.runtime.settings import Address
from emq_push.service.service import PushService
from emq_scheduling.hosting.attempts import Run
from emq_scheduling.model import Pool
from emq_scheduling.outcomes import ResourceFailed
from emq_scheduling.scheduling import Scheduling
from emq_scheduling.submission import Submission
from emq_scheduling.tasks import Task
from emq_web import serving
from emq_web.scheduling import schemas
from support.browsing import Board
from support.waiting import until

if TYPE_CHECKING:
    from playwright.async_api import Browser

ALL = ("verification", "notification", "marketing")
ACCOUNTS = {
    "Nordtel": (60, {"Nordtel 1": (30, ALL), "Nordtel 2": (30, ALL), "Nordtel 3": (20, ALL[1:])}),
    "Meridian": (50, {"Meridian DE": (25, ALL), "Meridian FR": (25, ALL[1:]), "Meridian bulk": (40, ALL[2:])}),
    "Costa": (40, {"Costa A": (20, ALL[1:]), "Costa B": (20, ALL[2:])}),
}
OUT_OF_ORDER = "Meridian FR"
TENANTS = {"bookshop": 5, "airline": 3, "bakery": 2, "gym": 1}


def pool() -> Pool:
    """Return the pool."""
    resources = {}
    for account, (most, channels) in ACCOUNTS.items():
        messages = {"name": "messages", "amount": most, "per": "second"}
        resources[account] = {"limits": [messages, {"name": "messages", "amount": 2_000_000, "per": "day"}]}
        for name, (amount, takes) in channels.items():
            limits = [{"name": "messages", "amount": amount, "per": "second"}]
            if takes is ALL:
                limits.append({"name": "open", "amount": 10, "per": "in_flight"})
            resources[name] = {"parent": account, "limits": limits, "takes": {kind: {} for kind in takes}}
    types = {
        "verification": {"priority": 0, "longest_wait_s": 5.0, "duration_s": 0.05},
        "notification": {"priority": 1, "longest_wait_s": 60.0, "duration_s": 0.05},
        "marketing": {"priority": 2, "duration_s": 0.05, "share": 0.1},
    }
    tenants = {name: {"weight": weight} for name, weight in TENANTS.items()}
    values = {"name": "sms", "resources": resources, "types": types, "tenants": tenants}
    return schemas.converted(values, Pool, "the pool")


@contextlib.asynccontextmanager
async def pool_board(browser: Browser) -> AsyncIterator[Board]:
    """Serve the pages of an app that schedules the pool; yields once its owner has told how the pool does."""
    app = App(options=settings.merged(settings.Settings(store="memory:")))
    scheduling = Scheduling(app)

    @scheduling.performer("sms")
    async def send(task: Task, run: Run) -> None:
        await asyncio.sleep(0.03)
        if run.resource == OUT_OF_ORDER:
            raise ResourceFailed("SMPP bind refused: 0x0D")

    async with app, contextlib.AsyncExitStack() as stack:
        service = await PushService.open(app)
        await scheduling.pools.put(pool())
        host = await stack.enter_async_context(app.running())
        where = await stack.enter_async_context(serving.serving(app, Address("127.0.0.1", 0)))
        for tenant in TENANTS:
            flood = [Submission("marketing", b"{}", tenant) for _ in range(600 * TENANTS[tenant])]
            await scheduling.submit_many("sms", flood)
        coming = asyncio.create_task(_come(scheduling))
        try:
            await until(lambda: _told(scheduling), step_s=0.2)
            yield Board(app, host, service, f"http://{where}", browser)
        finally:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)


async def _come(scheduling: Scheduling) -> None:
    """Submit verifications and notifications all the time."""
    while True:
        await scheduling.submit_many("sms", [Submission("verification", b"{}")] * 3)
        await scheduling.submit_many("sms", [Submission("notification", b"{}", "airline")] * 4)
        await asyncio.sleep(0.2)


async def _told(scheduling: Scheduling) -> bool:
    found = await scheduling.snapshot("sms")
    return (
        found is not None
        and bool(found.types["verification"].waits.count)
        and bool(found.resources[OUT_OF_ORDER].closed)
        and found.state.waiting["marketing"] > 0
    )
