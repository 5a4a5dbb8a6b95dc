"""Faults for the trail of `support.lively_trail`: each changes what hosts have written, in one place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]

from emq.trail import events, schema, segments
from support.hostile.told import Row, write
from support.lively_trail import LOG

Rows = list[Row]
Plant = Callable[[Rows], str | None]
"""Changes the rows; returns the id of the message that it is about, None if it is about a group."""


def rows_of(directory: Path) -> Rows:
    table = segments.read(directory).table.sort_by("time_us")
    found: Rows = table.to_pylist()
    return found


def write_rows(rows: Rows, directory: Path) -> None:
    by_source: dict[str, Rows] = defaultdict(list)
    for row in rows:
        by_source[row["source"]].append(row)
    for source, some in by_source.items():
        some.sort(key=lambda row: row["time_us"])
        write(directory, source, pa.Table.from_pylist(some, schema=schema.SCHEMA))


def _lives(rows: Rows) -> dict[str, Rows]:
    found: dict[str, Rows] = defaultdict(list)
    for row in rows:
        if row["topic"] == LOG and row["id"] is not None:
            found[row["id"]].append(row)
    return found


def _plain(rows: Rows, n: int, keyed: bool = False) -> Rows:
    """The publish, start and settle of the n-th message of a queue that has only these events."""
    wanted = {events.PUBLISHED, events.STARTED, events.SETTLED}
    plain = [
        sorted(some, key=lambda row: (events.PUBLISHED, events.STARTED, events.SETTLED).index(row["event"]))
        for some in _lives(rows).values()
        if len(some) == 3 and {row["event"] for row in some} == wanted
    ]
    fit = [some for some in plain if some[0]["offset"] is not None and (some[0]["key"] is not None) == keyed]
    return fit[n]


def _of(rows: Rows, *names: str) -> Rows:
    return [row for row in rows if row["event"] in names and row["topic"] == LOG]


def the_first_message_is_lost(rows: Rows) -> str:
    _, start, end = _plain(rows, 0)
    rows.remove(start)
    rows.remove(end)
    return str(start["id"])


def the_last_message_is_lost(rows: Rows) -> str:
    _, start, end = _plain(rows, -1)
    rows.remove(start)
    rows.remove(end)
    return str(start["id"])


def one_of_a_retired_group_is_lost(rows: Rows) -> str:
    """The last one of the highest group, which was gone in the end."""
    last = max(row["group"] for row in _of(rows, events.STARTED))
    n = [n for n in range(30, 200) if _plain(rows, n)[0]["group"] == last][-1]
    _, start, end = _plain(rows, n)
    rows.remove(start)
    rows.remove(end)
    return str(start["id"])


def one_is_settled_twice(rows: Rows) -> str:
    _, _, end = _plain(rows, 5)
    rows.append({**end, "time_us": end["time_us"] + 1000})
    return str(end["id"])


def one_loses_its_priority(rows: Rows) -> str:
    _, start, end = _plain(rows, 6)
    for row in (start, end):
        row["priority"] = 1 - row["priority"]
    return str(start["id"])


def one_comes_from_the_offset_after_its_own(rows: Rows) -> str:
    _, start, end = _plain(rows, 7)
    for row in (start, end):
        row["offset"] += 1
    return str(start["id"])


def one_loses_its_key(rows: Rows) -> str:
    _, start, _ = _plain(rows, 8, keyed=True)
    start["key"] = None
    return str(start["id"])


def one_runs_on_beside_the_next_of_its_key(rows: Rows) -> str:
    for n in range(20, 100):
        _, start, end = _plain(rows, n, keyed=True)
        later = (row for row in _of(rows, events.STARTED) if row["key"] == start["key"])
        if after := next((row for row in later if row["time_us"] > end["time_us"]), None):
            end["time_us"] = after["time_us"] + 1
            return str(after["id"])
    raise AssertionError("no key runs twice")


def a_retry_is_a_ms_early(rows: Rows) -> str:
    failure = _of(rows, events.RETRIED)[10]
    started = [row for row in _of(rows, events.STARTED) if row["id"] == failure["id"]]
    again = next(row for row in started if row["attempt"] == failure["attempt"] + 1)
    failure["due_ms"] = again["time_us"] // 1000 + 1
    return str(failure["id"])


def a_failure_is_missing(rows: Rows) -> str:
    failure = next(row for row in _of(rows, events.RETRIED)[20:] if row["attempt"] == 1)
    rows.remove(failure)
    return str(failure["id"])


def a_replay_is_missing(rows: Rows) -> str:
    replay = _of(rows, events.REPLAYED)[3]
    rows.remove(replay)
    return str(replay["id"])


def a_death_comes_at_the_second_attempt(rows: Rows) -> str:
    """Of a message that was put back then."""
    failures = [row for row in _of(rows, events.RETRIED) if row["attempt"] == 2]
    later = [row for row in _of(rows, events.DEAD) if row["attempt"] == 3]
    failure = next(row for row in failures if not any(row["id"] == dead["id"] for dead in later))
    rows.append({**failure, "event": events.DEAD, "due_ms": None})
    rows.remove(failure)
    rows[:] = [r for r in rows if r["id"] != failure["id"] or r["time_us"] <= failure["time_us"]]
    return str(failure["id"])


def a_recalled_one_is_delivered(rows: Rows) -> str:
    recall = _of(rows, events.RECALLED)[0]
    _, start, end = _plain(rows, 9)
    late_us = recall["time_us"] + 4_000_000
    for n, row in enumerate((start, end)):
        owner = {"source": start["source"], "epoch": start["epoch"]}
        blank = dict.fromkeys(schema.SCHEMA.names) | owner | {"topic": LOG, "id": recall["id"], "attempt": 1}
        blank |= {"group": recall["group"], "priority": 1, "offset": -1, "event": row["event"]}
        rows.append({**blank, "time_us": late_us + n})
    return str(recall["id"])


def one_is_settled_by_the_next_owner(rows: Rows) -> str:
    _, start, end = _plain(rows, 11)
    others = sorted({row["source"] for row in _of(rows, events.STARTED)} - {start["source"]})
    end["source"] = others[0]
    return str(start["id"])


def one_is_given_back_that_was_settled(rows: Rows) -> str:
    _, _, end = _plain(rows, 12)
    rows.append({**end, "event": events.RETURNED, "time_us": end["time_us"] + 1, "reason": "busy"})
    return str(end["id"])


def an_owner_lets_go_a_us_before_its_last_start(rows: Rows) -> None:
    release, starts = next((row, found) for row in _of(rows, events.RELEASED) if (found := _starts_of(rows, row)))
    release["time_us"] = starts[-1]["time_us"] - 1


def an_owner_begins_a_us_before_it_owns(rows: Rows) -> None:
    owned, starts = [(row, found) for row in _of(rows, events.OWNED) if (found := _starts_of(rows, row))][-1]
    owned["time_us"] = starts[0]["time_us"] + 1


def _starts_of(rows: Rows, owner: Row) -> Rows:
    who = ("group", "source", "epoch")
    return [row for row in _of(rows, events.STARTED) if all(row[name] == owner[name] for name in who)]


PLANTS: tuple[tuple[Plant, str], ...] = (
    (the_first_message_is_lost, "L"),
    (the_last_message_is_lost, "L"),
    (one_of_a_retired_group_is_lost, "L"),
    (one_is_settled_twice, "D"),
    (one_is_given_back_that_was_settled, "D"),
    (a_recalled_one_is_delivered, "D"),
    (one_loses_its_priority, "P"),
    (one_comes_from_the_offset_after_its_own, "M"),
    (one_loses_its_key, "K"),
    (one_runs_on_beside_the_next_of_its_key, "K"),
    (a_retry_is_a_ms_early, "T"),
    (a_failure_is_missing, "X"),
    (a_replay_is_missing, "X"),
    (a_death_comes_at_the_second_attempt, "X"),
    (one_is_settled_by_the_next_owner, "O"),
    (an_owner_lets_go_a_us_before_its_last_start, "O"),
    (an_owner_begins_a_us_before_it_owns, "O"),
)
"""With the letter of the promise that each breaks; some break others besides."""
