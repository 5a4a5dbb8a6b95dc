"""The history of one message: its events, its deliveries, and what may have been between them."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from emq.trail import events
from emq_proof.history_facts import Facts, Fault, Step, concerns, needs_no_start

_ENDS = (events.SETTLED, *events.AGAIN, events.DEAD)


class Delivery:
    """A start, and the ends that its host recorded for it."""

    __slots__ = ("ends", "start")

    def __init__(self, start: Step) -> None:
        self.start = start
        self.ends: list[Step] = []


class History:
    """The events of one message.

    Attributes:
        steps: the events, in the order of `histories.in_order`.
        facts: facts beyond the message's own events.
        deliveries: its starts, with their ends.
        strays: ends without a start by their host.
        may_be_two: whether two messages may have the id.
    """

    def __init__(self, name: str, steps: Sequence[Step], facts: Facts) -> None:
        self._name = name
        self.steps = steps
        self.facts = facts
        self.deliveries: list[Delivery] = []
        self.strays: list[Step] = []
        begun = {step.published_us for step in steps if step.event == events.PUBLISHED}
        self.may_be_two = len(begun) > 1 or any(step.event == events.DOUBTED for step in steps)
        self._pair()

    def fault(self, promise: str, kind: str, step: Step, text: str) -> Fault:
        """Return a fault that a step shows; the text goes on behind the message's name."""
        return Fault(promise, kind, f"{self._name} {text}", step.time_us, step.source, step.group)

    def before(self, one: Step, other: Step, slack_us: int | None = None) -> bool:
        """Return whether one event may have been before the other; with a slack below 0, whether it surely was."""
        slack_us = self.facts.slack_us if slack_us is None else slack_us
        if one.source == other.source:
            return one.time_us < other.time_us + (slack_us >= 0)
        return one.time_us <= other.time_us + slack_us

    def of(self, *names: str) -> list[Step]:
        """Return the events of these kinds."""
        return [step for step in self.steps if step.event in names]

    @functools.cached_property
    def met_a_crash(self) -> bool:
        """Whether an owner of its group ended without saving all before the message was over, or its store lost it."""
        if any(step.offset is not None and self._was_lost(step) for step in self.of(events.PUBLISHED)):
            return True
        begun_us = min(step.published_us or step.time_us for step in self.steps)
        over_us = [s.time_us for s in self.steps if s.event in (events.SETTLED, events.DEAD)]
        return any(
            begun_us <= until_us and not any(at_us < from_us for at_us in over_us)
            for group in {step.group for step in self.steps}
            for from_us, until_us in self.facts.crashes(group)
        )

    def _was_lost(self, step: Step) -> bool:
        losses = self.facts.losses(step.group, step.priority)
        return concerns(losses, step.offset or 0, step.published_us or step.time_us, self.facts.slack_us)

    def _pair(self) -> None:
        """Give each end to the last start of its host and attempt."""
        last: dict[tuple[str, int | None], Delivery] = {}
        for step in self.steps:
            who = step.source, step.attempt
            if step.event == events.STARTED:
                last[who] = Delivery(step)
                self.deliveries.append(last[who])
            elif step.event in _ENDS:
                if who in last:
                    last[who].ends.append(step)
                elif not needs_no_start(step.event, step.reason):
                    self.strays.append(step)
