"""Database URLs: check them, and convert them for the engine and for error messages."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from emq.runtime import errors
from emq.runtime.passwords import hide_password

_DRIVERS = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg", "postgresql+psycopg": "postgresql+psycopg"}
_REMEDY = "give sqlite:///path/to/file, sqlite:// (in memory) or postgresql://user:password@host/database"


def parse(url: str) -> sa.URL:
    """Return the engine's URL for one of ours.

    Args:
        url: `sqlite:///path`, `sqlite://` (in memory) or `postgresql://user:password@host/database`.

    Raises:
        InvalidSettings: `url` is not such a URL; correct it.
    """
    scheme = url.partition(":")[0]
    try:
        parsed = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):
        if scheme in _DRIVERS:
            raise errors.InvalidSettings(f"database URL {hide_password(url)!r} cannot be read; {_REMEDY}") from None
        raise errors.InvalidSettings(f"{scheme!r} does not start a database URL; {_REMEDY}") from None
    if "@" in (parsed.host or ""):  # the rest of a password, which errors would show as a part of the host's name
        raise errors.InvalidSettings(
            f"database URL {hide_password(url)!r} has more than one @; write an @ of the password as %40"
        )
    driver = _DRIVERS.get(parsed.drivername)
    if driver is None:
        raise errors.InvalidSettings(f"database URL scheme {parsed.drivername!r} is not supported; {_REMEDY}")
    return parsed.set(drivername=driver)


def shown(url: sa.URL) -> str:
    """Return the URL as an error may show it: without driver, password and query."""
    return url.set(drivername=url.get_backend_name(), query={}).render_as_string(hide_password=True)


def sqlite_path(url: sa.URL) -> str | None:
    """Return the file of an SQLite URL; None for a database in memory or on a server."""
    if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:"):
        return None
    return url.database


def is_in_memory(url: str) -> bool:
    """Return True for an SQLite database in this process's memory."""
    parsed = parse(url)
    return parsed.get_backend_name() == "sqlite" and sqlite_path(parsed) is None


def located(url: str) -> str:
    """Return a URL for an error: without its password, and with the whole path of an SQLite file."""
    if not url.startswith(("sqlite:", "postgresql:")):
        return hide_password(url)
    parsed = parse(url)
    path = sqlite_path(parsed)
    return shown(parsed if path is None else parsed.set(database=str(Path(path).absolute())))


def refuse_missing_file(url: str) -> None:
    """Raise `NoDatabase` if the URL names an SQLite file that does not exist."""
    path = sqlite_path(parse(url))
    if path is not None and not Path(path).exists():
        raise no_database(url)


def no_database(url: str) -> errors.NoDatabase:
    """Our error for a database in which EMQ has no tables yet."""
    return errors.NoDatabase(
        f"there is no EMQ database at {located(url)} yet; `emq topic create` or `emq up` makes one, or name the right "
        "one with --store and --database (EMQ_STORE, EMQ_DATABASE)"
    )
