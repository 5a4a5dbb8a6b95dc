"""SQL files: one statement each, in a directory for each dialect, or beside these if the dialects share its text."""

from __future__ import annotations

import functools
import importlib.resources
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

_ARRAY = re.compile(r"%s::(\w+)\[\]")

_PYTHON_TYPES: dict[str, Callable[[Any], object]] = {
    "bigint": int,
    "int": int,
    "float8": float,
    "text": str,
    "bytea": bytes,
}
"""Element types that a statement may declare for its arrays, and the Python type that the driver is given for each."""


@functools.cache
def read(package: str, dialect: str, name: str) -> str:
    """The statement in `<package>/sql/<dialect>/<name>.sql`, or in `<package>/sql/<name>.sql`, for both dialects.

    Its comments are left out; they may name parameters.
    """
    directory = importlib.resources.files(package).joinpath("sql")
    file = directory.joinpath(dialect, f"{name}.sql")
    if not file.is_file():
        file = directory.joinpath(f"{name}.sql")
    lines = file.read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if not line.startswith("--"))


@functools.cache
def array_types(package: str, name: str) -> tuple[Callable[[Any], object], ...]:
    """The Python types of the arrays that a PostgreSQL statement takes, as its text declares them (`%s::float8[]`).

    Raises:
        ValueError: a parameter of the statement has no declared element type, or one that is not known here.
    """
    text = read(package, "postgresql", name)
    declared = _ARRAY.findall(text)
    if len(declared) != text.count("%s") or not set(declared) <= _PYTHON_TYPES.keys():
        known = ", ".join(_PYTHON_TYPES)
        raise ValueError(f"statement {name!r}: each parameter must be declared as %s::<type>[], of {known}")
    return tuple(_PYTHON_TYPES[each] for each in declared)


def arrays(package: str, name: str, rows: Sequence[tuple[Any, ...]]) -> tuple[list[Any], ...]:
    """Rows as the arrays of a PostgreSQL statement, one array for each column.

    The driver refuses an array of both ints and floats. So each column is converted to the one Python type (or None)
    that the statement declares.
    """
    types = array_types(package, name)
    return tuple(_column(type_, values) for type_, values in zip(types, zip(*rows, strict=True), strict=True))


def _column(type_: Callable[[Any], object], values: Iterable[Any]) -> list[Any]:
    return [value if type(value) is type_ or value is None else type_(value) for value in values]


@functools.cache
def _catalog(dialect: str, name: str) -> sa.TextClause:
    return sa.text(read("emq.database", dialect, name))


def catalog(connection: sa.Connection, name: str) -> sa.TextClause:
    """The catalog database's statement `name`, in the connection's dialect."""
    return _catalog(connection.dialect.name, name)


def run(connection: sa.Connection, name: str, values: Mapping[str, object] | None = None) -> Sequence[Any]:
    """Run a small statement of the catalog database; return its rows, none if it has none.

    On SQLite the driver runs it: a process that has slept pays 0.4 ms for SQLAlchemy's way there, 0.06 for this one.
    """
    if connection.dialect.name == "sqlite":
        driver = connection.connection.driver_connection
        assert driver is not None
        return driver.execute(read("emq.database", "sqlite", name), values or {}).fetchall()  # type: ignore[no-any-return]
    result = connection.execute(catalog(connection, name), values)
    return result.all() if result.returns_rows else ()
