"""All commands of `emq`, put together. A command loads its imports when it runs, so that `--help` is quick."""

from __future__ import annotations

import typer

from emq.cli import (
    audit,
    dead,
    demo,
    host,
    hosts,
    load,
    offsets,
    orders,
    plan,
    publish,
    schedule,
    settings,
    topics,
    trace,
    trail,
    trial,
    watching,
)
from emq.cli.session import command

HELP = """Consume tens of thousands of queues, each at no more than its own rate, in priority order.

\b
topic     where you publish to; its qps is the most messages started in a second
group     a part of a topic; one host at a time owns it and keeps its rate
queue     the messages of one group and one priority
host      a process that consumes groups
plan      the list of which host owns which group, made by the host that leads
epoch     the number of an ownership; a host with an older one is refused
slot      the group of a sorted topic: its messages go by time or by number, or merge
lane      where a group keeps delayed messages and retries
trail     the files in which hosts write down the life of every message
"""

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help=HELP,
    epilog="Settings come from options, then EMQ_ variables, then emq.toml; see `emq settings`.",
)

app.command("demo")(demo.demo)
command(app, "up", json=False, endless=True)(host.up)
command(app, "host", json=False, endless=True)(host.host)
command(app, "hosts", endless=True)(hosts.hosts)
command(app, "plan")(plan.plan)
command(app, "drain")(orders.drain)
command(app, "weight")(orders.weight)
app.add_typer(topics.app, name="topic")
command(app, "publish")(publish.publish)
command(app, "stats")(watching.stats)
command(app, "top", endless=True)(watching.top)
command(app, "lag")(watching.lag)
command(app, "trace")(trace.trace)
app.add_typer(dead.app, name="dead")
app.add_typer(schedule.app, name="schedule")
app.add_typer(offsets.app, name="offsets")
app.add_typer(trail.app, name="trail")
command(app, "audit")(audit.audit)
command(app, "load")(load.load)
app.command("trial")(trial.trial)
command(app, "settings")(settings.settings)
