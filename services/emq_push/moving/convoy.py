"""From Convoy: endpoints with their subscriptions, as its API tells them (https://getconvoy.io/docs/api-reference)."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from emq_push.moving import plan
from emq_push.moving.plan import Plan, Unfit

NEEDED = "endpoints"
MOST_RETRIES = 100
MOST_OF_FIELD = 200
DEFAULT_HEADER = "X-Convoy-Signature"
_OPERATORS = {
    "$eq": "eq",
    "$neq": "ne",
    "$gt": "gt",
    "$gte": "gte",
    "$lt": "lt",
    "$lte": "lte",
    "$in": "in",
    "$exist": "exists",
}


def read(export: Mapping[str, Any], made: Plan) -> None:
    """Add what is in an export to a plan.

    Args:
        export: `endpoints` and `subscriptions`, and `project` if its settings are not Convoy's defaults: the answers of
            `GET /api/v1/projects/{id}/endpoints`, `.../subscriptions`, and of the project; and `event_types`, that of
            `.../event-types`.
    """
    for type_ in plan.objects(export.get("event_types")):
        schema = plan.mapping(type_.get("json_schema"))
        given = {"schemas": {"1": schema} if schema else None, "archived": bool(type_.get("deprecated_at"))}
        made.event_type(plan.text(type_.get("name")), {**given, "description": type_.get("description")})
    project = plan.mapping(export.get("project"))
    config = plan.mapping(plan.mapping(project.get("data", project)).get("config"))
    by_endpoint: dict[str, list[Mapping[str, Any]]] = {}
    for subscription in plan.objects(export.get("subscriptions")):
        endpoint = plan.mapping(subscription.get("endpoint_metadata")).get("uid") or subscription.get("endpoint_id")
        by_endpoint.setdefault(str(endpoint), []).append(subscription)
    for endpoint in plan.objects(export[NEEDED]):
        source = plan.text(endpoint.get("uid"))
        if endpoint.get("deleted_at"):
            continue
        try:
            owner = plan.text(endpoint.get("owner_id")) or source
            tenant = made.tenant(owner)
            if not (found := by_endpoint.get(source)):
                raise Unfit("has no subscription, so it gets nothing at Convoy; left out")
            for subscription in _merged(found):
                _endpoint(tenant, source, endpoint, subscription, config, made)
        except Unfit as exc:
            made.fail(f"endpoint {source}", str(exc))


def _merged(subscriptions: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return one subscription to all types of those that have no filter, and the others as they are."""
    plain = [each for each in subscriptions if not _body_filter(each)]
    others = [each for each in subscriptions if _body_filter(each)]
    if len(plain) < 2:
        return [*plain, *others]
    types = [type_ for each in plain for type_ in plan.types(_filter_config(each).get("event_types"))]
    return [{**plain[0], "filter_config": {"event_types": list(dict.fromkeys(types))}}, *others]


def _filter_config(subscription: Mapping[str, Any]) -> Mapping[str, Any]:
    return plan.mapping(subscription.get("filter_config"))


def _body_filter(subscription: Mapping[str, Any]) -> Mapping[str, Any]:
    return plan.mapping(plan.mapping(_filter_config(subscription).get("filter")).get("body"))


def _endpoint(
    tenant: str,
    source: str,
    endpoint: Mapping[str, Any],
    subscription: Mapping[str, Any],
    config: Mapping[str, Any],
    made: Plan,
) -> None:
    if plan.mapping(plan.mapping(_filter_config(subscription).get("filter")).get("headers")):
        made.note(source, "has a filter on headers, which does not exist here; it gets these messages, too")
    if plan.text(subscription.get("function")):
        made.note(source, "has a function, which does not exist here; its receiver gets payloads as published")
    if endpoint.get("slack_webhook_url") or endpoint.get("support_email"):
        made.note(source, "tells Slack or an address of failures, which does not exist here")
    if plan.text(plan.mapping(endpoint.get("mtls_client_cert")).get("client_cert")):
        made.note(source, "has a client certificate; set it on the endpoint's topic (push.tls.cert, push.tls.key)")
    newest, former, until = _secrets(source, endpoint, made)
    given = {
        "url": endpoint.get("url") or endpoint.get("target_url"),
        "description": (plan.text(endpoint.get("description")) or plan.text(endpoint.get("name")))[:500],
        "event_types": plan.types(_filter_config(subscription).get("event_types")),
        "filters": [*_filters(_body_filter(subscription), "")] or None,
        "qps": _qps(endpoint),
        "timeout_s": plan.seconds(endpoint.get("http_timeout")) or None,
        "auth": _auth(source, endpoint, made),
        "retry_schedule_s": _schedule(source, config, made),
        "secret": newest,
        "signing": _signing(endpoint, config),
    }
    status = plan.text(endpoint.get("status"))
    disabled = f"{status} at Convoy" if status not in ("", "active") else ""
    made.endpoint(tenant, source, given, former=former, former_until=until, disabled=disabled)


