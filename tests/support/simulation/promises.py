"""The promises of the design, as invariants over the evidence of handlers and the contents of the store at the end."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

from emq.topics.shares import Division
from emq.topics.tokens import USE_S, smooth_burst
from support.simulation import budget_use, folding, pauses, priorities, use
from support.simulation.evidence import Acquired, Evidence, Start
from support.simulation.rules import NOTICED_S, Rules
from support.simulation.sleeps import asleep_s, may_lag
from support.simulation.violation import Violation
from support.simulation.waits import Waits

SLACK = 1e-6


def judge(evidence: Evidence, rules: Rules, dead: Sequence[str]) -> list[Violation]:
    """Return every violation found.

    Args:
        dead: names of the works in the dead letters in the end, each as often as it is there.
    """
    waits = Waits(evidence, rules)
    return [
        *evidence.violations,
        *_nothing_lost(evidence, rules, dead),
        *_repeats(evidence, rules),
        *_caps(evidence, rules),
        *_keys(evidence, rules),
        *_owners(evidence),
        *priorities.judge(evidence, rules, waits),
        *use.judge(evidence, rules, waits),
        *budget_use.judge(evidence, rules, waits),
        *pauses.judge(evidence, rules),
        *folding.judge(evidence, rules),
    ]


# ------------------------------------------------------------------------------------------------------------- L and X


def _nothing_lost(evidence: Evidence, rules: Rules, dead: Sequence[str]) -> Iterator[Violation]:
    where = {start.work.name: start.group for start in evidence.starts}
    buried = set(dead)
    apart = evidence.doubled | _in_two_groups(evidence, rules)
    twice = next((name for name in dead if dead.count(name) > 1 and name not in apart), None)
    if twice is not None:
        yield Violation("X", where.get(twice, ""), f"{twice} is in the dead letters more than once")
    for name, (work, confirmed) in evidence.published.items():
        doomed = work.fails + evidence.late[name] >= rules.plans[work.topic].dead_after
        plan = rules.plans[work.topic]
        if plan.merges:
            continue  # see `folding`
        if name in evidence.replayed and not any(
            start.at >= evidence.replayed[name] for start in evidence.starts if start.work.name == name
        ):
            yield Violation("replay", where.get(name, ""), f"{name} was replayed, and was not started again")
        if name in evidence.forgotten or name in evidence.dropped_names:
            continue
        if confirmed and name not in evidence.succeeded and name not in buried:
            seen = "was never started" if name not in where else "never ended well"
            yield Violation("L", where.get(name, work.topic), f"{name} is lost: it {seen} and is not dead")
        if name in buried and not doomed and not plan.expires:
            yield Violation(
                "X", where.get(name, ""), f"{name} is dead after {rules.plans[work.topic].dead_after} attempts"
            )
        if name in evidence.succeeded and name in buried and not plan.expires:
            yield Violation("X", where.get(name, ""), f"{name} has succeeded and is dead")
    for name in where:
        if name not in evidence.published:
            yield Violation("run", where[name], f"{name} was started and never published")


def _in_two_groups(evidence: Evidence, rules: Rules) -> set[str]:
    """Return the works whose queue two owners began, while their keys moved, perhaps; see `_repeats`."""
    epochs: dict[str, set[int]] = defaultdict(set)
    for start in evidence.starts:
        if start.offset >= 0 and rules.plans[start.work.topic].moving:
            epochs[start.work.name].add(start.epoch)
    return {name for name, found in epochs.items() if len(found) > 1}


# ------------------------------------------------------------------------------------------------------------------- D


def _repeats(evidence: Evidence, rules: Rules) -> Iterator[Violation]:
    """Nothing repeats but what was in flight, or not checkpointed, when an owner ended without a word.

    Such a message may be twice: in its queue, where the next owner begins it again, and in a lane, where its key may
    have taken it to a group of another owner meanwhile. Both are tried again then. So may one that its owner began
    again because the store had lost something.
    """
    first: dict[tuple[str, int], Start] = {}
    began: dict[str, int] = {}
    begun_again: set[str] = set()
    for start in evidence.starts:
        name, attempt = start.work.name, start.attempt
        if start.offset >= 0 and (loaded := evidence.resumed_from(start)) is not None:
            in_ranges = any(begin <= start.offset < end for begin, end in loaded.finished)
            if start.offset < loaded.watermark or in_ranges:
                yield Violation("D", start.group, f"{name} was finished by the checkpoint {loaded}, and started again")
        if start.at >= evidence.replayed.get(name, math.inf):
            continue
        before = first.setdefault((name, attempt), start)
        # What a lost owner had begun may be in its lane and back in its queue or slot, too; both are tried again then.
        moved = began.setdefault(name, start.epoch) != start.epoch and attempt > 1
        # What a host had in its buffer when the store came back may wait there for long, as messages of a busy key do.
        ready = before.at - (before.started_us - before.ready_us) / 1e6
        if before is start:
            continue
        if any(ready - NOTICED_S <= at <= start.at for at in evidence.lost_at) or any(
            before.at - NOTICED_S <= at <= start.at for at in evidence.emptied_at
        ):
            begun_again.add(name)
            continue
        if rules.clean:
            yield Violation("D", start.group, f"{name} attempt {attempt} started again, nothing having failed")
        elif before.epoch != start.epoch or _taken_over(evidence, before, start.at):
            begun_again.add(name)
        elif not moved and not (name in begun_again and attempt > 1):
            yield Violation("D", start.group, f"{name} attempt {attempt} started twice under epoch {start.epoch}")


def _taken_over(evidence: Evidence, start: Start, by: float) -> bool:
    """Return True if another owner had the group of a start by then, and may have passed the message on.

    The group that it came to may have an epoch of the same number as the one that it left.
    """
    return any(taken.group == start.group and taken.epoch > start.epoch and taken.at <= by for taken in evidence.owned)


# ------------------------------------------------------------------------------------------------------------------- Q


def _caps(evidence: Evidence, rules: Rules) -> Iterator[Violation]:
    by_topic: dict[str, list[Start]] = defaultdict(list)
    for start in evidence.starts:
        by_topic[start.work.topic].append(start)
    for topic, starts in by_topic.items():
        divisions = rules.divisions[topic]
        # Where hosts may have been kept from the catalog, only what they do once all is well again.
        if len(divisions) == 1:
            judged = starts
        elif rules.informed:
            judged = [start for start in starts if not may_lag(evidence.sleeps, start.host, start.at)]
        else:
            judged = [start for start in starts if start.at >= rules.settled_at]
        judge_sum = _smooth_topic if rules.plans[topic].is_smooth else _window_topic
        yield from judge_sum(topic, judged, divisions)


def _by_second(starts: Sequence[Start]) -> dict[int, list[Start]]:
    seconds: dict[int, list[Start]] = defaultdict(list)
    for start in starts:
        seconds[start.started_us // 1_000_000].append(start)
    return seconds


def _window_topic(topic: str, starts: Sequence[Start], divisions: Sequence[Division]) -> Iterator[Violation]:
    """Check that all groups together start in every second at most what the division in force allows."""
    for second, found in _by_second(starts).items():
        in_force = [d for d in divisions if d.since_s <= second][-1]
        allowed = in_force.total.allowance(second)
        if len(found) > allowed:
            groups = sorted({start.group for start in found})
            text = f"{len(found)} starts in second {second}, {allowed} allowed to all groups, by {groups}"
            yield Violation("Q", topic, f"{text}, first at {found[0].at:.3f} s")


def _smooth_topic(topic: str, starts: Sequence[Start], divisions: Sequence[Division]) -> Iterator[Violation]:
    rate, burst = max(d.qps for d in divisions), max(smooth_burst(d, None) for d in divisions)
    yield from _level(topic, starts, [rate] * len(starts), burst)


def _level(place: str, starts: Sequence[Start], rates: Sequence[float], burst: float) -> Iterator[Violation]:
    level, last_us = 0.0, 0
    for start, rate in sorted(zip(starts, rates, strict=True), key=lambda pair: pair[0].started_us):
        level = max(0.0, level - rate * (start.started_us - last_us) / 1e6) + 1
        last_us = start.started_us
        if level > burst + rate * USE_S + 1e-3:
            yield Violation("Q", place, f"{level:.2f} starts at once, burst {burst}, at {start.at:.3f} s")
            return


# ------------------------------------------------------------------------------------------------------------------- K


def _keys(evidence: Evidence, rules: Rules) -> Iterator[Violation]:
    by_key: dict[tuple[str, str], list[Start]] = defaultdict(list)
    by_slot: dict[str, list[Start]] = defaultdict(list)
    for start in evidence.starts:
        plan = rules.plans[start.work.topic]
        if start.work.key:
            by_key[start.work.topic, start.work.key].append(start)
        if plan.is_serial:
            by_slot[start.group].append(start)
    for (topic, key), starts in by_key.items():
        if rules.plans[topic].moving and not rules.clean:
            # Of a former group, what a lost owner has begun may go on beside what the new group starts, and in front.
            continue
        yield from _serial(evidence, rules, starts, f"of the same key {key!r}")
        yield from _in_order(evidence, starts)
    for starts in by_slot.values():
        yield from _serial(evidence, rules, starts, "of the same slot")


def _serial(evidence: Evidence, rules: Rules, starts: Sequence[Start], of_what: str) -> Iterator[Violation]:
    """One at a time; under an owner that ended without a word one may go on beside those of the next owner.

    An owner of which the store has lost messages lets the group go and takes it again. It waits for what runs, but not
    for ever, and a sleep of its machine counts.
    """
    for before, start in itertools.pairwise(starts):
        ended, _ = evidence.ends.get(before.number, (math.inf, False))
        rewound = any(before.at <= at <= start.at for at in evidence.lost_at)
        overslept = rewound and asleep_s(evidence.sleeps, start.host, before.at, start.at) > 0
        same_owner = (before.host, before.epoch) == (start.host, start.epoch) and not overslept
        let_go = evidence.let_go.get((before.host, before.group, before.epoch), math.inf) <= start.at
        if ended > start.at + SLACK and (same_owner or rules.clean or let_go):
            text = f"{start.work.name} was started while {before.work.name} {of_what} ran"
            yield Violation("K", start.group, f"{text}, at {start.at:.3f} s")


def _in_order(evidence: Evidence, starts: Sequence[Start]) -> Iterator[Violation]:
    """First deliveries in the order of publishing, of what was certainly published.

    A store may come back empty, and later come back once more as it was before. Messages that it took in between are
    lost then, but hosts may have read them. Such a message may start before those that the store has again.
    """
    seen: set[str] = set()
    highest: Start | None = None
    highest_left: Start | None = None  # without those that the store lost when it came back as it was before
    for start in starts:
        name = start.work.name
        if name in seen or not evidence.published.get(name, (None, False))[1]:
            continue
        seen.add(name)
        before = highest_left if name in evidence.returned else highest
        if before is not None and start.work.number < before.work.number:
            text = f"{name} was first started after {before.work.name} of the same key"
            yield Violation("K", start.group, f"{text}, at {start.at:.3f} s")
        highest = _later(highest, start)
        if name not in evidence.replaced:
            highest_left = _later(highest_left, start)


def _later(one: Start | None, other: Start) -> Start:
    """Return the start whose message was published later."""
    return other if one is None or other.work.number > one.work.number else one


# ------------------------------------------------------------------------------------------------------------------- O


def _owners(evidence: Evidence) -> Iterator[Violation]:
    """Check that nobody starts messages of a group after another host has acquired it under a higher epoch."""
    latest: dict[str, Acquired] = {}
    acquired = iter([*evidence.owned, None])
    coming = next(acquired)
    for start in evidence.starts:
        while coming is not None and coming.number <= start.number:
            if coming.group not in latest or coming.epoch > latest[coming.group].epoch:
                latest[coming.group] = coming
            coming = next(acquired)
        owner = latest.get(start.group)
        if start.epoch < 0 or owner is None:
            yield Violation("O", start.group, f"{start.host} started {start.work.name} of a group that it does not own")
        elif start.epoch < owner.epoch:
            text = f"{start.host} started {start.work.name} under epoch {start.epoch}, {start.at - owner.at:.3f} s"
            yield Violation("O", start.group, f"{text} after {owner.host} had acquired it under {owner.epoch}")
        elif start.host != owner.host:
            text = f"{start.host} started {start.work.name}, and {owner.host} owns the group"
            yield Violation("O", start.group, f"{text}, both under epoch {start.epoch}")
