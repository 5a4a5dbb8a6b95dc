"""What is sent and what becomes of it, as plain functions that build requests: messages, deliveries, dead letters.

Arguments that are None are left out, so that the service's default or present value counts. Times need a time zone.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack

import msgspec

from emq_clients.push import answers
from emq_clients.requests import Page, Paging, Request, body, once, path

# ------------------------------------------------------------------------------------------------------------ messages


class MessageFields(TypedDict, total=False):
    """The fields of a message besides its type and its payload.

    Attributes:
        id: your own; left out, the service makes one.
        key: messages of one key are delivered one at a time, in order.
        priority: a name; left out, the middle one.
        headers: small texts that travel with the payload.
        channels: endpoints with channels get the message only if they have one of these.
        delay_s, at: when the first attempt may be made; left out, at once.
        ttl_s: seconds after which an undelivered message is dead.
        schema_version: the version of the event type's schema that the payload must fit; left out, the newest.
    """

    id: str | None
    key: str | None
    priority: str | None
    headers: Mapping[str, str] | None
    channels: Sequence[str] | None
    delay_s: float | None
    at: datetime.datetime | None
    ttl_s: float | None
    schema_version: str | None


def message(event_type: str, payload: Any, **fields: Unpack[MessageFields]) -> dict[str, Any]:
    """Return a message for `publish_many`; see `MessageFields`."""
    given = {name: value for name, value in fields.items() if value is not None}
    return {"event_type": event_type, "payload": payload, **given}


def publish(
    tenant: str,
    event_type: str,
    payload: Any,
    *,
    idempotency_key: str | None = None,
    **fields: Unpack[MessageFields],
) -> Request[answers.Receipt]:
    """Publish a message to the tenant's endpoints that take its type. It is queued when the answer comes.

    Args:
        payload: any value of JSON.
        idempotency_key: of a publish that you may repeat for 24 hours; left out, the client makes one for its own
            repeats.
        fields: see `MessageFields`.
    """
    content = msgspec.json.encode(message(event_type, payload, **fields))
    where = path("tenants", tenant, "messages")
    return Request("POST", where, answers.Receipt, content, once(idempotency_key))


def publish_many(
    tenant: str, messages: Sequence[Mapping[str, Any]], *, idempotency_key: str | None = None
) -> Request[answers.Receipts]:
    """Publish up to 500 messages, as `message` returns them: all of them, or none if one is refused."""
    content = msgspec.json.encode({"messages": messages})
    where = path("tenants", tenant, "messages")
    return Request("POST", where, answers.Receipts, content, once(idempotency_key))


def stored_message(tenant: str, message: str) -> Request[answers.StoredMessage]:
    """Return a message with its payload and the ids of its deliveries."""
    return Request("GET", path("tenants", tenant, "messages", message), answers.StoredMessage)


class MessageFilter(Paging, total=False):
    """Which messages a list has; all given conditions hold."""

    event_type: str | None
    key: str | None
    created_gte: datetime.datetime | None
    created_lt: datetime.datetime | None


def stored_messages(tenant: str, **which: Unpack[MessageFilter]) -> Request[Page[answers.StoredMessage]]:
    """Return a page of messages, the latest first."""
    return Request("GET", path("tenants", tenant, "messages", **which), Page[answers.StoredMessage])


def erase(tenant: str, *, key: str) -> Request[answers.Erased]:
    """Delete the payloads of all messages of a key. Safe to repeat."""
    return Request("POST", path("tenants", tenant, "messages:erase"), answers.Erased, body(key=key))


# ---------------------------------------------------------------------------------------------------------- deliveries


class DeliveryFilter(Paging, total=False):
    """Which deliveries a list has; all given conditions hold."""

    state: str | None
    endpoint: str | None
    event_type: str | None
    message: str | None
    status: int | None
    key: str | None
    created_gte: datetime.datetime | None
    created_lt: datetime.datetime | None


def deliveries(tenant: str, **which: Unpack[DeliveryFilter]) -> Request[Page[answers.Delivery]]:
    """Return a page of deliveries, the latest first."""
    return Request("GET", path("tenants", tenant, "deliveries", **which), Page[answers.Delivery])


def delivery(tenant: str, delivery: str) -> Request[answers.Delivery]:
    """Return a delivery with its latest attempts."""
    return Request("GET", path("tenants", tenant, "deliveries", delivery), answers.Delivery)


def attempts(tenant: str, delivery: str, **paging: Unpack[Paging]) -> Request[Page[answers.Attempt]]:
    """Return a page of a delivery's attempts, the latest first."""
    return Request("GET", path("tenants", tenant, "deliveries", delivery, "attempts", **paging), Page[answers.Attempt])


