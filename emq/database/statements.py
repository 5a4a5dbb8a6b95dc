"""SQL files: one statement each, in a directory for each dialect."""

from __future__ import annotations

import functools
import importlib.resources

import sqlalchemy as sa


@functools.cache
def read(package: str, dialect: str, name: str) -> str:
    """The statement in `<package>/sql/<dialect>/<name>.sql`, without its comments (they may name parameters)."""
    file = importlib.resources.files(package).joinpath("sql", dialect, f"{name}.sql")
    lines = file.read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if not line.startswith("--"))


@functools.cache
def _catalog(dialect: str, name: str) -> sa.TextClause:
    return sa.text(read("emq.database", dialect, name))


def catalog(connection: sa.Connection, name: str) -> sa.TextClause:
    """The catalog database's statement `name`, in the connection's dialect."""
    return _catalog(connection.dialect.name, name)
