"""The forms of endpoints in requests and answers."""

from __future__ import annotations

import datetime
from collections.abc import Container
from typing import Annotated, Any, Literal

import msgspec
import pydantic

from emq.topics.model import MAX_DELAY_S
from emq_push.endpoint import DEFAULT_BATCH_MS, MAX_BATCH, MAX_BATCH_MS
from emq_push.endpoint_values import MAX_TIMEOUT_S, MAX_URL_LENGTH, MIN_TIMEOUT_S
from emq_push.records.endpoints import Batch, Endpoint, EndpointSettings, Operator
from emq_push.service.endpoints import Made
from emq_push.service.matching import EVENT_TYPES
from emq_push.service.topic_fields import Auth, TopicFields
from emq_push.signature import Kind
from emq_web import forms

_DEFAULTS = EndpointSettings(url="")
OF_TOPIC = {"headers", "auth", "batch", "signature"}
"""Fields that only the endpoint's topic knows, and no row."""
_SAFE = 1 << 53
"""Beyond this, whole numbers of JSON are not exact in many languages."""

Url = Annotated[str, pydantic.Field(min_length=1, max_length=MAX_URL_LENGTH, description="http or https")]
Text = Annotated[str, pydantic.Field(max_length=1000)]
Whole = Annotated[int, pydantic.Field(ge=-_SAFE, le=_SAFE)]
Scalar = bool | Whole | float | Text | None
Wait = Annotated[float, pydantic.Field(ge=0, le=30 * 86_400)]


class FilterBody(forms.Body):
    """A condition on one field of a JSON payload."""

    field: str = pydantic.Field(min_length=1, max_length=200, description="such as data.amount")
    op: Operator
    value: Scalar | Annotated[list[Scalar], pydantic.Field(max_length=100)] = pydantic.Field(
        description='a list for "in", a text for "prefix", true or false for "exists"'
    )


class AuthBody(forms.Body):
    """How requests to the endpoint authenticate."""

    type: Literal["none", "bearer", "basic", "header", "oauth2"]
    token: str = pydantic.Field("", max_length=4000, description='for "bearer"')
    username: str = pydantic.Field("", max_length=500, description='for "basic"')
    password: str = pydantic.Field("", max_length=500, description='for "basic"')
    name: str = pydantic.Field("", max_length=100, description='for "header"')
    value: str = pydantic.Field("", max_length=4000, description='for "header"')
    token_url: str = pydantic.Field(
        "", max_length=MAX_URL_LENGTH, description='for "oauth2", by client credentials: http or https'
    )
    client_id: str = pydantic.Field("", max_length=500, description='for "oauth2"')
    client_secret: str = pydantic.Field("", max_length=4000, description='for "oauth2"')
    scope: str = pydantic.Field("", max_length=1000, description='for "oauth2"; empty for the server\'s default')


class BatchBody(forms.Body):
    """How messages share a request."""

    most: int = pydantic.Field(ge=2, le=MAX_BATCH, description="most messages of one request")
    wait_s: float = pydantic.Field(
        DEFAULT_BATCH_MS / 1000,
        ge=0,
        le=MAX_BATCH_MS / 1000,
        description="most seconds that a message waits for others",
    )
    format: Literal["json", "lines"] = pydantic.Field(
        "json", description="a JSON array of the payloads, or one payload a line"
    )


class EndpointBody(forms.Body):
    """A caller's settings of an endpoint."""

    url: Url
    description: str = pydantic.Field("", max_length=500, description="for people")
    event_types: list[Annotated[str, pydantic.Field(max_length=128, pattern=EVENT_TYPES)]] = pydantic.Field(
        ["*"], min_length=1, max_length=100, description="names, order.* for all below order, or * for all"
    )
    filters: list[FilterBody] = pydantic.Field([], max_length=10, description="all must hold for a message")
    qps: float | None = pydantic.Field(
        None, ge=1e-6, le=1e6, description="most deliveries started in a second; null for the tenant's"
    )
    priorities: list[Annotated[str, pydantic.Field(pattern=r"^[A-Za-z0-9_.-]{1,32}$")]] = pydantic.Field(
        list(_DEFAULTS.priorities), min_length=1, max_length=16, description="names, highest first; they never change"
    )
    retry_schedule_s: list[Wait] = pydantic.Field(
        list(_DEFAULTS.retry_schedule_s),
        max_length=100,
        description="waits after the first, second ... failed attempt; one attempt more, then the message is dead",
    )
    jitter: float = pydantic.Field(0.1, ge=0, le=1, description="each wait is shortened by up to this fraction")
    timeout_s: float = pydantic.Field(10.0, ge=MIN_TIMEOUT_S, le=MAX_TIMEOUT_S, description="for each attempt")
    ttl_s: float | None = pydantic.Field(
        None, ge=0.001, le=MAX_DELAY_S, description="after this time an undelivered message is dead; null for never"
    )
    durability: Literal["accepted", "replicated", "fsynced"] = pydantic.Field(
        "accepted", description="the state of a message in the store for which a POST of messages waits"
    )
    headers: dict[str, Annotated[str, pydantic.Field(max_length=4096)]] = pydantic.Field(
        {}, max_length=20, description="of each request; values are never shown again"
    )
    auth: AuthBody = pydantic.Field(AuthBody.model_validate({"type": "none"}), description="never shown again")
    batch: BatchBody | None = pydantic.Field(None, description="null for a request of its own for each message")
    signature: Kind = pydantic.Field(
        "hmac", description='"hmac" with a secret that the receiver shares, or "ed25519" with a public key'
    )


