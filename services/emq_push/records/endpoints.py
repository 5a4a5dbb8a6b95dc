"""The rows of endpoints. Secrets and the values of headers are in the attributes of an endpoint's topic alone."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from types import GenericAlias
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import sqlalchemy as sa
from msgspec import Meta

from emq.topics.model import DEFAULT_PRIORITIES, MAX_DELAY_S
from emq_push.endpoint import DEFAULT_TIMEOUT_S, Batch
from emq_push.endpoint_values import MAX_TIMEOUT_S, MAX_URL_LENGTH, MIN_TIMEOUT_S
from emq_push.records import cursors, rows
from emq_push.records.cursors import Page
from emq_push.records.tables import endpoints as table
from emq_push.schedule import RECOMMENDED_JITTER, RECOMMENDED_S
from emq_push.signature import Kind
from emq_push.styles import STANDARD

END = r"\Z"
"""The end of a text in Python's patterns; `$` also matches before a last line feed."""
_NAME = r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*"
EVENT_TYPE = rf"^{_NAME}$"
"""The form of an event type, as a regular expression."""
EVENT_TYPES = rf"^({_NAME}(\.\*)?|\*)$"
"""The form of an endpoint's event type: names, `order.*` for all below `order`, or `*` for all."""
SAFE = 1 << 53
"""Beyond this, whole numbers of JSON are not exact in many languages."""

Scalar: TypeAlias = (
    Annotated[str, Meta(max_length=1000)] | Annotated[int, Meta(ge=-SAFE, le=SAFE)] | float | bool | None
)
Operator = Literal["eq", "ne", "in", "gt", "gte", "lt", "lte", "prefix", "exists"]


class Filter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A condition on one field of a JSON payload.

    Attributes:
        field: names from the outside in, with dots between them, such as data.amount.
        value: a list for "in", a text for "prefix", true or false for "exists".
    """

    field: Annotated[str, Meta(min_length=1, max_length=200)]
    op: Operator
    value: Scalar | Annotated[tuple[Scalar, ...], Meta(max_length=100)]


EventTypes = Annotated[str, Meta(max_length=128, pattern=EVENT_TYPES[:-1] + END)]
Channel = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,128}" + END)]
Priority = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,32}" + END)]
Wait = Annotated[float, Meta(ge=0, le=30 * 86_400)]


class EndpointSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A caller's settings of an endpoint, without secrets.

    Attributes:
        url: http or https.
        description: for people.
        event_types: which messages it gets: names, order.* for all below order, or * for all.
        filters: all of them must hold for a message.
        channels: a message must name one of them; empty for all messages.
        qps: most deliveries started in a second; None for as many as the tenant has. Never above the tenant's.
        priorities: names, highest first; they never change.
        retry_schedule_s: seconds to wait after the first, second ... failed attempt. One attempt more, then the message
            is dead.
        jitter: each wait is shortened by a random part of up to this fraction.
        timeout_s: for each attempt.
        ttl_s: seconds after which an undelivered message is dead; None for never.
        durability: the state of a message in the store for which a POST of messages waits.
    """

    url: Annotated[str, Meta(min_length=1, max_length=MAX_URL_LENGTH)]
    description: Annotated[str, Meta(max_length=500)] = ""
    event_types: Annotated[tuple[EventTypes, ...], Meta(min_length=1, max_length=100)] = ("*",)
    filters: Annotated[tuple[Filter, ...], Meta(max_length=10)] = ()
    channels: Annotated[tuple[Channel, ...], Meta(max_length=10)] = ()
    qps: Annotated[float, Meta(ge=1e-6, le=1e6)] | None = None
    priorities: Annotated[tuple[Priority, ...], Meta(min_length=1, max_length=16)] = DEFAULT_PRIORITIES
    retry_schedule_s: Annotated[tuple[Wait, ...], Meta(max_length=100)] = RECOMMENDED_S
    jitter: Annotated[float, Meta(ge=0, le=1)] = RECOMMENDED_JITTER
    timeout_s: Annotated[float, Meta(ge=MIN_TIMEOUT_S, le=MAX_TIMEOUT_S)] = DEFAULT_TIMEOUT_S
    ttl_s: Annotated[float, Meta(ge=0.001, le=MAX_DELAY_S)] | None = None
    durability: Literal["accepted", "replicated", "fsynced"] = "accepted"


class Handshake(msgspec.Struct, frozen=True):
    """The last handshake of CloudEvents webhooks with an endpoint.

    Attributes:
        origin: the sender for whom it asked.
        state: "asked" until a host has asked; "agreed"; "refused", also for no answer; "outdated" once the endpoint has
            another URL.
        rate_per_min: most deliveries a minute that the endpoint allows; None for any number, and if it refused.
        reason: why it refused.
    """

    origin: str
    state: Literal["asked", "agreed", "refused", "outdated"]
    at_us: int
    rate_per_min: int | None = None
    reason: str = ""


