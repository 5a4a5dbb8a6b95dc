"""The push service over an open app: one attribute for each of its parts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from emq import App
from emq.runtime.guard import Guard
from emq_push.addresses import AddressFilter
from emq_push.records import schema
from emq_push.records.audit_log import ALL, AuditFilter, AuditLog, Entry
from emq_push.records.cursors import Page
from emq_push.service.cluster import ClusterService
from emq_push.service.endpoints import EndpointService
from emq_push.service.erasing import Erasing
from emq_push.service.event_types import EventTypeService
from emq_push.service.handshakes import HandshakeService
from emq_push.service.host_facts import HostView
from emq_push.service.keys import KeyService
from emq_push.service.lagging import LaggingService
from emq_push.service.letters import LetterService
from emq_push.service.parts import Parts
from emq_push.service.polling import PollService
from emq_push.service.publishing import Publishing
from emq_push.service.reach import Reach
from emq_push.service.reading import ReadingService
from emq_push.service.reconciling import Sweep
from emq_push.service.repeats import Repeats
from emq_push.service.replay_runner import ReplayRunner
from emq_push.service.replaying import ReplayService
from emq_push.service.resending import ResendingService
from emq_push.service.tenants import TenantService
from emq_push.service.upkeep import Upkeep


class PushService:
    """What the API, the dashboard and the command line call.

    Args:
        app: open, and open for as long as the service is used.

    Attributes:
        parts: the app, its database, ids and the audit log.
        tenants, endpoints, event_types, erasing, publishing, handshakes, keys, repeats: see their modules.
        hosts: what the hosts say of themselves.
        reading, resending, replays, letters, lagging, cluster: messages, deliveries, what became of them; see there.
        polling: fetches what waits in the logs of polling endpoints.
    """

    def __init__(self, app: App) -> None:
        self.parts = Parts(app)
        self._reach = Reach(AddressFilter.of_settings(app.settings))
        self.endpoints = EndpointService(self.parts, self._reach)
        self.tenants = TenantService(self.parts, self.endpoints)
        self.event_types = EventTypeService(self.parts)
        self.erasing = Erasing(self.parts, self.tenants)
        self.publishing = Publishing(self.parts)
        self.handshakes = HandshakeService(self.parts, self.endpoints)
        self.keys = KeyService(self.parts, self.tenants)
        self.repeats = Repeats(self.parts)
        self.hosts = hosts = HostView(self.parts)
        self.reading = ReadingService(self.parts, hosts)
        self.resending = ResendingService(self.parts, self.reading)
        self.polling = PollService(self.parts)
        self.replays = ReplayService(self.parts)
        self.letters = LetterService(self.parts)
        self.lagging = LaggingService(self.parts, hosts)
        self.cluster = ClusterService(self.parts, hosts)

    @classmethod
    async def open(cls, app: App) -> PushService:
        """Create the service's tables if they are missing.

        Raises:
            DatabaseUnavailable: there is no connection; try again.
        """
        await schema.ensure(app.database)
        return cls(app)

    async def audit_log(self, limit: int, cursor: str = "", wanted: AuditFilter = ALL) -> Page[Entry]:
        """Return who changed what, the latest first. Raises `InvalidCursor`."""
        rows = AuditLog(self.parts.environment)
        return await self.parts.read(lambda c: rows.page(c, limit, cursor, wanted))

    @contextlib.asynccontextmanager
    async def keeping(self) -> AsyncIterator[None]:
        """Do the upkeep and carry out replays for the length of a block; then write down what was sent."""
        upkeep, runner, sweep = self.upkeep(), ReplayRunner(self.parts), Sweep(self.parts)
        self.replays.on_ready = runner.wake
        loops = {"push leftovers": upkeep.send_left, "push upkeep": upkeep.tidy}
        tasks = Guard().start({**loops, "push replays": runner.run, "push sweep": sweep.run})
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.close()

    def upkeep(self) -> Upkeep:
        return Upkeep(self.parts, self.tenants, self.endpoints, self.erasing, self.publishing)

    async def close(self) -> None:
        """Write down what was sent, and end the threads of name look-ups. Safe to repeat."""
        await self.polling.close()
        await self.publishing.close()
        await self._reach.close()
