"""Changes of endpoints by hosts, which the audit log records beside those of people."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import sqlalchemy as sa

from emq import App
from emq_push.addresses import AddressFilter
from emq_push.asking import Answer
from emq_push.attributes import DISABLED
from emq_push.records import schema
from emq_push.records.endpoints import Endpoints
from emq_push.service.endpoints import EndpointService
from emq_push.service.handshakes import HandshakeService
from emq_push.service.parts import Parts
from emq_push.service.reach import Reach


class HostChanges:
    """Writes a host's findings about endpoints to the catalog.

    Args:
        app: open whenever something is changed.
        host: returns the host's name.
    """

    def __init__(self, app: App, host: Callable[[], str]) -> None:
        self._app = app
        self._host = host

    async def change(self, topic: str, changes: Mapping[str, str], given: Mapping[str, str]) -> None:
        """Set attributes of a topic, if it has the given ones; if that disables an endpoint, the audit log says so.

        Raises:
            UnknownTopic: there is no such topic.
            DatabaseUnavailable: try again later; nothing was changed.
        """
        reason = changes.get(DISABLED, "")
        if not reason:
            await self._app.catalog.set_attributes(topic, changes, given)
            return
        await schema.ensure(self._app.database)
        parts = Parts(self._app)

        def note(connection: sa.Connection) -> None:
            tenant, _, id_ = topic.partition(".")
            rows = Endpoints(parts.environment)
            if (found := rows.find(connection, tenant, id_)) is not None:  # else a topic of its own
                rows.save(connection, found.at(parts.now_us()))
                actor = f"host {self._host()}"
                parts.audit(connection, actor, "endpoint.disabled", id_, tenant=tenant, changes={"reason": reason})

        await self._app.catalog.set_attributes(topic, changes, given, also=note)

    async def heard(self, answer: Answer) -> None:
        """Keep an endpoint's answer to a handshake.

        Raises:
            DatabaseUnavailable: ask again.
        """
        await schema.ensure(self._app.database)
        parts = Parts(self._app)
        endpoints = EndpointService(parts, Reach(AddressFilter.of_settings(self._app.settings)))
        await HandshakeService(parts, endpoints).heard(answer)
