"""Pools, tasks and proofs as `emq scheduling` prints them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec
from rich.console import Group, RenderableType

from emq.runtime import durations
from emq_cli import output
from emq_scheduling.model import KINDS, Period, Pool
from emq_scheduling.records.snapshot import KeyLimitView, ResourceView, Snapshot, TypeView

if TYPE_CHECKING:
    from emq_scheduling.finding import Waits
    from emq_scheduling.forecast.prediction import Forecast, TypeForecast
    from emq_scheduling.forecast.what_if import WhatIf
    from emq_scheduling.pools.catalog import Stored
    from emq_scheduling.records.proof import LimitProof
    from emq_scheduling.records.records import Attempt, TaskStatus
    from emq_scheduling.records.snapshot import PoolState
    from emq_scheduling.records.verifying import Proof

AT_ONCE_S = 0.01
"""Predicted waits below this are not worth a number."""

TIGHTEST = 30
"""Limits that a proof lists if none was exceeded; JSON has all."""


class PoolLine(NamedTuple):
    """One pool in a list. The host's figures are None while no host schedules it."""

    pool: str
    version: int
    resources: int
    types: int
    waiting: int | None
    running: int | None
    host: str | None


def line(stored: Stored, snapshot: Snapshot | None, now: float) -> PoolLine:
    """Return a pool as a list has it."""
    pool, live = stored.pool, snapshot if snapshot is not None and not snapshot.is_stale(now) else None
    waiting = None if live is None else sum(live.state.waiting.values())
    running = None if live is None else sum(each.running for each in live.types.values())
    host = None if live is None else live.host
    return PoolLine(pool.name, stored.version, len(pool.resources), len(pool.types), waiting, running, host)


def render_pools(lines: list[PoolLine]) -> RenderableType:
    """A table of pools."""
    columns = ("pool", "version", "resources", "types", "waiting", "running", "host")
    return output.table("", columns, lines, right=columns[1:6])


# ---------------------------------------------------------------------------------------------------------- one pool


def render(stored: Stored, snapshot: Snapshot | None, now: float) -> RenderableType:
    """A pool: who schedules it, its types, its resources."""
    pool = stored.pool
    live = snapshot if snapshot is not None and not snapshot.is_stale(now) else None
    facts = [("pool", pool.name), ("version", str(stored.version))]
    if live is not None:
        facts.append(("host", f"{live.host}, since {output.when_in_zone(live.since * 1000)}"))
        if live.version != stored.version:
            facts.append(("", f"the host still follows version {live.version}"))
    elif snapshot is not None:
        facts.append(("host", f"none now; {snapshot.host} did until {output.when_in_zone(snapshot.at * 1000)}"))
    else:
        facts.append(("host", "none yet: no host has performers for this pool"))
    parts: list[RenderableType] = [output.facts(facts), "", _types(pool, live)]
    if live is not None and (costs := _costs_of(live)) is not None:
        parts += ["", costs]
    if pool.limits:
        parts += ["", _key_limits(pool, live)]
    return Group(*parts, "", _resources(pool, live))


def _types(pool: Pool, live: Snapshot | None) -> RenderableType:
    columns = ("type", "priority", "waiting", "running", "predicted", "target", "p50", "p99", "late", "resources")
    rows = []
    for name, kind in sorted(pool.types.items(), key=lambda entry: entry[1].priority):
        view = None if live is None else live.types.get(name, TypeView())
        waits = None if view is None or not view.waits.count else view.waits
        rows.append(
            (
                *(name, kind.priority, None if view is None else view.waiting, None if view is None else view.running),
                "-" if view is None else _predicted(view),
                "-" if kind.longest_wait_s is None else durations.brief(kind.longest_wait_s),
                *(("-", "-") if waits is None else (durations.brief(waits.p50_s), durations.brief(waits.p99_s))),
                None if waits is None else waits.late,
                len(pool.able(name)),
            )
        )
    title = "task types; waits of the last minutes" if live is not None else "task types"
    return output.table(title, columns, rows, right=columns[1:], spare=("resources", "p50", "running"))


