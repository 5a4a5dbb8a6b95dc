"""Database URLs: check them, and convert them for the engine and for error messages."""

from __future__ import annotations

import sqlalchemy as sa

from emq import errors

_DRIVERS = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg", "postgresql+psycopg": "postgresql+psycopg"}
_REMEDY = "give sqlite:///path/to/file, sqlite:// (in memory) or postgresql://user:password@host/database"


def parse(url: str) -> sa.URL:
    """Return the engine's URL for one of ours.

    Args:
        url: `sqlite:///path`, `sqlite://` (in memory) or `postgresql://user:password@host/database`.

    Raises:
        InvalidSettings: `url` is not such a URL; correct it.
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
    """Return the URL as an error may show it: without driver, password and query."""
    return url.set(drivername=url.get_backend_name(), query={}).render_as_string(hide_password=True)


def sqlite_path(url: sa.URL) -> str | None:
    """Return the file of an SQLite URL; None for a database in memory or on a server."""
    if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:"):
        return None
    return url.database
