"""Judge the history of one message: its events must fit together and keep the promises that one message can break.

This is for ids that are published once. The rules: a delivery has one start and one end, by one host (E, O). Each
attempt follows the failure of the one before, and is made once (X, D). A message is settled, or dead, or recalled, or
waits, never two of these (D, X). It is delivered from the place, with the priority and with the key of its publish (D,
M, P, K). It starts neither before it is due nor after it expired (T).

A host that was killed, or lost its group, may have acted without a saved progress or record. So a repeat of a message
that was not over some seconds before is not a violation, nor is a repeat of a message that a store had lost. Events of
two sources that are no further apart than their clocks may differ can be in either order.

This module reads no files and does not need pyarrow, so that an audit on many machines can use it too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from emq import plurals
from emq.trail import events
from emq.trail.history_facts import Facts as Facts
from emq.trail.history_facts import Fault as Fault
from emq.trail.history_facts import Step as Step
from emq.trail.history_facts import concerns, expired_early, is_expiry, may_die_early, needs_no_start
from emq.trail.lives import LEARN_US

_ENDS = (events.SETTLED, *events.AGAIN, events.DEAD)
_FIRST = {events.PUBLISHED: 0, events.MERGED: 0, events.STARTED: 1}


class _Delivery:
    """A start, and the ends that its host recorded for it."""

    __slots__ = ("ends", "start")

    def __init__(self, start: Step) -> None:
        self.start = start
        self.ends: list[Step] = []


def in_order(steps: Iterable[Step]) -> list[Step]:
    """Return the steps by time; at one time publishes, then starts, then ends."""
    return sorted(steps, key=lambda step: (step.time_us, _FIRST.get(step.event, 2)))


def is_plain(steps: Sequence[Step]) -> bool:
    """Return whether a message was just published, started once and settled, so that no further check is needed."""
    if len(steps) != 3:
        return False
    publish, start, end = steps
    return (
        publish.event == events.PUBLISHED
        and start.event == events.STARTED
        and end.event == events.SETTLED
        and start.attempt == end.attempt == 1
        and start.source == end.source
        and start.group == end.group == publish.group
        and start.offset == end.offset
        and start.time_us >= (publish.published_us or publish.time_us)
        and start.priority == publish.priority == end.priority
        and start.key == publish.key
        and (start.offset == publish.offset if publish.offset is not None else start.offset == -1)
        and publish.due_ms is None
        and start.until is None
    )


def judge(name: str, steps: Sequence[Step], facts: Facts) -> Iterator[Fault]:
    """Yield all faults of a message.

    Args:
        name: name of the message in the texts of the faults.
        steps: its events, as `in_order` returns them.
        facts: facts beyond the message's own events.
    """
    if not is_plain(steps):
        yield from _Judge(name, steps, facts).faults()


class _Judge:
    def __init__(self, name: str, steps: Sequence[Step], facts: Facts) -> None:
        self._name = name
        self._steps = steps
        self._facts = facts
        self._deliveries: list[_Delivery] = []
        self._stray: list[Step] = []
        begun = {step.published_us for step in steps if step.event == events.PUBLISHED}
        self._may_be_two = len(begun) > 1 or any(step.event == events.DOUBTED for step in steps)
        self._pair()

    def _pair(self) -> None:
        """Give each end to the last start of its host and attempt."""
        last: dict[tuple[str, int | None], _Delivery] = {}
        for step in self._steps:
            who = step.source, step.attempt
            if step.event == events.STARTED:
                last[who] = _Delivery(step)
                self._deliveries.append(last[who])
            elif step.event in _ENDS:
                if who in last:
                    last[who].ends.append(step)
                elif not needs_no_start(step.event, step.reason):
                    self._stray.append(step)

    def faults(self) -> Iterator[Fault]:
        if self._facts.is_complete:
            yield from self._strays()
            yield from self._places()
            yield from self._before_its_publish()
            if not self._met_a_crash():
                yield from self._missing()
                yield from self._not_dead()
                yield from () if self._may_be_two else self._mismatches()
        if not self._may_be_two:
            yield from self._ended_twice()
            if not self._met_a_crash():
                yield from self._started_twice()
                yield from self._after_its_end()
                yield from self._after_its_success()
                yield from self._after_its_recall()
                yield from self._not_counted()
        yield from self._too_early_dead()
        yield from self._times()

    def _fault(self, promise: str, kind: str, step: Step, text: str) -> Fault:
        return Fault(promise, kind, f"{self._name} {text}", step.time_us, step.source, step.group)

    def _before(self, one: Step, other: Step, slack_us: int | None = None) -> bool:
        """Return whether one event may have been before the other; with a slack below 0, whether it surely was."""
        slack_us = self._facts.slack_us if slack_us is None else slack_us
        if one.source == other.source:
            return one.time_us < other.time_us + (slack_us >= 0)
        return one.time_us <= other.time_us + slack_us

    def _of(self, *names: str) -> list[Step]:
        return [step for step in self._steps if step.event in names]

    def _met_a_crash(self) -> bool:
        """Return whether an owner of its group ended without saving all, before the message was over, or whether its
        store came back without it."""
        if any(step.offset is not None and self._was_lost(step) for step in self._of(events.PUBLISHED)):
            return True
        begun_us = min(step.published_us or step.time_us for step in self._steps)
        over_us = [s.time_us for s in self._steps if s.event in (events.SETTLED, events.DEAD)]
        return any(
            begun_us <= until_us and not any(at_us < from_us for at_us in over_us)
            for group in {step.group for step in self._steps}
            for from_us, until_us in self._facts.crashes(group)
        )

    def _was_lost(self, step: Step) -> bool:
        losses = self._facts.losses(step.group, step.priority)
        return concerns(losses, step.offset or 0, step.published_us or step.time_us, self._facts.slack_us)

    # ---------------------------------------------------------------------------------------------- the evidence (E, O)

    def _strays(self) -> Iterator[Fault]:
        """Yield ends without a start by the same host."""
        for end in self._stray:
            same = [d.start for d in self._deliveries if d.start.attempt == end.attempt]
            if any(start.source == end.source for start in same):
                text = f"was {end.event} by {end.source} at {end.time_us} us, before it was started"
                yield self._fault("E", "ended before its start", end, text)
            elif same:
                text = f"was started by {same[-1].source}, and {end.event} by {end.source}"
                yield self._fault("O", "ended by another host", end, text)
            else:
                text = f"was {end.event} by {end.source}, and attempt {end.attempt} was never started"
                yield self._fault("E", "ended without a start", end, text)

    def _mismatches(self) -> Iterator[Fault]:
        """Yield ends that tell of another place than their start."""
        for delivery in self._deliveries:
            start = delivery.start
            for end in delivery.ends:
                if (end.group, end.priority, end.offset) != (start.group, start.priority, start.offset):
                    text = f"was started from {_place(start)}, and {end.event} in {_place(end)}"
                    yield self._fault("E", "ended in another place", end, text)

    def _before_its_publish(self) -> Iterator[Fault]:
        """Yield deliveries before the message was published."""
        publishes = [step.published_us or step.time_us for step in self._of(events.PUBLISHED)]
        if publishes and not self._may_be_two:
            for start in self._of(events.STARTED):
                if start.time_us < min(publishes) - self._facts.slack_us:
                    text = f"was published from {min(publishes)} us on, and started at {start.time_us} us"
                    yield self._fault("E", "started before its publish", start, text)
                    return

    # ------------------------------------------------------------------------------------------------ deliveries (D, X)

    def _ended_twice(self) -> Iterator[Fault]:
        for delivery in self._deliveries:
            ends = {step.event: step for step in delivery.ends}
            if len(delivery.ends) < 2:
                continue
            last = delivery.ends[-1]
            if events.SETTLED in ends and events.DEAD in ends:
                yield self._fault("X", "settled and dead", last, "was settled, and is dead by the same delivery")
            elif ends.keys().isdisjoint(events.AGAIN):
                continue
            elif events.SETTLED in ends:
                yield self._fault("D", "settled and put back", last, "was settled, and put back by the same delivery")
            elif events.DEAD in ends:
                yield self._fault("X", "dead and put back", last, "died, and was put back by the same delivery")
            else:
                text = f"was put back {len(delivery.ends)} times by one delivery"
                yield self._fault("E", "ended twice", last, text)

    def _started_twice(self) -> Iterator[Fault]:
        """Yield attempts that one owner started twice under one epoch: it forgot the first start."""
        seen: dict[tuple[object, ...], Step] = {}
        reported: set[tuple[object, ...]] = set()
        replays: dict[tuple[object, ...], list[Step]] = {}
        for step in self._steps:
            if step.event == events.RETURNED:  # the next start is the same attempt, on purpose
                for who in [who for who in seen if (who[1], who[3]) == (step.source, step.attempt)]:
                    del seen[who]
            elif step.event == events.STARTED and step.offset == -1:
                who = step.group, step.source, step.epoch, step.attempt
                before = seen.get(who)
                seen[who] = step
                mine = replays.setdefault(who, self._of(events.REPLAYED))  # each allows each attempt once more
                if before is None or who in reported or self._is_between(mine, before, step):
                    continue
                reported.add(who)
                text = f"was started twice from its lane as attempt {step.attempt} by {step.source}"
                yield self._fault("D", "started twice", step, text)

    def _is_between(self, replays: list[Step], before: Step, after: Step) -> bool:
        """Return whether one of the replays may have been between two steps; takes it out of the list."""
        for replay in replays:
            if self._before(before, replay) and self._before(replay, after):
                replays.remove(replay)
                return True
        return False

    def _after_its_end(self) -> Iterator[Fault]:
        """Yield deliveries after the message's death, and deaths after its success, without a replay in between."""
        over: Step | None = None
        replays = self._of(events.REPLAYED)
        for step in self._steps:
            if step.event == events.REPLAYED:
                over = None
            elif step.event == events.STARTED:
                if over is not None and over.event == events.DEAD:
                    if any(self._before(over, replay) and self._before(replay, step) for replay in replays):
                        continue
                    text = f"died at {over.time_us} us, and was started again without a replay"
                    yield self._fault("X", "delivered after its death", step, text)
                    over = None
            elif step.event in (events.SETTLED, events.DEAD):
                was_settled = over is not None and over.event == events.SETTLED and step.event == events.DEAD
                if over is not None and was_settled and (step.source, step.attempt) != (over.source, over.attempt):
                    text = f"was settled at {over.time_us} us, and is dead"
                    yield self._fault("X", "settled and dead", step, text)
                over = step

    def _after_its_success(self) -> Iterator[Fault]:
        """Yield deliveries after a settle that were not settled again; `emq.trail.outcomes` counts the others."""
        settled = [end for each in self._deliveries for end in each.ends if end.event == events.SETTLED]
        for delivery in self._deliveries:
            start = delivery.start
            before = [end for end in settled if self._before(end, start, -self._facts.slack_us)]
            if before and all(end.event != events.SETTLED for end in delivery.ends):
                text = f"was settled at {before[-1].time_us} us, and was started again"
                yield self._fault("D", "delivered after its success", start, text)

    def _after_its_recall(self) -> Iterator[Fault]:
        """Yield deliveries after the message was recalled."""
        recalls = self._of(events.RECALLED)
        for delivery in self._deliveries if recalls else ():
            start = delivery.start
            before = [recall for recall in recalls if recall.time_us < start.time_us - LEARN_US - self._facts.slack_us]
            if before:
                text = f"was recalled at {before[-1].time_us} us, and was started"
                yield self._fault("D", "delivered after its recall", start, text)

    def _missing(self) -> Iterator[Fault]:
        """Yield attempts that follow no failure."""
        told = 0
        for start in self._of(events.STARTED):
            made = max(told, self._failures(start, self._facts.slack_us))
            if (start.attempt or 1) > made + 1:
                text = f"was started as attempt {start.attempt}, and attempt {made + 1} has no failure"
                yield self._fault("X", "an attempt is missing", start, text)
                told = start.attempt or 1

    def _not_counted(self) -> Iterator[Fault]:
        """Yield attempts from the lane whose number is not above that of the last failed attempt."""
        for start in self._of(events.STARTED):
            made = self._failures(start, -self._facts.slack_us) if start.offset == -1 else 0
            if (start.attempt or 1) <= made:
                text = f"failed at attempt {made}, and was started as attempt {start.attempt} after that"
                yield self._fault("X", "a failure is not counted", start, text)

    def _failures(self, start: Step, slack_us: int) -> int:
        """Return the highest attempt that failed before a start, since the last replay; 0 if none did.

        Args:
            slack_us: above 0 to count failures of lower attempts that may have been before the start; below 0 to count
                all failures that surely were.
        """
        lower = start.attempt or 1 if slack_us >= 0 else math.inf
        replays = [replay for replay in self._of(events.REPLAYED) if self._before(replay, start)]
        since_us = max((replay.time_us for replay in replays), default=-slack_us) - slack_us
        failures = (
            step for step in self._of(events.RETRIED) if step.time_us >= since_us and (step.attempt or 0) < lower
        )
        return max((step.attempt or 0 for step in failures if self._before(step, start, slack_us)), default=0)

    def _not_dead(self) -> Iterator[Fault]:
        """Yield a replay without a death before it."""
        if not self._of(events.PUBLISHED):
            return  # the message may have died before the trail began
        replays, deaths = self._of(events.REPLAYED), self._of(events.DEAD)
        for n, replay in enumerate(replays):
            if sum(death.time_us <= replay.time_us + self._facts.slack_us for death in deaths) <= n:
                yield self._fault(
                    "X",
                    "replayed and not dead",
                    replay,
                    f"was replayed {plurals.count(n + 1, 'time')}, and was not dead",
                )
                return

    def _too_early_dead(self) -> Iterator[Fault]:
        most = self._facts.max_attempts
        for step in self._steps:
            if step.event != events.DEAD or most is None or (step.attempt or most) >= most:
                continue
            if not may_die_early(step.reason):
                text = f"died at attempt {step.attempt} of {most} ({step.reason})"
                yield self._fault("X", "dead too early", step, text)

    # ------------------------------------------------------------------------------------------------- places (D, M, P)

    def _places(self) -> Iterator[Fault]:
        publishes = [step for step in self._steps if step.event == events.PUBLISHED]
        if not publishes:
            return
        starts = [d.start for d in self._deliveries]
        priorities = {step.priority for step in publishes}
        if wrong := [start for start in starts if start.priority not in priorities]:
            text = f"was published with priority {publishes[0].priority} and started with {wrong[0].priority}"
            yield self._fault("P", "another priority", wrong[0], text)
        keys = {step.key for step in publishes}
        if wrong := [start for start in starts if start.key not in keys]:
            text = f"was published with key {publishes[0].key!r} and started with {wrong[0].key!r}"
            yield self._fault("K", "another key", wrong[0], text)
        if self._may_be_two:
            return
        first: dict[tuple[int, int | None], Step] = {}
        for start in starts:
            if start.offset is not None and start.offset >= 0:
                first.setdefault((start.group, start.offset), start)
        if len(first) > 1:
            places = ", ".join(f"{offset} of group {group}" for group, offset in sorted(first))
            text = f"was published once and delivered from the offsets {places}"
            yield self._fault("D", "from two places", [*first.values()][-1], text)
            return
        known = {(step.group, step.offset) for step in publishes}
        told = publishes[0].offset
        for (group, offset), start in first.items():
            if (group, offset) not in known:
                where = "into a lane" if told is None else f"at offset {told}"
                text = f"was published {where} and delivered from {offset} of group {group}"
                yield self._fault("M", "from another offset", start, text)
        for start in starts if all(offset is not None for _, offset in known) else ():
            moved = any(self._before(step, start) for step in self._of(events.RETRIED, events.REPLAYED, events.DEAD))
            if start.offset == -1 and start.attempt == 1 and not moved and not self._met_a_crash():
                text = f"was published at offset {told} and delivered from a lane, into which nothing had put it"
                yield self._fault("M", "from another offset", start, text)
                return

    # -------------------------------------------------------------------------------------------------------- times (T)

    def _times(self) -> Iterator[Fault]:
        slack_us = self._facts.slack_us
        due = [s.due_ms for s in self._steps if s.event == events.PUBLISHED]
        due_us = min((ms * 1000 for ms in due if ms is not None), default=0) if None not in due else 0
        backoff: dict[int, Step] = {}
        met_a_crash = self._met_a_crash()  # then an attempt may follow a failure that no host recorded
        for step in self._steps:
            if step.event == events.REPLAYED:
                backoff.clear()
                due_us = 0
            elif step.event == events.RETRIED and not met_a_crash:
                backoff[step.attempt or 0] = step
            elif step.event == events.STARTED:
                yield from self._start_times(step, due_us, backoff.get((step.attempt or 1) - 1))
            elif is_expiry(step.event, step.reason) and expired_early(step.time_us, step.until, slack_us):
                text = f"expired at {step.time_us} us, and might have lived until {step.until}"
                yield self._fault("T", "expired too early", step, text)

    def _start_times(self, start: Step, due_us: int, failure: Step | None) -> Iterator[Fault]:
        slack_us = self._facts.slack_us
        if start.attempt == 1 and start.time_us < due_us - slack_us:
            text = f"is due at {due_us} us and was started at {start.time_us}"
            yield self._fault("T", "started before it was due", start, text)
        if failure is not None and failure.due_ms is not None:
            early_us = 0 if failure.source == start.source else slack_us
            if start.time_us // 1000 < failure.due_ms - early_us // 1000:
                text = f"was to be tried again at {failure.due_ms * 1000} us and was started at {start.time_us}"
                yield self._fault("T", "retried too early", start, text)
        if start.until and start.time_us >= start.until:
            text = f"expired at {start.until} us and was started at {start.time_us}"
            yield self._fault("T", "started after it expired", start, text)


def _place(step: Step) -> str:
    return f"group {step.group}, priority {step.priority}, offset {step.offset}"
