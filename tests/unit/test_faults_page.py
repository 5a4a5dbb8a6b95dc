"""The table of faults fits the tests, and docs/faults.md the table; `make faults` runs the tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from faults import page, seen, table
from mutants.mutant import PROMISES

CELLS = [(fault.name, cell) for fault in table.FAULTS for cell in page.cells(fault)]


@pytest.mark.parametrize("fault", table.FAULTS, ids=[fault.name for fault in table.FAULTS])
def test_each_fault_has_tests_or_a_reason_for_every_store(fault: table.Fault) -> None:
    assert fault.cells.keys() == set(table.STORES)
    assert any(page.cells(fault))
    for cell in fault.cells.values():
        assert cell.tests if isinstance(cell, table.Cell) else len(cell) > 5
    assert {letter for cell in page.cells(fault) for letter in cell.shows} <= PROMISES.keys()


def test_every_test_that_the_table_names_is_there() -> None:
    functions: dict[str, list[str]] = {}
    for _, cell in CELLS:
        for name in cell.tests:
            file, _, test = name.partition("::")
            if file not in functions:
                tree = ast.parse((seen.TESTS / file).read_text(encoding="utf-8"))
                nodes = [n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
                functions[file] = [node for node in nodes if node.startswith("test_")]
            pattern = re.escape(test.partition("[")[0]).replace(r"\*", ".*")
            assert [f for f in functions[file] if re.fullmatch(pattern, f)], f"{name}: correct tests/faults/table.py"


def test_the_page_shows_the_table_and_what_was_seen() -> None:
    """After a change of the table, or a run: make faults FAULTS_ARGS=--write."""
    assert page.PAGE.read_text(encoding="utf-8") == page.page(table.FAULTS, seen.read(seen.SEEN))


def test_a_cell_holds_only_if_each_of_its_tests_has_passed() -> None:
    names = ("a.py::test_one", "a.py::test_two*")

    def verdict(**results: str) -> str:
        lines = {f"a.py::test_{name}": {"result": result} for name, result in results.items()}
        return page._verdict(names, lines)

    assert verdict() == "not run yet"
    assert verdict(one="passed") == "held, in part not run yet"
    assert verdict(one="passed", two_more="passed") == "held"
    assert verdict(one="passed", two_more="failed") == "**failed**"
    assert verdict(one="skipped", three="passed") == "not run yet"


def test_a_line_that_was_cut_short_is_left_out_and_the_last_one_of_a_test_counts(tmp_path: Path) -> None:
    file = tmp_path / "seen.jsonl"
    file.write_text('{"test": "t", "result": "failed"}\n{"test": "t", "result": "passed"}\n{"test": "t", "resu')
    assert seen.read(file) == {"t": {"test": "t", "result": "passed"}}


@pytest.mark.parametrize(
    ("name", "test", "is_meant"),
    [
        ("f.py::test_a", "f.py::test_a[x-1]", True),
        ("f.py::test_a", "f.py::test_ab", False),
        ("f.py::test_a[x-*]", "f.py::test_a[x-asyncio]", True),
        ("f.py::test_a[x-*]", "f.py::test_a[y-asyncio]", False),
        ("f.py::*", "f.py::test_b[two\nlines]", True),
    ],
)
def test_a_name_stands_for_a_test_with_all_its_parameters(name: str, test: str, is_meant: bool) -> None:
    assert seen.stands_for(name, test) is is_meant