def _secrets(source: str, endpoint: Mapping[str, Any], made: Plan) -> tuple[str, str, datetime.datetime | None]:
    """Return the newest secret, which Convoy has last, and one that has not ended yet."""
    now = datetime.datetime.now(datetime.UTC)
    live = [
        (value, until)
        for each in plan.objects(endpoint.get("secrets"))
        if (value := plan.text(each.get("value")))
        and not each.get("deleted_at")
        and ((until := plan.time(each.get("expires_at"))) is None or until > now)
    ]
    if not live:
        raise Unfit("has no secret in the export")
    endless = [value for value, until in live if until is None]
    newest = (endless or [live[-1][0]])[-1]
    others = [(value, until) for value, until in live if value != newest and until is not None]
    if left_out := len({value for value, _ in live}) - 1 - bool(others):
        made.note(source, f"has {left_out} more secrets in use; here, only the newest and one that ends sign requests")
    return (newest, *others[-1]) if others else (newest, "", None)


def _signing(endpoint: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    signature = plan.mapping(config.get("signature"))
    version = (plan.objects(signature.get("versions")) or [{}])[-1]
    is_512, encoding = plan.text(version.get("hash")).upper() == "SHA512", plan.text(version.get("encoding")) or "hex"
    place = f"{{{'sha512_' if is_512 else ''}{encoding}}}"
    header = plan.text(signature.get("header")) or DEFAULT_HEADER
    if endpoint.get("advanced_signatures"):
        return f"{header}: t={{timestamp}},[v1={place}|,] of {{timestamp}},{{payload}}"
    return f"{header}: {place} of {{payload}}"


def _qps(endpoint: Mapping[str, Any]) -> float | None:
    rate, of_s = plan.number(endpoint.get("rate_limit")), plan.seconds(endpoint.get("rate_limit_duration"))
    return rate / of_s if rate and rate > 0 and of_s else None


def _auth(source: str, endpoint: Mapping[str, Any], made: Plan) -> Mapping[str, Any] | None:
    authentication = plan.mapping(endpoint.get("authentication"))
    key, basic = plan.mapping(authentication.get("api_key")), plan.mapping(authentication.get("basic_auth"))
    oauth2 = plan.mapping(authentication.get("oauth2"))
    match plan.text(authentication.get("type")):
        case "api_key" if key.get("header_name"):
            return {"type": "header", "name": key["header_name"], "value": key.get("header_value")}
        case "basic_auth" if basic.get("username"):
            return {"type": "basic", "username": basic["username"], "password": basic.get("password")}
        case "oauth2" if oauth2.get("client_secret"):
            named = {name: oauth2[name] for name in ("client_id", "client_secret", "scope") if oauth2.get(name)}
            return {"type": "oauth2", "token_url": oauth2.get("url"), **named}
        case "":
            return None
        case other:
            made.note(source, f"authenticates by {other} in a way that does not exist here; set auth")
            return None


def _schedule(source: str, config: Mapping[str, Any], made: Plan) -> list[float] | None:
    strategy = plan.mapping(config.get("strategy"))
    wait_s, count = plan.seconds(strategy.get("duration")), strategy.get("retry_count")
    if plan.text(strategy.get("type")) == "linear" and wait_s is not None and isinstance(count, int):
        if count > MOST_RETRIES:
            made.note("", f"retries {count} times; endpoints here at most {MOST_RETRIES} times")
        return [wait_s] * min(count, MOST_RETRIES)
    if strategy:
        made.note(
            "", f"retries by strategy {plan.text(strategy.get('type'))!r}; endpoints here follow EMQ's own schedule"
        )
    return None


def _filters(body: Mapping[str, Any], path: str) -> list[dict[str, Any]]:
    """Return the conditions of a filter on the payload. Raises `Unfit` for what has no equal."""
    found: list[dict[str, Any]] = []
    for name, value in body.items():
        if name in _OPERATORS and path:
            found.append({"field": path, "op": _OPERATORS[name], "value": value})
        elif any(part.startswith("$") for part in name.split(".")):
            raise Unfit(f"has a filter with {name}, which has no equal here; make its endpoint by hand")
        elif not name or len(path) > MOST_OF_FIELD:
            raise Unfit("has a filter on a field without a name, or too deep; make its endpoint by hand")
        elif isinstance(value, dict):
            found += _filters(value, f"{path}.{name}" if path else name)
        else:
            found.append({"field": f"{path}.{name}" if path else name, "op": "eq", "value": value})
    return found
