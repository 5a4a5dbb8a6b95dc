"""An endpoint's topic: turns settings into options and attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from emq.runtime import errors
from emq.topics import model
from emq_push import allowed_rates, signature, styles
from emq_push import endpoint as delivered
from emq_push.attributes import DISABLED, PAUSED
from emq_push.records.endpoints import Endpoint, EndpointSettings
from emq_push.records.tenants import Tenant
from emq_push.secrets import Secrets
from emq_push.service import signing, topic_fields
from emq_push.service.endpoint_edits import Start
from emq_push.service.refusals import Invalid
from emq_push.service.topic_fields import TopicFields
from emq_push.styles import SIGNING, STANDARD
from emq_push.template import TEMPLATE

IDLE_S = 3_600.0
"""`idle_s` of endpoints' topics: one that holds nothing, and gets nothing for an hour, costs hosts nothing. Not sooner,
since the message that wakes a topic starts later than others (docs/families.md, "Idle topics sleep")."""

TENANT = "tenant"
"""The attribute that names the tenant of a topic."""
SECRET = "push.secret"
_POINTERS = {
    "push.url": "/url",
    "push.timeout_s": "/timeout_s",
    "push.headers": "/headers",
    delivered.OAUTH2[0]: "/auth/token_url",
    SIGNING: "/signing",
    TEMPLATE: "/template",
    SECRET: "/secret",
}
"""Where a request has what hosts read from an attribute."""


def attributes(
    endpoint: Endpoint, signed_with: str, fields: TopicFields, before: Mapping[str, str], secrets: Secrets
) -> dict[str, str]:
    """Return the attributes of an endpoint's topic. Attributes without a setting stay as they are.

    Args:
        signed_with: secrets of the signatures, the newest first, with spaces between them.
        fields: the given fields that only the topic keeps.
        before: the attributes that the topic has now.

    Raises:
        Invalid: a header or the authentication is wrong.
    """
    found = fields.attributes(before, secrets)
    for name in topic_fields.auth_headers(found):
        _check_apart(name, endpoint)
    return found | {
        TENANT: endpoint.tenant,
        "push.url": endpoint.settings.url,
        "push.timeout_s": f"{endpoint.settings.timeout_s:g}",
        SECRET: secrets.encrypt(signed_with),
    }


def first(
    made: Endpoint, fields: TopicFields, start: Start, is_paused: bool, secrets: Secrets
) -> tuple[Endpoint, dict[str, str], str]:
    """Return the row of a new endpoint, the attributes of its topic, and the secret that was made for it.

    Args:
        is_paused: the tenant is.

    Raises:
        Invalid: a secret, a header or the authentication is wrong.
    """
    fields = fields.resolved(made.auth, {}, secrets)
    signed = signing.first(fields.secret, fields.signature or "hmac", start.former)
    made = fields.named(msgspec.structs.replace(made, old_secret_until_us=start.former_until_us))
    held = {**pause_of(is_paused=is_paused), DISABLED: start.disabled}
    before = {name: value for name, value in held.items() if value}
    return made, attributes(made, signed.secrets, fields, before, secrets), signed.made


def _check_apart(auth_name: str, endpoint: Endpoint) -> None:
    if auth_name.lower() in (name.lower() for name in endpoint.header_names):
        raise Invalid("invalid_request", f"header {auth_name} is that of auth; give one of the two", "/headers")


def live(endpoint: Endpoint, topic: model.Topic | None, secrets: Secrets) -> Endpoint:
    """Return an endpoint with the fields that only its topic keeps."""
    if topic is None:
        return endpoint
    there = topic.options.attributes
    try:
        texts = secrets.decrypt(there.get(SECRET, ""))
        kind, public_key = signature.kind_of(texts), signature.public_key(texts)
    except ValueError:  # this process lacks the key, or the secret is damaged
        kind, public_key = None, ""
    return msgspec.structs.replace(
        endpoint,
        auth=topic_fields.auth_in(there, endpoint.auth),
        disabled=there.get(DISABLED, ""),
        is_paused=topic.state is model.State.PAUSED,
        batch=topic_fields.batch_in(there),
        signature=kind,
        public_key=public_key,
        signing=there.get(SIGNING, STANDARD),
        template=topic_fields.template_in(there),
    )


def qps_of(settings: EndpointSettings, tenant: Tenant, attributes: Mapping[str, str]) -> float:
    """Return the endpoint's own cap, never above the tenant's or the rate of a handshake."""
    return min(settings.qps or tenant.settings.qps, tenant.settings.qps, allowed_rates.most_qps(attributes))


def pause_of(*, is_paused: bool) -> dict[str, str]:
    """Return the attribute that holds a topic while its tenant is paused; with an empty value while it is not."""
    return {PAUSED: "the tenant is paused" if is_paused else ""}


def follows(topic: model.Topic, endpoint: Endpoint, tenant: Tenant) -> bool:
    """Return True if an endpoint's topic has the cap and the pause of its rows."""
    there = topic.options.attributes
    is_held = all(there.get(name, "") == value for name, value in pause_of(is_paused=tenant.is_paused).items())
    return is_held and topic.qps == qps_of(endpoint.settings, tenant, there)


def following(topic: model.Topic, endpoint: Endpoint, tenant: Tenant) -> dict[str, Any]:
    """Return the changes of an endpoint's topic by which it follows the rows; none if it does."""
    if follows(topic, endpoint, tenant):
        return {}
    there = topic.options.attributes
    attributes = {name: value for name, value in {**there, **pause_of(is_paused=tenant.is_paused)}.items() if value}
    return {"qps": qps_of(endpoint.settings, tenant, there), "attributes": attributes}


def options(endpoint: Endpoint, attributes: dict[str, str]) -> dict[str, Any]:
    """Return the options of an endpoint's topic."""
    settings = endpoint.settings
    return {
        "backoff_s": settings.retry_schedule_s or (0.0,),
        "max_attempts": len(settings.retry_schedule_s) + 1,
        "jitter": settings.jitter,
        "ttl_s": settings.ttl_s,
        "durability": settings.durability,
        "idle_s": IDLE_S,
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
        pointer = next((pointer for name, pointer in _POINTERS.items() if name in text), "")
        remedy = "client_id and client_secret" if delivered.OAUTH2[0] in text else "auth"
        text = text.replace(f"use {delivered.BASIC}", f"use {remedy}")
        text = text.replace(delivered.OAUTH2[0], "token_url").replace("push.", "")
        if pointer in (_POINTERS[SIGNING], _POINTERS[SECRET]) and _fits_newest(attributes, secrets):
            text += (
                "; it is the older one of two: first give the endpoint one alone, by :rotate-secret with overlap_s 0"
            )
        raise Invalid("invalid_request", text, pointer) from None
    assert found is not None, "it has a URL"
    return found


def _fits_newest(attributes: Mapping[str, str], secrets: Secrets) -> bool:
    """Return True if the style of the signatures fits the newest of the secrets."""
    try:
        newest = secrets.decrypt(attributes[SECRET]).partition(" ")[0]
        styles.signed(attributes.get(SIGNING, STANDARD), newest)
    except ValueError:
        return False
    return True
