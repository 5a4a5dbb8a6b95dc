"""Tenants, endpoints, their use and keys, as plain functions that build requests.

Arguments that are None are left out, so that the service's default or present value counts. Times need a time zone.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Required, TypedDict, Unpack

import msgspec

from emq_clients.push import answers
from emq_clients.requests import Page, Paging, Request, body, once, path

Role = Literal["admin", "submit", "read", "send", "poll", "manage"]
Signature = Literal["hmac", "ed25519"]


class Auth(TypedDict, total=False):
    """How requests to an endpoint authenticate.

    Attributes:
        type: "none"; "bearer" with `token`; "basic" with `username` and `password`; "header" with `name` and `value`;
            "oauth2" (by client credentials) with `token_url`, `client_id`, `client_secret`, and `scope` or none.
    """

    type: Required[Literal["none", "bearer", "basic", "header", "oauth2"]]
    token: str
    username: str
    password: str
    name: str
    value: str
    token_url: str
    client_id: str
    client_secret: str
    scope: str


class Batch(TypedDict, total=False):
    """How messages share a request.

    Attributes:
        most: most messages of one request, 2 to 1,000.
        wait_s: seconds that a message waits for others, at most; left out, 0.1.
        format: "json" for an array of the payloads, "lines" for one payload a line.
    """

    most: Required[int]
    wait_s: float
    format: Literal["json", "lines"]


# ------------------------------------------------------------------------------------------------------------- tenants


class TenantSettings(TypedDict, total=False):
    """The settings of a tenant besides its rate, in seconds where they are times."""

    name: str | None
    payload_retention_s: int | None
    log_retention_s: int | None
    delete_on_success: bool | None


def put_tenant(tenant: str, *, qps: float, **settings: Unpack[TenantSettings]) -> Request[answers.Tenant]:
    """Create a tenant, or change it; what is left out keeps its value, or gets its default in a new tenant.

    Args:
        tenant: an id of your own.
        qps: most deliveries started in a second, over all endpoints of the tenant.
    """
    return Request("PUT", path("tenants", tenant), answers.Tenant, body(qps=qps, **settings))


def change_tenant(
    tenant: str, *, qps: float | None = None, **settings: Unpack[TenantSettings]
) -> Request[answers.Tenant]:
    """Change settings of a tenant that exists; what is left out keeps its value."""
    return Request("PATCH", path("tenants", tenant), answers.Tenant, body(qps=qps, **settings))


def tenant(tenant: str) -> Request[answers.Tenant]:
    """Return a tenant."""
    return Request("GET", path("tenants", tenant), answers.Tenant)


def tenants(**paging: Unpack[Paging]) -> Request[Page[answers.Tenant]]:
    """Return a page of tenants, by id."""
    return Request("GET", path("tenants", **paging), Page[answers.Tenant])


def delete_tenant(tenant: str) -> Request[None]:
    """Delete a tenant with its endpoints, messages, deliveries and keys. Safe to repeat."""
    return Request("DELETE", path("tenants", tenant), type(None))


def pause_tenant(tenant: str) -> Request[answers.Tenant]:
    """Deliver nothing to any endpoint of a tenant until it is resumed; its messages are taken, and wait."""
    return Request("POST", path("tenants", f"{tenant}:pause"), answers.Tenant)


def resume_tenant(tenant: str) -> Request[answers.Tenant]:
    """Resume a paused tenant; endpoints that are paused or disabled themselves stay so."""
    return Request("POST", path("tenants", f"{tenant}:resume"), answers.Tenant)


# ----------------------------------------------------------------------------------------------------------- endpoints


def create_endpoint(
    tenant: str,
    *,
    url: str,
    event_types: Sequence[str] | None = None,
    qps: float | None = None,
    auth: Auth | None = None,
    batch: Batch | None = None,
    signature: Signature | None = None,
    secret: str | None = None,
    signing: str | None = None,
    **settings: Any,
) -> Request[answers.Endpoint]:
    """Create an endpoint; the answer alone has its secret.

    Args:
        event_types: such as `order.created`, or `order.*`; left out, all.
        qps: most deliveries started in a second, below the tenant's.
        auth: left out, none.
        batch: left out, each message has a request of its own.
        signature: left out, "hmac" with a secret; with "ed25519" the answer has `public_key`.
        secret: one that the receiver has already; left out, a new one.
        signing: the headers of the signatures: "svix", "stripe", "github", or a style of your own (docs/webhooks.md);
            left out, those of Standard Webhooks.
        settings: other fields of the API's endpoint, such as `channels`, `headers` or `retry_schedule_s`.
    """
    signed = {"signature": signature, "secret": secret, "signing": signing}
    content = body(url=url, event_types=event_types, qps=qps, auth=auth, batch=batch, **signed, **settings)
    return Request("POST", path("tenants", tenant, "endpoints"), answers.Endpoint, content, once())


def change_endpoint(tenant: str, endpoint: str, **settings: Any) -> Request[answers.Endpoint]:
    """Change the given fields of an endpoint by JSON Merge Patch; None gives a field its default.

    So None sets `qps` and `ttl_s` to no limit, and ends `batch` and `template`. `headers`, `batch`, `template`
    and `auth` change the members that they name; None as the value of one removes it. Another type of `auth` keeps
    nothing of the one before.

    Another `signature` makes a new secret or key, which the answer has.
    """
    content = msgspec.json.encode(settings)
    where = path("tenants", tenant, "endpoints", endpoint)
    return Request("PATCH", where, answers.Endpoint, content, once() if "signature" in settings else {})


def endpoint(tenant: str, endpoint: str) -> Request[answers.Endpoint]:
    """Return an endpoint."""
    return Request("GET", path("tenants", tenant, "endpoints", endpoint), answers.Endpoint)


def endpoints(tenant: str, **paging: Unpack[Paging]) -> Request[Page[answers.Endpoint]]:
    """Return a page of a tenant's endpoints."""
    return Request("GET", path("tenants", tenant, "endpoints", **paging), Page[answers.Endpoint])


