"""The form of an endpoint: what somebody types, as settings, and settings as one types them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from emq_push.endpoint import DEFAULT_TIMEOUT_S
from emq_push.merging import patch_of
from emq_push.records.endpoints import Endpoint
from emq_push.service.refusals import Invalid
from emq_push.service.topic_fields import TopicFields
from emq_web.pages.changes import Field
from emq_web.pages.rendering import number

TEMPLATE_HINT = (
    'Empty: payloads as they are. Or JSON such as {"text.$": "$.data.title"}: fields that end with .$ have paths into '
    "the payload, all others are constants."
)


class Typed(NamedTuple):
    """The fields of the form, each as text.

    Attributes:
        event_types, channels: with spaces or line ends between.
        qps: empty for as many as the tenant has.
        headers: a line `Name: value` each; `Name:` removes one. Those that no line names stay as they are.
        template: JSON; empty for none.
    """

    url: str = ""
    description: str = ""
    event_types: str = "*"
    channels: str = ""
    qps: str = ""
    timeout_s: str = f"{DEFAULT_TIMEOUT_S:g}"
    headers: str = ""
    template: str = ""


def typed(endpoint: Endpoint) -> Typed:
    """Return the form of an endpoint. Values of headers are never shown."""
    it = endpoint.settings
    qps = "" if it.qps is None else f"{it.qps:.15g}"
    types, channels, timeout_s = " ".join(it.event_types), " ".join(it.channels), f"{it.timeout_s:.15g}"
    template = "" if endpoint.template is None else indented(endpoint.template)
    return Typed(it.url, it.description, types, channels, qps, timeout_s, template=template)


def indented(value: object) -> str:
    """Return JSON with a line for each field."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def sent(form: Mapping[str, str]) -> Typed:
    """Return the fields of a form that somebody sent."""
    return Typed(**{name: form.get(name, "").strip() for name in Typed._fields})


def fields_of(given: Typed, own_rate: float, headers: Sequence[str]) -> list[Field]:
    """Return the fields to fill in.

    Args:
        own_rate: the tenant's.
        headers: names of those that the endpoint has.
    """
    url_hint = "https://... of your server; or poll: for messages that wait until your own program fetches them."
    types_hint = "With spaces between; order.* for all below order, * for all."
    channels_hint = "With spaces between: only messages that name one of them. Empty: all messages."
    rate_hint = f"Most deliveries started in a second; empty for your own rate of {number(own_rate)}."
    there = f"It has {', '.join(headers)}. Name: without a value removes one. Those that you do not name stay."
    headers_hint = f"A line each: Name: value. {there if headers else 'No page shows the values again.'}"
    return [
        Field("url", "URL", given.url, "url", url_hint, required=True),
        Field("description", "Name for people", given.description),
        Field("event_types", "Event types", given.event_types, hint=types_hint),
        Field("channels", "Channels", given.channels, hint=channels_hint),
        Field("qps", "Rate, a second", given.qps, "number", rate_hint),
        Field("timeout_s", "Seconds for an answer", given.timeout_s, "number", required=True),
        Field("headers", "Headers", given.headers, "textarea", headers_hint),
        Field("template", "Template of the payload", given.template, "textarea", TEMPLATE_HINT),
    ]


def settings_of(given: Typed) -> dict[str, Any]:
    """Return the settings in a form. Raises `Invalid`: a number is none."""
    return {
        "url": given.url,
        "description": given.description,
        "event_types": given.event_types.split() or ["*"],
        "channels": given.channels.split(),
        "qps": _number("The rate", given.qps) if given.qps else None,
        "timeout_s": _number("The time for an answer", given.timeout_s),
    }


def template_of(given: Typed) -> dict[str, Any] | None:
    """Return the template in a form; None for none. Raises `Invalid`: it is no JSON object."""
    if not given.template:
        return None
    try:
        return msgspec.json.decode(given.template, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as exc:
        raise Invalid("invalid_request", f"The template is not a JSON object: {exc}") from None


def topic_fields_of(given: Typed, there: Mapping[str, Any] | None) -> TopicFields:
    """Return the headers in a form, if it has any, and the template, if it is another one than `there`.

    Raises:
        Invalid: a line is no header, or the template is no JSON object.
    """
    found: dict[str, str | None] = {}
    for place, line in enumerate(given.headers.splitlines(), 1):
        name, colon, value = line.partition(":")
        if not line.strip():
            continue
        if not colon or not name.strip():
            raise Invalid("invalid_request", f"Line {place} of the headers is not like: Name: value")
        found[name.strip()] = value.strip() or None
    template = template_of(given)
    return TopicFields(headers=found or UNSET, template=UNSET if template == there else patch_of(there, template))


def _number(what: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise Invalid("invalid_request", f"{what} must be a number, not {text[:40]!r}.") from None