class Kept(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the row of an endpoint keeps as JSON.

    Attributes:
        header_names: headers that each request carries besides those of EMQ.
        auth: the kind of authentication: "none", "bearer", "basic", "header" or "oauth2".
        old_secret_until_us: when the secret before the last rotation ends; 0 if there is none.
        is_going: it is being deleted; it gets no messages.
        handshake: None if nobody asked the endpoint.
    """

    settings: EndpointSettings
    header_names: tuple[str, ...] = ()
    auth: str = "none"
    old_secret_until_us: int = 0
    is_going: bool = False
    handshake: Handshake | None = None


class Endpoint(Kept, frozen=True, kw_only=True):
    """An endpoint. Its topic knows, and not its row, whether it is in use, and how messages are sent.

    Attributes:
        disabled: why it gets nothing until somebody enables it; empty if it is enabled. Of the topic.
        is_paused: deliveries wait until somebody resumes them. Of the topic.
        batch: how messages share a request; None if each has its own. Of the topic.
        signature: the kind of its signatures; None for none, or if this process cannot decrypt their secret. Of the
            topic.
        public_key: checks signatures of ed25519; empty for others. Of the topic.
        signing: the style of its signatures. Of the topic.
        template: rewrites payloads; None to send them as they are. Of the topic.
    """

    id: str
    tenant: str
    disabled: str = ""
    is_paused: bool = False
    batch: Batch | None = None
    signature: Kind | None = None
    public_key: str = ""
    signing: str = STANDARD
    template: dict[str, Any] | None = None
    created_us: int = 0
    changed_us: int = 0

    @property
    def topic(self) -> str:
        return topic_of(self.tenant, self.id)

    def at(self, now_us: int) -> Endpoint:
        """Return the endpoint as changed now."""
        return msgspec.structs.replace(self, changed_us=max(now_us, self.changed_us + 1))


def topic_of(tenant: str, endpoint: str) -> str:
    """Return the name of an endpoint's topic."""
    return f"{tenant}.{endpoint}"


def topics_of(tenant: str) -> tuple[str, str]:
    """Return the names by which hosts measure a tenant's topic, and the topics of all its endpoints together."""
    return tenant, topic_of(tenant, "ep_*")


def tenant_of(topic: str) -> str:
    """Return the tenant that an endpoint's topic belongs to; another topic is its own tenant."""
    tenant, between, _ = topic.rpartition(topic_of("", "ep_"))
    return tenant if between else topic


def endpoint_of(topic: str) -> str:
    """Return the id of the endpoint that has this topic."""
    return topic.rpartition(".")[2]


def _without_ranges(kind: type[msgspec.Struct], **others: Any) -> Any:
    """Return a struct with the same fields, but without their ranges.

    Args:
        others: types of fields that have other ones.
    """
    types = typing.get_type_hints(kind) | others
    fields = [
        (each.name, types[each.name]) if each.required else (each.name, types[each.name], each.default)
        for each in msgspec.structs.fields(kind)
    ]
    is_closed = kind.__struct_config__.forbid_unknown_fields
    return msgspec.defstruct(kind.__name__, fields, frozen=True, kw_only=True, forbid_unknown_fields=is_closed)


# The ranges are for what comes in: `emq push endpoint` of an earlier version stored values beyond them.
_Filter = _without_ranges(Filter)
_Settings = _without_ranges(EndpointSettings, filters=GenericAlias(tuple, (_Filter, ...)))
_decode = msgspec.json.Decoder(_without_ranges(Kept, settings=_Settings)).decode


def _kept(body: str) -> dict[str, Any]:
    kept = msgspec.structs.asdict(_decode(body))
    settings = msgspec.structs.asdict(kept["settings"])
    settings["filters"] = tuple(Filter(each.field, each.op, each.value) for each in settings["filters"])
    return {**kept, "settings": EndpointSettings(**settings)}


class Endpoints(rows.Rows):
    """The endpoints."""

    table = table

    def find(self, connection: sa.Connection, tenant: str, endpoint: str) -> Endpoint | None:
        query = sa.select(table).where(self._mine, table.c.topic == topic_of(tenant, endpoint))
        row = connection.execute(query).one_or_none()
        return None if row is None else _endpoint(row)

    def of(self, connection: sa.Connection, tenant: str) -> Sequence[Endpoint]:
        """Return all endpoints of a tenant, by id; also those that are being deleted."""
        query = sa.select(table).where(self._mine, table.c.tenant == tenant).order_by(table.c.endpoint)
        return [_endpoint(row) for row in connection.execute(query)]

    def of_tenants(self, connection: sa.Connection, tenants: Sequence[str]) -> Sequence[Endpoint]:
        """Return all endpoints of some tenants, at most 500 of them."""
        query = sa.select(table).where(self._mine, table.c.tenant.in_(tenants))
        return [_endpoint(row) for row in connection.execute(query)]

    def save(self, connection: sa.Connection, endpoint: Endpoint) -> None:
        """Write an endpoint, new or changed."""
        body = Kept(**{name: getattr(endpoint, name) for name in Kept.__struct_fields__})
        row = {
            "environment": self._environment,
            "topic": endpoint.topic,
            "tenant": endpoint.tenant,
            "endpoint": endpoint.id,
            "body": msgspec.json.encode(body).decode(),
            "created_us": endpoint.created_us,
            "changed_us": endpoint.changed_us,
        }
        rows.upsert(connection, table, [row])

    def page(self, connection: sa.Connection, tenant: str, limit: int, cursor: str) -> Page[Endpoint]:
        """Return endpoints of a tenant by id, so in the order of their making. Raises `InvalidCursor`."""
        query = sa.select(table).where(self._mine, table.c.tenant == tenant)
        return cursors.read(connection, query, [table.c.endpoint], _endpoint, limit, cursor)

    def delete(self, connection: sa.Connection, tenant: str, endpoint: str) -> None:
        connection.execute(sa.delete(table).where(self._mine, table.c.topic == topic_of(tenant, endpoint)))

    def delete_of(self, connection: sa.Connection, tenant: str) -> None:
        """Delete all endpoints of a tenant."""
        connection.execute(sa.delete(table).where(self._mine, table.c.tenant == tenant))


def _endpoint(row: sa.Row[tuple[object, ...]]) -> Endpoint:
    kept = _kept(row.body)
    return Endpoint(id=row.endpoint, tenant=row.tenant, created_us=row.created_us, changed_us=row.changed_us, **kept)