def _costs_of(live: Snapshot) -> RenderableType | None:
    """Return a table of costs that differ from what the pool says; None if nothing is known of such."""
    columns = ("type", "limit", "costs", "charged", "used", "waiting")
    rows = [
        (kind, name, cost.said, cost.charged, cost.used, round(cost.waiting))
        for kind, view in live.types.items()
        for name, cost in view.costs.items()
    ]
    title = "units that tasks cost; used: on average of late, waiting: of all that wait"
    return output.table(title, columns, rows, right=columns[2:]) if rows else None


def _key_limits(pool: Pool, live: Snapshot | None) -> RenderableType:
    columns = ("limit", "by", "amount", "others", "keys", "held", "waiting", "most")
    rows: list[list[str | float | None]] = []
    for name, limit in pool.limits.items():
        view = None if live is None else live.limits.get(name, KeyLimitView())
        period = "in flight" if limit.per == "in_flight" else f"a {limit.per}{limit.limit(name, 0.0).note}"
        rows.append(
            [
                *(name, ", ".join(limit.names), f"{limit.unit(name)} {output.number(limit.amount)} {period}"),
                len(limit.amounts),
                *((None, None, None) if view is None else (view.keys, view.held, view.waiting)),
                "-" if view is None else _most(view),
            ]
        )
    title = "limits by key; held: keys whose tasks wait for their room; most: those, and how long a new one waits"
    return output.table(title, columns, rows, right=columns[3:7], spare=("others", "most"))


def _most(view: KeyLimitView) -> str:
    """Return the keys with the most waiting tasks, with how long a new one would wait."""
    found = []
    for key, count in view.most.items():
        wait_s = view.waits.get(key, 0.0)
        told = "over a day" if wait_s is None else durations.brief(wait_s)
        found.append(f"{key} {count:,} ({told})" if key in view.waits else f"{key} {count:,}")
    return ", ".join(found) or "-"


def _predicted(view: TypeView) -> str:
    return "over a day" if view.predicted_wait_s is None else durations.brief(view.predicted_wait_s)


def _resources(pool: Pool, live: Snapshot | None) -> RenderableType:
    columns = ("resource", "limits, and what is used", "binds", "running", "per s", "health", "price", "weight")
    rows: list[list[str | float | None]] = []
    for name, depth in pool.tree():
        resource = pool.resources[name]
        view = None if live is None else live.resources.get(name, ResourceView())
        limits = ", ".join(_limits(pool, name, view)) or "-"
        rows.append(
            [
                *("  " * depth + name, limits, "-" if view is None or not view.binds else view.binds),
                None if view is None else view.running,
                None if view is None else view.started_per_s,
                _health(resource.paused, view),
                *(resource.price, resource.weight),
            ]
        )
    return output.table("resources", columns, rows, right=("running", "per s", "price", "weight"), spare=columns[:5:-1])


def _limits(pool: Pool, name: str, view: ResourceView | None) -> list[str]:
    """Return limits such as `requests 12 of 50/second`, with the configured amount if less holds now."""
    views = {} if view is None else {(each.name, each.per): each for each in view.limits}
    found = []
    for limit in pool.resources[name].limits:
        now = views.get((limit.name, limit.per))
        period = "in flight" if limit.per == "in_flight" else f"a {limit.per}{limit.note}"
        if now is None:
            found.append(f"{limit.name} {output.number(limit.amount)} {period}")
            continue
        lowered = "" if now.amount == now.configured else f" (of {output.number(now.configured)})"
        told = "" if now.left is None else f" (its provider: {output.number(now.left)} left)"
        found.append(f"{limit.name} {output.number(now.used)} of {output.number(now.amount)}{lowered} {period}{told}")
    return found


def _health(paused: bool, view: ResourceView | None) -> str:
    if paused:
        return "paused"
    if view is None:
        return "-"
    if view.closed:
        return f"closed: {view.closed}"
    if view.factor >= 1:
        return "ok"
    return f"slowed to {view.factor:.0%}{view.slowed and f': {view.slowed}'}"


