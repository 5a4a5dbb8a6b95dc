"""Check the plan of a load; each error names the key, its value and a valid value."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec

from emq.runtime import errors
from emq.storage import folds
from emq.topics import rules
from emq.topics.model import Kind, Topic
from emq_spark.load.ledger import RUN
from emq_spark.load.plan import MAX_TENANTS, NUMBER, Plan, Replay, Tenants

Rule = tuple[bool, str, object, str]
"""(whether the rule holds, key, value, text that completes "key = value" to an error)"""

_NAME_BYTES = 40
MAX_PAYLOAD = 64 << 20
NAME_BYTES = 17
"""Bytes at the front of each payload that tell it from other payloads."""


def check(plan: Plan, source: str) -> None:
    """Raise `InvalidSettings` for the first invalid value."""
    for holds, key, value, right in _rules(plan):
        if not holds:
            raise errors.InvalidSettings(f"{source}: {key} = {value!r} {right}")
    for where, topic in _topics(plan):
        try:
            # A store may allow less for one queue; the creation of the topic checks the store's limit.
            rules.validate(topic, math.inf)
        except errors.InvalidTopic as exc:
            raise errors.InvalidSettings(f"{source}: {where}: {exc}") from exc


def _topics(plan: Plan) -> Iterator[tuple[str, Topic]]:
    for i, t in enumerate(plan.tenants):
        yield f"tenants[{i}].topic", t.topic.topic(t.topic_name(t.count), t.qps / t.count, tuple(t.priorities))
    if plan.replay is not None:
        yield "replay.topic", plan.replay.topic.topic("replay", 1.0)


def _rules(plan: Plan) -> Iterator[Rule]:
    duration, replay = plan.duration_s, plan.replay
    is_one = bool(plan.tenants) != (replay is not None)
    yield is_one, "tenants", len(plan.tenants), "tables with a [replay] table: give [[tenants]], or one [replay]"
    has_end = replay is not None or duration is not None
    yield has_end, "duration_s", duration, "is missing: give the seconds that the load lasts"
    name = plan.name
    fits = name is None or (len(name) <= _NAME_BYTES and RUN.fullmatch(name) is not None)
    yield fits, "name", name, f"must be 1 to {_NAME_BYTES} letters, digits and ._- and begin with a letter or digit"
    for i, tenants in enumerate(plan.tenants):
        for holds, key, value, right in _tenants(tenants):
            yield holds, f"tenants[{i}].{key}", value, right
    total = sum(tenants.count for tenants in plan.tenants)
    yield total <= MAX_TENANTS, "count", total, f"of all tables together, must be at most {MAX_TENANTS:,}"
    twice = _twice(plan.tenants)
    yield twice is None, "name", twice, "is a topic of two tables of tenants; a topic belongs to one of them"
    if replay is not None:
        for holds, key, value, right in _replay(replay):
            yield holds, f"replay.{key}", value, right


def _twice(tables: Sequence[Tenants]) -> str | None:
    """Return a topic that two tables name; None if there is no such topic."""
    names: set[str] = set()
    for tenants in tables if len(tables) > 1 else ():
        for number in range(1, tenants.count + 1):
            if (name := tenants.topic_name(number)) in names:
                return name
            names.add(name)
    return None


def _tenants(t: Tenants) -> Iterator[Rule]:
    yield t.count == 1 or NUMBER in t.name, "name", t.name, f"must contain {NUMBER}: there are {t.count} of them"
    least, most = (t.payload_bytes,) * 2 if isinstance(t.payload_bytes, int) else t.payload_bytes
    text = f"must be bytes from 0 to {MAX_PAYLOAD}, or [least, most]"
    yield 0 <= least <= most <= MAX_PAYLOAD, "payload_bytes", t.payload_bytes, text
    room = t.topic.options.max_payload
    text = f"(and the {NAME_BYTES} that name a message) must be at most topic.options.max_payload ({room}); raise that"
    yield t.payload == "number" or max(most, NAME_BYTES) <= room, "payload_bytes", most, text
    yield from _priorities(t)
    yield from _delays(t)
    for i, b in enumerate(t.bursts):
        again = b.every_s is None or b.for_s < b.every_s
        yield again, f"bursts[{i}].every_s", b.every_s, f"must be above for_s ({b.for_s:g})"


def _priorities(t: Tenants) -> Iterator[Rule]:
    kind, options, shares, listed, numbers = t.topic.kind, t.topic.options, t.priorities, t.topic.priorities, t.numbers
    is_log = kind is Kind.LOG
    for_log = f"is for topics of kind log, not {kind}; leave it out"
    good = all(0 <= share < math.inf for share in shares.values()) and (not shares or sum(shares.values()) > 0)
    yield good, "priorities", shares, "must be shares, 0 or more, at least one above 0"
    instead = ", give numbers" if kind is Kind.PRIORITY else ""
    yield not shares or is_log, "priorities", shares, for_log + instead
    yield listed is None or is_log, "topic.priorities", listed, for_log
    odd = next((name for name in shares if listed and name not in listed), None)
    yield odd is None, "priorities", odd, f"is not one of topic.priorities: {', '.join(listed or ())}"
    if kind is Kind.PRIORITY:
        good = numbers is not None and 16 < numbers[0] <= numbers[1] < 1 << 50
        text = "must be [lowest, highest] priority of the messages, above 16, for a topic of kind priority"
        yield good, "numbers", numbers, text
    else:
        yield numbers is None, "numbers", numbers, f"is for topics of kind priority, not {kind}; leave it out"
    bare = not is_log and options.merge != "key" and options.ordering == "key"
    yield not (t.keys and bare), "keys", t.keys, "needs topic.options.merge = 'key', or ordering = 'slot'"
    text = "is for topics that merge by key, whose payloads are folded; leave it out"
    yield is_log or options.merge == "key" or t.payload == "text", "payload", t.payload, text
    text = f"cannot be folded by {options.fold!r}, which needs numbers; make it 'number'"
    yield options.fold not in folds.NUMERIC or t.payload == "number", "payload", t.payload, text


def _delays(t: Tenants) -> Iterator[Rule]:
    kind = t.topic.kind
    for i, d in enumerate(t.delays):
        given = {name: value for name, value in msgspec.to_builtins(d).items() if value is not None}
        is_one = (d.between_s is None) != (d.every_s is None)
        yield is_one, f"delays[{i}]", given, "must give between_s = [least, most], or every_s"
        if d.between_s is not None:
            good = d.between_s[0] <= d.between_s[1]
            yield good, f"delays[{i}].between_s", d.between_s, "must be [least, most] seconds"
    total = sum(d.share for d in t.delays)
    yield total <= 1 + 1e-9, "delays", total, "is the sum of the shares, which must be at most 1"
    whole = total >= 1 - 1e-9
    text = "is the sum of the shares; in a topic of kind fixed_time every message has its time, so make it 1"
    yield kind is not Kind.FIXED_TIME or whole, "delays", total, text
    ranged = kind is Kind.RANGE_MERGE and t.topic.options.time_range_ms is None
    text = "is missing: give the milliseconds after which messages are due, or delays for all of them"
    yield not ranged or whole, "topic.options.time_range_ms", None, text
    yield kind is not Kind.PRIORITY or not t.delays, "delays", total, "does not go with kind priority; leave it out"


def _replay(r: Replay) -> Iterator[Rule]:
    yield bool(r.file), "file", r.file, "must name a file of Parquet or JSON lines, or be demo:flights"
    known = not r.file.startswith("demo:") or r.file == "demo:flights"
    yield known, "file", r.file, "is not known; demo:flights is what the demonstration has"
    yield bool(r.to), "to", r.to, "must be a topic, such as 'airline-{carrier}'"
    yield bool(r.time), "time", r.time, "must be the column with the time of each row"
    yield r.topic.kind is Kind.LOG, "topic.kind", r.topic.kind.value, "must be log: rows are published as they come"
