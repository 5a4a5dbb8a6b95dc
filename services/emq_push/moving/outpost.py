"""From Hookdeck Outpost: tenants with their destinations, as its API tells them (docs/apis/openapi.yaml there)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from emq.runtime import documents, errors
from emq_push.moving import plan
from emq_push.moving.plan import Plan, Unfit

NEEDED = "tenants"
SIGNING = (
    "x-outpost-signature: v0=[{hex}|,] of {payload}; x-outpost-event-id: {id}; x-outpost-timestamp: {timestamp}; "
    "x-outpost-topic: {event}"
)
"""What Outpost sends if nobody has changed its templates; earlier versions signed the time, too."""


def read(export: Mapping[str, Any], made: Plan) -> None:
    """Add what is in an export to a plan.

    Args:
        export: `tenants`, each with its `destinations`: the answers of `GET /tenants` and `.../destinations`; and
            `topics`, that of `GET /topics`.
    """
    topics = export.get("topics")
    for name in topics if isinstance(topics, list) else []:
        made.event_type(plan.text(name), {})
    for each in plan.objects(export[NEEDED]):
        source = plan.text(each.get("id"))
        try:
            tenant = made.tenant(source)
        except Unfit as exc:
            made.fail(f"tenant {source}", str(exc))
            continue
        for destination in plan.objects(each.get("destinations")):
            of = f"{source}/{plan.text(destination.get('id'))}"
            try:
                _destination(tenant, of, destination, made)
            except Unfit as exc:
                made.fail(f"destination {of}", str(exc))


def _destination(tenant: str, source: str, destination: Mapping[str, Any], made: Plan) -> None:
    if (kind := plan.text(destination.get("type"))) != "webhook":
        raise Unfit(f"is of type {kind!r}; endpoints here are reached over HTTP")
    if destination.get("filter"):
        raise Unfit("has a filter of Outpost's own syntax; make its endpoint by hand")
    config, credentials = plan.mapping(destination.get("config")), plan.mapping(destination.get("credentials"))
    secret = plan.text(credentials.get("secret"))
    if not secret:
        made.note(source, "has no secret in the export, so it gets a new one; its receiver must learn it")
    topics = destination.get("topics")
    given = {
        "url": config.get("url"),
        "event_types": ["*"] if topics == "*" else plan.types(topics),
        "headers": _headers(source, config.get("custom_headers"), destination, made),
        "secret": secret,
        "signing": SIGNING,
    }
    until = plan.time(credentials.get("previous_secret_invalid_at"))
    former = plan.text(credentials.get("previous_secret")) if secret and until else ""
    disabled = "disabled at Outpost" if destination.get("disabled_at") else ""
    made.endpoint(tenant, source, given, former=former, former_until=until, disabled=disabled)


def _headers(source: str, custom: object, destination: Mapping[str, Any], made: Plan) -> dict[str, Any]:
    """Return a destination's own headers, which Outpost keeps as JSON in a text."""
    if isinstance(custom, str) and custom:
        try:
            custom = documents.parsed(custom, "json", "", errors.InvalidMessage)
        except errors.InvalidMessage:
            custom = [custom]
    if custom and not isinstance(custom, dict):
        made.note(source, "has custom headers that cannot be read; set them")
    metadata = plan.mapping(destination.get("delivery_metadata"))
    found = {**plan.mapping(custom), **metadata}
    return {name: value if plan.number(value) is None else str(value) for name, value in found.items()}
