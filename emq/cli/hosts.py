"""`emq hosts`: show the hosts of the cluster, with their weights, groups and loads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from emq import durations
from emq.cli import output
from emq.cli.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import RenderableType

    from emq.cli.cluster import DatabaseView
    from emq.observe.snapshots import AgedSnapshot


async def hosts(
    session: Session,
    watch: Annotated[bool, typer.Option("--watch", help="Show them again and again, until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, help="With --watch: seconds between two views.")] = 1.0,
    count: Annotated[int | None, typer.Option(min=1, help="With --watch: end after this many views.")] = None,
) -> None:
    """Show the hosts of the cluster: weights, groups, load, and how far each has followed the plan.

    load: the quotas of the host's groups, divided by its fair share; 1.00 is exactly its share.

    waiting: groups that the plan gives to the host, but that it does not consume yet, mostly because the former owner
    still finishes messages. A line below the table names groups that wait for longer than a move takes, and the reason.

    released: whether the host has given up all groups that plans took from it, or up to which plan; "all but 3" means
    that it still finishes messages of 3 such groups.

    state: "joining" until a plan counts the host in; "gone" if the plan names it and it has left.

    Example: emq hosts --watch
    """
    from emq.allocation import cluster_view
    from emq.cli import cluster, host_view, refreshing

    if not cluster.meet(session.settings):
        await _alone(session, watch=watch, interval_s=interval, count=count)
        return

    async with cluster.tree_of(session) as tree:

        async def look() -> tuple[object, Callable[[], RenderableType]]:
            known = await cluster.known(session)
            seen = await cluster_view.read(tree, session.settings.environment)
            wide = session.out.width >= refreshing.WIDE
            return host_view.data(seen, known), lambda: host_view.render(seen, known, wide=wide)

        await refreshing.show(session, look, watch=watch, interval_s=interval, count=count)


async def _alone(session: Session, *, watch: bool, interval_s: float, count: int | None) -> None:
    """Show the host's snapshot in the database; a store for one host alone has no cluster to look at."""
    from emq.cli import cluster, refreshing

    async def look() -> tuple[object, Callable[[], RenderableType]]:
        known = await cluster.known(session)
        data = {
            "environment": str(session.settings.environment),
            "leader": None,
            "hosts": [_data(seen) for seen in known.hosts],
            "trouble": _troubles(known),
        }
        return data, lambda: _table(known.hosts, "\n".join(_troubles(known)))

    await refreshing.show(session, look, watch=watch, interval_s=interval_s, count=count)


def _troubles(known: DatabaseView) -> list[str]:
    lines = [known.trouble] if known.trouble else []
    return lines + [f"{s.host.host}: {text}" for s in known.hosts if s.live for text in s.host.troubles]


def _data(seen: AgedSnapshot) -> dict[str, object]:
    host = seen.host
    return {
        "host": host.host,
        "state": "live" if seen.live else "stale",
        "groups": host.groups,
        "unconsumed": host.unconsumed,
        "started_per_s": host.rates.started,
        "age_s": round(seen.age_s, 3),
    }


NO_CLUSTER = (
    "one host alone consumes from this store; several hosts need a store that they share (redis:// or postgresql://), "
    "and meet in its --database or in --cluster zookeeper://HOST:PORT"
)


def _table(hosts: Sequence[AgedSnapshot], trouble: str) -> RenderableType:
    from rich.console import Group

    if not hosts:
        return "\n".join(filter(None, ("no host is running; start one with: emq up", trouble, NO_CLUSTER)))
    rows = [
        (
            seen.host.host,
            "live" if seen.live else f"stale, {durations.brief(seen.age_s)}",
            seen.host.groups,
            seen.host.rates.started,
            durations.brief(seen.host.uptime_s),
        )
        for seen in hosts
    ]
    return Group(
        output.table("", ("host", "state", "groups", "per s", "up"), rows, right=("groups", "per s")),
        *([output.plain(trouble)] if trouble else []),
        NO_CLUSTER,
    )
