"""The answers of the API, and so the results of the client's operations.

The service makes its answers from these structs. A client leaves out fields of a newer service, and takes values that
this version does not know.
"""

from __future__ import annotations

import datetime
from typing import Annotated, Any

import msgspec

from emq_clients.push.dead_letters import DeadLetter as DeadLetter
from emq_clients.push.dead_letters import DeadLetterCount as DeadLetterCount
from emq_clients.push.dead_letters import EndpointDead as EndpointDead
from emq_clients.push.dead_letters import FailedAttempt as FailedAttempt
from emq_clients.push.dead_letters import Purged as Purged
from emq_clients.push.dead_letters import ReplayedLetters as ReplayedLetters
from emq_clients.push.operators import AuditEntry as AuditEntry
from emq_clients.push.operators import CatalogueSettings as CatalogueSettings
from emq_clients.push.operators import EventType as EventType
from emq_clients.push.operators import Family as Family
from emq_clients.push.operators import Host as Host
from emq_clients.push.operators import Hosts as Hosts
from emq_clients.push.operators import Key as Key
from emq_clients.push.operators import Line as Line
from emq_clients.push.operators import Link as Link
from emq_clients.push.operators import NewKey as NewKey
from emq_clients.push.operators import Plan as Plan
from emq_clients.push.operators import PlannedHost as PlannedHost
from emq_clients.push.operators import Reason as Reason
from emq_clients.push.operators import Trace as Trace
from emq_clients.push.polled import Acknowledged as Acknowledged
from emq_clients.push.polled import PolledMessage as PolledMessage
from emq_clients.requests import one_of

STATES = ("waiting", "held", "delayed", "in_flight", "delivered", "parked", "dead", "cancelled")
"""The states of deliveries."""


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant.

    Attributes:
        paused: nothing is delivered to any of its endpoints until somebody resumes it.
    """

    id: str
    name: str = ""
    qps: float
    payload_retention_s: int = 0
    log_retention_s: int = 0
    delete_on_success: bool = False
    paused: bool = False
    created: datetime.datetime
    changed: datetime.datetime


class Handshake(msgspec.Struct, frozen=True):
    """An endpoint's answer to a handshake.

    Attributes:
        state: "none": nobody asked; "asked": no host has asked yet; "outdated": the URL is another one since.
        allowed_rate_per_min: deliveries a minute; None for any number.
        reason: why it refused.
    """

    state: Annotated[str, one_of("none", "asked", "agreed", "refused", "outdated")]
    origin: str | None = None
    allowed_rate_per_min: int | None = None
    reason: str = ""
    asked: datetime.datetime | None = None


class Batch(msgspec.Struct, frozen=True):
    """How messages share a request.

    Attributes:
        most: most messages of one request.
        wait_s: seconds that a message waits for others, at most.
        format: "json" for an array of the payloads, "lines" for one payload a line.
    """

    most: int
    wait_s: float = 0.0
    format: Annotated[str, one_of("json", "lines")] = "json"


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint of a tenant.

    Attributes:
        qps: its own rate below its tenant's; None if it has none.
        auth: the type of authentication.
        batch: None if each message has a request of its own.
        signature: None for none, or if the service lacks the key with which the secret is encrypted.
        public_key: checks signatures of ed25519; None for others.
        signing: the style of the signatures: "standard", "svix", "stripe", "github", or one of your own.
        template: rewrites payloads; None if the endpoint gets them as they are.
        disabled: why it gets nothing until somebody enables it; None if it does.
        paused: by itself; the tenant has a pause of its own.
        old_secret_until: until then, deliveries are signed with the secret before the last rotation, too.
        warnings: what is not wrong, but looks like a mistake; only after a change.
        secret: verifies deliveries. Only the answer that makes it has it; None for ed25519, and for your own one.
    """

    id: str
    url: str
    description: str = ""
    event_types: list[str] = []
    filters: list[dict[str, Any]] = []
    channels: list[str] = []
    qps: float | None = None
    priorities: list[str] = []
    retry_schedule_s: list[float] = []
    jitter: float = 0.0
    timeout_s: float = 0.0
    ttl_s: float | None = None
    durability: str = "accepted"
    header_names: list[str] = []
    auth: str = ""
    batch: Batch | None = None
    signature: Annotated[str, one_of("hmac", "ed25519")] | None = None
    public_key: str | None = None
    signing: str = "standard"
    template: dict[str, Any] | None = None
    disabled: str | None = None
    paused: bool = False
    old_secret_until: datetime.datetime | None = None
    created: datetime.datetime
    changed: datetime.datetime
    warnings: list[str] = []
    secret: str | None = None


class Receipt(msgspec.Struct, frozen=True):
    """A message that was accepted.

    Attributes:
        deliveries: ids of its deliveries, one for each endpoint that gets it; none if no endpoint takes its type.
    """

    id: str
    deliveries: list[str] = []


