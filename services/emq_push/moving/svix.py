"""From Svix: applications with their endpoints, as its API tells them (https://api.svix.com/docs)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from emq_push.moving import plan
from emq_push.moving.plan import Plan, Unfit

SIGNING = "svix"
NEEDED = "applications"


def read(export: Mapping[str, Any], made: Plan) -> None:
    """Add what is in an export to a plan.

    Args:
        export: `applications`, each with its `endpoints`, each of these with its `secret` and `headers`: the answers of
            `GET /api/v1/app`, `.../endpoint`, `.../secret` and `.../headers`; and `event_types`, that of
            `GET /api/v1/event-type`.
    """
    for type_ in plan.objects(export.get("event_types")):
        name = plan.text(type_.get("name"))
        if type_.get("featureFlag") or type_.get("featureFlags"):
            made.note(name, "is for applications with a feature flag there; here, all tenants see it")
        given = {"schemas": plan.mapping(type_.get("schemas")), "archived": bool(type_.get("archived"))}
        made.event_type(name, {**given, "description": type_.get("description")})
    for application in plan.objects(export[NEEDED]):
        source = plan.text(application.get("uid")) or plan.text(application.get("id"))
        try:
            tenant = made.tenant(source, plan.text(application.get("name")), application.get("rateLimit"))
        except Unfit as exc:
            made.fail(f"application {source}", str(exc))
            continue
        if application.get("metadata"):
            made.note(source, "has metadata, which tenants have not")
        for endpoint in plan.objects(application.get("endpoints")):
            of = f"{source}/{plan.text(endpoint.get('uid')) or plan.text(endpoint.get('id'))}"
            try:
                _endpoint(tenant, of, endpoint, made)
            except Unfit as exc:
                made.fail(f"endpoint {of}", str(exc))


def _endpoint(tenant: str, source: str, endpoint: Mapping[str, Any], made: Plan) -> None:
    if endpoint.get("metadata"):
        made.note(source, "has metadata, which endpoints have not")
    if endpoint.get("transformation") or plan.mapping(endpoint.get("transformationParams")):
        made.note(source, "has a transformation, which does not exist here; its receiver gets payloads as published")
    headers = plan.mapping(endpoint.get("headers"))
    if hidden := headers.get("sensitive"):
        made.note(source, f"has headers whose values Svix does not tell; set them: {plan.named(hidden)}")
    secret = endpoint.get("secret")
    key = plan.text(secret) or plan.text(plan.mapping(secret).get("key"))
    if not key:
        made.note(source, "has no secret in the export, so it gets a new one; its receiver must learn it")
    given = {
        "url": endpoint.get("url"),
        "description": plan.text(endpoint.get("description"))[:500],
        "event_types": plan.types(endpoint.get("filterTypes")),
        "channels": endpoint.get("channels") or None,
        "qps": endpoint.get("rateLimit") or None,
        "headers": dict(plan.mapping(headers.get("headers", {} if "sensitive" in headers else headers))),
        "secret": key,
        "signing": SIGNING,
    }
    made.endpoint(tenant, source, given, disabled="disabled at Svix" if endpoint.get("disabled") else "")