# --------------------------------------------------------------------------------------------------------- one task


def plain_attempt(attempt: Attempt) -> dict[str, Any]:
    """Return an attempt as plain values: its result as text where it is text, else in base64."""
    data = msgspec.structs.asdict(attempt)
    try:
        data["result"] = data["result"].decode()
    except UnicodeDecodeError:
        data["result_base64"] = data.pop("result")
    return data


def render_status(status: TaskStatus, waits: Waits | None) -> RenderableType:
    """A task: its state, where it waits, its attempts."""
    head = f"task {status.task}: {status.state}"
    if status.cancel_asked and status.state in ("waiting", "running", "unknown"):
        head += "; somebody asked to cancel it"
    parts: list[RenderableType] = [output.plain(head)]
    if waits is not None:
        ahead = f", {output.count(waits.ahead, 'task')} of it ahead" if waits.ahead else ""
        due = "" if waits.due_ms is None else f", due {output.when_in_zone(waits.due_ms)}"
        parts.append(output.plain(f"it waits in topic {waits.topic!r}{ahead}{due}"))
    if waits is not None and waits.tries:
        names, at = waits.tries, waits.at
        came = f"it has come to {names[at]}, {at + 1} of {len(names)}"
        parts.append(output.plain(f"fallbacks: {', '.join(names)}; {came}"))
    if status.progress:
        told = output.when_in_zone(status.told_us / 1000)
        parts.append(output.plain(f"progress: {output.payload(status.progress)}, told {told}"))
    if status.attempts:
        columns = (
            output.zoned("started", (each.started_us / 1000 for each in status.attempts)),
            *("resource", "outcome", "waited", "took", "charged", "used", "error"),
        )
        rows = [
            (
                output.when_briefly(each.started_us / 1000),
                *((each.resource or "-") + (f" as {each.as_type}" if each.as_type else ""), each.outcome),
                durations.brief(each.wait_s),
                "-" if not each.ended_us else durations.brief(us=each.ended_us - each.started_us),
                *(_costs(each.costs), "-" if each.actual is None else _costs(each.actual), each.error),
            )
            for each in status.attempts
        ]
        parts.append(output.table("", columns, rows, right=("waited", "took"), spare=("used", "charged")))
        if result := status.attempts[-1].result:
            parts.append(f"result: {output.payload(result)}")
    return Group(*parts)


def _costs(costs: Any) -> str:
    return ", ".join(f"{name} {output.number(units)}" for name, units in costs.items()) or "-"


# ------------------------------------------------------------------------------------------------------------- proof


def _kind(proof: LimitProof) -> str:
    """Return how a limit counts, if its period does not say so."""
    return "" if proof.kind is None or proof.kind == KINDS[cast(Period, proof.per)] else f" ({proof.kind})"


def render_proof(proof: Proof) -> RenderableType:
    """A proof: each limit with its peak, those that were exceeded first, then the tightest."""
    if not proof.attempts and not proof.outcomes:
        return f"pool {proof.pool!r} has no records yet; there is nothing to prove"
    ordered = sorted(proof.limits, key=lambda each: (-each.over_s, -_part(each), each.resource, each.limit))
    shown = [each for i, each in enumerate(ordered) if each.over_s or i < TIGHTEST]
    columns = ("resource", "limit", "starts", "units", "peak", "of", "debt", "s over")
    rows = [
        (
            each.resource + (f": {each.key}" if each.key else ""),
            *(f"{each.limit}/{each.per}{_kind(each)}", each.starts),
            *(round(each.units, 3), round(each.peak, 3), each.amount, round(each.most_debt, 3), each.over_s),
        )
        for each in shown
    ]
    parts: list[RenderableType] = [output.table("", columns, rows, right=columns[2:], spare=("debt", "units"))]
    if len(shown) < len(ordered):
        parts.append(f"{output.count(len(ordered) - len(shown), 'limit')} further from its amount; --json has all")
    since = f" since {output.when_in_zone(proof.since_us / 1000)}" if proof.since_us else ""
    ends = ", ".join(f"{name} {n:,}" for name, n in proof.outcomes.items())
    parts.append(f"{output.count(proof.attempts, 'start')}{since}; records: {ends}")
    parts.append(f"limits exceeded in {output.count(proof.over_s, 'second')}; tasks ended twice: {proof.ended_twice:,}")
    if proof.twice:
        parts.append(output.plain(f"such as {', '.join(proof.twice)}"))
    if proof.unproven:
        unproven = output.count(proof.unproven, "start")
        parts.append(f"not proved: {unproven} under a version of the pool that is not known any more")
    return Group(*parts)


