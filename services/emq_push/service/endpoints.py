"""Endpoints: create, change, disable, delete, and new secrets. Each endpoint is a topic `<tenant>.<endpoint>`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from emq.runtime import errors
from emq.topics.model import State, Topic
from emq_push import destinations, outages
from emq_push.records.cursors import Page
from emq_push.records.deliveries import CANCELLED, Deliveries
from emq_push.records.endpoints import Endpoint, Endpoints, EndpointSettings, topic_of
from emq_push.records.poll_log import PollLog
from emq_push.records.tenants import Tenant, Tenants
from emq_push.service import endpoint_topics, matching, signing, tenancy, topic_fields
from emq_push.service.endpoint_edits import NEW, NOT_GIVEN, Edit, Made, Start, check_room
from emq_push.service.parts import Parts
from emq_push.service.reach import Reach
from emq_push.service.refusals import Conflict, Invalid, NotFound, check_version, converted, unknown_endpoint
from emq_push.service.signing import Rotation, Signing
from emq_push.service.tenancy import Tenancy
from emq_push.service.topic_fields import TopicFields

OVERLAP_S = 86_400.0
"""Seconds for which deliveries have both signatures after their kind was changed."""
TRIES = 5
"""Most times that a change begins again because somebody else was quicker."""
FIXED = ("priorities",)
"""Settings that never change."""


class EndpointService:
    """Create, change, read and delete endpoints."""

    def __init__(self, parts: Parts, reach: Reach) -> None:
        self._parts = parts
        self._tenants = Tenancy(parts)
        self._reach = reach
        self._rows = Endpoints(parts.environment)
        self._tenant_rows = Tenants(parts.environment)
        self._deliveries = Deliveries(parts.environment)
        self._log = PollLog(parts.environment)

    async def get(self, tenant: str, endpoint: str) -> Endpoint:
        """Return an endpoint. Raises `NotFound`."""
        _, found = await self._parts.read(lambda c: self.existing(c, tenant, endpoint))
        return (await self._live([found]))[0]

    async def page(self, tenant: str, limit: int, cursor: str = "") -> Page[Endpoint]:
        """Return the endpoints of a tenant by id. Raises `InvalidCursor`, `NotFound`."""

        def read(connection: sa.Connection) -> Page[Endpoint]:
            self._tenants.existing(connection, tenant)
            page = self._rows.page(connection, tenant, limit, cursor)
            return page._replace(rows=[endpoint for endpoint in page.rows if not endpoint.is_going])

        page = await self._parts.read(read)
        return page._replace(rows=await self._live(page.rows))

    async def create(
        self,
        tenant: str,
        settings: EndpointSettings,
        actor: str,
        fields: TopicFields = NOT_GIVEN,
        start: Start = NEW,
    ) -> Made:
        """Create an endpoint, with a new secret if none is given.

        Args:
            fields: what only the topic knows.
            start: what it has if it had another sender.

        Raises:
            NotFound: there is no such tenant.
            Invalid: a setting is wrong, or a URL leads to an address that push does not connect to.
            Conflict: the tenant has as many endpoints as it may have.
        """
        owner = await self._tenants.get(tenant)
        await self._parts.check_event_types(settings.event_types)
        now_us, id_ = self._parts.now_us(), self._parts.new_id("ep")
        made = Endpoint(id=id_, tenant=tenant, settings=settings, created_us=now_us, changed_us=now_us)
        made, attributes, secret = endpoint_topics.first(made, fields, start, owner.is_paused, self._parts.secrets)
        warnings = await self._checked(made, attributes, fields)
        shown = {**msgspec.to_builtins(settings), **fields.shown(), **start.shown()}

        def save(connection: sa.Connection) -> None:
            self._tenants.existing(connection, tenant)
            check_room(tenant, len(self._rows.of(connection, tenant)))
            self._rows.save(connection, made)
            self._tenant_rows.touch(connection, tenant, now_us)
            self.audit(connection, actor, "endpoint.created", made, shown)

        topic = await self._create_topic(made, owner, endpoint_topics.options(made, attributes))
        try:
            await self._parts.write(save)
        except (Conflict, NotFound):  # the tenant was deleted meanwhile
            with contextlib.suppress(errors.UnknownTopic):
                await self._parts.app.admin.delete(made.topic, force=True)
            raise
        with contextlib.suppress(errors.DatabaseUnavailable):  # it is made; the upkeep fits it
            await self.fit(tenant, made.id)
        return Made(endpoint_topics.live(made, topic, self._parts.secrets), signing.shown(secret), warnings)

    async def check(self, tenant: str, settings: EndpointSettings, fields: TopicFields, start: Start) -> Sequence[str]:
        """Return the warnings of `create`, or raise `Invalid` as it would; make nothing."""
        await self._parts.check_event_types(settings.event_types)
        made = Endpoint(id="", tenant=tenant, settings=settings)
        made, attributes, _ = endpoint_topics.first(made, fields, start, False, self._parts.secrets)
        return await self._checked(made, attributes, fields)

    async def change(
        self,
        tenant: str,
        endpoint: str,
        changes: Mapping[str, Any],
        actor: str,
        fields: TopicFields = NOT_GIVEN,
        expected: int | None = None,
    ) -> Made:
        """Change settings; the others keep their values. Safe to repeat.

        Args:
            fields: what only the topic knows. Another kind of signature makes a new secret. Deliveries are signed with
                both for `OVERLAP_S`, also if a secret is given.
            expected: `changed_us` of the version that is changed; None for any.

        Raises:
            NotFound, Invalid: as for `create`; `Invalid` also for a setting that never changes.
            OtherVersion: the endpoint has another version; nothing was changed.
        """

        def changed(before: Endpoint) -> Endpoint:
            settings = converted({**msgspec.to_builtins(before.settings), **changes}, EndpointSettings)
            for name in FIXED:
                if getattr(settings, name) != getattr(before.settings, name):
                    text = f"{name} never change; create another endpoint and delete this one"
                    raise Invalid("invalid_request", text, f"/{name}")
            handshake = before.handshake
            if handshake is not None and settings.url != before.settings.url:
                handshake = msgspec.structs.replace(handshake, state="outdated")
            return fields.named(msgspec.structs.replace(before, settings=settings, handshake=handshake))

        await self._parts.check_event_types(changes.get("event_types", ()))
        shown = {**changes, **fields.shown()}
        sign: Callable[[str], Signing] = Signing
        if fields.signature is not None or fields.secret:
            until_us = self._parts.now_us() + round(OVERLAP_S * 1e6)
            sign = Rotation(until_us, fields.signature, always=False, given=fields.secret)
        return await self._changed(
            tenant, endpoint, actor, Edit("endpoint.changed", shown, changed, fields, sign, expected)
        )

    async def rotate_secret(
        self,
        tenant: str,
        endpoint: str,
        actor: str,
        *,
        overlap_s: float,
        given: str = "",
        expected: int | None = None,
    ) -> Made:
        """Give an endpoint another secret. Deliveries are signed with both until the overlap ends.

        Args:
            given: the secret; empty for a new one of the same kind.

        Raises:
            NotFound: there is no such endpoint.
            Invalid: the given secret does not fit the style of the endpoint's signatures.
        """
        rotation = Rotation(self._parts.now_us() + round(overlap_s * 1e6) if overlap_s else 0, given=given)
        shown = {"overlap_s": overlap_s, **({"secret": "given"} if given else {})}
        edit = Edit("endpoint.secret_rotated", shown, lambda row: row, sign=rotation, expected=expected)
        return await self._changed(tenant, endpoint, actor, edit)

    async def drop_old_secret(self, tenant: str, endpoint: str) -> None:
        """Remove the secret from before the last rotation."""

        def sign(now: str) -> Signing:
            return Signing(now.partition(" ")[0], 0)

        edit = Edit("endpoint.old_secret_ended", {}, lambda row: row, sign=sign)
        await self._changed(tenant, endpoint, "service", edit)

    async def set_disabled(
        self, tenant: str, endpoint: str, reason: str, actor: str, expected: int | None = None
    ) -> Endpoint:
        """Disable an endpoint, or enable it with an empty reason. A disabled endpoint's deliveries wait.

        Raises:
            NotFound, OtherVersion: as for `change`.
        """
        action = "endpoint.disabled" if reason else "endpoint.enabled"
        note = functools.partial(self._switched, tenant, endpoint, actor, action, {"reason": reason}, expected)
        change = functools.partial(self._parts.app.catalog.set_attributes, also=note)
        disabling = outages.set_disabled(change, topic_of(tenant, endpoint), reason)
        return await self._after(tenant, endpoint, disabling)

    async def set_paused(
        self, tenant: str, endpoint: str, paused: bool, actor: str, expected: int | None = None
    ) -> Endpoint:
        """Pause an endpoint, or resume it. A paused endpoint's deliveries wait.

        Raises:
            NotFound, OtherVersion: as for `change`.
        """
        state, action = (State.PAUSED, "endpoint.paused") if paused else (State.ACTIVE, "endpoint.resumed")
        note = functools.partial(self._switched, tenant, endpoint, actor, action, {}, expected)
        return await self._after(
            tenant, endpoint, self._parts.app.catalog.update(topic_of(tenant, endpoint), state=state, also=note)
        )

    async def delete(self, tenant: str, endpoint: str, actor: str, expected: int | None = None) -> None:
        """Delete an endpoint; its waiting deliveries are cancelled. Safe to repeat. Raises `NotFound`."""

        def mark(connection: sa.Connection) -> Endpoint:
            found = self._rows.find(connection, tenant, endpoint)
            if found is None:
                raise unknown_endpoint(endpoint)
            check_version(f"endpoint {endpoint!r}", expected, found.changed_us)
            self._rows.save(connection, msgspec.structs.replace(found, is_going=True))
            self._tenant_rows.touch(connection, tenant, self._parts.now_us())
            return found

        found = await self._parts.write(mark)
        with contextlib.suppress(errors.UnknownTopic):  # an earlier call has come that far
            await self._parts.app.admin.delete(found.topic, force=True)

        def finish(connection: sa.Connection) -> None:
            reason, now_us = "the endpoint was deleted", self._parts.now_us()
            self._deliveries.end(connection, found.topic, CANCELLED, reason, now_us)
            self._log.delete(connection, found.topic)
            self._rows.delete(connection, tenant, endpoint)
            self.audit(connection, actor, "endpoint.deleted", found, {})

        await self._parts.write(finish)

    async def unlike(self, tenants: Sequence[Tenant]) -> set[str]:
        """Return those of the tenants, by id, whose endpoints do not follow the tenant's cap or pause."""
        owners = {tenant.id: tenant for tenant in tenants}
        found = await self._parts.read(lambda c: self._rows.of_tenants(c, list(owners)))
        topics = await self._parts.topics([endpoint.topic for endpoint in found])
        return {
            endpoint.tenant
            for endpoint in found
            if (topic := topics.get(endpoint.topic)) is not None
            and not endpoint_topics.follows(topic, endpoint, owners[endpoint.tenant])
        }

    async def fit(self, tenant: str, endpoint: str) -> None:
        """Give an endpoint's topic the cap of the rows of tenant and endpoint, and the tenant's pause."""
        found: tuple[Tenant, Endpoint]

        def choose(connection: sa.Connection) -> list[str]:
            nonlocal found
            found = self.existing(connection, tenant, endpoint)
            return [found[1].topic]

        with contextlib.suppress(errors.UnknownTopic, NotFound):  # it is being deleted
            [name] = await self._parts.read(choose)
            if endpoint_topics.follows(await self._parts.app.catalog.get(name), found[1], found[0]):
                return
            change = self._parts.app.admin.update_many
            await change([name], choose, lambda topic: endpoint_topics.following(topic, found[1], found[0]))

    def existing(self, connection: sa.Connection, tenant: str, endpoint: str) -> tuple[Tenant, Endpoint]:
        """Return a tenant and its endpoint, within a transaction. Raises `NotFound`."""
        owner = self._tenants.existing(connection, tenant)
        found = self._rows.find(connection, tenant, endpoint)
        if found is None or found.is_going:
            raise unknown_endpoint(endpoint)
        return owner, found

    def audit(
        self, connection: sa.Connection, actor: str, action: str, endpoint: Endpoint, shown: Mapping[str, Any]
    ) -> None:
        """Write an entry of the audit log in the transaction of the change."""
        self._parts.audit(connection, actor, action, endpoint.id, tenant=endpoint.tenant, changes=shown)

    # ------------------------------------------------------------------------------------------------------- details

    async def _topic(self, endpoint: Endpoint) -> Topic:
        """Return an endpoint's topic. Raises `NotFound` if the endpoint is being deleted."""
        try:
            return await self._parts.app.catalog.get(endpoint.topic)
        except errors.UnknownTopic:
            raise unknown_endpoint(endpoint.id) from None

    async def _live(self, endpoints: Sequence[Endpoint]) -> list[Endpoint]:
        """Return endpoints with the fields that only their topics keep."""
        topics = await self._parts.topics([endpoint.topic for endpoint in endpoints])
        secrets = self._parts.secrets
        return [endpoint_topics.live(endpoint, topics.get(endpoint.topic), secrets) for endpoint in endpoints]

    async def _changed(self, tenant: str, endpoint: str, actor: str, edit: Edit) -> Made:
        """Change topic and row. If somebody else changes the row meanwhile, begin again with the new row."""
        app = self._parts.app
        for _ in range(TRIES):
            owner, before = await self._parts.read(lambda c: self.existing(c, tenant, endpoint))
            check_version(f"endpoint {endpoint!r}", edit.expected, before.changed_us)
            topic = await self._topic(before)
            after, signed = edit.row(before), edit.sign(self._secrets(topic))
            if signed.old_until_us is not None:
                after = msgspec.structs.replace(after, old_secret_until_us=signed.old_until_us)
            there, secrets = topic.options.attributes, self._parts.secrets
            fields = edit.fields.resolved(topic_fields.auth_in(there, before.auth), there, secrets)
            attributes = endpoint_topics.attributes(after, signed.secrets, fields, there, secrets)
            same_url = after.settings.url == before.settings.url
            warnings = await self._checked(after, attributes, fields, reach=not same_url)
            options = endpoint_topics.options(after, attributes)
            qps = endpoint_topics.qps_of(after.settings, owner, attributes)
            saved = after

            def save(connection: sa.Connection, before: Endpoint = before, after: Endpoint = after) -> None:
                nonlocal saved
                saved = self._save(connection, before, after)
                self.audit(connection, actor, edit.action, saved, edit.shown)

            try:
                # A host disables an endpoint, and others rotate its secret, by attributes: never write over theirs.
                topic = await app.admin.update(before.topic, qps=qps, expected_attributes=there, also=save, **options)
            except errors.ChangedMeanwhile:
                continue
            except errors.UnknownTopic:
                raise unknown_endpoint(endpoint) from None
            except errors.InvalidTopic as exc:
                raise Invalid("invalid_request", str(exc)) from exc
            with contextlib.suppress(errors.DatabaseUnavailable):  # it is changed; the upkeep fits it
                await self.fit(tenant, endpoint)
            shown = endpoint_topics.live(saved, topic, self._parts.secrets)
            return Made(shown, signing.shown(signed.made), warnings)
        raise Conflict("changed_meanwhile", f"endpoint {endpoint!r} was changed by others meanwhile; try again")

    def _switched(
        self,
        tenant: str,
        endpoint: str,
        actor: str,
        action: str,
        shown: Mapping[str, Any],
        expected: int | None,
        connection: sa.Connection,
    ) -> None:
        """Note a change of the topic alone, in its transaction: the endpoint has another version from now on."""
        _, found = self.existing(connection, tenant, endpoint)
        check_version(f"endpoint {endpoint!r}", expected, found.changed_us)
        self._rows.save(connection, found.at(self._parts.now_us()))
        self.audit(connection, actor, action, found, shown)

    async def _after(self, tenant: str, endpoint: str, change: Awaitable[object]) -> Endpoint:
        """Make a change of an endpoint's topic; return the endpoint."""
        try:
            await change
        except errors.UnknownTopic:
            raise unknown_endpoint(endpoint) from None
        return await self.get(tenant, endpoint)

    def _save(self, connection: sa.Connection, before: Endpoint, after: Endpoint) -> Endpoint:
        """Write a change, and return what was written. Raises `ChangedMeanwhile` if the row is no longer `before`."""
        now = self._rows.find(connection, before.tenant, before.id)
        if now is None or now.changed_us != before.changed_us or now.is_going:
            raise errors.ChangedMeanwhile(f"endpoint {before.id!r} was changed by others meanwhile; read it again")
        saved = msgspec.structs.replace(after, changed_us=before.at(self._parts.now_us()).changed_us)
        self._rows.save(connection, saved)
        self._tenant_rows.touch(connection, before.tenant, saved.changed_us)
        return saved

    def _secrets(self, topic: Topic) -> str:
        try:
            return self._parts.secrets.decrypt(topic.options.attributes.get("push.secret", ""))
        except ValueError as exc:
            raise Conflict("secret_unreadable", f"the secret of topic {topic.name!r} {exc}") from exc

    async def _checked(
        self, endpoint: Endpoint, attributes: dict[str, str], fields: TopicFields, *, reach: bool = True
    ) -> Sequence[str]:
        """Return warnings. Raises `Invalid`."""
        matching.check_filters(endpoint.settings.filters)
        found = endpoint_topics.check(endpoint, attributes, self._parts.secrets)
        reached = destinations.reached(found.url) if reach else ()
        warnings = [line for url in reached for line in await self._reach.check(url)]
        if found.oauth2 is not None and fields.auth is not None:
            warnings += await self._reach.check(found.oauth2.url, "token_url", "/auth/token_url")
        return warnings

    async def _create_topic(self, endpoint: Endpoint, owner: Tenant, options: dict[str, Any]) -> Topic:
        qps = endpoint_topics.qps_of(endpoint.settings, owner, {})
        try:
            return await self._parts.app.create_topic(
                endpoint.topic, qps, priorities=endpoint.settings.priorities, budget=owner.id, **options
            )
        except errors.UnknownTopic:  # that of the tenant, which was deleted meanwhile
            raise tenancy.unknown(owner.id) from None
        except errors.InvalidTopic as exc:
            raise Invalid("invalid_request", str(exc)) from exc
