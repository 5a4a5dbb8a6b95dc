"""Find deliveries before the due time, or after the expiry, of messages whose ids follow from their contents (T); also
their retries before the backoff is over (T), and deaths with attempts left (X).

Such an id may be published several times, and a delivery may be for any of these publishes, see `emq.trail.lives`. A
delivery is too early if every publish since the last delivery is due later. A publish that began after the host had
claimed a message belongs to a later delivery.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow.compute as pc  # type: ignore[import-untyped]

from emq.trail import events, history_facts
from emq.trail.rows import lists, only, origins


def faults(table: Any, slack_us: int) -> Iterator[str]:
    """Yield one line for each delivery and each expiry at a wrong time.

    Args:
        table: the trail, with a column `name`: `<topic>/<id>`.
        slack_us: largest difference between the clocks of two machines.
    """
    rows = only(table, events.PUBLISHED, events.MERGED, events.DOUBTED, events.STARTED, events.DEAD)
    rows = rows.filter(pc.match_substring_regex(rows["id"], events.SLOT_ID))
    yield from _expiries(rows, slack_us)
    yield from _too_early(rows, slack_us)


def too_early_dead(table: Any, max_attempts: Mapping[str, int]) -> Iterator[str]:
    """Yield one line for each unexplained death with attempts left.

    Args:
        table: as for `faults`.
        max_attempts: by topic, the fewest attempts after which a message is dead; other topics are not judged.
    """
    rows = only(table, events.DEAD)
    rows = rows.filter(pc.match_substring_regex(rows["id"], events.SLOT_ID))
    for topic, name, attempt, reason in zip(*lists(rows, "topic", "name", "attempt", "reason"), strict=True):
        most = max_attempts.get(topic, 0)
        if attempt < most and not history_facts.may_die_early(reason):
            yield f"{name} died at attempt {attempt} of {most} ({reason})"


def retried_too_early(table: Any, slack_us: int, has_crashed: Callable[[str, int], bool]) -> Iterator[str]:
    """Yield one line for each retry of a copy before the time that its failure named.

    Args:
        table: as for `faults`.
        slack_us: largest difference between the clocks of two machines.
        has_crashed: takes a topic and a group; returns whether an owner may have failed there without a record.
    """
    rows = only(table, events.STARTED, events.RETRIED)
    rows = rows.filter(pc.match_substring_regex(rows["id"], events.COPIED))
    failures: dict[tuple[str, int], tuple[int, str]] = {}
    columns = ("event", "time_us", "name", "source", "attempt", "due_ms", "topic", "group")
    ordered = rows.sort_by([("time_us", "ascending"), ("event", "ascending")])  # a failure before a start
    for event, time_us, name, source, attempt, due_ms, topic, group in zip(*lists(ordered, *columns), strict=True):
        if event == events.RETRIED:
            failures[name, attempt] = due_ms, source
        elif failure := failures.get((name, attempt - 1)):
            early_us = 0 if failure[1] == source else slack_us
            if time_us // 1000 < failure[0] - early_us // 1000 and not has_crashed(topic, group):
                yield f"{name} was to be tried again at {failure[0] * 1000} us and was started at {time_us}"


def strays(table: Any) -> Iterator[history_facts.Fault]:
    """Yield the ends of deliveries that their host did not start; `table` as for `faults`."""
    rows = only(table, events.STARTED, events.SETTLED, *events.AGAIN, events.DEAD)
    rows = rows.filter(pc.match_substring_regex(rows["id"], events.SLOT_ID))
    rows = rows.append_column("origin", origins(rows["name"]))
    rows = rows.append_column("is_end", pc.not_equal(rows["event"], events.STARTED))
    running: Counter[tuple[str, str, int | None]] = Counter()
    columns = ("event", "time_us", "origin", "source", "attempt", "group", "reason")
    ordered = rows.sort_by([("time_us", "ascending"), ("is_end", "ascending")])
    for event, time_us, name, source, attempt, group, reason in zip(*lists(ordered, *columns), strict=True):
        who = name, source, attempt
        if event == events.STARTED:
            running[who] += 1
        elif running[who]:
            running[who] -= 1
        elif not history_facts.needs_no_start(event, reason):
            text = f"{name} was {event} by {source}, which did not start its attempt {attempt}"
            yield history_facts.Fault("E", "ended without a start", text, time_us, source, group)


def _expiries(rows: Any, slack_us: int) -> Iterator[str]:
    started = only(rows, events.STARTED)
    late = started.filter(pc.less_equal(started["until"], started["time_us"]))
    for name, time_us, until_us in zip(*lists(late, "name", "time_us", "until"), strict=True):
        yield f"{name} expired at {until_us} us and was started at {time_us}"
    columns = lists(only(rows, events.DEAD), "name", "time_us", "until", "reason")
    for name, time_us, until_us, reason in zip(*columns, strict=True):
        expired = history_facts.is_expiry(events.DEAD, reason)
        if expired and history_facts.expired_early(time_us, until_us, slack_us):
            yield f"{name} expired at {time_us} us, and might have lived until {until_us}"


def _too_early(rows: Any, slack_us: int) -> Iterator[str]:
    if not pc.any(pc.is_valid(rows["due_ms"])).as_py():
        return
    begun: dict[str, list[int | None]] = defaultdict(list)
    claimed = pc.if_else(pc.greater(rows["ready_us"], 0), rows["ready_us"], None)
    begun_us = pc.if_else(pc.equal(rows["event"], events.STARTED), claimed, rows["published_us"])
    rows = rows.append_column("begun_us", pc.coalesce(begun_us, rows["time_us"]))
    ordered = rows.sort_by([("begun_us", "ascending"), ("event", "ascending")])
    columns = lists(ordered, "event", "name", "time_us", "due_ms", "attempt")
    for event, name, time_us, due_ms, attempt in zip(*columns, strict=True):
        if event == events.STARTED:
            due = begun.pop(name, [None])
            if attempt == 1 and None not in due:
                due_us = min(ms * 1000 for ms in due if ms is not None)
                if time_us < due_us - slack_us:
                    yield f"{name} is due at {due_us} us and was started at {time_us}"
        elif event != events.DEAD:
            begun[name].append(due_ms if event == events.PUBLISHED else None)
