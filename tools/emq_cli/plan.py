"""`emq plan`: show which host owns which group and why; with `--simulate`, plan for other hosts and topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from emq.runtime import errors
from emq.storage.names import topic_of
from emq_cli.session import Session

if TYPE_CHECKING:
    from emq_cli.cluster import DatabaseView
    from emq_trace.cluster_view import View

_PANEL = "Simulation"

MOST_HOSTS = 10_000
"""Most hosts of a simulation: more take longer than anybody waits."""


def _option(text: str, low: float | None = None, high: float | None = None) -> Any:
    """Return an option of the simulation, from `low` to `high`."""
    return typer.Option(min=low, max=high, help=text, rich_help_panel=_PANEL)


Name = Annotated[
    str | None,
    typer.Argument(
        metavar="GROUP|TOPIC|FAMILY|HOST",
        help="Show only this group (orders/3), topic (orders), family ('orders.*') or host.",
    ),
]
Simulate = Annotated[
    bool, typer.Option("--simulate", help="Plan for hosts and topics that need not exist.", rich_help_panel=_PANEL)
]
Hosts = Annotated[int | None, _option("Number of hosts. (default: as many as the messages need)", 1, MOST_HOSTS)]
Topics = Annotated[int | None, _option("Number of made-up topics to plan for, instead of your own.", 1, 1_000_000)]
Qps = Annotated[float | None, _option("Messages started a second by all made-up topics together.", 0.01, 50_000_000)]
Skew = Annotated[float, _option("How unequal the made-up topics are: exponent of Zipf's law; 0 makes all equal.", 0, 5)]
Kill = Annotated[int, _option("Number of hosts to kill then.", 0)]
Add = Annotated[int, _option("Number of hosts to add then.", 0, MOST_HOSTS)]
Weight = Annotated[float, _option("Weight of the added hosts; the others have 1.", 0.001, 1000)]
MessageUs = Annotated[
    float | None,
    _option("Microseconds of CPU for a message. (default: as measured with a handler that does nothing)", 0.01, 1e9),
]
Utilisation = Annotated[float | None, _option("Largest share of its core that a host may use. (default: 0.6)", 0.01, 1)]
Seed = Annotated[int, _option("The same seed gives the same names and choices.")]


async def plan(
    session: Session,
    name: Name = None,
    simulate: Simulate = False,
    hosts: Hosts = None,
    topics: Topics = None,
    qps: Qps = None,
    skew: Skew = 1.0,
    kill: Kill = 0,
    add: Add = 0,
    weight: Weight = 1.0,
    message_us: MessageUs = None,
    utilisation: Utilisation = None,
    seed: Seed = 1,
) -> None:
    """Show which host owns which group, and why.

    Without a name: the plan and its hosts. With a topic or a host: its groups. With a group: why it is on its host, and
    for which former owner it still waits. With --simulate, the same code plans for hosts and topics that need not
    exist, and changes nothing.

    The groups of a family's topics are in 1,024 buckets, by their names. The plan gives each bucket to a host, and the
    groups go with it. With a family: how many buckets, and groups of topics that are awake, each host has. With a
    bucket ('orders.*/bucket/17'): its groups, and why it is on its host.

    An epoch is the number of an ownership: a store refuses a host that comes with an older one. It is shown as the time
    at which it was given out; --json has the number.

    Example: emq plan orders/3

    Example: emq plan --simulate --qps 1000000 --kill 1
    """
    if simulate:
        from emq_cli import simulation

        if name is not None:
            raise typer.BadParameter("--simulate shows no single group, topic or host; leave the name out")
        wanted = simulation.Wanted(
            hosts, topics, qps, skew, kill, add, weight, message_us, utilisation, seed, MOST_HOSTS
        )
        await simulation.run(session, wanted)
        return
    from emq_cli import cluster, plan_view, refreshing
    from emq_trace import cluster_view as view

    async with cluster.tree_of(session) as tree:
        known = await cluster.known(session)
        seen = await view.read(tree, session.settings.environment)
    wide = session.out.width >= refreshing.WIDE
    if name is None:
        session.show(plan_view.whole(seen, known), lambda: plan_view.render(seen, known, wide=wide))
    else:
        _detail(session, seen, known, name, wide=wide)


def _detail(session: Session, view: View, known: DatabaseView, name: str, *, wide: bool) -> None:
    from emq.topics.buckets import is_bucket
    from emq_cli import family_plan, host_view, plan_view

    if name in view.groups and is_bucket(name):
        session.show(family_plan.bucket_data(view, known, name), lambda: family_plan.bucket_text(view, known, name))
        return
    groups = plan_view.groups_of(view, known)
    if name in groups:
        session.show(plan_view.group_data(view, known, name), lambda: plan_view.group_text(view, known, name))
        return
    its = plan_view.sorted_groups([group for group in groups if topic_of(group) == name])
    if its:  # `emq hosts` shows a host of the same name
        session.show(
            {"topic": name, "groups": plan_view.groups_data(view, known, its)},
            lambda: plan_view.topic_text(view, known, name, its),
        )
        return
    if family_plan.buckets_of(view, name):
        session.show(family_plan.family_data(view, known, name), lambda: family_plan.family_text(view, known, name))
        return
    hosts = {row.host: row for row in host_view.rows(view, known)}
    if name in hosts:
        host = hosts[name]
        session.show(plan_view.host_data(view, known, host), lambda: plan_view.host_text(view, known, host, wide=wide))
        return
    raise errors.UnknownTopic(_unknown(view, known, name))


def _unknown(view: View, known: DatabaseView, name: str) -> str:
    from emq.runtime.inputs import alike
    from emq.topics import families
    from emq_cli import plan_view

    if name in known.quotas or name in known.families or any(topic.name == name for topic in known.topics):
        return f"the plan does not know {name!r} yet, which the catalog has; look again in a moment"
    groups = plan_view.groups_of(view, known)
    topics = {topic_of(group) for group in groups}
    topic = name.partition("/")[0]
    family = None if topic in topics else families.above(topic, known.families)
    if family is not None and topic not in known.families:
        hint = alike(topic, sorted(topics)) or "."
        return (
            f"no topic {topic!r} is awake, so the plan has no group of it{hint} A publish to this name makes or wakes "
            f"the topic. See: emq plan '{family}'"
        )
    names = {*view.hosts, *topics, *known.families, *(groups if "/" in name else ())}
    hint = alike(name, sorted(names)) or "; see: emq plan"
    away = f" ({known.trouble})" if known.trouble else ""
    return f"the plan has no group, topic, family or host {name!r}{away}{hint}"
