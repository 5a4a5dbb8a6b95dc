"""The states in which deliveries are shown.

A row knows only whether its delivery is over. A pending one is shown, by the first of these that holds, as

    parked     its endpoint is disabled, it or its tenant is paused, or its circuit is open: nothing is sent there now
    in_flight  a host sends it at this moment, as far as its snapshot tells
    delayed    its time has not come: it waits for its next attempt
    held       its endpoint or its tenant uses its whole rate, or its endpoint has asked for less
    waiting    nothing holds it

Hosts tell of circuits, rates and messages in flight in snapshots. While no host has saved one lately, these are not
known, and a delivery that may be held is shown as waiting.
"""

from __future__ import annotations

import datetime
import enum
from typing import NamedTuple

from emq.topics.model import State as TopicState
from emq.topics.model import Topic
from emq_clients.push import answers
from emq_push.attributes import DISABLED, PAUSED
from emq_push.records import deliveries
from emq_push.records.deliveries import Delivery
from emq_push.service.host_facts import HostFacts

AT_CAP = 0.95
"""The part of its rate from which on a topic counts as using all of it: snapshots round, and seconds differ."""


FAR_S = 253_370_764_800.0
"""The year 9999, in seconds since the epoch: no later time can be shown."""


class State(enum.StrEnum):
    """A delivery's state as shown."""

    WAITING = "waiting"
    HELD = "held"
    DELAYED = "delayed"
    IN_FLIGHT = "in_flight"
    PARKED = "parked"
    DELIVERED = "delivered"
    DEAD = "dead"
    CANCELLED = "cancelled"

    @property
    def of_row(self) -> str:
        """The state of the rows that may be shown so."""
        return self.value if self in _ENDED else deliveries.PENDING


_ENDED = frozenset((State.DELIVERED, State.DEAD, State.CANCELLED))


class Hold(NamedTuple):
    """What holds a topic now.

    Attributes:
        name: "none", "disabled", "paused", "circuit_open", "throttled", "endpoint_cap", "tenant_cap", "gone" (the
            endpoint was deleted) or "unknown".
        reason: in words; may be empty.
        until: seconds since the epoch when the hold ends at the latest; 0 if not known.
        rate: deliveries a second that a throttle leaves; None without one.
    """

    name: str
    reason: str = ""
    until: float = 0.0
    rate: float | None = None

    @property
    def parks(self) -> bool:
        return self.name in ("disabled", "paused", "circuit_open", "gone")

    @property
    def holds(self) -> bool:
        return self.name in ("throttled", "endpoint_cap", "tenant_cap")

    @property
    def shown(self) -> answers.Hold | None:
        """The hold as answers have it."""
        if self.name == "none":
            return None
        until = datetime.datetime.fromtimestamp(self.until, datetime.UTC) if 0 < self.until < FAR_S else None
        return answers.Hold(self.name, self.reason, until, self.rate)


def hold_of(topic: Topic | None, tenant: Topic | None, facts: HostFacts) -> Hold:
    """Return what holds an endpoint's topic now.

    Args:
        topic: the endpoint's topic; None if it is gone.
        tenant: the topic of its tenant; None if it is gone.
        facts: what the hosts say.
    """
    if topic is None:
        return Hold("gone", "the endpoint was deleted")
    if (reason := topic.options.attributes.get(DISABLED)) is not None:
        return Hold("disabled", reason)
    if topic.state is TopicState.PAUSED:
        return Hold("paused", "the endpoint is paused")
    if (why := topic.options.attributes.get(PAUSED)) is not None:
        return Hold("paused", why)
    throttle = facts.throttled.get(topic.name)
    if throttle is not None and throttle.rate is None:
        return Hold("circuit_open", throttle.reason, throttle.until, 0.0)
    if throttle is not None:
        return Hold("throttled", throttle.reason, 0.0, throttle.rate)
    if not facts.live:
        return Hold("unknown", "no host has reported lately")
    seen = facts.topics.get(topic.name)
    if seen is not None and seen.held_by:
        whole = "the tenant" if tenant is not None and seen.held_by == tenant.name else f"the budget {seen.held_by}"
        return Hold("tenant_cap", f"{whole} uses its whole rate")
    started = facts.started_per_s(topic.name)
    if started is not None and started >= AT_CAP * topic.qps:
        return Hold("endpoint_cap", f"the endpoint uses its {topic.qps:g} a second")
    if tenant is not None:
        used = tenant_use(tenant.name, facts)
        if used is not None and used >= AT_CAP * tenant.qps:
            return Hold("tenant_cap", f"the tenant's endpoints together use its {tenant.qps:g} a second")
    return Hold("unknown", "the busiest topics of a host do not name this one") if started is None else Hold("none")


def tenant_use(tenant: str, facts: HostFacts) -> float | None:
    """Return the deliveries that all endpoints of a tenant start in a second now; None if not known."""
    if not facts.live:
        return None
    watched = facts.starts(tenant)
    if watched is not None and watched[1]:
        last = watched[1][-3:]
        return sum(last) / len(last)
    mine = [t.started_per_s for name, t in facts.topics.items() if name.startswith(f"{tenant}.")]
    return sum(mine) if mine or facts.names_all else None


def state_of(delivery: Delivery, hold: Hold, now_us: int, *, in_flight: bool) -> State:
    """Return the state in which a delivery is shown.

    Args:
        in_flight: whether the delivery is among those that hosts send at this moment.
    """
    if delivery.state != deliveries.PENDING:
        return State(delivery.state)
    if hold.parks:
        return State.PARKED
    if in_flight:
        return State.IN_FLIGHT
    if delivery.next_us > now_us:
        return State.DELAYED
    return State.HELD if hold.holds else State.WAITING
