"""The rules for topics: which names a topic may have, and which values its settings."""

from __future__ import annotations

import math
import re

from emq.runtime import errors, inputs, plurals
from emq.topics.model import DEFAULT_MAX_QUEUE_QPS, MAX_DELAY_S, SORTED_OPTIONS, Kind, Topic, TopicOptions, called

MAX_NAME_BYTES = 128
MAX_SLOTS = 1 << 16
MAX_DEDUPE_S = 30 * 86_400.0
"""Thirty days, in seconds: the longest time for which a store keeps the id of every publish."""

MIN_IDLE_S = 5.0
"""Least `idle_s`: the caps of a topic that wakes soon hold it up for two seconds."""

MIN_SHARE, MAX_SHARE = 1e-3, 1e3
"""Smallest and largest weight of a topic in its budget: of a million starts, one may be the other topic's."""

_FORBIDDEN = re.compile(r"[\s{}/\x00-\x1f\x7f]")
_DEFAULTS = TopicOptions()


def most_group_qps(max_queue_qps: float | None) -> float:
    """Return the most starts a second of one group, in a store whose queues take that many operations a second."""
    return DEFAULT_MAX_QUEUE_QPS if max_queue_qps is None else max_queue_qps


def validate(topic: Topic, max_queue_qps: float | None) -> None:
    """Raise `InvalidTopic` if a value is out of range; the text names the first such value and the right range."""
    validate_name(topic.name)
    _validate_numbers(topic)
    bound = most_group_qps(max_queue_qps)
    o = topic.options
    rules = (
        (topic.qps > 0, f"qps {topic.qps} must be a finite number above 0"),
        (topic.qps >= 1e-6, f"qps {topic.qps} must be at least 0.000001"),
        (topic.qps <= 1e9, f"qps {topic.qps} must be at most 1e9"),
        (
            1 <= topic.group_qps <= bound,
            f"group_qps {topic.group_qps:g} must be from 1 to {bound:g}, what one queue of the store takes",
        ),
        (topic.is_sorted or 1 <= len(topic.priorities) <= 16, f"{len(topic.priorities)} priorities; give 1 to 16"),
        (len(set(topic.priorities)) == len(topic.priorities), f"priorities {topic.priorities} repeat a name"),
        (o.burst is None or o.burst >= 1, f"burst {o.burst} must be at least 1"),
        (
            topic.is_sorted or o.priority_policy != "weighted" or len(o.weights) == len(topic.priorities),
            f"weights {o.weights} must give {plurals.count(len(topic.priorities), 'number')}, one for each priority",
        ),
        (o.budget != topic.name, "it cannot be its own budget; name another topic"),
        (MIN_SHARE <= o.share <= MAX_SHARE, f"share {o.share} must be from {MIN_SHARE:g} to {MAX_SHARE:g}"),
        (all(w > 0 for w in o.weights), f"weights {o.weights} must be above 0"),
        (o.aging_s > 0, f"aging_s {o.aging_s} must be above 0"),
        (o.max_in_flight is None or o.max_in_flight >= 1, f"max_in_flight {o.max_in_flight} must be at least 1"),
        (o.max_length is None or o.max_length >= 1, f"max_length {o.max_length} must be at least 1"),
        (1 <= o.max_payload <= 64 << 20, f"max_payload {o.max_payload} must be from 1 to {64 << 20} bytes"),
        (0 <= o.max_headers <= 8 << 20, f"max_headers {o.max_headers} must be from 0 to {8 << 20} bytes"),
        (o.max_attempts >= 1, f"max_attempts {o.max_attempts} must be at least 1"),
        (
            bool(o.backoff_s) and all(b >= 0 for b in o.backoff_s),
            f"backoff_s {o.backoff_s} must list at least one number of seconds, none negative",
        ),
        (0 <= o.jitter <= 1, f"jitter {o.jitter} must be from 0 to 1"),
        (
            o.handler_timeout_s is None or o.handler_timeout_s > 0,
            f"handler_timeout_s {o.handler_timeout_s} must be above 0",
        ),
        *_time_rules(o),
        *(_sorted_rules(topic, bound) if topic.is_sorted else _log_rules(topic)),
    )
    for holds, text in rules:
        if not holds:
            raise errors.InvalidTopic(f"{called(topic.name)}: {text}")
    for priority in topic.priorities:
        if not priority or len(priority.encode()) > 32 or _FORBIDDEN.search(priority):
            raise errors.InvalidTopic(f"{called(topic.name)}: priority name {priority!r} must be 1 to 32 plain bytes")


def _validate_numbers(topic: Topic) -> None:
    """Raise `InvalidTopic` unless every number is finite and fits a float, since the rules compare and round them."""
    options = {name: getattr(topic.options, name) for name in TopicOptions.__struct_fields__ if name != "attributes"}
    given = {"qps": topic.qps, "group_qps": topic.group_qps, "slots": topic.slots, **options}
    for name, value in given.items():
        if isinstance(value, dict):
            values = list(value.values())
        else:
            values = list(value) if isinstance(value, tuple | list) else [value]
        numeric = name in ("qps", "group_qps", "slots") or any(isinstance(v, int | float) for v in values)
        for v in values if numeric else ():
            if not isinstance(v, int | float):
                raise errors.InvalidTopic(f"{called(topic.name)}: {name} {v!r} is not a number; give one")
            try:
                finite = math.isfinite(v)
            except OverflowError:
                raise errors.InvalidTopic(
                    f"{called(topic.name)}: {name} is an integer beyond a float's range"
                ) from None
            if not finite:
                raise errors.InvalidTopic(f"{called(topic.name)}: {name} {v} must be a finite number")