def endpoint_attempts(tenant: str, endpoint: str, **paging: Unpack[Paging]) -> Request[Page[answers.Attempt]]:
    """Return a page of the attempts at an endpoint, the latest first."""
    return Request("GET", path("tenants", tenant, "endpoints", endpoint, "attempts", **paging), Page[answers.Attempt])


def resend(tenant: str, delivery: str, *, priority: str | None = None) -> Request[answers.Delivery]:
    """Deliver a message to its endpoint once more, as a first attempt."""
    where = path("tenants", tenant, "deliveries", f"{delivery}:resend")
    return Request("POST", where, answers.Delivery, body(priority=priority), once())


def cancel(tenant: str, delivery: str) -> Request[answers.Delivery]:
    """Cancel a delivery that waits for a later time."""
    return Request("POST", path("tenants", tenant, "deliveries", f"{delivery}:cancel"), answers.Delivery)


# ------------------------------------------------------------------------------------------------------------- replays


def count_replay(tenant: str, filter: Mapping[str, Any]) -> Request[answers.Counted]:
    """Count the deliveries of a replay; deliver nothing."""
    content = body(filter=filter, dry_run=True)
    return Request("POST", path("tenants", tenant, "replays"), answers.Counted, content)


def start_replay(
    tenant: str, filter: Mapping[str, Any], *, rate_per_s: float | None = None, priority: str | None = None
) -> Request[answers.Replay]:
    """Deliver messages once more, in the background.

    Args:
        filter: any of `endpoint`, `states`, `event_types`, `created_gte`, `created_lt`.
        rate_per_s: most messages put back in a second, below the tenant's rate.
        priority: of the replayed messages; left out, each one's own.
    """
    content = body(filter=filter, rate_per_s=rate_per_s, priority=priority)
    return Request("POST", path("tenants", tenant, "replays"), answers.Replay, content, once())


def replay(tenant: str, replay: str) -> Request[answers.Replay]:
    """Return a replay with its progress."""
    return Request("GET", path("tenants", tenant, "replays", replay), answers.Replay)


def replays(tenant: str, **paging: Unpack[Paging]) -> Request[Page[answers.Replay]]:
    """Return a page of a tenant's replays, the latest first."""
    return Request("GET", path("tenants", tenant, "replays", **paging), Page[answers.Replay])


def pause_replay(tenant: str, replay: str) -> Request[answers.Replay]:
    """Pause a replay."""
    return Request("POST", path("tenants", tenant, "replays", f"{replay}:pause"), answers.Replay)


def resume_replay(tenant: str, replay: str) -> Request[answers.Replay]:
    """Go on with a paused replay."""
    return Request("POST", path("tenants", tenant, "replays", f"{replay}:resume"), answers.Replay)


def cancel_replay(tenant: str, replay: str) -> Request[answers.Replay]:
    """End a replay; what it has put back stays."""
    return Request("POST", path("tenants", tenant, "replays", f"{replay}:cancel"), answers.Replay)


# -------------------------------------------------------------------------------------------------------- dead letters


class LetterFilter(TypedDict, total=False):
    """Which dead letters are meant; all given conditions hold.

    Attributes:
        reason: part of the reason, in upper or lower case.
    """

    endpoint: str | None
    reason: str | None
    died_gte: datetime.datetime | None
    died_lt: datetime.datetime | None


class LetterPage(LetterFilter, Paging, total=False):
    """Which page of which dead letters."""


def dead_letters(tenant: str, **which: Unpack[LetterPage]) -> Request[Page[answers.DeadLetter]]:
    """Return a page of dead letters by endpoint."""
    return Request("GET", path("tenants", tenant, "dead-letters", **which), Page[answers.DeadLetter])


def count_dead_letters(tenant: str, *, endpoint: str | None = None) -> Request[answers.DeadLetterCount]:
    """Count dead letters, together and by endpoint."""
    where = path("tenants", tenant, "dead-letters", "count", endpoint=endpoint)
    return Request("GET", where, answers.DeadLetterCount)


def replay_dead_letters(tenant: str, ids: Sequence[str]) -> Request[answers.ReplayedLetters]:
    """Put dead letters back, 500 at most, by the ids of their deliveries. For more, start a replay."""
    where = path("tenants", tenant, "dead-letters:replay")
    return Request("POST", where, answers.ReplayedLetters, body(ids=ids), once())


def purge_dead_letters(
    tenant: str, *, ids: Sequence[str] | None = None, **which: Unpack[LetterFilter]
) -> Request[answers.Purged]:
    """Throw dead letters away for good; all conditions must hold, and one must be given. Safe to repeat."""
    return Request("POST", path("tenants", tenant, "dead-letters:purge"), answers.Purged, body(ids=ids, **which))
