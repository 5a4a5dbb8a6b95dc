"""The answers to operators: hosts, the plan, lives of messages, families, keys, changes; `answers` has them, too."""

from __future__ import annotations

import datetime
from typing import Annotated, Any

import msgspec

from emq_clients.requests import one_of


class Host(msgspec.Struct, frozen=True):
    """A host, by its latest report.

    Attributes:
        live: False if it has been silent for 10 seconds.
        age_s: seconds since it saved its latest snapshot.
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
        groups: number of groups of topics of no family that the plan gives it.
        member: whether it is in the cluster now.
        drained: whether an operator has ordered it to hold no groups.
        buckets: number of buckets of families that the plan gives it.
    """

    host: str
    groups: int
    member: bool
    drained: bool = False
    buckets: int = 0


class Plan(msgspec.Struct, frozen=True):
    """The plan that says which host owns which groups.

    Attributes:
        generation: its number; 0 before the first plan.
        planned_by, leader: the host that made it, and the one that leads now; empty for none.
        groups, buckets: number of groups of topics of no family, and of buckets, which are parts of families.
        holding, holding_buckets: their numbers by their progress towards their host.
    """

    generation: int
    planned: datetime.datetime | None
    planned_by: str
    leader: str
    groups: int
    holding: dict[str, int]
    hosts: list[PlannedHost]
    buckets: int = 0
    holding_buckets: dict[str, int] = {}


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


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """A family: settings for all topics below a prefix.

    Attributes:
        name: the prefix and a star.
        version: stands for state and settings; the ETag.
        topics: how many of its topics are awake.
        settings: what a POST takes; "none" as `idle_s` stands for never, and secrets are masked.
    """

    name: str
    version: int
    state: Annotated[str, one_of("active", "paused", "draining")]
    topics: int
    settings: dict[str, Any]


class EventType(msgspec.Struct, frozen=True, kw_only=True):
    """An event type of the catalogue.

    Attributes:
        versions: of its schemas, the oldest first; the last one counts unless a message names another.
        checked: whether payloads must fit; None for what the catalogue's settings say.
        archived: not offered any more; its messages are delivered as before.
        schemas: JSON Schemas by version, where one event type was asked for, as `example`.
        example: a payload; None for none.
    """

    name: str
    description: str = ""
    versions: list[str] = []
    checked: bool | None = None
    archived: bool = False
    created: datetime.datetime
    changed: datetime.datetime
    schemas: dict[str, dict[str, Any]] = {}
    example: Any = None


class CatalogueSettings(msgspec.Struct, frozen=True):
    """What holds for all event types.

    Attributes:
        check: "off": messages are not checked; "known": payloads must fit the schema of their type, if it has one;
            "strict": event types that are not in the catalogue are refused, too.
    """

    check: Annotated[str, one_of("off", "known", "strict")]


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A change that somebody made.

    Attributes:
        actor: id and name of the key.
        action: such as "endpoint.changed".
        changes: the new values, without secrets.
    """

    id: str
    time: datetime.datetime
    tenant: str | None = None
    actor: str
    action: str
    target: str
    changes: dict[str, Any] = {}


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A key, or a session of the pages.

    Attributes:
        expires: no later than that of the key that made it.
        kind: "session" for somebody who is signed in to the pages; "link" for a link that nobody has opened yet.
        made_by: id of the key that made it, and with which it ends.
        used: its last use, to the minute; None if it was never used.
    """

    id: str
    role: Annotated[str, one_of("admin", "submit", "read", "send", "poll", "manage")]
    tenant: str | None = None
    name: str = ""
    kind: Annotated[str, one_of("key", "session", "link")] = "key"
    made_by: str | None = None
    created: datetime.datetime
    expires: datetime.datetime | None = None
    used: datetime.datetime | None = None
    key: str | None = None


class NewKey(Key, frozen=True, kw_only=True):
    """A new key.

    Attributes:
        key: nothing shows it again.
    """

    key: str = ""


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """A link that signs somebody in to a tenant's pages, once.

    Attributes:
        id: of the session that it becomes.
        path: of the link, below the address at which browsers reach the pages; nothing shows it again.
        expires: until when it must be opened.
    """

    id: str
    tenant: str
    role: Annotated[str, one_of("read", "manage")]
    path: str
    expires: datetime.datetime
