"""Choose rows and columns of the trail's table, for modules that turn them into records."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from emq.trail import events
from emq_proof.history_facts import Loss, Losses


def join(left: Any, right: Any) -> Any:
    """Return `left/right`; null where either is null."""
    return pc.binary_join_element_wise(left.cast(pa.string()), right.cast(pa.string()), "/")


def origins(names: Any) -> Any:
    """Return the ids (or the names that end with an id) under which the messages were published."""
    return pc.replace_substring_regex(names, f"((?:^|/){events.CONTENT}){events.COPY}.*$", r"\1")


def steps_of(table: Any) -> Any:
    """Add the columns of `emq_proof.lives.Step` and of its orders; the column `name` is there."""
    rows = table.append_column("origin", origins(table["name"]))
    is_end = pc.not_equal(rows["event"], events.STARTED)
    claimed_us = pc.if_else(pc.greater(rows["ready_us"], 0), rows["ready_us"], None)
    begun_us = pc.if_else(is_end, rows["published_us"], claimed_us)
    return rows.append_column("is_end", is_end).append_column("begun_us", pc.coalesce(begun_us, rows["time_us"]))


def only(table: Any, *names: str) -> Any:
    """Return the rows of these events."""
    return table.filter(pc.is_in(table["event"], pa.array(names)))


def losses(table: Any, *also: str) -> Losses:
    """Return what stores have lost, as hosts noticed it.

    Args:
        also: `FORGOTTEN`, for all offsets that stores gave out again: also those of queues that they forgot.
    """
    found: dict[tuple[str, int, int | None], list[Loss]] = defaultdict(list)
    columns = lists(only(table, events.LOST, *also), "topic", "group", "priority", "offset", "time_us")
    for topic, group, priority, *loss in zip(*columns, strict=True):
        found[topic, group, priority].append(Loss(*loss))
    return found


def lists(table: Any, *columns: str) -> list[list[Any]]:
    """Return columns as lists of Python values."""
    return [table[name].to_pylist() for name in columns]
