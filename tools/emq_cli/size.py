"""`emq size`: hosts, memory, masters of the store and database writes for a flow of messages, and what limits first."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from emq_cli.session import Session
from emq_cli.times import given_span_s

if TYPE_CHECKING:
    from rich.console import RenderableType

    from emq_cli.sizing import Flow, Needs, Sizes

_UNITS = {"": 1, "k": 1_000, "m": 1_000_000}

Tenants = Annotated[
    int, typer.Option(min=1, max=100_000_000, help="Tenants that exist; one that sleeps needs no host, key or row.")
]
Awake = Annotated[
    int | None,
    typer.Option(min=1, max=100_000_000, help="Tenants that have messages within a minute. (default: all of them)"),
]
Rate = Annotated[float, typer.Option(min=0.001, max=100_000_000, help="Messages a second of all tenants together.")]
Payload = Annotated[str, typer.Option(metavar="BYTES", help="Bytes of a message: 800, 2k or 1m.")]
HandlerCpu = Annotated[
    str, typer.Option("--handler-cpu", metavar="TIME", help="CPU that your handler takes for a message: 100us, 2ms.")
]
HandlerTime = Annotated[
    str, typer.Option("--handler-time", metavar="TIME", help="Time that your handler takes for a message: 200ms.")
]
Outage = Annotated[
    str, typer.Option(metavar="TIME", help="Time without consumers for which the store has room: 1m, 4h.")
]


async def size(
    session: Session,
    tenants: Tenants,
    rate: Rate,
    awake: Awake = None,
    payload: Payload = "1k",
    handler_cpu: HandlerCpu = "100us",
    handler_time: HandlerTime = "100ms",
    outage: Outage = "1m",
) -> None:
    """Tell how many hosts, how much memory, and how many masters of the store a steady flow needs.

    It also tells which limit comes first, and how far away it is. Nothing is asked of a server. The figures come from a
    model of steady flows that was fitted on one machine; each line names its measurement. checkpoint_s and
    max_in_flight are those of your settings.

    Example: emq size --tenants 1000000 --awake 20000 --rate 50000 --payload 2k
    """
    from emq_cli import sizing

    if awake is not None and awake > tenants:
        raise typer.BadParameter(f"{awake:,} of {tenants:,} tenants; give at most --tenants", param_hint="--awake")
    flow = sizing.Flow(awake or tenants, rate, _bytes(payload))
    settings, sizes = session.settings, sizing.measured()
    cpu_s, time_s = _span_s(handler_cpu, "--handler-cpu"), _span_s(handler_time, "--handler-time")
    model = sizing.Model(sizes, settings.checkpoint_s, settings.max_in_flight, cpu_s, time_s)
    try:
        found = model.needs(flow, _span_s(outage, "--outage"))
    except sizing.TooMuch:
        raise typer.BadParameter(
            f"{rate:,.0f} messages a second need more than {sizing.MOST:,} hosts or masters; split the flow over "
            "several families and stores, or make the handler cheaper",
            param_hint="--rate",
        ) from None
    session.show(_data(tenants, flow, found, sizes), lambda: _render(tenants, flow, found, sizes))


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d{1,9})([km]?)", text.lower(), re.ASCII)
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a size; write 800, 2k or 1m", param_hint="--payload")
    return int(found[1]) * _UNITS[found[2]]


def _span_s(text: str, option: str) -> float:
    if found := re.fullmatch(r"(\d+(?:\.\d+)?)us", text, re.ASCII):
        return float(found[1]) / 1e6
    return 0.0 if text == "0" else given_span_s(text, option)


def _data(tenants: int, flow: Flow, found: Needs, sizes: Sizes) -> dict[str, Any]:
    limits = {name: rate if math.isfinite(rate) else None for name, rate in found.limits.items()}
    measured = {"date": sizes.date, "machine": sizes.machine}
    return {"tenants": tenants, **flow._asdict(), **found._asdict(), "limits": limits, "measured": measured}


_REMEDIES = {
    "hosts": "add a host process",
    "store": "add a master",
    "in flight": "raise max_in_flight, or add a host process",
    "database": "raise checkpoint_s, after which a crash repeats that much more",
}


def _render(tenants: int, flow: Flow, found: Needs, sizes: Sizes) -> RenderableType:
    from rich.console import Group

    from emq_cli import output, sizing

    model, sums = f"growth --only model, {sizes.date}", "deploy/sizing.md"

    def limit(name: str) -> str:
        rate = found.limits[name]
        return f"{rate:,.0f}" if math.isfinite(rate) else "any rate"

    host = f"{found.host_use:.0%} of a core each, at most {sizing.HOST_SHARE:.0%}"
    store = f"{found.store_use:.0%} of a core each, at most {sizing.STORE_SHARE:.0%}"
    database = found.rows_per_s / sizing.DATABASE_ROWS
    rows = [
        ("host processes", f"{found.hosts:,}", host, limit("hosts"), model),
        ("memory of a host", f"{found.host_mb:,.0f} MB", "", "", model),
        ("messages in flight", f"{found.in_flight:,.0f}", "rate x time of the handler", limit("in flight"), "-"),
        ("masters of the store", f"{found.masters:,}", store, limit("store"), model),
        ("memory of the store", f"{found.store_mb:,.0f} MB", "all masters, after the outage", "", sums),
        (
            "database writes",
            f"{found.rows_per_s:,.0f} rows/s",
            f"checkpoints, {database:.0%} of one PostgreSQL",
            limit("database"),
            sums,
        ),
    ]
    first, rate = next(iter(found.limits.items()))
    lines: list[RenderableType] = [
        output.table("", ("what", "needed", "use", "holds up to (1/s)", "measured by"), rows),
        "",
    ]
    if math.isfinite(rate):
        lines.append(f"First limit: {first}, at {rate:,.0f} messages a second. Then {_REMEDIES[first]}.")
    if asleep := tenants - flow.awake:
        lines.append(f"{output.count(asleep, 'tenant')} asleep: no host, no key, and no row without own settings.")
    if found.hosts == 1:
        lines.append("Run two hosts, on two machines, so that one may die.")
    lines.append(f"Measured on: {sizes.machine}. `python -m bench growth --only model` measures yours.")
    return Group(*lines)
