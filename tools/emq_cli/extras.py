"""A clear error for commands whose optional packages are missing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from emq.runtime import errors
from emq.runtime.extras import remedy


@contextlib.contextmanager
def needing(what: str, extras: str) -> Iterator[None]:
    """A block that imports optional packages.

    Args:
        what: the part of EMQ that needs them; the error's text names it.
        extras: the extras of EMQ that bring them, separated by commas.

    Raises:
        InvalidSettings: one is missing; the text has the remedy.
    """
    try:
        yield
    except ModuleNotFoundError as exc:
        raise errors.InvalidSettings(f"{what} needs the module {exc.name!r}; {remedy(*extras.split(','))}") from exc


_EXTRAS = {
    "aiohttp": "push",
    "fastapi": "api",
    "httptools": "push",
    "jinja2": "api",
    "kazoo": "zookeeper",
    "lupa": "lua",
    "psycopg": "postgres",
    "puresasl": "sasl",
    "pyarrow": "trail",
    "pyspark": "spark",
    "redis": "redis",
    "uvicorn": "api",
    "yarl": "push",
}


def missing(exc: ModuleNotFoundError) -> errors.InvalidSettings | None:
    """Return the error for a missing optional package; None for any other module."""
    extra = _EXTRAS.get((exc.name or "").partition(".")[0])
    if extra is None:
        return None
    return errors.InvalidSettings(f"the settings need the module {exc.name!r}; {remedy(extra)}")
