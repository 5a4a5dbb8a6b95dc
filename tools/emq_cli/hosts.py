"""`emq hosts`: show the hosts of the cluster, with their weights, groups and loads."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated

import typer

from emq.runtime import durations
from emq_cli import output, times
from emq_cli.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType

    from emq.observe.snapshots import AgedSnapshot
    from emq_cli.cluster import DatabaseView


async def hosts(
    session: Session,
    watch: Annotated[bool, typer.Option("--watch", help="Show them again and again, until Ctrl-C.")] = False,
    interval: Annotated[
        float, typer.Option(parser=times.spans(0.1), metavar="SPAN", help="With --watch: time between two views.")
    ] = 1.0,
    count: Annotated[int | None, typer.Option(min=1, help="With --watch: end after this many views.")] = None,
) -> None:
    """Show the hosts of the cluster: weights, groups, load, and how far each has followed the plan.

    load: the quotas of the host's groups, divided by its fair share; 1.00 is exactly its share. The groups of a family
    count by their buckets, all alike.

    buckets: parts of families; each has the groups of some of the family's topics, and moves as a whole. Shown if there
    are families.

    waiting: groups that the plan gives to the host, but that it does not consume yet, mostly because the former owner
    still finishes messages. A line below the table names groups that wait for longer than a move takes, and the reason.

    released: whether the host has given up all groups that plans took from it, or up to which plan; "all but 3" means
    that it still finishes messages of 3 such groups.

    state: "joining" until a plan counts the host in; "gone" if the plan names it and it has left.

    Example: emq hosts --watch
    """
    from emq_cli import cluster, host_view, refreshing
    from emq_trace import cluster_view

    async with contextlib.AsyncExitStack() as stack:
        tree = None
        if cluster.meet(session.settings):
            tree = await stack.enter_async_context(cluster.tree_of(session))

        async def look() -> tuple[object, Callable[[], RenderableType]]:
            known = await cluster.known(session)
            if tree is None:
                return _alone(session, known), lambda: _table(known)
            seen = await cluster_view.read(tree, session.settings.environment)
            wide = session.out.width >= refreshing.WIDE
            return host_view.data(seen, known), lambda: host_view.render(seen, known, wide=wide)

        await refreshing.show(session, look, watch=watch, interval_s=interval, count=count)


def _alone(session: Session, known: DatabaseView) -> dict[str, object]:
    """Return the hosts' snapshots in the database; a store for one host alone has no cluster to look at."""
    environment = str(session.settings.environment)
    hosts = [_data(seen) for seen in known.hosts]
    return {"environment": environment, "leader": None, "hosts": hosts, "trouble": known.troubles}


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


def _table(known: DatabaseView) -> RenderableType:
    from rich.console import Group

    if not known.hosts:
        return "\n".join(["no host is running; start one with: emq up", *known.troubles, NO_CLUSTER])
    rows = [
        (s.host.host, s.state, s.host.groups, s.host.rates.started, durations.brief(s.host.uptime_s))
        for s in known.hosts
    ]
    table = output.table("", ("host", "state", "groups", "per s", "up"), rows, right=("groups", "per s"))
    return Group(table, *map(output.plain, known.troubles), NO_CLUSTER)