def _part(limit: LimitProof) -> float:
    return limit.peak / limit.amount if limit.amount else 0.0


_AFTER = ("mean", "p50", "p99", "left")
"""The figures of each type in the table of a forecast with changes."""


def start_in_words(wait_s: float | None) -> str:
    """Return when a submitted task will start, to follow its id; nothing if nobody knows."""
    if wait_s is None:
        return ""
    if math.isinf(wait_s):
        return ", starts in over a day, as things are"
    return ", starts at once" if wait_s < AT_ONCE_S else f", starts in about {durations.brief(wait_s)}"


def render_what_if(found: WhatIf, state: PoolState) -> RenderableType:
    """Return a table of the types before and after, and one of the resources whose use changes."""
    before, after = found.before, found.after
    columns = ("type", "waiting", "come per s", "mean", "p50", "p99", *(f"{part} after" for part in _AFTER))
    rows: list[list[str | float | None]] = [
        [
            kind,
            state.waiting.get(kind, 0),
            round(state.arrivals.get(kind, 0.0), 1),
            *_waits_of(before.types.get(kind)),
            *_waits_of(after.types.get(kind)),
            round(after.types[kind].left) if kind in after.types else None,
        ]
        for kind in {**before.types, **after.types}
    ]
    spare = ("left after", "mean", "mean after", "come per s")
    held = sum(state.held.values())
    without = f"; without {output.count(held, 'task')} that limits by key hold" if held else ""
    types = output.table(f"waits{without}; {_ends(before, after)}", columns, rows, right=columns[1:], spare=spare)
    names = {**before.starts, **after.starts}
    shown: list[list[str | float | None]] = [
        [
            name,
            *(_start(forecast, name) for forecast in (before, after)),
            *(_use(forecast, name) for forecast in (before, after)),
        ]
        for name in names
        if (_start(before, name), _use(before, name)) != (_start(after, name), _use(after, name))
    ]
    headings = ("resource", "starts", "starts after", "use", "use after")
    resources = output.table("resources that change", headings, shown, right=headings[1:])
    return Group(types, resources) if shown else types


def _waits_of(forecast: TypeForecast | None) -> tuple[str, str, str]:
    """Return mean, p50 and p99; "never" if nothing starts while something waits."""
    if forecast is None:
        return "-", "-", "-"
    if not forecast.started:
        text = "never" if forecast.left >= 1 else "-"
        return text, text, text
    mean, p50, p99 = (durations.brief(each) for each in (forecast.mean_s, forecast.p50_s, forecast.p99_s))
    return mean, p50, p99


def _ends(before: Forecast, after: Forecast) -> str:
    """Return a text about the time until no task waits, before and after the change."""
    if before.drained_s is not None and after.drained_s is not None:
        first, then = durations.brief(before.drained_s), durations.brief(after.drained_s)
        return f"all tasks have started after {first} before the change, and {then} after it"
    return f"before the change {_end(before)}, after it {_end(after)}"


def _end(forecast: Forecast) -> str:
    if forecast.drained_s is None:
        return f"tasks still wait in {durations.brief(forecast.over_s)}"
    return f"all tasks have started in {durations.brief(forecast.drained_s)}"


def _start(forecast: Forecast, name: str) -> int | None:
    found = forecast.starts.get(name)
    return None if found is None else round(found)


def _use(forecast: Forecast, name: str) -> str:
    found = forecast.utilisation.get(name)
    return "-" if found is None else f"{found:.0%}"
