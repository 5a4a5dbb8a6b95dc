"""Endpoints: create, change, disable, delete, and new secrets. Each endpoint is a topic `<tenant>.<endpoint>`."""

from __future__ import annotations

import base64
import contextlib
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from emq import errors
from emq.push import handshake, outages
from emq.push.endpoint import URL
from emq.push.records.accepted import Accepted
from emq.push.records.cursors import Page
from emq.push.records.endpoints import Endpoint, Endpoints, EndpointSettings, Handshake
from emq.push.records.tenants import Tenant, Tenants
from emq.push.service import endpoint_topics, matching, tenancy
from emq.push.service.endpoint_topics import Auth, Credentials
from emq.push.service.parts import Parts
from emq.push.service.reach import Reach
from emq.push.service.refusals import Conflict, Invalid, NotFound
from emq.push.service.tenancy import Tenancy
from emq.push.signature import SYMMETRIC
from emq.topics.model import State, Topic

MOST = 100
"""Most endpoints of a tenant."""
SECRET_BYTES = 32
TRIES = 5
"""Most times that a change begins again because somebody else was quicker."""
FIXED = ("priorities",)
"""Settings that never change."""

Change = Callable[[Endpoint], Endpoint]


class Made(NamedTuple):
    """Attributes:
    secret: signs deliveries; nothing shows it again. Empty where no secret was made.
    warnings: each a line for people.
    """

    endpoint: Endpoint
    secret: str
    warnings: Sequence[str] = ()


def new_secret() -> str:
    """Return a secret by Standard Webhooks."""
    return SYMMETRIC + base64.b64encode(os.urandom(SECRET_BYTES)).decode()


