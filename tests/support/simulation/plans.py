"""The parts of a schedule: topics and events."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from emq.topics.model import Kind, Topic, TopicOptions

LATE_S = 0.1
"""Seconds by which a thread may begin after its time has begun: other handlers compute in between."""


class TopicPlan(NamedTuple):
    """Attributes:
    rate: publishes a second.
    keys: how many there are; 0 for none.
    failing: share of the messages whose first attempts fail.
    doomed: share of those whose attempts all fail.
    slow: share of the messages whose handlers wait.
    delayed: share of the messages that are published with a delay.
    sizes: what qps `resize` sets in turn.
    batch: most messages that its handler takes at a time.
    pauses: operators pause it and let it go on.
    by: what takes its messages: "" for a coroutine, "thread" for a function, "receiver" for one that asks.
    merging: how many merge keys there are; 0 for none.
    created_s: true time at which it is created; 0 for the beginning.
    sleeps: it falls asleep when it is idle; see `support.simulation.families`.
    """

    name: str
    qps: float
    group_qps: float
    rate: float
    kind: Kind = Kind.LOG
    keys: int = 0
    failing: float = 0.1
    doomed: float = 0.02
    slow: float = 0.1
    delayed: float = 0.0
    sizes: tuple[float, ...] = ()
    options: Mapping[str, Any] = {}
    slots: int = 0
    batch: int = 1
    pauses: bool = False
    by: str = ""
    merging: int = 0
    created_s: float = 0.0
    sleeps: bool = False

    def topic(self, qps: float) -> Topic:
        """Return the topic with one of its capacities."""
        priorities = () if self.kind is not Kind.LOG else ("high", "mid", "low")
        options = TopicOptions(**self.options)
        return Topic(self.name, qps, self.group_qps, priorities, kind=self.kind, options=options, slots=self.slots)

    @property
    def is_smooth(self) -> bool:
        return self.options.get("pacing") == "smooth"

    @property
    def is_strict(self) -> bool:
        """True for a topic with named priorities, of which the highest goes first."""
        return self.kind is Kind.LOG and self.options.get("priority_policy", "strict") == "strict"

    @property
    def is_serial(self) -> bool:
        """True if one message of a slot runs at a time."""
        return self.kind is not Kind.LOG and self.options.get("ordering", "slot") == "slot"

    @property
    def merges(self) -> bool:
        """True if its messages merge by a key of their own."""
        return self.merging > 0

    @property
    def moving(self) -> bool:
        """True if its keys are routed again when it is resized."""
        return bool(self.keys and self.sizes)

    @property
    def may_hang(self) -> bool:
        """True if its handler can be made to wait."""
        return not self.by and self.batch == 1

    @property
    def handler_timeout_s(self) -> float:
        """Seconds after which a handler is given up; infinite for never."""
        return float(self.options.get("handler_timeout_s", math.inf))

    def outlives(self, takes_ms: int) -> bool:
        """Return whether a handler that takes this long is given up."""
        return takes_ms / 1000 > self.handler_timeout_s

    def ends_at_its_timeout(self, takes_ms: int) -> bool:
        """Whether a handler that takes so long ends at about the time at which it is given up."""
        return abs(takes_ms / 1000 - self.handler_timeout_s) < LATE_S

    @property
    def dead_after(self) -> int:
        """Attempts after which a message is dead."""
        return int(self.options.get("max_attempts", 17))

    @property
    def shares_budget(self) -> bool:
        """True if it has a budget, or is one; see `support.simulation.budgeted`."""
        return "budget" in self.options or self.name == "tenant"

    @property
    def drops(self) -> bool:
        """True if it drops its oldest messages when it is full."""
        return self.options.get("overflow") == "drop_oldest"

    @property
    def expires(self) -> bool:
        """True if its messages can expire."""
        return "ttl_s" in self.options


class Event(NamedTuple):
    """Attributes:
    at: true time in seconds.
    what: see `support.simulation.schedule`.
    pick: which host or topic, counted round those that there are then.
    for_s: how long it lasts.
    size: how bad it is, from 0 to 1.
    """

    at: float
    what: str
    pick: int
    for_s: float
    size: float
