"""`emq upgrade`: upgrade the tables; show the feature level of the environment, raise it when all hosts are new."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

import typer

from emq_cli import output
from emq_cli.session import Session


async def upgrade(
    session: Session,
    level: Annotated[
        int | None, typer.Option(min=1, help="Raise the environment to this level; hosts below it can join no more.")
    ] = None,
    tables: Annotated[
        bool,
        typer.Option("--tables", help="Create all tables, or bring them to this version; waits for the servers."),
    ] = False,
) -> None:
    """Show the feature level of the environment and of its hosts, or raise it; or upgrade the tables.

    Every process upgrades the tables that it uses by itself. With --tables, one command does it for all of them before
    any other process of the new version starts.

    Hosts write only what the environment's level allows, so that older hosts beside them can read it. Raise it once all
    hosts have the new version; options that need it are refused until then.

    Example: emq upgrade --level 2
    """
    from emq.database import Database, levels
    from emq.runtime import errors
    from emq_cli import cluster, feature_level
    from emq_trace import cluster_view

    if tables:
        if level is not None:
            raise errors.InvalidSettings("--tables and --level are two steps: raise the level when all hosts are new")
        await _set_up(session)
        return
    environment = str(session.settings.environment)

    async def hosts() -> dict[str, int]:
        if not cluster.meet(session.settings):
            known = await cluster.known(session)
            if known.trouble:
                raise errors.DatabaseUnavailable(known.trouble)
            return {seen.host.host: seen.host.level for seen in known.hosts if seen.live}
        async with cluster.tree_of(session) as tree:
            view = await cluster_view.read(tree, environment)
            return {host: member.level for host, member in view.members.items()}

    database = await Database.open(session.settings.database_url, create=False)
    try:
        if level is not None:
            before = await feature_level.upgrade(database, environment, level, hosts)
            now = max(before, level)
            text = f"the {environment} environment is at feature level {now}" + (f", before {before}" * (now > before))
            session.say(text, {"environment": environment, "level": now, "before": before})
            return
        now, soon = await database.run(lambda c: (levels.current(c, environment), levels.announced(c, environment)))
        found = await hosts()
    finally:
        await database.close()
    most = feature_level.highest(found)
    session.show(
        {"environment": environment, "level": now, "announced": soon, "highest": most, "hosts": found},
        lambda: "\n".join(_lines(environment, now, soon, most, found)),
    )


def _lines(environment: str, now: int, soon: int, most: int, found: Mapping[str, int]) -> Iterator[str]:
    more = f"; all can read level {most}: emq upgrade --level {most}" if most > now else ""
    yield f"the {environment} environment is at feature level {now}{more}"
    if soon > now:
        yield (
            f"a raise to level {soon} is announced and has not taken effect; until it is, older hosts cannot "
            f"join. Finish it: emq upgrade --level {soon}. Or take it back: emq upgrade --level {now}"
        )
    for host in sorted(found):
        yield f"{output.plain(host)}: reads up to level {found[host]}"


async def _set_up(session: Session) -> None:
    """Set up the tables of the engine, of a store that has any, and of all extensions."""
    from emq.runtime import extending

    async with session.app(patient=True, create=True) as app:
        for extension in extending.extensions():
            await extension.set_up(app)
        where = app.database.shown
    session.say(f"the tables in {where} are those of this version", {"database": where})