def _time_rules(o: TopicOptions) -> tuple[tuple[bool, str], ...]:
    return (
        (o.retention_s >= 0, f"retention_s {o.retention_s} must be 0 or more"),
        (o.ttl_s is None or o.ttl_s > 0, f"ttl_s {o.ttl_s} must be above 0"),
        (
            o.dedupe_s == 0 or 0.001 <= o.dedupe_s <= MAX_DEDUPE_S,
            f"dedupe_s {o.dedupe_s} must be 0, or from 0.001 to {MAX_DEDUPE_S:g} seconds",
        ),
        (
            o.idle_s is None or o.idle_s >= MIN_IDLE_S,
            f"idle_s {o.idle_s} must be a number of at least {MIN_IDLE_S:g}, or none",
        ),
        (
            o.buckets in (0, *(1 << n for n in range(15))),
            f"buckets {o.buckets} must be a power of two, at most 16384, or 0",
        ),
        (
            all(0 <= s <= MAX_DELAY_S for s in o.delay_levels.values()),
            f"delay_levels {o.delay_levels} must be seconds from 0 to {MAX_DELAY_S:g}",
        ),
    )


def _log_rules(topic: Topic) -> tuple[tuple[bool, str], ...]:
    given = [name for name in SORTED_OPTIONS if getattr(topic.options, name) != getattr(_DEFAULTS, name)]
    return (
        (topic.slots == 0, f"slots {topic.slots} is for sorted topics; a log topic is split by qps and group_qps"),
        (not given, f"option {given[0] if given else ''} is for sorted topics; choose a kind, such as range_merge"),
    )


def _sorted_rules(topic: Topic, bound: float) -> tuple[tuple[bool, str], ...]:
    o, kind, slots = topic.options, topic.kind, topic.slots
    enough = 1 << max(0, math.ceil(topic.qps / bound) - 1).bit_length()
    by_key = o.merge == "key"
    return (
        (not topic.priorities, f"a topic of kind {kind} has no priorities by name; leave them out"),
        (
            slots == 0 or (0 < slots <= MAX_SLOTS and slots & (slots - 1) == 0),
            f"slots {slots} must be a power of two from 1 to {MAX_SLOTS}",
        ),
        (
            slots == 0 or slots >= enough,
            f"{plurals.count(slots, 'slot')} for {topic.qps:g} a second: one takes at most {bound:g}; give at least "
            f"{enough}",
        ),
        (o.priority_policy != "weighted", "priority_policy 'weighted' is for log topics; use 'aging' or 'strict'"),
        (
            kind is Kind.PRIORITY or o.priority_policy == "strict",
            f"priority_policy {o.priority_policy!r} is for kind priority; {kind} goes by time",
        ),
        (o.dedupe_s == 0, "dedupe_s is for log topics; equal messages of a sorted topic merge while they wait"),
        (o.retention_s == 0, "retention_s is for log topics; a consumed message leaves its slot"),
        (o.overflow == "reject", "overflow 'drop_oldest' is for log topics; a slot refuses"),
        (
            o.time_range_ms is None or (kind is Kind.RANGE_MERGE and 0 < o.time_range_ms <= MAX_DELAY_S * 1000),
            f"time_range_ms {o.time_range_ms} must be above 0, and is for kind range_merge",
        ),
        (
            o.precision == "second" or kind is Kind.FIXED_TIME,
            f"precision {o.precision!r} is for kind fixed_time; {kind} is exact to the millisecond anyway",
        ),
        (o.fold == "latest" or by_key, f"fold {o.fold!r} needs merge='key': equal contents are one already"),
        (
            (o.fold == "lua") == bool(o.fold_lua),
            f"fold {o.fold!r}: give the text of a chunk as fold_lua with fold='lua', and only then",
        ),
        (
            o.ttl_s is None or by_key or kind is not Kind.PRIORITY,
            "ttl_s on kind priority needs merge='key': a bare content does not tell when it was published",
        ),
        (o.prepare_timeout_s >= 1, f"prepare_timeout_s {o.prepare_timeout_s} must be at least 1"),
    )


def validate_text(name: object, of: str = "topic") -> int:
    """Raise `InvalidTopic` unless `name` is text that UTF-8 can hold; return its number of bytes."""
    if not isinstance(name, str):
        raise errors.InvalidTopic(f"{of} name {inputs.shown(name)} is of type {type(name).__name__}; give text")
    try:
        return len(name.encode())
    except UnicodeEncodeError:
        raise errors.InvalidTopic(f"{of} name {inputs.shown(name)} is not valid UTF-8") from None


def validate_plain(name: str) -> None:
    """Raise `InvalidTopic` if `name` reads as a pattern: for commands, a topic `*` would be every topic."""
    if inputs.is_pattern(name):
        raise errors.InvalidTopic(f"topic name {name!r} reads as a pattern; leave out *, ? and [, or make a family")


def validate_name(name: str, of: str = "topic") -> None:
    """Raise `InvalidTopic` unless `name` can name a topic; `of` is what the error calls it."""
    size = validate_text(name, of)
    if not 1 <= size <= MAX_NAME_BYTES:
        raise errors.InvalidTopic(f"{of} name {name[:40]!r} has {size} bytes; give 1 to {MAX_NAME_BYTES}")
    if name.startswith("sandbox:"):
        raise errors.InvalidTopic(
            f"{of} name {name!r} begins with 'sandbox:', which marks keys of the sandbox; drop it"
        )
    if found := _FORBIDDEN.search(name):
        raise errors.InvalidTopic(
            f"{of} name {name!r} contains {found.group()!r}; white space, slashes, braces and control characters "
            "are not allowed"
        )
