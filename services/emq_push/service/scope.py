"""Finds the topics of a tenant and its endpoints, and takes ids of deliveries apart."""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa

from emq.topics.model import Topic
from emq_push.records import tables
from emq_push.records.endpoints import topic_of
from emq_push.service.parts import Parts
from emq_push.service.refusals import NotFound

_t = tables.endpoints


class DeliveryId(NamedTuple):
    """The id of a delivery: `<endpoint>:<message>`."""

    endpoint: str
    message: str


def unknown_delivery(id_: str) -> NotFound:
    return NotFound("unknown_delivery", f"there is no delivery {id_[:200]!r}")


def unknown_endpoint(endpoint: str) -> NotFound:
    return NotFound("unknown_endpoint", f"there is no endpoint {endpoint[:80]!r}")


def delivery_id(text: str) -> DeliveryId:
    """Take the id of a delivery apart. Raises `NotFound` for any other text."""
    endpoint, colon, message = text.partition(":")
    if not (endpoint and colon and message) or "\0" in text or "." in endpoint:
        raise unknown_delivery(text)
    return DeliveryId(endpoint, message)


class Scope:
    """Finds what belongs to a tenant. All methods raise `DatabaseUnavailable`."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._mine = _t.c.environment == parts.environment

    async def endpoints(self, tenant: str, after: str = "", limit: int = 100) -> list[str]:
        """Return ids of the tenant's endpoints, in order, beginning behind `after`."""
        where = (self._mine, _t.c.tenant == tenant, _t.c.endpoint > after)
        query = sa.select(_t.c.endpoint).where(*where).order_by(_t.c.endpoint).limit(limit)
        return await self._parts.read(lambda c: [str(id_) for id_ in c.execute(query).scalars()])

    async def check_endpoint(self, tenant: str, endpoint: str) -> None:
        """Raise `NotFound` unless the tenant has this endpoint."""
        where = (self._mine, _t.c.topic == topic_of(tenant, endpoint), _t.c.tenant == tenant)
        query = sa.select(_t.c.endpoint).where(*where)
        found = None if "\0" in endpoint else await self._parts.read(lambda c: c.execute(query).scalar())
        if found is None:
            raise unknown_endpoint(endpoint)

    async def topics(self, names: set[str]) -> dict[str, Topic]:
        """Return the topics of these names that exist."""
        return await self._parts.app.catalog.some(names)
