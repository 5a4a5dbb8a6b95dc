"""The push service over an open app: one attribute for each of its parts."""

from __future__ import annotations

from emq.app import App
from emq.push.records import schema
from emq.push.service.keys import KeyService
from emq.push.service.parts import Parts
from emq.push.service.tenants import TenantService


class PushService:
    """What the API, the dashboard and the command line call.

    Args:
        app: open, and open for as long as the service is used.

    Attributes:
        parts: the app, its database, ids and the audit log.
        tenants, keys: see their modules.
    """

    def __init__(self, app: App) -> None:
        self.parts = Parts(app)
        self.tenants = TenantService(self.parts)
        self.keys = KeyService(self.parts, self.tenants)

    @classmethod
    async def open(cls, app: App) -> PushService:
        """Create the service's tables if they are missing.

        Raises:
            DatabaseUnavailable: there is no connection; try again.
        """
        await schema.ensure(app.database)
        return cls(app)