def _without_defaults(schema: dict[str, Any]) -> None:
    for each in schema["properties"].values():
        each.pop("default", None)


class EndpointChanges(EndpointBody):
    """Settings to change; those that are left out keep their values."""

    model_config = pydantic.ConfigDict(json_schema_extra=_without_defaults)

    url: Url = ""


class BatchShown(forms.Shown):
    """How messages share a request."""

    most: int
    wait_s: float
    format: Literal["json", "lines"]


class EndpointShown(forms.Shown):
    """An endpoint."""

    id: str
    url: str
    description: str
    event_types: list[str]
    filters: list[dict[str, Any]]
    qps: float | None
    priorities: list[str]
    retry_schedule_s: list[float]
    jitter: float
    timeout_s: float
    ttl_s: float | None
    durability: str
    header_names: list[str]
    auth: str = pydantic.Field(description="the type of authentication")
    batch: BatchShown | None = pydantic.Field(description="null if each message has a request of its own")
    signature: Kind | None = pydantic.Field(
        description="null for none, or if the service lacks the key with which the secret is encrypted"
    )
    public_key: str | None = pydantic.Field(description="checks signatures of ed25519; null for others")
    disabled: str | None = pydantic.Field(description="why it gets nothing until somebody enables it; null if it does")
    paused: bool = pydantic.Field(description="by itself; the tenant has a pause of its own")
    old_secret_until: datetime.datetime | None = pydantic.Field(
        description="until then, deliveries are signed with the secret before the last rotation, too"
    )
    created: datetime.datetime
    changed: datetime.datetime


class EndpointChanged(EndpointShown):
    """An endpoint after a change."""

    warnings: list[str] = pydantic.Field(description="what is not wrong, but looks like a mistake")
    secret: str | None = pydantic.Field(
        description="a new one, which nothing shows again; null unless `signature` has become hmac"
    )


class EndpointMade(EndpointChanged):
    """An endpoint with a new secret."""

    secret: str | None = pydantic.Field(
        description="verifies deliveries by Standard Webhooks; nothing shows it again; null for ed25519"
    )


class EndpointPage(forms.Shown):
    """Endpoints in the order of their making."""

    data: list[EndpointShown]
    next: str | None = pydantic.Field(description="cursor of the next page; null on the last one")


def _fields(endpoint: Endpoint) -> dict[str, Any]:
    return {
        **msgspec.to_builtins(endpoint.settings),
        "id": endpoint.id,
        "header_names": endpoint.header_names,
        "auth": endpoint.auth,
        "batch": None if endpoint.batch is None else msgspec.to_builtins(endpoint.batch),
        "signature": endpoint.signature,
        "public_key": endpoint.public_key or None,
        "disabled": endpoint.disabled or None,
        "paused": endpoint.is_paused,
        "old_secret_until": forms.time_or_none(endpoint.old_secret_until_us),
        "created": forms.time(endpoint.created_us),
        "changed": forms.time(endpoint.changed_us),
    }


def shown(endpoint: Endpoint) -> EndpointShown:
    return EndpointShown(**_fields(endpoint))


def made_shown(made: Made) -> EndpointMade:
    return EndpointMade(**_fields(made.endpoint), secret=made.secret or None, warnings=list(made.warnings))


def changed_shown(made: Made) -> EndpointChanged:
    return EndpointChanged(**_fields(made.endpoint), secret=made.secret or None, warnings=list(made.warnings))


def topic_fields(body: EndpointBody, given: Container[str]) -> TopicFields:
    """Return the fields that only the topic keeps.

    Args:
        given: the names of the fields that count; others stay as they are.
    """
    batch = None if body.batch is None else Batch(**body.batch.model_dump())
    return TopicFields(
        headers=body.headers if "headers" in given else None,
        auth=Auth(**body.auth.model_dump()) if "auth" in given else None,
        batch=batch if "batch" in given else msgspec.UNSET,
        signature=body.signature if "signature" in given else None,
    )
