"""`emq upgrade`: show the feature level of the environment, and raise it when all hosts are new."""

from __future__ import annotations

from typing import Annotated

import typer

from emq_cli import output
from emq_cli.session import Session


async def upgrade(
    session: Session,
    level: Annotated[
        int | None, typer.Option(min=1, help="Raise the environment to this level; hosts below it can join no more.")
    ] = None,
) -> None:
    """Show the feature level of the environment and of its hosts, or raise it.

    Hosts write only what the environment's level allows, so that older hosts beside them can read it. Raise it once all
    hosts have the new version; options that need it are refused until then.

    Example: emq upgrade --level 2
    """
    from emq.database import Database, levels
    from emq.runtime import errors
    from emq_cli import cluster, feature_level
    from emq_trace import cluster_view

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
        lambda: "\n".join(
            [
                f"the {environment} environment is at feature level {now}"
                + (f"; all can read level {most}: emq upgrade --level {most}" if most > now else ""),
                *(
                    f"a raise to level {soon} is announced and has not taken effect; until it is, older hosts cannot "
                    f"join. Finish it: emq upgrade --level {soon}. Or take it back: emq upgrade --level {now}"
                    for _ in range(soon > now)
                ),
                *(f"{output.plain(host)}: reads up to level {found[host]}" for host in sorted(found)),
            ]
        ),
    )
