"""Finds the reasons why an unfinished message waits.

The reasons that hold come in this order, the most important first:

    dead           it is a dead letter until an operator replays or purges it
    running        a handler has it
    claimed        a host has taken it from its lane or slot
    not due        it is delayed
    retry, breaker it failed and waits for its next attempt (breaker: its endpoint failed)
    paused         its topic is paused
    no owner       no host consumes its group, or no handler is bound to its topic
    unreachable    its host cannot reach the store
    in-flight      the topic has its most messages in flight on this host
    priority       more urgent messages of its group go first
    rate           its group has a limited number of starts a second; also if nothing else holds it up

Reasons below "not due" matter only once the message is due; "paused" and "no owner" are given even before.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import NamedTuple

from emq.runtime import extending, plurals
from emq.runtime.durations import brief
from emq.topics.model import Topic, quota_of
from emq_trace import epochs
from emq_trace.facts import Consumer, Facts, Failure, Place, State, Where, is_host

ASKED_MS = 1000
"""Milliseconds by which a retry's time differs from the topic's backoff, at least, if the handler asked for it."""


class Name(enum.StrEnum):
    DEAD = "dead"
    RUNNING = "running"
    CLAIMED = "claimed"
    NOT_DUE = "not due"
    RETRY = "retry"
    BREAKER = "breaker"
    PAUSED = "paused"
    NO_OWNER = "no owner"
    UNREACHABLE = "unreachable"
    IN_FLIGHT = "in-flight limit"
    PRIORITY = "priority above it"
    RATE = "rate"


class Reason(NamedTuple):
    """Attributes:
    text: a line for people.
    until_ms: when this reason ends, milliseconds since 1970: exact for due times, an estimate for rates; None if only
        an event ends it.
    """

    name: Name
    text: str
    until_ms: int | None = None


def why(facts: Facts) -> list[Reason]:
    """Return the reasons that hold, the most important first; none for a finished message or one without a place."""
    place = facts.place
    if place is not None and place.state is State.DEAD:
        return [_dead(facts, place)]
    if facts.running is not None:
        return [_running(facts)]
    if place is None or place.state is State.FINISHED:
        return []
    reasons = [*_time(facts, place), *_standstill(facts)]
    if place.state is State.CLAIMED:
        return [*reasons, Reason(Name.CLAIMED, "a host has claimed it: it is in the host's buffer, or being started")]
    if not any(r.name in _NOT_YET for r in reasons):
        reasons += _crowd(facts, place)
    return reasons


_NOT_YET = frozenset((Name.NOT_DUE, Name.RETRY, Name.BREAKER, Name.PAUSED, Name.NO_OWNER))


def _dead(facts: Facts, place: Place) -> Reason:
    since = f" since {moment(place.since_ms)}" if place.since_ms is not None else ""
    because = f" ({place.error})" if place.error else ""
    back = f"emq dead replay {facts.topic.name} --identity {place.id}"
    return Reason(Name.DEAD, f"it is a dead letter{since}{because}; put it back with: {back}")


def _running(facts: Facts) -> Reason:
    assert facts.running is not None
    host, since_ms, attempt, live = facts.running
    text = f"attempt {attempt} runs on {host} since {brief(ms=facts.now_ms - since_ms)}"
    if live is False:
        text = (
            f"attempt {attempt} was started on {host} {brief(ms=facts.now_ms - since_ms)} ago, and that host is gone; "
            "the group's next owner delivers it again"
        )
    return Reason(Name.RUNNING, text)


# ---------------------------------------------------------------------------------------------------------------- time


def _time(facts: Facts, place: Place) -> Iterator[Reason]:
    due_ms = place.due_ms
    if due_ms is None or due_ms <= facts.now_ms:
        return
    until = f"until {moment(due_ms)}, in {brief(ms=due_ms - facts.now_ms)}"
    failure = facts.failure
    reason = place.error or (failure.reason if failure is not None else "")
    failed = place.attempt > 1 or (failure is not None and abs(failure.due_ms - due_ms) <= ASKED_MS)
    if place.recurring:
        yield Reason(Name.NOT_DUE, f"it publishes again and again; its {place.where} entry waits {until}", due_ms)
    elif not failed:
        yield Reason(Name.NOT_DUE, f"it is delayed in its {place.where} {until}", due_ms)
    else:
        attempt = max(2, place.attempt, failure.attempt + 1 if failure is not None else 2)
        yield _retry(facts.topic, failure, attempt, reason, until, due_ms)


def _retry(topic: Topic, failure: Failure | None, attempt: int, reason: str, until: str, due_ms: int) -> Reason:
    asked = failure is not None and not _is_backoff(topic, failure)
    because = f" ({reason})" if reason else ""
    if (taker := extending.addressed(topic.options.attributes)) is not None:
        text = f"its {taker.recipient} failed{because}{' and asked to wait' if asked else '; backoff'}"
        return Reason(Name.BREAKER, f"{text} {until}; then attempt {attempt}", due_ms)
    text = f"its handler failed{because} and asked to wait" if asked else f"it failed{because}; backoff"
    return Reason(Name.RETRY, f"{text} {until}; then attempt {attempt}", due_ms)


def _is_backoff(topic: Topic, failure: Failure) -> bool:
    """True if the wait is the one that the topic's backoff gives for this attempt."""
    o = topic.options
    scheduled_ms = o.backoff_s[min(failure.attempt, len(o.backoff_s)) - 1] * 1000
    return scheduled_ms * (1 - o.jitter) - ASKED_MS <= failure.due_ms - failure.at_ms <= scheduled_ms + ASKED_MS


