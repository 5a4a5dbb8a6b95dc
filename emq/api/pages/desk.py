"""The parts of the push service that the pages of a tenant use."""

from __future__ import annotations

from typing import NamedTuple

from emq.push.service.endpoints import EndpointService
from emq.push.service.host_facts import HostView
from emq.push.service.lagging import LaggingService
from emq.push.service.parts import Parts
from emq.push.service.reading import ReadingService
from emq.push.service.replaying import ReplayService
from emq.push.service.resending import ResendingService
from emq.push.service.service import PushService
from emq.push.service.tenants import TenantService


class Desk(NamedTuple):
    """Everything that a tenant's pages read and change."""

    parts: Parts
    tenants: TenantService
    hosts: HostView
    reading: ReadingService
    lagging: LaggingService
    resending: ResendingService
    replays: ReplayService
    endpoints: EndpointService

    @classmethod
    def of(cls, service: PushService) -> Desk:
        parts = service.parts
        hosts = HostView(parts)
        reading = ReadingService(parts, hosts)
        return cls(
            parts,
            service.tenants,
            hosts,
            reading,
            LaggingService(parts, hosts),
            ResendingService(parts, reading),
            ReplayService(parts),
            service.endpoints,
        )