def delete_endpoint(tenant: str, endpoint: str) -> Request[None]:
    """Delete an endpoint with its waiting deliveries. Safe to repeat."""
    return Request("DELETE", path("tenants", tenant, "endpoints", endpoint), type(None))


def _do(tenant: str, endpoint: str, action: str, content: bytes | None = None) -> Request[answers.Endpoint]:
    where = path("tenants", tenant, "endpoints", f"{endpoint}:{action}")
    return Request("POST", where, answers.Endpoint, content, once() if action == "rotate-secret" else {})


def rotate_secret(
    tenant: str, endpoint: str, *, overlap_s: float | None = None, secret: str | None = None
) -> Request[answers.Endpoint]:
    """Give the endpoint a new secret, or your own; for `overlap_s` seconds, deliveries are signed with both."""
    return _do(tenant, endpoint, "rotate-secret", body(overlap_s=overlap_s, secret=secret))


def disable_endpoint(tenant: str, endpoint: str, *, reason: str | None = None) -> Request[answers.Endpoint]:
    """Disable an endpoint: its messages are kept, in their order."""
    return _do(tenant, endpoint, "disable", body(reason=reason))


def enable_endpoint(tenant: str, endpoint: str) -> Request[answers.Endpoint]:
    """Enable an endpoint again, and deliver the kept messages."""
    return _do(tenant, endpoint, "enable")


def pause_endpoint(tenant: str, endpoint: str) -> Request[answers.Endpoint]:
    """Start nothing for an endpoint until it is resumed."""
    return _do(tenant, endpoint, "pause")


def resume_endpoint(tenant: str, endpoint: str) -> Request[answers.Endpoint]:
    """Resume a paused endpoint."""
    return _do(tenant, endpoint, "resume")


def start_handshake(tenant: str, endpoint: str, origin: str) -> Request[answers.Handshake]:
    """Let a host ask an endpoint whether it wants deliveries from this origin; `handshake` returns the answer."""
    where = path("tenants", tenant, "endpoints", f"{endpoint}:handshake")
    return Request("POST", where, answers.Handshake, body(origin=origin))


def handshake(tenant: str, endpoint: str) -> Request[answers.Handshake]:
    """Return the last handshake with an endpoint."""
    return Request("GET", path("tenants", tenant, "endpoints", endpoint, "handshake"), answers.Handshake)


