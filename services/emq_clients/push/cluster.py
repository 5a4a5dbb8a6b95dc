"""The operators' views, as plain functions that build requests: hosts, the plan, lives of messages.

They need a key of the role `admin`. Both clients of the push service have them as methods.
"""

from __future__ import annotations

from emq_clients.push import answers
from emq_clients.requests import Request, path


def hosts() -> Request[answers.Hosts]:
    """Return the hosts heard of within the last hour, by name."""
    return Request("GET", path("hosts"), answers.Hosts)


def plan() -> Request[answers.Plan]:
    """Return which host has how many groups. Refused with `no_plan` where one host alone consumes."""
    return Request("GET", path("plan"), answers.Plan)


def trace(message: str, *, topic: str | None = None) -> Request[answers.Trace]:
    """Return the life of a message, where it is, and why it waits.

    Args:
        topic: the message's; needed if no trail is kept.
    """
    return Request("GET", path("trace", message, topic=topic), answers.Trace)


def trace_delivery(tenant: str, delivery: str) -> Request[answers.Trace]:
    """Return the life of a delivery, where it is, and why it waits."""
    return Request("GET", path("tenants", tenant, "deliveries", delivery, "trace"), answers.Trace)
