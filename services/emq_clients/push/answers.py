"""The results of the client's operations. Fields of a newer service are left out."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec


class Tenant(msgspec.Struct, frozen=True):
    id: str
    qps: float
    created: datetime.datetime
    changed: datetime.datetime
    name: str = ""
    payload_retention_s: int = 0
    log_retention_s: int = 0
    delete_on_success: bool = False
    paused: bool = False


class Handshake(msgspec.Struct, frozen=True):
    """An endpoint's answer to a handshake.

    Attributes:
        state: "none", "agreed", "refused" or "outdated".
        allowed_rate_per_min: deliveries a minute; None for any number.
        reason: why it refused.
    """

    state: str
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
    format: str = "json"


class Endpoint(msgspec.Struct, frozen=True):
    """An endpoint of a tenant.

    Attributes:
        qps: its own rate below its tenant's; None if it has none.
        auth: the type of authentication.
        batch: None if each message has a request of its own.
        signature: "hmac" or "ed25519"; None if the service cannot tell.
        public_key: checks signatures of ed25519; None for others.
        disabled: why it is disabled; None if it is not.
        warnings: of the service, when it created or changed the endpoint.
        secret: only in the answer that makes it, and never for ed25519.
    """

    id: str
    url: str
    created: datetime.datetime
    changed: datetime.datetime
    description: str = ""
    event_types: list[str] = []
    qps: float | None = None
    priorities: list[str] = []
    retry_schedule_s: list[float] = []
    timeout_s: float = 0.0
    header_names: list[str] = []
    auth: str = ""
    batch: Batch | None = None
    signature: str | None = None
    public_key: str | None = None
    disabled: str | None = None
    paused: bool = False
    warnings: list[str] = []
    secret: str | None = None


class Receipt(msgspec.Struct, frozen=True):
    """A published message with the ids of its deliveries; none if no endpoint takes its type."""

    id: str
    deliveries: list[str] = []


class Receipts(msgspec.Struct, frozen=True):
    data: list[Receipt]


class StoredMessage(msgspec.Struct, frozen=True):
    """A message of the log; `payload` and `deliveries` only where one message was asked for."""

    id: str
    event_type: str
    created: datetime.datetime
    key: str | None = None
    priority: str | None = None
    headers: dict[str, str] = {}
    due: datetime.datetime | None = None
    expires: datetime.datetime | None = None
    erased: bool = False
    payload: Any = None
    deliveries: list[str] = []


class Hold(msgspec.Struct, frozen=True):
    """What holds a delivery or an endpoint now."""

    name: str
    reason: str
    until: datetime.datetime | None = None
    rate_per_s: float | None = None


class Attempt(msgspec.Struct, frozen=True):
    delivery: str
    number: int
    started: datetime.datetime
    took_ms: float
    outcome: str
    reason: str = ""
    status: int | None = None
    answer: str = ""
    host: str | None = None


class Delivery(msgspec.Struct, frozen=True):
    """One message on its way to one endpoint.

    Attributes:
        state: waiting, held, delayed, in_flight, delivered, parked, dead, cancelled, or unknown.
        latest_attempts: only where one delivery was asked for.
    """

    id: str
    endpoint: str
    message: str
    event_type: str
    state: str
    attempts: int
    created: datetime.datetime
    status: int | None = None
    reason: str = ""
    next_attempt: datetime.datetime | None = None
    settled: datetime.datetime | None = None
    hold: Hold | None = None
    latest_attempts: list[Attempt] = []


class Replay(msgspec.Struct, frozen=True):
    """A replay, running or over; after a dry run only its count."""

    id: str
    state: str
    total: int
    total_is_exact: bool
    replayed: int = 0
    left_out: int = 0
    trouble: str = ""
    rate_per_s: float = 0.0
    priority: str = ""


class Counted(msgspec.Struct, frozen=True):
    """What a replay would take."""

    total: int
    total_is_exact: bool


class FailedAttempt(msgspec.Struct, frozen=True):
    at: datetime.datetime
    reason: str


class DeadLetter(msgspec.Struct, frozen=True):
    """A message that used up its attempts at an endpoint.

    Attributes:
        id: of its delivery.
        payload: its beginning, as text.
        payload_bytes: of all of it.
    """

    id: str
    endpoint: str
    message: str
    priority: str
    attempts: int
    reason: str
    died: datetime.datetime
    history: list[FailedAttempt] = []
    payload: str = ""
    payload_bytes: int = 0


class EndpointDead(msgspec.Struct, frozen=True):
    endpoint: str
    dead: int


class DeadLetterCount(msgspec.Struct, frozen=True):
    """The dead letters of a tenant, and of its endpoints that have any."""

    dead: int
    endpoints: list[EndpointDead]


class ReplayedLetters(msgspec.Struct, frozen=True):
    """The dead letters that wait again, by the ids of their deliveries."""

    ids: list[str]


class AuditEntry(msgspec.Struct, frozen=True):
    """A change that somebody made.

    Attributes:
        actor: id and name of the key.
        action: such as "endpoint.changed".
        changes: the new values, without secrets.
    """

    id: str
    time: datetime.datetime
    actor: str
    action: str
    target: str
    tenant: str | None = None
    changes: dict[str, Any] = {}


class EndpointLag(msgspec.Struct, frozen=True):
    """The lag of one endpoint; None if no host has reported lately."""

    endpoint: str
    ready: int
    delayed: int
    dead: int
    held_by_rate: int | None = None
    in_flight: int | None = None
    parked: int | None = None
    oldest_claimable_s: float | None = None
    hold: Hold | None = None


class Rate(msgspec.Struct, frozen=True):
    """A cap and its use; `endpoint` is None for the tenant's own."""

    cap_per_s: float
    endpoint: str | None = None
    used_per_s: float | None = None
    limited_by: Hold | None = None


