"""The model of a pool: resources with limits, task types, calendars, tenants, limits by key. Immutable;
`emq_scheduling.pools.rules` says which values go together, `emq_scheduling.pools.catalog` keeps and changes pools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

Period = Literal["second", "minute", "hour", "day", "in_flight"]
"""The period of a limit; "in_flight" limits tasks that run at the same time."""

Kind = Literal["rolling", "bucket", "calendar"]
"""How a limit with a period counts."""

KINDS: dict[Period, Kind] = {"second": "calendar", "minute": "rolling", "hour": "rolling", "day": "calendar"}
"""The kind of a limit that names none, by its period."""

PERIODS_S: dict[str, float] = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86_400.0}

Learns = Literal["no", "up", "both"]
"""Whether a type's estimate follows the use that its tasks report."""

Costs = dict[str, float]
"""Units by the name of the limit. A task costs 1 of every limit that its costs do not name."""

DEFAULT_COST = 1.0

TENANT = "tenant"
"""The name by which a limit by key counts for each tenant; other names are those of keys that tasks bring."""


class Limit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One limit of a resource.

    Attributes:
        name: the counted units, such as "requests" or "tokens"; costs refer to it. Limits of one name on a resource and
            on its parents are charged together.
        amount: most units in each period, 0 or more; 0 lets nothing start.
        per: the period.
        kind: how the period counts. "rolling": any time of that length, wherever it begins; the default for minutes and
            hours. "calendar": the clock's seconds, minutes and hours, and days from midnight to midnight; the default
            for seconds and days. "bucket": `amount` is the rate at which a bucket of `burst` units refills, and unused
            units pile up there. None for the default, and for a limit in flight.
        burst: of a bucket: the units that it holds, above 0; None for the amount.
        zone: of a calendar's day: the IANA name of its zone; None for the zone of the resource's calendar, else UTC.
    """

    name: str
    amount: float
    per: Period
    kind: Kind | None = None
    burst: float | None = None
    zone: str | None = None

    @property
    def counts(self) -> Kind | None:
        """How the period counts; None in flight."""
        return self.kind or KINDS.get(self.per)

    @property
    def note(self) -> str:
        """How it counts, in words, such as " (bucket of 50)"; empty where its period says so."""
        if self.kind == "bucket":
            return " (bucket)" if self.burst is None else f" (bucket of {self.burst:g})"
        zone = f"day of {self.zone}" if self.zone else ""
        kind = self.kind if self.kind and self.kind != KINDS[self.per] else ""
        return f" ({zone or kind})" if zone or kind else ""

    def at_once(self, amount: float) -> float:
        """Return the most units that a task may cost, where the limit has this amount."""
        return amount if self.burst is None or amount == 0 else self.burst


class Hours(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Hours of the week, and amounts during them.

    Attributes:
        days: such as "mon-fri", "sat,sun"; empty for each day.
        start, end: "HH:MM", the end excluded; "24:00" is the day's end. An end before the start is on the next day.
        amounts: of a calendar: the amounts of limits, by limit name, that hold in these hours instead of the resource's
            own. Not used in the hours of task types.
    """

    start: str = "00:00"
    end: str = "24:00"
    days: str = ""
    amounts: dict[str, float] = {}


