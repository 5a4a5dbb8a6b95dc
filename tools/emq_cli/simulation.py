"""`emq plan --simulate`: plans for hypothetical hosts and groups, and shows the plan in numbers and a picture."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import typer
from rich.console import Group, RenderableType

from emq.allocation.leader import DEBOUNCE_S
from emq.database import urls
from emq.topics import model
from emq.topics.buckets import is_bucket
from emq_cli import cluster, forecast, output
from emq_cli.forecast import Forecast, Step
from emq_cli.session import Session

TOPICS = 5_000
FEW = 16
"""Most hosts that get a bar each."""
BIN = 0.05
"""Width of a bar's range of loads, as a part of the fair share, if there are more hosts than `FEW`."""
BAR = 40


class Wanted(NamedTuple):
    """The options of the command, None where not given, and the most hosts that it simulates."""

    hosts: int | None
    topics: int | None
    qps: float | None
    skew: float
    kill: int
    add: int
    weight: float
    message_us: float | None
    utilisation: float | None
    seed: int
    most_hosts: int


class Load(NamedTuple):
    """The groups to plan for.

    Attributes:
        what: description for people.
        quotas: quota of each group of a topic, in starts a second.
        loads: load of each entry of a plan for them: of groups of no family, and of buckets.
        units: unit of each topic that shares a budget, and no bucket.
    """

    what: str
    quotas: Mapping[str, float]
    loads: Mapping[str, float]
    units: Mapping[str, str] = MappingProxyType({})

    @property
    def buckets(self) -> int:
        return sum(map(is_bucket, self.loads))


class Outcome(NamedTuple):
    """Attributes:
    qps: of all groups.
    needed: hosts that this many messages need.
    """

    load: Load
    qps: float
    hosts: int
    needed: int
    message_us: float
    utilisation: float
    session_timeout_s: float
    steps: list[Step]


async def run(session: Session, wanted: Wanted) -> None:
    """Plan, and show the plan in numbers."""
    load = await _load(session, wanted)
    # On a thread, so that Ctrl-C works: a million groups take a while.
    outcome = await asyncio.to_thread(_plan, load, wanted, session.settings.session_timeout_s)
    session.show(_data(outcome, wanted), lambda: _render(outcome))


async def _load(session: Session, wanted: Wanted) -> Load:
    if wanted.topics is None and wanted.qps is None and _has_catalog(session):
        known = await cluster.known(session)
        if known.loads:
            groups = known.contents.amount(known.loads)
            topics = output.count(len(known.topics), "topic")
            return Load(f"{groups} of the catalog's {topics}", known.quotas, known.loads, known.units)
    made = wanted.topics or TOPICS
    quotas = forecast.skewed(made, wanted.qps, wanted.skew, wanted.seed)
    made_up = f"{output.count(made, 'made-up topic')} (skew {wanted.skew:g}, seed {wanted.seed})"
    return Load(f"{output.count(len(quotas), 'group')} of {made_up}", quotas, quotas)


def _has_catalog(session: Session) -> bool:
    """Return whether the catalog exists; do not open an SQLite file that is missing, since that would create it."""
    url = urls.parse(session.settings.database_url)
    if url.get_backend_name() != "sqlite":
        return True
    path = urls.sqlite_path(url)
    return path is not None and pathlib.Path(path).exists()


def _plan(load: Load, wanted: Wanted, session_timeout_s: float) -> Outcome:
    message_us = forecast.MESSAGE_US if wanted.message_us is None else wanted.message_us
    utilisation = forecast.UTILISATION if wanted.utilisation is None else wanted.utilisation
    qps = round(sum(load.quotas.values()) * model.MICRO) / model.MICRO
    needed = forecast.hosts_for(qps, message_us, utilisation)
    hosts = needed if wanted.hosts is None else wanted.hosts
    if hosts > wanted.most_hosts:
        raise typer.BadParameter(
            f"{qps:g} messages a second need {hosts:,} hosts, and a simulation has at most {wanted.most_hosts:,}; give "
            "--hosts"
        )
    if wanted.kill >= hosts:
        raise typer.BadParameter(
            f"killing {wanted.kill} of {output.count(hosts, 'host')} leaves none; kill fewer", param_hint="--kill"
        )
    made = Forecast(load.loads, session_timeout_s, wanted.seed, load.units)
    steps = [made.start(hosts)]
    if wanted.kill:
        steps.append(made.kill(wanted.kill))
    if wanted.add:
        steps.append(made.add(wanted.add, wanted.weight))
    return Outcome(load, qps, hosts, needed, message_us, utilisation, session_timeout_s, steps)