# ---------------------------------------------------------------------------------------------------------- standstill


def _standstill(facts: Facts) -> Iterator[Reason]:
    name = facts.topic.name
    if facts.topic.state == "paused":
        yield Reason(Name.PAUSED, f"topic {name!r} is paused; go on with: emq topic resume {name}")
        return
    if (standstill := extending.standstill(facts.topic)) is not None:
        yield Reason(Name.PAUSED, f"{standstill.reason}; go on with: {standstill.remedy}")
        return
    bound = [c for c in facts.consumers if c.bound]
    if not facts.hosts:
        yield Reason(Name.NO_OWNER, "no host is running; start one with: emq up")
    elif facts.consumers and not bound:
        nor = "".join(f", and it has no {e.address}" for e in extending.takers())
        yield Reason(Name.NO_OWNER, f"no handler is bound to topic {name!r} on any host{nor}")
    elif not facts.consumers and facts.complete:
        yield Reason(Name.NO_OWNER, f"no live host consumes topic {name!r}")
    elif (candidates := _candidates(facts)) and all(c.unreachable for c in candidates):
        yield Reason(Name.UNREACHABLE, f"{candidates[0].host}: {candidates[0].unreachable}")


def _candidates(facts: Facts) -> list[Consumer]:
    """The consumer that owns the message's group, or all that may."""
    owners = [c for c in facts.consumers if facts.owner is not None and is_host(facts.owner, c.host)]
    return owners or [c for c in facts.consumers if c.bound]


# --------------------------------------------------------------------------------------------------------------- crowd


LEAST_QUOTA = 1e-6
"""Quota for a group that has none: a retired group that seemed empty gets its share back within seconds."""


def _crowd(facts: Facts, place: Place) -> Iterator[Reason]:
    candidates = _candidates(facts)
    if candidates and all(c.in_flight >= c.limit for c in candidates):
        c = candidates[0]
        yield Reason(
            Name.IN_FLIGHT,
            f"the topic has {c.in_flight:,} of at most {plurals.count(c.limit, 'message')} in flight on {c.host}",
        )
    quota = quota_of(facts.topic, place.group) or LEAST_QUOTA
    if place.above:
        wait_ms = round(place.above / quota * 1000)
        rule = _RULES.get(facts.topic.options.priority_policy, "before it")
        yield Reason(
            Name.PRIORITY,
            f"{_messages(place.above, 'more urgent')} of its group {rule}: "
            f"about {brief(ms=wait_ms)} at {quota:g} a second",
            facts.now_ms + wait_ms,
        )
    if place.ahead:
        wait_ms = round((place.ahead + place.above) / quota * 1000)
        yield Reason(
            Name.RATE,
            f"{_messages(place.ahead, 'unfinished')} ahead of it in its {place.where}, and group {place.group} starts "
            f"{quota:g} a second: about {brief(ms=wait_ms)}",
            facts.now_ms + wait_ms,
        )
    elif not place.above:
        wait_ms = round(1000 / quota)
        is_last = place.where is Where.SLOT and place.attempt > 1 and facts.topic.options.retry == "rmq"
        behind = " behind all others, as a retry" if is_last else ""
        yield Reason(
            Name.RATE,
            f"nothing is ahead of it{behind}; group {place.group} starts {quota:g} a second: about {brief(ms=wait_ms)}",
            facts.now_ms + wait_ms,
        )


def _messages(n: int, kind: str) -> str:
    return plurals.count(n, f"{kind} message")


_RULES = {
    "weighted": "sharing the quota with it by weights",
    "aging": "before it until it has aged",
}


# ---------------------------------------------------------------------------------------------------------------- words


def moment(ms: float) -> str:
    """Local time to the millisecond, with the date unless it is today."""
    return epochs.local_time(int(ms) * 1000, 3)
