"""What every statement in a file of its own keeps to."""

from __future__ import annotations

import enum
import importlib.resources

import pytest

from emq.database import statements

STORE, CATALOG = "emq_stores.sql", "emq.database"


def names(package: str, dialect: str) -> list[str]:
    directory = importlib.resources.files(package).joinpath("sql", dialect)
    return sorted(file.name.removesuffix(".sql") for file in directory.iterdir() if file.name.endswith(".sql"))


@pytest.mark.parametrize("package", [STORE, CATALOG])
def test_every_statement_is_there_in_both_dialects(package: str) -> None:
    assert names(package, "postgresql") == names(package, "sqlite")


@pytest.mark.parametrize("package", [STORE, CATALOG])
def test_every_array_that_goes_to_postgresql_has_a_declared_type(package: str) -> None:
    for name in names(package, "postgresql"):
        text = statements.read(package, "postgresql", name)
        assert ("unnest(" in text) == bool(statements.array_types(package, name)), name
        sqlite = statements.read(package, "sqlite", name)
        if "unnest(" in text:
            assert sqlite.count("?") == len(statements.array_types(package, name)), name


def test_an_undeclared_array_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statements, "read", lambda *_: "SELECT unnest(%s::bigint[], %s, %s::jsonb[])")
    statements.array_types.cache_clear()
    with pytest.raises(ValueError, match="'odd': each parameter must be declared"):
        statements.array_types(STORE, "odd")


class Word(enum.StrEnum):
    ONE = "one"


def test_each_column_of_a_batch_has_one_python_type_whatever_its_rows_were_made_of() -> None:
    rows = [
        (True, Word.ONE, 7, None, 2**62, 0, 1),
        (2.0, "two", 1.5, "fold", 0, 1.0, 2),
        (3, "", float("inf"), None, False, True, 3.0),
    ]
    columns = statements.arrays(STORE, "groups_save", rows)
    assert [{type(value) for value in column} - {type(None)} for column in columns] == [
        {int}, {str}, {float}, {str}, {int}, {int}, {int}
    ]  # fmt: skip
    assert columns[2] == [7.0, 1.5, float("inf")]
    assert columns[3] == [None, "fold", None]
