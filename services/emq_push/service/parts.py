"""The objects that all parts of the push service share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa

from emq import App
from emq.topics.model import Topic
from emq_push.records import tables
from emq_push.records.audit_log import AuditLog, Entry
from emq_push.records.endpoints import topic_of
from emq_push.records.ids import Ids, Kind
from emq_push.secrets import Secrets
from emq_push.service.catalogue import Catalogue
from emq_push.service.refusals import unknown_endpoint

T = TypeVar("T")
_t = tables.endpoints


class Parts:
    """An open app, its database, ids and the audit log.

    Args:
        app: open, and open for as long as this is used.

    Attributes:
        secrets: encrypts what only hosts may read.
        catalogue: the event types, as this process knows them.
    """

    def __init__(self, app: App) -> None:
        self.app = app
        self.environment = str(app.settings.environment)
        self.secrets = Secrets.of_setting(app.settings)
        self.catalogue = Catalogue(self.environment)
        self._mine = _t.c.environment == self.environment
        self._ids = Ids()
        self._audit_log = AuditLog(self.environment)

    def now_us(self) -> int:
        return self.app.clock.now_us()

    def new_id(self, kind: Kind) -> str:
        return self._ids.next(kind, self.now_us())

    def new_ids(self, kind: Kind) -> Callable[[int], str]:
        """Return a function that makes ids of a kind, given the microseconds since the epoch."""
        return functools.partial(self._ids.next, kind)

    async def read(self, fn: Callable[[sa.Connection], T]) -> T:
        """Run a transaction that writes nothing. Raises `DatabaseUnavailable`."""
        return await self.app.database.run(fn, read_only=True)

    async def write(self, fn: Callable[[sa.Connection], T]) -> T:
        """Run a transaction. Raises `DatabaseUnavailable`; then nothing was changed."""
        return await self.app.database.run(fn)

    async def endpoints(self, tenant: str, after: str = "", limit: int = 100) -> list[str]:
        """Return ids of a tenant's endpoints, in order, beginning behind `after`. Raises `DatabaseUnavailable`."""
        where = (self._mine, _t.c.tenant == tenant, _t.c.endpoint > after)
        query = sa.select(_t.c.endpoint).where(*where).order_by(_t.c.endpoint).limit(limit)
        return await self.read(lambda c: [str(id_) for id_ in c.execute(query).scalars()])

    async def check_endpoint(self, tenant: str, endpoint: str) -> None:
        """Raise `NotFound` unless the tenant has this endpoint. Raises `DatabaseUnavailable`."""
        where = (self._mine, _t.c.topic == topic_of(tenant, endpoint), _t.c.tenant == tenant)
        query = sa.select(_t.c.endpoint).where(*where)
        found = None if "\0" in endpoint else await self.read(lambda c: c.execute(query).scalar())
        if found is None:
            raise unknown_endpoint(endpoint)

    async def check_event_types(self, patterns: Sequence[str]) -> None:
        """Raise `Invalid` for an endpoint's event type that the catalogue forbids. Raises `DatabaseUnavailable`."""
        await self.read(lambda c: self.catalogue.check_patterns(c, patterns, self.now_us()))

    async def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        """Return those of the topics that exist, by name. Raises `DatabaseUnavailable`."""
        return await self.app.catalog.some(names)

    def audit(
        self,
        connection: sa.Connection,
        actor: str,
        action: str,
        target: str,
        *,
        tenant: str = "",
        changes: Mapping[str, Any] | None = None,
    ) -> None:
        """Write an entry of the audit log in the transaction of the change."""
        now_us = self.now_us()
        entry = Entry(now_us, self._ids.next("aud", now_us), tenant, actor, action, target, dict(changes or {}))
        self._audit_log.add(connection, entry)
