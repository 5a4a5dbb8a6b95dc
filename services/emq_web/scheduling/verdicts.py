"""The state of a pool in one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from emq.runtime import durations, plurals
from emq_scheduling.model import Pool, TaskType
from emq_scheduling.records.snapshot import Snapshot, TypeView

State = Literal["flowing", "trouble", "stopped", "unknown"]

NAMED = 3
"""Most resources and types that the line names."""


class Verdict(NamedTuple):
    """Attributes:
    state: "flowing"; "trouble": it flows, and somebody should look; "stopped"; "unknown".
    text: one line.
    """

    state: State
    text: str


def of(pool: Pool, snapshot: Snapshot | None, now: float) -> Verdict:
    """Return the state of a pool.

    Args:
        now: seconds since the epoch.
    """
    if snapshot is None:
        return Verdict("unknown", "Unknown: no host has scheduled this pool yet")
    if snapshot.is_stale(now):
        silent = durations.brief(round(max(0.0, now - snapshot.at)))
        return Verdict("unknown", f"Unknown: {snapshot.host}, which scheduled the pool, has been silent for {silent}")
    waiting = sum(snapshot.state.waiting.values())
    started = sum(snapshot.state.started.values())
    running = sum(snapshot.state.running.values())
    troubles = [text for text in (_closed(pool, snapshot), _late(pool, snapshot)) if text]
    if waiting and not started and not running and _may_start(pool, snapshot):
        why = f": {troubles[0]}" if troubles else ", and nothing starts"
        return Verdict("stopped", f"Not flowing: {plurals.count(waiting, 'task')} waiting{why}")
    idle = "nothing in the last second" if waiting else "nothing to start now"
    flow = f"{started:,} a second" if started else idle
    if waiting:
        flow += f", {waiting:,} waiting"
    if troubles:
        return Verdict("trouble", f"Flowing: {flow}, but {'; '.join(troubles)}")
    return Verdict("flowing", f"Flowing: {flow}, on {plurals.count(_working(pool), 'resource')}")


def _working(pool: Pool) -> int:
    return sum(bool(each.takes) for each in pool.resources.values())


def _may_start(pool: Pool, snapshot: Snapshot) -> bool:
    """Return whether tasks wait that the hours of their type do not hold back."""
    return any(n and not (name in pool.types and pool.types[name].hours) for name, n in snapshot.state.waiting.items())


def _closed(pool: Pool, snapshot: Snapshot) -> str:
    names = [name for name, view in snapshot.resources.items() if view.closed and name in pool.resources]
    own = [name for name in names if pool.resources[name].parent not in names]
    return f"{_listed(own)} {'starts' if len(own) == 1 else 'start'} nothing" if own else ""


def _late(pool: Pool, snapshot: Snapshot) -> str:
    names = [name for name, view in snapshot.types.items() if name in pool.types and is_late(pool.types[name], view)]
    return f"{_listed(names)} {'is' if len(names) == 1 else 'are'} late" if names else ""


def is_late(kind: TaskType, view: TypeView) -> bool:
    """Return whether tasks of a type wait for too long, or new ones would."""
    if view.waiting and view.predicted_wait_s is None and not kind.hours:
        return True
    target = kind.longest_wait_s
    if target is None:
        return False
    return view.waits.p99_s > target or (view.predicted_wait_s or 0.0) > target


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMED])
    return shown if len(names) <= NAMED else f"{shown} and {len(names) - NAMED} more"