class EndpointService:
    """Create, change, read and delete endpoints."""

    def __init__(self, parts: Parts, reach: Reach) -> None:
        self._parts = parts
        self._tenants = Tenancy(parts)
        self._reach = reach
        self._rows = Endpoints(parts.environment)
        self._tenant_rows = Tenants(parts.environment)
        self._accepted = Accepted(parts.environment)

    async def get(self, tenant: str, endpoint: str) -> Endpoint:
        """Return an endpoint. Raises `NotFound`."""
        _, found = await self._parts.read(lambda c: self._existing(c, tenant, endpoint))
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
        *,
        headers: Mapping[str, str] | None = None,
        auth: Auth | None = None,
    ) -> Made:
        """Create an endpoint with a new secret.

        Raises:
            NotFound: there is no such tenant.
            Invalid: a setting is wrong, or the URL leads to an address that push does not connect to.
            Conflict: the tenant has as many endpoints as it may have.
        """
        owner = await self._tenants.get(tenant)
        now_us, secret = self._parts.now_us(), new_secret()
        made = _named(
            Endpoint(
                id=self._parts.new_id("ep"), tenant=tenant, settings=settings, created_us=now_us, changed_us=now_us
            ),
            headers,
            auth,
        )
        credentials = Credentials(secret, headers or {}, auth)
        held = {name: value for name, value in endpoint_topics.pause_of(is_paused=owner.is_paused).items() if value}
        attributes = endpoint_topics.attributes(made, credentials, held, self._parts.secrets)
        warnings = await self._checked(made, attributes)

        def save(connection: sa.Connection) -> None:
            self._tenants.existing(connection, tenant)
            if len(self._rows.of(connection, tenant)) >= MOST:
                raise Conflict("too_many_endpoints", f"tenant {tenant!r} has {MOST} endpoints, which is the most")
            self._rows.save(connection, made)
            self._tenant_rows.touch(connection, tenant, now_us)
            self._audit(connection, actor, "endpoint.created", made, msgspec.to_builtins(settings))

        options = endpoint_topics.options(made, attributes)
        await self._create_topic(made, owner, options)
        try:
            await self._parts.write(save)
        except (Conflict, NotFound):  # the tenant was deleted meanwhile
            with contextlib.suppress(errors.UnknownTopic):
                await self._parts.app.admin.delete(made.topic, force=True)
            raise
        await self._fit(tenant, made.id)
        return Made(made, secret, warnings)

    async def change(
        self,
        tenant: str,
        endpoint: str,
        changes: Mapping[str, Any],
        actor: str,
        *,
        headers: Mapping[str, str] | None = None,
        auth: Auth | None = None,
    ) -> Made:
        """Change settings; the others keep their values. Safe to repeat.

        Args:
            headers: all of them, None to keep those that are there.
            auth: None to keep what is there.

        Raises:
            NotFound, Invalid: as for `create`; `Invalid` also for a setting that never changes.
        """

        def changed(before: Endpoint) -> Endpoint:
            settings = msgspec.convert({**msgspec.to_builtins(before.settings), **changes}, EndpointSettings)
            for name in FIXED:
                if getattr(settings, name) != getattr(before.settings, name):
                    text = f"{name} never change; create another endpoint and delete this one"
                    raise Invalid("invalid_request", text, f"/{name}")
            handshake = before.handshake
            if handshake is not None and settings.url != before.settings.url:
                handshake = msgspec.structs.replace(handshake, state="outdated")
            return _named(msgspec.structs.replace(before, settings=settings, handshake=handshake), headers, auth)

        shown = {**changes, **({} if headers is None else {"header_names": list(headers)})}
        shown |= {} if auth is None else {"auth": auth.type}
        return await self._changed(tenant, endpoint, actor, "endpoint.changed", changed, shown, headers, auth)

    async def rotate_secret(self, tenant: str, endpoint: str, actor: str, *, overlap_s: float) -> Made:
        """Give an endpoint a new secret. Deliveries are signed with both until the overlap ends.

        Raises:
            NotFound: there is no such endpoint.
        """
        secret = new_secret()
        until_us = self._parts.now_us() + round(overlap_s * 1e6) if overlap_s else 0

        def changed(before: Endpoint) -> Endpoint:
            return msgspec.structs.replace(before, old_secret_until_us=until_us)

        def secrets(now: str) -> str:
            # Where the change begins again, the topic may have the new secret already.
            before = [each for each in now.split() if each != secret]
            return f"{secret} {before[0]}" if overlap_s and before else secret

        shown = {"overlap_s": overlap_s}
        action = "endpoint.secret_rotated"
        made = await self._changed(tenant, endpoint, actor, action, changed, shown, secrets=secrets)
        return made._replace(secret=secret)

    async def drop_old_secret(self, tenant: str, endpoint: str) -> None:
        """Take away the secret before the last rotation."""

        def changed(before: Endpoint) -> Endpoint:
            return msgspec.structs.replace(before, old_secret_until_us=0)

        action = "endpoint.old_secret_ended"
        await self._changed(tenant, endpoint, "service", action, changed, {}, secrets=lambda now: now.partition(" ")[0])

    async def set_disabled(self, tenant: str, endpoint: str, reason: str, actor: str) -> Endpoint:
        """Disable an endpoint, or enable it with an empty reason. A disabled endpoint's deliveries wait."""
        _, found = await self._parts.read(lambda c: self._existing(c, tenant, endpoint))
        action = "endpoint.disabled" if reason else "endpoint.enabled"
        change = functools.partial(
            self._parts.app.catalog.set_attributes,
            also=lambda c: self._audit(c, actor, action, found, {"reason": reason}),
        )
        try:
            await (outages.disable(change, found.topic, reason) if reason else outages.enable(change, found.topic))
        except errors.UnknownTopic:
            raise unknown(endpoint) from None
        return (await self._live([found]))[0]

    async def set_paused(self, tenant: str, endpoint: str, paused: bool, actor: str) -> Endpoint:
        """Pause an endpoint, or resume it. A paused endpoint's deliveries wait."""
        _, found = await self._parts.read(lambda c: self._existing(c, tenant, endpoint))
        state, action = (State.PAUSED, "endpoint.paused") if paused else (State.ACTIVE, "endpoint.resumed")
        try:
            await self._parts.app.catalog.update(
                found.topic, state=state, also=lambda c: self._audit(c, actor, action, found, {})
            )
        except errors.UnknownTopic:
            raise unknown(endpoint) from None
        return (await self._live([found]))[0]

    async def shake_hands(self, tenant: str, endpoint: str, origin: str, actor: str) -> Handshake:
        """Ask an endpoint whether it wants deliveries, and how many; what it allows binds from now on.

        Args:
            origin: a DNS name for the sending system as a whole.

        Raises:
            NotFound: there is no such endpoint.
            Conflict: its URL was changed meanwhile.
        """
        owner, found = await self._parts.read(lambda c: self._existing(c, tenant, endpoint))
        topic, now_us = await self._topic(found), self._parts.now_us()
        target = endpoint_topics.check(found, topic.options.attributes, self._parts.secrets)
        qps = endpoint_topics.qps_of(found.settings, owner, {})
        try:
            allowed = await handshake.handshake(target, origin, qps, self._reach.addresses)
        except errors.InvalidTopic as exc:
            outcome = Handshake(origin, "refused", now_us, reason=str(exc))
            await self._parts.write(lambda c: self._note(c, tenant, endpoint, outcome, actor))
        else:
            outcome = Handshake(origin, "agreed", now_us, allowed.rate_per_min)
            change, note = self._parts.app.catalog.set_attributes, self._note
            after = await change(
                found.topic,
                allowed.attributes,
                {URL: found.settings.url},
                also=lambda c: note(c, tenant, endpoint, outcome, actor),
            )
            if after.options.attributes.get(URL) != found.settings.url:
                text = f"the URL of endpoint {endpoint!r} was changed meanwhile; ask again"
                raise Conflict("changed_meanwhile", text)
        await self._fit(tenant, endpoint)
        return outcome

    def _note(self, connection: sa.Connection, tenant: str, endpoint: str, outcome: Handshake, actor: str) -> None:
        _, now = self._existing(connection, tenant, endpoint)
        changed_us = max(self._parts.now_us(), now.changed_us + 1)
        self._rows.save(connection, msgspec.structs.replace(now, handshake=outcome, changed_us=changed_us))
        shown = {name: value for name, value in msgspec.to_builtins(outcome).items() if name != "at_us"}
        self._audit(connection, actor, "endpoint.handshake", now, shown)

    async def delete(self, tenant: str, endpoint: str, actor: str) -> None:
        """Delete an endpoint; its waiting deliveries are cancelled. Safe to repeat. Raises `NotFound`."""

        def mark(connection: sa.Connection) -> Endpoint:
            found = self._rows.find(connection, tenant, endpoint)
            if found is None:
                raise unknown(endpoint)
            self._rows.save(connection, msgspec.structs.replace(found, is_going=True))
            self._tenant_rows.touch(connection, tenant, self._parts.now_us())
            return found

        found = await self._parts.write(mark)
        with contextlib.suppress(errors.UnknownTopic):  # an earlier call has come that far
            await self._parts.app.admin.delete(found.topic, force=True)

        def finish(connection: sa.Connection) -> None:
            self._accepted.cancel(connection, found.topic, "the endpoint was deleted", self._parts.now_us())
            self._rows.delete(connection, tenant, endpoint)
            self._audit(connection, actor, "endpoint.deleted", found, {})

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

    async def follow(self, tenant: Tenant) -> None:
        """Let a tenant's endpoints follow its cap and its pause, after these have changed. Safe to repeat."""
        for endpoint in await self._parts.read(lambda c: self._rows.of(c, tenant.id)):
            await self._fit(tenant.id, endpoint.id)

    # ------------------------------------------------------------------------------------------------------- details

    async def _fit(self, tenant: str, endpoint: str) -> None:
        """Give an endpoint's topic the cap that the rows of tenant and endpoint say, and the tenant's pause.

        Looks again after each write: of several who change the rows at once, the last writer sees the last rows.
        """
        with contextlib.suppress(errors.UnknownTopic, NotFound):  # it is being deleted
            while True:
                owner, found = await self._parts.read(lambda c: self._existing(c, tenant, endpoint))
                topic = await self._parts.app.catalog.get(found.topic)
                if endpoint_topics.follows(topic, found, owner):
                    return
                pause = endpoint_topics.pause_of(is_paused=owner.is_paused)
                topic = await self._parts.app.catalog.set_attributes(found.topic, pause, {})
                qps = endpoint_topics.qps_of(found.settings, owner, topic.options.attributes)
                if topic.qps != qps:
                    await self._parts.app.update_topic(found.topic, qps=qps)

    async def _topic(self, endpoint: Endpoint) -> Topic:
        """Return an endpoint's topic. Raises `NotFound` if the endpoint is being deleted."""
        try:
            return await self._parts.app.catalog.get(endpoint.topic)
        except errors.UnknownTopic:
            raise unknown(endpoint.id) from None

    async def _live(self, endpoints: Sequence[Endpoint]) -> list[Endpoint]:
        """Return endpoints with what their topics alone know."""
        topics = await self._parts.topics([endpoint.topic for endpoint in endpoints])
        return [endpoint_topics.live(endpoint, topics.get(endpoint.topic)) for endpoint in endpoints]

    def _existing(self, connection: sa.Connection, tenant: str, endpoint: str) -> tuple[Tenant, Endpoint]:
        owner = self._tenants.existing(connection, tenant)
        found = self._rows.find(connection, tenant, endpoint)
        if found is None or found.is_going:
            raise unknown(endpoint)
        return owner, found

    async def _changed(
        self,
        tenant: str,
        endpoint: str,
        actor: str,
        action: str,
        change: Change,
        shown: Mapping[str, Any],
        headers: Mapping[str, str] | None = None,
        auth: Auth | None = None,
        secrets: Callable[[str], str] = str,
    ) -> Made:
        """Change topic and row. If somebody else changes the row meanwhile, begin again with what is there then."""
        app = self._parts.app
        for _ in range(TRIES):
            owner, before = await self._parts.read(lambda c: self._existing(c, tenant, endpoint))
            after = change(before)
            topic = await self._topic(before)
            credentials = Credentials(secrets(self._secrets(topic)), headers, auth)
            attributes = endpoint_topics.attributes(after, credentials, topic.options.attributes, self._parts.secrets)
            same_url = after.settings.url == before.settings.url
            warnings = await self._checked(after, attributes, reach=not same_url)
            options = endpoint_topics.options(after, attributes)
            qps = endpoint_topics.qps_of(after.settings, owner, attributes)
            saved = after

            def save(connection: sa.Connection, before: Endpoint = before, after: Endpoint = after) -> None:
                nonlocal saved
                saved = self._save(connection, before, after)
                self._audit(connection, actor, action, saved, shown)

            try:
                # A host disables an endpoint, and others rotate its secret, by attributes: never write over theirs.
                expected = topic.options.attributes
                await app.admin.update(before.topic, qps=qps, expected_attributes=expected, also=save, **options)
            except errors.ChangedMeanwhile:
                continue
            except errors.UnknownTopic:
                raise unknown(endpoint) from None
            except errors.InvalidTopic as exc:
                raise Invalid("invalid_request", str(exc)) from exc
            await self._fit(tenant, endpoint)
            return Made(endpoint_topics.live(saved, topic), "", warnings)
        raise Conflict("changed_meanwhile", f"endpoint {endpoint!r} was changed by others meanwhile; try again")

    def _save(self, connection: sa.Connection, before: Endpoint, after: Endpoint) -> Endpoint:
        """Write a change, and return what was written. Raises `ChangedMeanwhile` if the row is no longer `before`."""
        now = self._rows.find(connection, before.tenant, before.id)
        if now is None or now.changed_us != before.changed_us or now.is_going:
            raise errors.ChangedMeanwhile(f"endpoint {before.id!r} was changed by others meanwhile; read it again")
        saved = msgspec.structs.replace(after, changed_us=max(self._parts.now_us(), before.changed_us + 1))
        self._rows.save(connection, saved)
        self._tenant_rows.touch(connection, before.tenant, saved.changed_us)
        return saved

    def _audit(
        self, connection: sa.Connection, actor: str, action: str, endpoint: Endpoint, shown: Mapping[str, Any]
    ) -> None:
        self._parts.audit(connection, actor, action, endpoint.id, tenant=endpoint.tenant, changes=shown)

    def _secrets(self, topic: Topic) -> str:
        try:
            return self._parts.secrets.decrypt(topic.options.attributes.get("push.secret", ""))
        except ValueError as exc:
            raise Conflict("secret_unreadable", f"the secret of topic {topic.name!r} {exc}") from exc

    async def _checked(self, endpoint: Endpoint, attributes: dict[str, str], *, reach: bool = True) -> Sequence[str]:
        for number, filter_ in enumerate(endpoint.settings.filters):
            try:
                matching.check(filter_)
            except ValueError as exc:
                raise Invalid("invalid_request", str(exc), f"/filters/{number}") from exc
        found = endpoint_topics.check(endpoint, attributes, self._parts.secrets)
        return await self._reach.check(found.url) if reach else []

    async def _create_topic(self, endpoint: Endpoint, owner: Tenant, options: dict[str, Any]) -> None:
        qps = endpoint_topics.qps_of(endpoint.settings, owner, {})
        try:
            await self._parts.app.create_topic(
                endpoint.topic, qps, priorities=endpoint.settings.priorities, budget=owner.id, **options
            )
        except errors.UnknownTopic:  # that of the tenant, which was deleted meanwhile
            raise tenancy.unknown(owner.id) from None
        except errors.InvalidTopic as exc:
            raise Invalid("invalid_request", str(exc)) from exc


def unknown(endpoint: str) -> NotFound:
    return NotFound("unknown_endpoint", f"the tenant has no endpoint {endpoint[:80]!r}")


def _named(endpoint: Endpoint, headers: Mapping[str, str] | None, auth: Auth | None) -> Endpoint:
    """Return the endpoint with its headers' names and the kind of its authentication, as far as they are given."""
    if headers is not None:
        endpoint = msgspec.structs.replace(endpoint, header_names=tuple(headers))
    if auth is not None:
        endpoint = msgspec.structs.replace(endpoint, auth=auth.type)
    return endpoint
