"""Raises the feature level of an environment, once every host can read the new one; see `emq.database.levels`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import sqlalchemy as sa

from emq.database import Database, levels
from emq.runtime import errors

Levels = Mapping[str, int]
"""Host -> the highest level that it can read."""


def highest(hosts: Levels) -> int:
    """Return the highest level to which the environment may be raised."""
    return min([levels.LEVEL, *hosts.values()])


async def upgrade(database: Database, environment: str, level: int, hosts_now: Callable[[], Awaitable[Levels]]) -> int:
    """Raise the level; return what it was. Never lowers it.

    Args:
        hosts_now: returns the levels of all hosts that are there.

    Raises:
        InvalidSettings: this version does not know the level.
        WrongState: a host cannot read that level; the text names such hosts. Or somebody else took this raise back, for
            such a host. Nothing was changed.
        DatabaseUnavailable: the raise may stay announced, which keeps older hosts from joining; try again, or take it
            back by a raise to the present level.
    """
    if not 1 <= level <= levels.LEVEL:
        raise errors.InvalidSettings(f"this version of EMQ knows the feature levels 1 to {levels.LEVEL}, not {level}")
    _check(await hosts_now(), level)
    try:
        before = await database.run(lambda c: announce(c, environment, level))
        if before < level:
            _check(await hosts_now(), level)  # an older host may have joined before the announcement
            await database.run(lambda c: take_effect(c, environment, level))
    except BaseException as exc:
        await _take_back(database, environment, level, exc)
        raise
    return before


def announce(connection: sa.Connection, environment: str, level: int) -> int:
    """Announce a level, in place of an earlier announcement; return the level that counts until it is raised."""
    before = levels.current(connection, environment)
    levels.put(connection, environment, levels.ANNOUNCED, level if level > before else 0)
    return before


def retract(connection: sa.Connection, environment: str, level: int) -> None:
    """Take an announcement back, unless another one has come meanwhile."""
    if levels.announced(connection, environment) == level:
        levels.put(connection, environment, levels.ANNOUNCED, 0)


def take_effect(connection: sa.Connection, environment: str, level: int) -> None:
    """Raise the environment's level to the announced one; do nothing if somebody else has done so.

    Raises:
        WrongState: the level is not announced any more; the text says why.
    """
    if (soon := levels.announced(connection, environment)) == level:
        levels.put(connection, environment, levels.KEY, level)
        levels.put(connection, environment, levels.ANNOUNCED, 0)
    elif levels.current(connection, environment) < level:
        other = f"raises it to level {soon}" if soon else f"has withdrawn the raise to feature level {level}"
        raise errors.WrongState(f"somebody else {other}; see: emq upgrade")


async def _take_back(database: Database, environment: str, level: int, why: BaseException) -> None:
    """Let older hosts join again after a raise that has failed."""
    try:
        await database.run(lambda c: retract(c, environment, level))
    except errors.DatabaseUnavailable:
        raise errors.DatabaseUnavailable(
            f"{why}; the raise to feature level {level} may stay announced, which keeps older hosts from joining; see: "
            "emq upgrade"
        ) from why


def _check(hosts: Levels, level: int) -> None:
    if old := sorted(f"{host} (up to {of_host})" for host, of_host in hosts.items() if of_host < level):
        raise errors.WrongState(f"hosts that cannot read feature level {level}: {', '.join(old)}; upgrade them first")