def send_example(
    tenant: str, endpoint: str, *, event_type: str | None = None, payload: Mapping[str, Any] | None = None
) -> Request[answers.Example]:
    """Send one signed example to an endpoint, in its queue and under its limits."""
    where = path("tenants", tenant, "endpoints", f"{endpoint}:send-example")
    content = body(event_type=event_type, payload=payload)
    return Request("POST", where, answers.Example, content, once())


def preview_payload(
    tenant: str,
    endpoint: str,
    *,
    template: Mapping[str, Any] | None = None,
    event_type: str | None = None,
    payload: Mapping[str, Any] | None = None,
) -> Request[answers.Preview]:
    """Return the payload that an endpoint would get, by its template or another one; nothing is sent."""
    where = path("tenants", tenant, "endpoints", f"{endpoint}:preview")
    content = body(template=template, event_type=event_type, payload=payload)
    return Request("POST", where, answers.Preview, content, once())


# ------------------------------------------------------------------------------------------------------------ watching


def audit_log(
    tenant: str | None = None,
    *,
    actor: str = "",
    action: str = "",
    target: str = "",
    created_gte: datetime.datetime | None = None,
    created_lt: datetime.datetime | None = None,
    **paging: Unpack[Paging],
) -> Request[Page[answers.AuditEntry]]:
    """Return a page of changes, the latest first: of a tenant, or all.

    Args:
        actor, action: how they begin, such as the id of a key, or "endpoint."; empty for all.
        target: id of the changed thing; empty for all.
        created_gte, created_lt: made then or later, and before then.
    """
    parts = ("audit-log",) if tenant is None else ("tenants", tenant, "audit-log")
    chosen = {"actor": actor, "action": action, "target": target}
    where = path(*parts, **chosen, created_gte=created_gte, created_lt=created_lt, **paging)
    return Request("GET", where, Page[answers.AuditEntry])


def lag(tenant: str, *, endpoint: str | None = None, **paging: Unpack[Paging]) -> Request[Page[answers.EndpointLag]]:
    """Return a page of endpoints with the lag of each."""
    return Request("GET", path("tenants", tenant, "lag", endpoint=endpoint, **paging), Page[answers.EndpointLag])


def rates(tenant: str, *, endpoint: str | None = None, **paging: Unpack[Paging]) -> Request[Page[answers.Rate]]:
    """Return a page of caps with their use: the tenant's, then its endpoints'."""
    where = path("tenants", tenant, "rate-limit-status", endpoint=endpoint, **paging)
    return Request("GET", where, Page[answers.Rate])


# ---------------------------------------------------------------------------------------------------------------- keys


def create_key(
    role: Role, *, tenant: str | None = None, name: str | None = None, lifetime_s: int | None = None
) -> Request[answers.NewKey]:
    """Make a key; the answer alone has it."""
    content = body(role=role, tenant=tenant, name=name, lifetime_s=lifetime_s)
    return Request("POST", path("keys"), answers.NewKey, content, once())


def create_token(
    tenant: str, *, role: Role | None = None, name: str | None = None, lifetime_s: int | None = None
) -> Request[answers.NewKey]:
    """Make a short-lived key for a tenant, such as for its portal."""
    content = body(role=role, name=name, lifetime_s=lifetime_s)
    return Request("POST", path("tenants", tenant, "tokens"), answers.NewKey, content, once())


def create_portal_link(
    tenant: str, *, role: str | None = None, name: str | None = None, lifetime_s: int | None = None
) -> Request[answers.Link]:
    """Make a link that signs somebody in to a tenant's pages, once."""
    content = body(role=role, name=name, lifetime_s=lifetime_s)
    return Request("POST", path("tenants", tenant, "portal-links"), answers.Link, content, once())


def keys(**paging: Unpack[Paging]) -> Request[Page[answers.Key]]:
    """Return a page of keys, without the keys themselves."""
    return Request("GET", path("keys", **paging), Page[answers.Key])


def delete_key(key: str, *, keep_made: bool = False) -> Request[None]:
    """Delete a key by its id, with all keys that it made unless these are kept. Safe to repeat."""
    return Request("DELETE", path("keys", key, keep_made="true" if keep_made else None), type(None))
