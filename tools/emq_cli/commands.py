"""All commands of `emq`, put together, with those of extensions.

A command loads its imports when it runs, so that `--help` is quick.
"""

from __future__ import annotations

from typing import Annotated

import typer

from emq.runtime import extending
from emq_cli import (
    backup,
    dead,
    exit_codes,
    families,
    host,
    hosts,
    offsets,
    orders,
    plan,
    publish,
    schedule,
    settings,
    size,
    store,
    topics,
    trace,
    trail,
    upgrade,
    watching,
)
from emq_cli.arguments import LOGGING
from emq_cli.entry import Entry
from emq_cli.session import command

HELP = """Consume tens of thousands of queues, each at no more than its own rate, in priority order.

\b
topic     where you publish to; its qps is the most messages started in a second
family    a prefix of names; a first publish below it makes a topic with its settings
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
    cls=Entry,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help=HELP,
    epilog=f"Settings come from options, then EMQ_ variables, then emq.toml; see `emq settings`.\n\n{exit_codes.HELP}",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata

        typer.echo(f"emq {metadata.version('emq')}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None: ...


command(app, "up", json=False, endless=True, settings=("app", "api", "metrics", *LOGGING))(host.up)
command(app, "run", json=False, endless=True, settings=("metrics", *LOGGING))(host.run)
command(app, "host", json=False, endless=True, settings=("app", "metrics", *LOGGING))(host.host)
command(app, "hosts", endless=True)(hosts.hosts)
command(app, "plan")(plan.plan)
command(app, "size")(size.size)
command(app, "drain")(orders.drain)
command(app, "weight")(orders.weight)
app.add_typer(topics.app, name="topic")
app.add_typer(families.app, name="family")
command(app, "publish")(publish.publish)
command(app, "stats")(watching.stats)
command(app, "top", endless=True)(watching.top)
command(app, "lag")(watching.lag)
command(app, "trace")(trace.trace)
app.add_typer(dead.app, name="dead")
app.add_typer(schedule.app, name="schedule")
app.add_typer(offsets.app, name="offsets")
app.add_typer(store.app, name="store")
app.add_typer(backup.app, name="backup")
app.add_typer(trail.app, name="trail")
command(app, "upgrade")(upgrade.upgrade)
command(app, "settings")(settings.settings)
for extension in extending.extensions():
    extension.add_commands(app)
