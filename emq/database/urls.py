"""Database URLs: which ones are taken, what the engine gets, and what an error message may show."""

from __future__ import annotations

import sqlalchemy as sa

from emq import errors

_DRIVERS = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg", "postgresql+psycopg": "postgresql+psycopg"}
_REMEDY = "give sqlite:///path/to/file, sqlite:// (in memory) or postgresql://user:password@host/database"


def parse(url: str) -> sa.URL:
    """The engine's URL for one of ours.

    Args:
        url: `sqlite:///path`, `sqlite://` (in memory) or `postgresql://user:password@host/database`.

    Raises:
        InvalidSettings: not such a URL; correct it.
    """
    try:
        parsed = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):
        raise errors.InvalidSettings(f"{url.partition(':')[0]!r} does not start a database URL; {_REMEDY}") from None
    driver = _DRIVERS.get(parsed.drivername)
    if driver is None:
        raise errors.InvalidSettings(f"database URL scheme {parsed.drivername!r} is not supported; {_REMEDY}")
    return parsed.set(drivername=driver)


def shown(url: sa.URL) -> str:
    """The URL as an error may show it: no driver, no password, no query."""
    return url.set(drivername=url.get_backend_name(), query={}).render_as_string(hide_password=True)


def sqlite_path(url: sa.URL) -> str | None:
    """The file of an SQLite URL; None for a database in memory or on a server."""
    if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:"):
        return None
    return url.database