class Key(msgspec.Struct, frozen=True):
    """A key, or a session of the pages; `key` only in the answer that makes it.

    Attributes:
        made_by: id of the key that made it, and with which it ends.
    """

    id: str
    role: str
    created: datetime.datetime
    tenant: str | None = None
    name: str = ""
    expires: datetime.datetime | None = None
    kind: str = "key"
    made_by: str | None = None
    key: str | None = None


class Example(msgspec.Struct, frozen=True):
    """An example that was accepted; `delivery` is the id of its delivery."""

    id: str
    delivery: str


class Erased(msgspec.Struct, frozen=True):
    payloads: int


class Purged(msgspec.Struct, frozen=True):
    purged: int
    more: bool = False


class Host(msgspec.Struct, frozen=True):
    """A host, by its latest report.

    Attributes:
        live: False if it has been silent for 10 seconds.
        age_s: seconds since the report.
        trouble: why it cannot reach its store or database; None if it can.
    """

    host: str
    live: bool
    age_s: float
    uptime_s: float = 0.0
    topics: int = 0
    groups: int = 0
    in_flight: int = 0
    started_per_s: float = 0.0
    failed_per_s: float = 0.0
    closed_topics: int = 0
    limited_topics: int = 0
    trouble: str | None = None


class Hosts(msgspec.Struct, frozen=True):
    """The hosts heard of within the last hour, by name."""

    data: list[Host]


class PlannedHost(msgspec.Struct, frozen=True):
    """A host of the plan.

    Attributes:
        groups: number of groups that the plan gives it.
        member: whether it is in the cluster now.
        drained: whether an operator has ordered it to hold no groups.
    """

    host: str
    groups: int
    member: bool
    drained: bool = False


class Plan(msgspec.Struct, frozen=True):
    """The plan that says which host owns which groups.

    Attributes:
        generation: its number; 0 before the first plan.
        planned_by, leader: the host that made it, and the one that leads now; empty for none.
        groups: number of groups.
        holding: number of groups by their progress towards their host.
    """

    generation: int
    planned: datetime.datetime | None
    planned_by: str
    leader: str
    groups: int
    holding: dict[str, int]
    hosts: list[PlannedHost]


class Line(msgspec.Struct, frozen=True):
    """An event in the life of a message."""

    at: datetime.datetime
    event: str
    detail: str = ""


class Reason(msgspec.Struct, frozen=True):
    """A reason why a message waits."""

    name: str
    text: str
    until: datetime.datetime | None = None


class Trace(msgspec.Struct, frozen=True):
    """The life of a message.

    Attributes:
        place: where the store has it, or None.
        why: the reasons why it waits.
        notes: what could not be looked at.
    """

    id: str
    topic: str
    state: str
    timeline: list[Line] = []
    place: dict[str, Any] | None = None
    why: list[Reason] = []
    notes: list[str] = []
