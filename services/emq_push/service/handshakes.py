"""Handshakes with endpoints: the API has a host ask, and the host keeps the answer. See `emq_push.asking`."""

from __future__ import annotations

import contextlib
from typing import Literal

import msgspec
import sqlalchemy as sa

from emq.runtime import errors
from emq_push import asking
from emq_push.attributes import URL
from emq_push.records.endpoints import Endpoints, Handshake
from emq_push.records.tenants import Tenants
from emq_push.service import endpoint_topics
from emq_push.service.endpoints import EndpointService
from emq_push.service.parts import Parts
from emq_push.service.refusals import NotFound, unknown_endpoint


class HandshakeService:
    """Starts handshakes, and keeps what endpoints answer."""

    def __init__(self, parts: Parts, endpoints: EndpointService) -> None:
        self._parts = parts
        self._endpoints = endpoints
        self._rows = Endpoints(parts.environment)
        self._tenants = Tenants(parts.environment)

    async def start(self, tenant: str, endpoint: str, origin: str, actor: str) -> Handshake:
        """Let a host ask an endpoint whether it wants deliveries, and how many.

        Args:
            origin: a DNS name for the sending system as a whole.

        Raises:
            NotFound: there is no such endpoint.
            StoreUnavailable, StoreFull, OutcomeUnknown: start it again.
        """
        owner, found = await self._parts.read(lambda c: self._endpoints.existing(c, tenant, endpoint))
        asked = Handshake(origin, "asked", self._parts.now_us())
        await self._parts.write(lambda c: self._note(c, tenant, endpoint, asked, actor))
        question = asking.Question(origin, endpoint_topics.qps_of(found.settings, owner, {}), actor)
        headers, priority = asking.header_of(question), found.settings.priorities[0]
        try:
            await self._parts.app.publish(found.topic, b"", priority=priority, headers=headers, ttl_s=asking.TTL_S)
        except (errors.UnknownTopic, errors.TopicClosed):
            raise unknown_endpoint(endpoint) from None
        return asked

    async def heard(self, answer: asking.Answer) -> None:
        """Keep an endpoint's answer; its allowed rate binds from now on.

        Nothing is kept if the endpoint has another URL by now, or is gone.

        Raises:
            DatabaseUnavailable: ask again.
        """
        (tenant, _, endpoint), question = answer.topic.partition("."), answer.question
        state: Literal["agreed", "refused"] = "refused" if answer.attributes is None else "agreed"
        outcome = Handshake(question.origin, state, self._parts.now_us(), answer.rate_per_min, answer.reason)

        def note(connection: sa.Connection) -> None:
            if self._endpoints.existing(connection, tenant, endpoint)[1].settings.url == answer.url:
                self._note(connection, tenant, endpoint, outcome, question.actor)
                self._tenants.touch(connection, tenant, outcome.at_us)  # another process fits it, if this one ends

        with contextlib.suppress(errors.UnknownTopic, NotFound):
            change, given = self._parts.app.catalog.set_attributes, {URL: answer.url}
            await change(answer.topic, answer.attributes or {}, given, also=note)
            await self._endpoints.fit(tenant, endpoint)

    def _note(self, connection: sa.Connection, tenant: str, endpoint: str, outcome: Handshake, actor: str) -> None:
        _, now = self._endpoints.existing(connection, tenant, endpoint)
        changed_us = max(self._parts.now_us(), now.changed_us + 1)
        self._rows.save(connection, msgspec.structs.replace(now, handshake=outcome, changed_us=changed_us))
        shown = {name: value for name, value in msgspec.to_builtins(outcome).items() if name != "at_us"}
        self._endpoints.audit(connection, actor, "endpoint.handshake", now, shown)
