"""`emq plan`: who owns what and why; and with `--simulate`, what a plan for other hosts and topics would look like."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Annotated

import typer

from emq import errors
from emq.cli.session import Session

if TYPE_CHECKING:
    from emq.allocation.cluster_view import View
    from emq.cli.cluster import Known

_PANEL = "Simulation"


async def plan(
    session: Session,
    name: Annotated[
        str | None, typer.Argument(metavar="GROUP|TOPIC|HOST", help="Only this: orders/3, orders, or a host's name.")
    ] = None,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Plan for hosts that there need not be.", rich_help_panel=_PANEL)
    ] = False,
    hosts: Annotated[
        int | None,
        typer.Option(
            min=1, max=10_000, help="Hosts; as many as the messages take, if left out.", rich_help_panel=_PANEL
        ),
    ] = None,
    topics: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1_000_000,
            help="Made-up topics, instead of the catalog's.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    qps: Annotated[
        float | None,
        typer.Option(
            min=0.01, max=50_000_000, help="Starts a second of the made-up topics together.", rich_help_panel=_PANEL
        ),
    ] = None,
    skew: Annotated[
        float,
        typer.Option(
            min=0, max=5, help="How unlike they are: exponent of Zipf's law, 0 for all alike.", rich_help_panel=_PANEL
        ),
    ] = 1.0,
    kill: Annotated[int, typer.Option(min=0, help="Then kill so many hosts.", rich_help_panel=_PANEL)] = 0,
    add: Annotated[int, typer.Option(min=0, help="Then add so many.", rich_help_panel=_PANEL)] = 0,
    weight: Annotated[
        float,
        typer.Option(min=0.001, max=1000, help="Weight of those added; the others have 1.", rich_help_panel=_PANEL),
    ] = 1.0,
    message_us: Annotated[
        float | None,
        typer.Option(
            "--message-us",
            min=0.01,
            help="Microseconds of one core for a message. (default: as measured with a handler that does nothing)",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    utilisation: Annotated[
        float | None,
        typer.Option(min=0.01, max=1, help="How busy a host is to be at most. (default: 0.6)", rich_help_panel=_PANEL),
    ] = None,
    seed: Annotated[int, typer.Option(help="Names and choices follow from it.", rich_help_panel=_PANEL)] = 1,
) -> None:
    """Show the plan in force: who owns what, and why.

    Without a name, the plan and its hosts; with a group, why it is where it is and whom it waits for; with a topic or
    a host, its groups. With --simulate, the same code plans for hosts and topics that need not exist; nothing is
    changed.

    Example: emq plan orders/3

    Example: emq plan --simulate --qps 1000000 --kill 1
    """
    if simulate:
        from emq.cli import simulation

        if name is not None:
            raise typer.BadParameter("--simulate shows no single group, topic or host; leave the name out")
        wanted = simulation.Wanted(hosts, topics, qps, skew, kill, add, weight, message_us, utilisation, seed)
        await simulation.run(session, wanted)
        return
    from emq.allocation import cluster_view as view
    from emq.cli import cluster, plan_view, refreshing

    async with cluster.tree_of(session) as tree:
        known = await cluster.known(session)
        seen = await view.read(tree, session.settings.environment)
    wide = session.out.width >= refreshing.WIDE
    if name is None:
        session.show(plan_view.whole(seen, known), lambda: plan_view.render(seen, known, wide=wide))
    else:
        _detail(session, seen, known, name, wide=wide)


def _detail(session: Session, view: View, known: Known, name: str, *, wide: bool) -> None:
    from emq.cli import host_view, plan_view

    if name in view.groups:
        session.show(plan_view.group_data(view, known, name), lambda: plan_view.group_text(view, known, name))
        return
    groups = plan_view.sorted_groups([group for group in view.groups if group.rpartition("/")[0] == name])
    if groups:  # a host of the same name is found by `emq hosts`
        session.show(
            {"topic": name, "groups": plan_view.groups_data(view, known, groups)},
            lambda: plan_view.topic_text(view, known, name, groups),
        )
        return
    hosts = {row.host: row for row in host_view.rows(view, known)}
    if name in hosts:
        host = hosts[name]
        session.show(plan_view.host_data(view, known, host), lambda: plan_view.host_text(view, known, host, wide=wide))
        return
    raise errors.UnknownTopic(_unknown(view, known, name))


def _unknown(view: View, known: Known, name: str) -> str:
    if name in known.quotas or any(topic.name == name for topic in known.topics):
        return f"the plan does not know {name!r} yet, which the catalog has; look again in a moment"
    names = {*view.hosts, *view.groups, *(group.rpartition("/")[0] for group in view.groups)}
    alike = difflib.get_close_matches(name, sorted(names), n=2)
    hint = f"; did you mean {' or '.join(map(repr, alike))}?" if alike else "; see: emq plan"
    return f"the plan has no group, topic or host {name!r}{hint}"
