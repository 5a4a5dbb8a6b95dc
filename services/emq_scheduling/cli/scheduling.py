"""`emq scheduling`: pools of resources, and the tasks that wait for them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from emq.runtime import errors
from emq_cli import exit_codes, output, times
from emq_cli.arguments import Yes
from emq_cli.entry import Room
from emq_cli.session import Session, command

if TYPE_CHECKING:
    from emq.app import App
    from emq_scheduling.scheduling import Scheduling

app = typer.Typer(
    cls=Room,
    help="Work with pools of resources, whose tasks start where they are done soonest.",
    pretty_exceptions_enable=False,
)


Pool = Annotated[str, typer.Argument(metavar="POOL", help="Name of the pool.", show_default=False)]
Task = Annotated[str, typer.Argument(metavar="TASK", help="The id that `submit` prints.", show_default=False)]


@contextlib.asynccontextmanager
async def _opened(
    session: Session, *, create: bool = False, recorded: bool = False
) -> AsyncIterator[tuple[App, Scheduling]]:
    from emq_scheduling.scheduling import Scheduling

    opened = session.app(create=create, recorded=recorded)
    scheduling = Scheduling(opened)  # before the app is opened
    async with opened:
        yield opened, scheduling


@command(app, "pools")
async def pools(session: Session) -> None:
    """List pools with what waits in them, and the host that schedules each.

    Example: emq scheduling pools
    """
    from emq_scheduling.cli import scheduling_view
    from emq_scheduling.records.snapshots import Snapshots

    async with _opened(session) as (opened, scheduling):
        found = await scheduling.pools.list()
        snapshots = await Snapshots(opened.database, opened.settings.environment).all()
        now = opened.clock.now()
    lines = [scheduling_view.line(stored, snapshots.get(stored.pool.name), now) for stored in found]
    session.show(
        [line._asdict() for line in lines],
        lambda: scheduling_view.render_pools(lines) if lines else f"no pools in the {opened.place}",
    )


@command(app, "import")
async def import_(
    session: Session,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A .toml or .json file of a pool.", show_default=False)],
) -> None:
    """Create a pool, or change it to what the file says; hosts follow within seconds and no task is lost.

    Example: emq scheduling import sms.toml
    """
    from emq_scheduling import administering
    from emq_scheduling.pools import documents, rules

    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as exc:
        raise errors.EMQError(f"cannot read {file}: {exc.strerror if isinstance(exc, OSError) else exc}") from exc
    pool = documents.load(text, "json" if file.suffix == ".json" else "toml", str(file))
    async with _opened(session, create=True) as (opened, scheduling):
        stored = await scheduling.pools.put(pool)
        warnings = rules.warnings(pool, await administering.waiting(opened, pool.name))
    _warn(warnings)
    parts = f"{output.count(len(pool.resources), 'resource')}, {output.count(len(pool.types), 'task type')}"
    data = {"pool": pool.name, "version": stored.version, "warnings": warnings}
    session.say(f"pool {pool.name!r}: version {stored.version}, {parts}", data)


@command(app, "export", json=False)
async def export(
    session: Session,
    pool: Pool,
    fmt: Annotated[Literal["toml", "json"], typer.Option("--format", help="toml or json.")] = "toml",
    file: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file instead.")] = None,
) -> None:
    """Print a pool as a file for `emq scheduling import`.

    Example: emq scheduling export sms -o sms.toml
    """
    from emq_scheduling.pools import documents

    async with _opened(session) as (_, scheduling):
        text = documents.dump((await scheduling.pools.get(pool)).pool, fmt)
    if file is None:
        typer.echo(text, nl=False)
        return
    try:
        file.write_text(text)
    except OSError as exc:
        raise errors.EMQError(f"cannot write {file}: {exc.strerror}") from exc


@command(app, "show")
async def show(session: Session, pool: Pool) -> None:
    """Show a pool as the host that schedules it sees it now: each resource, and each task type.

    A resource: its limits with what is used of them, the limit that binds now, tasks that run, starts a second, its
    health. A type: tasks that wait, the predicted wait of a task submitted now, the longest wait that is wanted, and
    the waits of the last minutes (half of the tasks waited at most p50, 99 of 100 at most p99).

    Example: emq scheduling show sms
    """
    from emq_scheduling.cli import scheduling_view
    from emq_scheduling.pools import rules

    async with _opened(session) as (opened, scheduling):
        stored = await scheduling.pools.get(pool)
        snapshot = await scheduling.snapshot(pool)
        now = opened.clock.now()
    live = None if snapshot is None or snapshot.is_stale(now) else snapshot
    warnings = rules.warnings(stored.pool, {} if live is None else live.state.waiting)
    data = {"version": stored.version, "pool": stored.pool, "snapshot": live, "warnings": warnings}
    session.show(data, lambda: scheduling_view.render(stored, snapshot, now))
    if not session.json:
        _warn(warnings)


@command(app, "set")
async def set_(
    session: Session,
    pool: Pool,
    what: Annotated[
        Literal["resource", "type", "tenant", "limit"],
        typer.Argument(metavar="WHAT", help="resource, type, tenant, or limit by key.", show_default=False),
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name.", show_default=False)],
    changes: Annotated[
        list[str],
        typer.Argument(metavar="FIELD=VALUE", help="One or several, such as paused=true limits.requests=50."),
    ],
) -> None:
    """Change a resource, type, tenant or limit by key of a pool while it is in use; its host follows within seconds.

    Fields are those of the file. Limits are limits.NAME=AMOUNT or limits.NAME/PERIOD=AMOUNT; costs are
    costs.LIMIT=UNITS of a type, and takes.TYPE.LIMIT=UNITS of a resource; exceptions of a limit by key are
    amounts.KEY=AMOUNT. Attributes are attributes.NAME=TEXT. Lists have commas; none is no value.

    Example: emq scheduling set sms resource acme-1 paused=true

    Example: emq scheduling set sms resource acme limits.requests/second=50 weight=2
    """
    from emq_scheduling import administering
    from emq_scheduling.pools import editing, rules

    async with _opened(session) as (opened, scheduling):
        stored = await scheduling.pools.change(pool, lambda found: editing.changed(found, what, name, changes))
        warnings = rules.warnings(stored.pool, await administering.waiting(opened, pool))
    _warn(warnings)
    keys = ", ".join(change.partition("=")[0] for change in changes)
    data = {"pool": pool, "version": stored.version, "warnings": warnings}
    session.say(f"pool {pool!r}: changed {keys} of {what} {name!r}; version {stored.version}", data)


@command(app, "submit")
async def submit(
    session: Session,
    pool: Pool,
    task_type: Annotated[str, typer.Argument(metavar="TYPE", help="A task type of the pool.", show_default=False)],
    payload: Annotated[str, typer.Argument(metavar="PAYLOAD", help="Text for the performer.", show_default=False)],
    tenant: Annotated[str, typer.Option(help="Tenants share the resources by their weights.")] = "",
    key: Annotated[str | None, typer.Option(help="Tasks of one key run one at a time, in order.")] = None,
    id_: Annotated[str | None, typer.Option("--id", help="An id of your own.")] = None,
    deadline: Annotated[
        str | None, typer.Option(metavar="SPAN", help=f"Refuse it if it would be done later: {times.SPANS}.")
    ] = None,
    zone: Annotated[str | None, typer.Option(help="The recipient's time zone, such as Asia/Tokyo.")] = None,
    cost: Annotated[
        list[str] | None, typer.Option(metavar="LIMIT=UNITS", help="What it is charged, instead of its type's costs.")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Let tasks of the key keep to one resource, where that has room soon.")
    ] = False,
    reply_to: Annotated[str | None, typer.Option(metavar="TOPIC", help="Publish its result there.")] = None,
    by: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A key by which limits of the pool count it.")
    ] = None,
    tries: Annotated[
        list[str] | None,
        typer.Option(
            "--try", metavar="ENTRY", help="TYPE, TYPE@RESOURCE or @RESOURCE; several are tried one after the other."
        ),
    ] = None,
    patience: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Go on to the next --try if there is no room for this long.")
    ] = None,
) -> None:
    """Submit a task. A task that no resource can do, or not in time, is refused with the reason.

    Example: emq scheduling submit sms verification '{"to": "+49170..."}' --deadline 30s

    Example: emq scheduling submit models large 'Hello' --try large@a --try large@b --try small --patience 5s
    """
    from emq_scheduling.cli import scheduling_view

    deadline_s = None if deadline is None else times.given_span_s(deadline, "--deadline")
    costs = _costs(cost) if cost else None
    async with _opened(session, create=True, recorded=True) as (_, scheduling):
        receipt = await scheduling.submit(
            pool,
            task_type,
            payload,
            tenant=tenant,
            key=key,
            id=id_,
            deadline_s=deadline_s,
            zone=zone,
            costs=costs,
            keep=keep,
            reply_to=reply_to,
            keys=_keys(by) if by else None,
            tries=tries or None,
            patience_s=None if patience is None else times.given_span_s(patience, "--patience"),
        )
    told = scheduling_view.start_in_words(receipt.wait_s)
    session.say(f"submitted {receipt.id}{told}", {"id": receipt.id, "wait_s": receipt.wait_s})


@command(app, "status")
async def status(
    session: Session,
    pool: Pool,
    task: Task,
    task_type: Annotated[str, typer.Option("--type", help="The task's type, if the pool has many tenants.")] = "",
    tenant: Annotated[str, typer.Option(help="The task's tenant, if the pool has many.")] = "",
) -> None:
    """Show a task: how it ended, or where it waits, and each attempt.

    Example: emq scheduling status sms 3WXbJQ4Gn1lM1
    """
    from emq_scheduling import finding
    from emq_scheduling.cli import scheduling_view

    async with _opened(session) as (opened, scheduling):
        await scheduling.pools.get(pool)  # a name that is not there is a mistake
        found = await scheduling.status(pool, task, task_type=task_type, tenant=tenant)
        waits = None
        if found.state == "waiting":
            where = await finding.candidates(opened, pool, task_type, tenant)
            waits = await finding.look(opened, where.topics, task)
    data = {**msgspec.structs.asdict(found), "waits": None if waits is None else msgspec.structs.asdict(waits)}
    data["attempts"] = [scheduling_view.plain_attempt(each) for each in found.attempts]
    data["progress"] = msgspec.json.decode(found.progress) if found.progress else None
    session.show(data, lambda: scheduling_view.render_status(found, waits))


@command(app, "cancel")
async def cancel(
    session: Session,
    pool: Pool,
    task: Annotated[list[str], typer.Argument(metavar="TASK", help="Ids that `submit` printed.", show_default=False)],
) -> None:
    """Ask for tasks not to be started. Those that wait end as cancelled, when it would be their turn or before.

    Example: emq scheduling cancel sms 3WXbJQ4Gn1lM1
    """
    async with _opened(session) as (_, scheduling):
        await scheduling.pools.get(pool)  # a name that is not there is a mistake
        await scheduling.cancel(pool, *task)
    session.say(f"asked to cancel {output.count(len(task), 'task')} of pool {pool!r}", {"pool": pool, "asked": task})


@command(app, "delete")
async def delete(
    session: Session,
    pool: Pool,
    force: Annotated[bool, typer.Option("--force", help="Delete it with the tasks that still wait.")] = False,
    yes: Yes = False,
) -> None:
    """Delete a pool, and the topics in which its tasks waited. Its records stay until they are too old.

    Example: emq scheduling delete sms --yes
    """
    from emq_scheduling import administering

    async with _opened(session) as (opened, scheduling):
        await scheduling.pools.get(pool)
        if not force and (counts := await administering.waiting(opened, pool)):
            raise administering.refused(pool, counts)
        session.confirm(f"Delete pool {pool!r}?", yes)
        n = await administering.delete(opened, pool, force=force)
    session.say(f"deleted pool {pool!r} and {output.count(n, 'task')}", {"deleted": pool, "tasks": n})


@command(app, "verify")
async def verify(
    session: Session,
    pool: Pool,
    duplicates: Annotated[int, typer.Option(min=0, help="Tasks that may have ended twice, if hosts crashed.")] = 0,
) -> None:
    """Check from the records that no limit of a pool was exceeded, and that no task ended twice.

    Counts all starts and charges again, and holds each start against the limits of its moment. Exits with 1 if a limit
    was exceeded or a task ended twice, with 3 if nobody knows the limits of some starts any more.

    Example: emq scheduling verify sms
    """
    from emq_scheduling.cli import scheduling_view
    from emq_scheduling.records import verifying

    async with _opened(session) as (opened, scheduling):
        found = await verifying.verify(opened.database, opened.settings.environment, pool)
        if not found.outcomes:
            await scheduling.pools.get(pool)  # a name that is not there is a mistake
    data = {**msgspec.structs.asdict(found), "over_s": found.over_s}
    session.show(data, lambda: scheduling_view.render_proof(found))
    if found.over_s or found.ended_twice > duplicates:
        raise typer.Exit(exit_codes.FAILED)
    if found.unproven:
        raise typer.Exit(exit_codes.VOID)


@command(app, "what-if")
async def what_if(
    session: Session,
    pool: Pool,
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="CHANGE...", help="Such as 'remove acme-1'; none for a forecast as it is."),
    ] = None,
    horizon_s: Annotated[
        float, typer.Option("--horizon", parser=times.spans(1), metavar="SPAN", help="End of the forecasts.")
    ] = 604_800,
) -> None:
    """Forecast waits with and without changes, which are not made.

    What waits now, and what comes, goes on on a virtual clock, with all limits, calendars and priorities. Changes:
    'add NAME=copy-of:RESOURCE', 'remove RESOURCE' (and all below it), 'limit RESOURCE NAME=AMOUNT/PERIOD',
    'pause RESOURCE', 'resume RESOURCE', 'takes RESOURCE=TYPE,TYPE'.

    Example: emq scheduling what-if sms 'remove acme-1' 'limit acme requests=80/second'
    """
    from emq_scheduling.cli import scheduling_view
    from emq_scheduling.forecast import what_if as forecasts
    from emq_scheduling.records.snapshot import PoolState

    async with _opened(session) as (opened, scheduling):
        stored = await scheduling.pools.get(pool)
        after = forecasts.changed(stored.pool, changes or [])
        snapshot = await scheduling.snapshot(pool)
        now = opened.clock.now()
    if snapshot is None or snapshot.is_stale(now):
        _warn([f"no host schedules pool {pool!r} now; the forecast begins with what was last seen, if anything was"])
    state = PoolState(now) if snapshot is None else snapshot.state
    found = forecasts.what_if(stored.pool, state, after, horizon_s)
    data = {"pool": pool, "changes": changes or [], "state": state, "before": found.before, "after": found.after}
    session.show(data, lambda: scheduling_view.render_what_if(found, state))


def _costs(pairs: list[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for pair in pairs:
        name, mark, text = pair.partition("=")
        try:
            found[name] = float(text)
        except ValueError:
            mark = ""
        if not mark or not name:
            raise typer.BadParameter(f"{pair!r} is not LIMIT=UNITS, such as tokens=1200", param_hint="--cost")
    return found


def _keys(pairs: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        name, mark, value = pair.partition("=")
        if not mark or not name:
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE, such as account=a7", param_hint="--by")
        found[name] = value
    return found


def _warn(warnings: list[str]) -> None:
    for warning in warnings:
        typer.echo(f"warning: {output.plain(warning)}", err=True)