def _data(outcome: Outcome, wanted: Wanted) -> dict[str, Any]:
    steps = [
        {
            **step._asdict(),
            "moves_over_minimum": step.moves_over_minimum,
            "pause": None if i == 0 else step.pause._asdict(),
        }
        for i, step in enumerate(outcome.steps)
    ]
    return {
        "groups": len(outcome.load.quotas),
        "buckets": outcome.load.buckets,
        "qps": outcome.qps,
        "hosts": outcome.hosts,
        "hosts_needed": outcome.needed,
        "message_us": outcome.message_us,
        "utilisation": outcome.utilisation,
        "session_timeout_s": outcome.session_timeout_s,
        "seed": wanted.seed,
        "steps": steps,
    }


def _render(outcome: Outcome) -> RenderableType:
    parts: list[RenderableType] = [*map(output.plain, _head(outcome)), "", _table(outcome.steps)]
    for step in outcome.steps:
        parts += ["", f"Loads over the fair share, {step.what}", *bars(step.loads)]
    if outcome.load.buckets:
        parts += ["", "A bucket of a family moves with all groups in it, and counts as one that moved."]
    parts += ["", *_messages(outcome.steps)]
    if len(outcome.steps) > 1:
        parts += ["", *map(output.plain, _pauses(outcome))]
    return Group(*parts)


def _head(outcome: Outcome) -> list[str]:
    needed, measured = outcome.needed, outcome.message_us == forecast.MESSAGE_US
    share = outcome.qps * outcome.message_us / 1e6 / outcome.hosts
    busy = f"{share:.0%}" if share >= 0.1 else f"{share:.2%}"
    rest = "" if outcome.hosts == needed else f"; the {outcome.hosts:,} here would be {busy} busy"
    nothing = "handlers that do nothing, " if measured else ""
    return [
        f"{outcome.load.what}: {output.number(outcome.qps)} starts a second",
        f"{output.count(needed, 'host')}, of one process each, needed: {outcome.message_us:g} us of a core for a "
        f"message, at most {outcome.utilisation:.0%} busy{rest}",
        f"This assumes {nothing}one core each, and a backlog that is read in batches; the store's servers come on top. "
        "Measure yours and give it as --message-us.",
    ]


def _table(steps: Sequence[Step]) -> RenderableType:
    columns = ("", "hosts", "max/mean", "moved", "at least", "over", "plan s")
    rows = [
        (
            step.what,
            step.hosts,
            f"{step.max_over_mean:.3f}",
            *((None, None, None) if i == 0 else (step.groups_moved, step.least, f"{step.moves_over_minimum:.3f}")),
            f"{step.plan_s:.2f}",
        )
        for i, step in enumerate(steps)
    ]
    return output.table("", columns, rows, right=columns[1:])


def bars(loads: Sequence[float]) -> list[str]:
    """A line for each host, or, if they are many, for each twentieth of the fair share; the emptiest first."""
    if len(loads) <= FEW:
        most = max(loads)
        return [f"  {load:5.2f}  {_bar(load / most)}" for load in loads]
    counts: dict[int, int] = {}
    for load in loads:
        counts[int(load / BIN + 1e-9)] = counts.get(int(load / BIN + 1e-9), 0) + 1
    most_hosts = max(counts.values())
    bins = range(min(counts), max(counts) + 1) if max(counts) - min(counts) < 40 else sorted(counts)
    return [
        f"  {at * BIN:4.2f} to {(at + 1) * BIN:4.2f}  {_bar(counts.get(at, 0) / most_hosts)} "
        f"{output.count(counts.get(at, 0), 'host')}"
        for at in bins
    ]


def _bar(share: float) -> str:
    """Return a bar, of one character at least if `share` is not 0."""
    return "#" * max(round(BAR * share), 1 if share else 0)


def _messages(steps: Sequence[Step]) -> list[str]:
    return [
        "Messages to and from the coordination tree, by all hosts together:",
        *(
            f"  {step.what}: {output.count(step.writes, 'write')} and {output.count(step.reads, 'read')} of nodes; "
            f"{output.number(round(step.written_bytes / 1000))} KB of lists"
            for step in steps
        ),
    ]


def _pauses(outcome: Outcome) -> list[str]:
    """Explain the predicted pauses, a line for each step."""
    lines = ["Predicted pause of a group that moves, besides the messages in flight that its former owner waits for:"]
    for step in outcome.steps[1:]:
        lost = step.pause.most > forecast.WINDOW_S
        made_up = (
            f"the session's {outcome.session_timeout_s:g} s (of which up to a third had passed), {DEBOUNCE_S:g} s of "
            f"collecting changes, {step.plan_s:.2f} s of planning, and the rest of the second"
            if lost
            else "the rest of the second in which it is taken over"
        )
        lines.append(
            f"  {step.what}: {step.pause.typical:.1f} s on average, {step.pause.most:.1f} s at most: {made_up}"
        )
    return lines
