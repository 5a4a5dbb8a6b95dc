"""The push service over an open app: one attribute for each of its parts."""

from __future__ import annotations

from emq.app import App
from emq.push.records import schema
from emq.push.service.cluster import ClusterService
from emq.push.service.host_facts import HostView
from emq.push.service.keys import KeyService
from emq.push.service.lagging import LaggingService
from emq.push.service.letters import LetterService
from emq.push.service.parts import Parts
from emq.push.service.reading import ReadingService
from emq.push.service.replaying import ReplayService
from emq.push.service.resending import ResendingService
from emq.push.service.tenants import TenantService


class PushService:
    """What the API, the dashboard and the command line call.

    Args:
        app: open, and open for as long as the service is used.

    Attributes:
        parts: the app, its database, ids and the audit log.
        tenants, keys: see their modules.
        reading, resending, replays, letters, lagging, cluster: deliveries and what became of them; see their modules.
    """

    def __init__(self, app: App) -> None:
        self.parts = Parts(app)
        self.tenants = TenantService(self.parts)
        self.keys = KeyService(self.parts, self.tenants)
        self.host_view = HostView(self.parts)
        self.reading = ReadingService(self.parts, self.host_view)
        self.resending = ResendingService(self.parts, self.reading)
        self.replays = ReplayService(self.parts)
        self.letters = LetterService(self.parts)
        self.lagging = LaggingService(self.parts, self.host_view)
        self.cluster = ClusterService(self.parts, self.host_view)

    @classmethod
    async def open(cls, app: App) -> PushService:
        """Create the service's tables if they are missing.

        Raises:
            DatabaseUnavailable: there is no connection; try again.
        """
        await schema.ensure(app.database)
        return cls(app)
