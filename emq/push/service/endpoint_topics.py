"""An endpoint's topic: what its settings are as options and attributes."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from emq import errors
from emq.push import endpoint as delivered
from emq.push.records.endpoints import Endpoint, EndpointSettings
from emq.push.records.tenants import Tenant
from emq.push.secrets import Secrets
from emq.push.service.refusals import Invalid
from emq.topics import allowed_rates, model

TENANT = "tenant"
"""The attribute that names the tenant of a topic."""
_HEADERS = "push.headers."
_AUTH = "push-auth"
"""The attribute that tells which header authenticates, so that a change of the others leaves it alone."""


class Auth(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How requests authenticate.

    Attributes:
        type: "bearer" needs `token`, "basic" needs `username` and `password`, "header" needs `name` and `value`.
    """

    type: Literal["none", "bearer", "basic", "header"]
    token: str = ""
    username: str = ""
    password: str = ""
    name: str = ""
    value: str = ""

    def __repr__(self) -> str:
        """Show the type alone: a repr gets into logs and error reports."""
        return f"Auth(type={self.type!r})"

    def header(self) -> tuple[str, str] | None:
        """Return the header, None if there is none. Raises `Invalid`."""
        needed = {"bearer": ("token",), "basic": ("username", "password"), "header": ("name", "value")}
        names = needed.get(self.type, ())
        for field in ("token", "username", "password", "name", "value"):
            if bool(getattr(self, field)) != (field in names):
                what = f"needs {field}" if field in names else f"takes no {field}"
                raise Invalid("invalid_request", f"auth of type {self.type!r} {what}", f"/auth/{field}")
        match self.type:
            case "bearer":
                return "Authorization", f"Bearer {self.token}"
            case "basic":
                if ":" in self.username:
                    raise Invalid("invalid_request", "a username must not contain a colon", "/auth/username")
                pair = f"{self.username}:{self.password}".encode()
                return "Authorization", f"Basic {base64.b64encode(pair).decode()}"
            case "header":
                return self.name, self.value
        return None


class Credentials(msgspec.Struct, frozen=True):
    """What only the topic knows, and no row.

    Attributes:
        secrets: of the signatures, the newest first, with spaces between them.
        headers: without the one that authenticates; None to keep those that are there.
        auth: None to keep what is there.
    """

    secrets: str
    headers: Mapping[str, str] | None = None
    auth: Auth | None = None

    def __repr__(self) -> str:
        return "Credentials(***)"


def attributes(
    endpoint: Endpoint, credentials: Credentials, before: Mapping[str, str], secrets: Secrets
) -> dict[str, str]:
    """Return the attributes of an endpoint's topic. Those that are not of the settings stay as they are.

    Args:
        before: the attributes that the topic has now.

    Raises:
        Invalid: a header or the authentication is wrong.
    """
    found = dict(before)
    if credentials.auth is not None:
        found.pop(_HEADERS + found.pop(_AUTH, ""), None)
    auth_name = found.get(_AUTH, "")
    if credentials.headers is not None:
        for name in [name for name in found if name.startswith(_HEADERS) and name != _HEADERS + auth_name]:
            del found[name]
        found |= {_HEADERS + name: secrets.encrypt(value) for name, value in credentials.headers.items()}
    if credentials.auth is not None and (header := credentials.auth.header()) is not None:
        auth_name, value = header
        found |= {_HEADERS + auth_name: secrets.encrypt(value), _AUTH: auth_name}
    if auth_name:
        _check_apart(auth_name, endpoint)
    return found | {
        TENANT: endpoint.tenant,
        "push.url": endpoint.settings.url,
        "push.timeout_s": f"{endpoint.settings.timeout_s:g}",
        "push.secret": secrets.encrypt(credentials.secrets),
    }


def _check_apart(auth_name: str, endpoint: Endpoint) -> None:
    if auth_name.lower() in (name.lower() for name in endpoint.header_names):
        raise Invalid("invalid_request", f"header {auth_name} is that of auth; give one of the two", "/headers")


def live(endpoint: Endpoint, topic: model.Topic | None) -> Endpoint:
    """Return an endpoint with what its topic alone knows."""
    if topic is None:
        return endpoint
    disabled = topic.options.attributes.get(delivered.DISABLED, "")
    return msgspec.structs.replace(endpoint, disabled=disabled, is_paused=topic.state is model.State.PAUSED)


def qps_of(settings: EndpointSettings, tenant: Tenant, attributes: Mapping[str, str]) -> float:
    """Return the endpoint's own cap, which is never above the tenant's, nor above what a handshake allowed."""
    return min(settings.qps or tenant.settings.qps, tenant.settings.qps, allowed_rates.most_qps(attributes))


def pause_of(*, is_paused: bool) -> dict[str, str]:
    """Return the attribute that holds a topic while its tenant is paused; with an empty value while it is not."""
    return {delivered.PAUSED: "the tenant is paused" if is_paused else ""}


def follows(topic: model.Topic, endpoint: Endpoint, tenant: Tenant) -> bool:
    """Return True if an endpoint's topic has the cap and the pause that the rows of endpoint and tenant say."""
    there = topic.options.attributes
    is_held = all(there.get(name, "") == value for name, value in pause_of(is_paused=tenant.is_paused).items())
    return is_held and topic.qps == qps_of(endpoint.settings, tenant, there)


def options(endpoint: Endpoint, attributes: dict[str, str]) -> dict[str, Any]:
    """Return the options of an endpoint's topic."""
    settings = endpoint.settings
    return {
        "backoff_s": settings.retry_schedule_s or (0.0,),
        "max_attempts": len(settings.retry_schedule_s) + 1,
        "jitter": settings.jitter,
        "ttl_s": settings.ttl_s,
        "durability": settings.durability,
        # All groups are on the host of the tenant's budget: a backlog in one of them may use the rate of all.
        "borrow": True,
        "attributes": attributes,
    }


def check(endpoint: Endpoint, attributes: dict[str, str], secrets: Secrets) -> delivered.Endpoint:
    """Return the endpoint as a host will read it.

    Raises:
        Invalid: an attribute is wrong; the text never shows a secret.
    """
    topic = model.Topic(endpoint.topic, 1.0, options=model.TopicOptions(attributes=attributes))
    try:
        found = delivered.Endpoint.from_topic(topic, secrets)
    except errors.InvalidTopic as exc:
        text = str(exc).partition(": ")[2]
        pointer = next((f"/{name}" for name in ("url", "timeout_s", "headers") if f"push.{name}" in text), "")
        raise Invalid("invalid_request", text.replace("push.", ""), pointer) from None
    assert found is not None, "it has a URL"
    return found