class Receipts(msgspec.Struct, frozen=True):
    """Messages that were accepted, in the order of the request."""

    data: list[Receipt]


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of the log.

    Attributes:
        expires: when the service forgets the message.
        due: when the first attempt may be made; None for at once.
        erased: the payload is gone.
        payload: None if it was erased, and where more than one message was asked for, as `deliveries`.
        deliveries: their ids.
    """

    id: str
    event_type: str
    key: str | None = None
    priority: str | None = None
    headers: dict[str, str] = {}
    channels: list[str] = []
    created: datetime.datetime
    due: datetime.datetime | None = None
    expires: datetime.datetime
    erased: bool = False
    payload: Any = None
    deliveries: list[str] = []


class Hold(msgspec.Struct, frozen=True):
    """What holds a delivery or an endpoint now.

    Attributes:
        name: disabled, paused, circuit_open, throttled, endpoint_cap, tenant_cap, gone, or unknown: no host has
            reported lately.
        until: when the hold ends at the latest; None if not known.
        rate_per_s: deliveries a second that are left; None if not limited.
    """

    name: str
    reason: str
    until: datetime.datetime | None = None
    rate_per_s: float | None = None


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt to deliver a message.

    Attributes:
        number: from 1; begins again when a message is sent again.
        outcome: delivered, placed (in the log of a polling endpoint), retry, parked or dead.
        status: of the answer; None without one.
        answer: the beginning of the answer's body, with secrets masked.
        host: the host that made it; for admin keys.
    """

    delivery: str
    number: int
    started: datetime.datetime
    took_ms: float
    status: int | None = None
    outcome: str
    reason: str = ""
    answer: str = ""
    host: str | None = None


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """One message on its way to one endpoint.

    Attributes:
        attempts: attempts made.
        status: of the last answer; None without one.
        reason: why the last attempt failed.
        next_attempt: None if it is due, or over.
        settled: when it was delivered, died or was cancelled.
        hold: None if nothing holds its endpoint, or if it is over.
        latest_attempts: the newest first; only where one delivery was asked for.
    """

    id: str
    endpoint: str
    message: str
    event_type: str
    state: Annotated[str, one_of(*STATES)]
    attempts: int
    status: int | None = None
    reason: str = ""
    created: datetime.datetime
    next_attempt: datetime.datetime | None = None
    settled: datetime.datetime | None = None
    hold: Hold | None = None
    latest_attempts: list[Attempt] = []


class Filter(msgspec.Struct, frozen=True):
    """The deliveries that a replay takes."""

    endpoint: str = ""
    states: list[str] = []
    event_types: list[str] = []
    created_gte: datetime.datetime | None = None
    created_lt: datetime.datetime | None = None


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """A replay and its progress.

    Attributes:
        total: deliveries that it had to take at its start.
        total_is_exact: False if there were more than `total`.
        replayed: deliveries put back so far.
        left_out: deliveries whose payload or endpoint is gone, or that changed meanwhile.
        trouble: why it does not go on; empty if it does.
    """

    id: str
    state: Annotated[str, one_of("running", "paused", "cancelled", "done")]
    filter: Filter = Filter()
    rate_per_s: float = 0.0
    priority: str = ""
    total: int
    total_is_exact: bool
    replayed: int = 0
    left_out: int = 0
    trouble: str = ""
    created: datetime.datetime
    changed: datetime.datetime


class Counted(msgspec.Struct, frozen=True):
    """What a replay would take now.

    Attributes:
        total_is_exact: False if there are more than `total`.
    """

    total: int
    total_is_exact: bool


class EndpointLag(msgspec.Struct, frozen=True, kw_only=True):
    """The lag of an endpoint: deliveries that are not done, by what they wait for; each counts in one part.

    Attributes:
        ready: they may start now.
        delayed: they wait for their next attempt.
        dead: dead letters.
        held_by_rate: their endpoint or tenant uses its whole rate; None if no host has reported, as in other parts.
        in_flight: they wait for the endpoint's answer.
        parked: their endpoint is disabled, it or its tenant is paused, or its circuit is open.
        oldest_claimable_s: seconds since the oldest delivery that is due was accepted; None if none is due.
    """

    ready: int
    held_by_rate: int | None = None
    delayed: int
    in_flight: int | None = None
    parked: int | None = None
    dead: int
    endpoint: str
    oldest_claimable_s: float | None = None
    hold: Hold | None = None


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """A cap and its use.

    Attributes:
        cap_per_s: most deliveries started in a second.
        endpoint: None for the tenant as a whole.
        used_per_s: deliveries started a second now; None if not known.
        limited_by: None if nothing limits it now.
        last_seconds: starts in each of the last seconds, as far as hosts count them.
    """

    endpoint: str | None = None
    cap_per_s: float
    used_per_s: float | None = None
    last_seconds: list[int] = []
    limited_by: Hold | None = None


class Example(msgspec.Struct, frozen=True):
    """An example that was accepted.

    Attributes:
        id: the webhook-id of the request.
        delivery: id of its delivery, which shows what became of it.
    """

    id: str
    delivery: str
    payload: dict[str, Any] = {}


class Preview(msgspec.Struct, frozen=True):
    """What an endpoint would get.

    Attributes:
        payload: as the template of the endpoint rewrites it.
    """

    payload: dict[str, Any]


class Erased(msgspec.Struct, frozen=True):
    """What was erased."""

    payloads: int