class Calendar(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Amounts of limits by time of day. Where two hours of a calendar overlap, they must not set the same limit.

    Attributes:
        zone: an IANA name such as "Europe/Berlin".
        hours: when which amounts hold; at other times the resource's own do.
    """

    zone: str = "UTC"
    hours: tuple[Hours, ...] = ()


class Resource(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A channel, a worker or an API that does tasks; or a parent (an account, a provider) whose limits it shares.

    Attributes:
        parent: the name of the resource whose limits count, too; None for none. A task starts only if it has room under
            the limits of its resource and of every parent above, and is charged to all of them or to none.
        limits: its own limits; none means that only its parents limit it.
        takes: the task types that it does, each with costs that differ from the type's own; {} for none that differ. A
            resource that takes nothing is only a parent.
        weight: among resources with room, tasks are shared out in proportion to the weights; above 0.
        price: of two resources with room, the cheaper one is chosen first; 0 or more, in any unit.
        calendar: the name of a calendar of the pool; None for none.
        paused: True to start nothing on it, and on resources below it.
        adapts: lower its limits for a while when it asks for less, or is slow (`emq_scheduling.choice.health`).
        attributes: free texts for performers, such as a URL. They hold for the resources below it, too, except where
            these have a text of that name.
    """

    parent: str | None = None
    limits: tuple[Limit, ...] = ()
    takes: dict[str, Costs] = {}
    weight: float = 1.0
    price: float = 0.0
    calendar: str | None = None
    paused: bool = False
    adapts: bool = True
    attributes: dict[str, str] = {}


class TaskType(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A kind of task.

    Attributes:
        priority: 0 is the most urgent. A type starts on a resource before all types of a higher number there.
        near_priority: the priority at which a task competes once its deadline is near; None for its own. There it goes
            before the tasks whose deadline is not near, or farther away.
        longest_wait_s: the default deadline of tasks, in seconds from their submit, and the target for their waits;
            None for no deadline.
        ttl_s: seconds after which a task that has not started ends as expired; None for never.
        costs: units that each task is charged at its start; an estimate, if tasks report their real use.
        learns: whether these reports change the estimate, for tasks without costs of their own: "up" only raises it
            above `costs`, "both" also lowers it, "no" keeps it. The estimate stays within a factor of 10, and below
            what the limits of the resource allow.
        duration_s: expected time that a task takes, in seconds; corrected by measurements.
        share: of the starts of each resource that takes it, the part that the type gets even if more urgent types have
            a backlog; 0 to 1. The shares of all types add up to at most 1.
        hours: when tasks may start, in the task's own zone, else the pool's; none means always. `amounts` are not used.
        timeout_s: time after which a running task is cancelled and counts as failed; None for no limit.
        beats_within_s: a running task that has not beaten (`Run.beat`) for longer than this is cancelled, and counts as
            failed; None for no such watch.
        max_attempts: attempts before a task ends as dead.
        backoff_s: waits after failed attempts, in seconds; the last repeats.
    """

    priority: int = 1
    near_priority: int | None = None
    longest_wait_s: float | None = None
    ttl_s: float | None = None
    costs: Costs = {}
    learns: Learns = "up"
    duration_s: float = 1.0
    share: float = 0.0
    hours: tuple[Hours, ...] = ()
    timeout_s: float | None = 60.0
    beats_within_s: float | None = None
    max_attempts: int = 5
    backoff_s: tuple[float, ...] = (1.0, 5.0, 30.0, 60.0, 300.0)


class Tenant(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A tenant within the pool; one that the pool does not name has the defaults.

    Attributes:
        weight: its part, in proportion to the other tenants with waiting tasks of the same type; above 0.
    """

    weight: float = 1.0


class KeyLimit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A limit that counts for each tenant, or for each key, by itself, on all resources of the pool together.

    Attributes:
        by: "tenant", or the names of keys that tasks bring, such as ["account", "model"]; also both. Tasks that are
            equal in all of them share an account of their own.
        amount: most units of each account in each period, 0 or more; 0 lets nothing start.
        per: the period.
        units: the counted units, such as "tokens"; costs refer to them. Empty for the name of the limit in the pool.
        kind, burst, zone: how the period counts, as for the limits of resources. A day without a zone is one in UTC.
        amounts: exceptions: other amounts for some accounts, such as {"acme": 20}. If `by` has several names, their
            values in that order, with commas: {"acme,large": 20}.
        types: the task types that it counts; none for all.
    """

    by: str | tuple[str, ...]
    amount: float
    per: Period
    units: str = ""
    kind: Kind | None = None
    burst: float | None = None
    zone: str | None = None
    amounts: dict[str, float] = {}
    types: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names in `by`."""
        return (self.by,) if isinstance(self.by, str) else self.by

    def unit(self, name: str) -> str:
        """Return the name of the counted units; `name` is that of the limit in the pool."""
        return self.units or name

    def counts_type(self, task_type: str) -> bool:
        """Return whether it counts tasks of a type."""
        return not self.types or task_type in self.types

    def key_of(self, tenant: str, keys: Mapping[str, str] | None) -> tuple[str, ...]:
        """Return the account of a task: the values of all names; "" for a key that the task does not have."""
        return tuple(tenant if name == TENANT else (keys or {}).get(name, "") for name in self.names)

    def amount_of(self, key: tuple[str, ...]) -> float:
        """Return the amount of an account."""
        return self.amounts.get(",".join(key), self.amount) if self.amounts else self.amount

    def limit(self, name: str, amount: float) -> Limit:
        """Return the limit of an account with this amount.

        Args:
            name: its own, in the pool.
        """
        return Limit(self.unit(name), amount, self.per, self.kind, self.burst, self.zone)


class Pool(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Resources that share task types, and which one host schedules together.

    Attributes:
        name: also the beginning of the names of its topics.
        zone: of the hours of task types, for tasks that carry no zone.
        resources, types, calendars, tenants, limits: by name; `limits` are those by tenant and by key.
    """

    name: str
    zone: str = "UTC"
    resources: dict[str, Resource] = {}
    types: dict[str, TaskType] = {}
    calendars: dict[str, Calendar] = {}
    tenants: dict[str, Tenant] = {}
    limits: dict[str, KeyLimit] = {}

    def weight(self, tenant: str) -> float:
        """Return the weight of a tenant."""
        known = self.tenants.get(tenant)
        return 1.0 if known is None else known.weight

    def parents(self, resource: str) -> list[str]:
        """Return the names of the parents of a resource, the nearest first. The pool must have passed `rules.check`."""
        found = []
        at = self.resources[resource].parent
        while at is not None:
            found.append(at)
            at = self.resources[at].parent
        return found

    def line(self, resource: str) -> list[str]:
        """Return the names of the resource and its parents, the nearest first; for a pool that passed `rules.check`."""
        return [resource, *self.parents(resource)]

    def chain(self, resource: str) -> list[Resource]:
        """Return the resource and its parents, the nearest first. The pool must have passed `rules.check`."""
        return [self.resources[name] for name in self.line(resource)]

    def attributes(self, resource: str) -> dict[str, str]:
        """Return the attributes of the resource, and those of its parents that nearer ones do not have."""
        return {name: text for each in reversed(self.chain(resource)) for name, text in each.attributes.items()}

    def tree(self) -> Iterator[tuple[str, int]]:
        """Yield the names of all resources, each one below its parent, with the number of its parents."""
        below: dict[str | None, list[str]] = {}
        for name, resource in self.resources.items():
            below.setdefault(resource.parent, []).append(name)
        left = [(name, 0) for name in reversed(below.get(None, []))]
        while left:
            name, depth = left.pop()
            yield name, depth
            left += [(each, depth + 1) for each in reversed(below.get(name, []))]

    def costs(self, task_type: str, resource: str) -> Costs:
        """Return the costs of a task of the type on the resource, by the names of all limits that count it there."""
        kind, own = self.types[task_type], self.resources[resource].takes.get(task_type, {})
        names = {limit.name for each in self.chain(resource) for limit in each.limits}
        names |= {limit.unit(name) for name, limit in self.limits.items() if limit.counts_type(task_type)}
        return {name: own.get(name, kind.costs.get(name, DEFAULT_COST)) for name in names}

    @property
    def has_in_flight(self) -> bool:
        """Whether a limit counts tasks in flight."""
        keyed = any(limit.per == "in_flight" for limit in self.limits.values())
        return keyed or any(limit.per == "in_flight" for each in self.resources.values() for limit in each.limits)

    def units(self) -> list[str]:
        """Return the names of all units that limits count: costs may refer to them."""
        found = dict.fromkeys(limit.name for resource in self.resources.values() for limit in resource.limits)
        return [*found, *(unit for name, limit in self.limits.items() if (unit := limit.unit(name)) not in found)]

    def able(self, task_type: str) -> list[str]:
        """Return the names of the resources that take the type."""
        return [name for name, resource in self.resources.items() if task_type in resource.takes]
