"""`/livez` and `/readyz` of a process of the API, for supervisors and load balancers."""

from __future__ import annotations

import asyncio
import time

import sqlalchemy as sa
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from emq.app import App
from emq.runtime import errors

LIVE = "/livez"
"""200 from a process that need not be restarted. Servers out of reach do not count: the API waits for them."""
READY = "/readyz"
"""200 from a process that can serve: its database answers. Without the store, publishing alone is refused."""

METHODS = frozenset(("GET", "HEAD"))

ANSWER_S = 4.0
"""Seconds within which the database must answer; less than the 5 s after which the probes of `deploy/` give up."""
REST_S = 1.0
"""Seconds for which an answer of the database counts for all who ask: they need no key, and may be many."""


class Probes:
    """An ASGI middleware in front of all limits, so that a flood of requests gets no process restarted.

    Args:
        app: gets all other requests.
        opened: the app of the service; open while there are requests.
    """

    def __init__(self, app: ASGIApp, opened: App) -> None:
        self._application = app
        self._app = opened
        self._asking = asyncio.Lock()
        self._until = 0.0
        self._answers = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in (LIVE, READY) or scope["method"] not in METHODS:
            await self._application(scope, receive, send)
            return
        is_well = scope["path"] == LIVE or await self._is_ready()
        # Nobody without a key learns where the database is; the log says more.
        answer = PlainTextResponse("ok\n" if is_well else "the database does not answer\n", 200 if is_well else 503)
        await answer(scope, receive, send)

    async def _is_ready(self) -> bool:
        async with self._asking:
            if time.monotonic() >= self._until:
                try:
                    await self._app.database.run(lambda c: c.execute(sa.select(1)), read_only=True, deadline_s=ANSWER_S)
                    self._answers = True
                except errors.DatabaseUnavailable:
                    self._answers = False
                self._until = time.monotonic() + REST_S
            return self._answers
