"""Standard mistakes in any file, and the tests that add nothing to a map of tests to lines."""

from __future__ import annotations

import pytest

from mutants.operators import mutants_of
from support import coverage_map

TEXT = """\
def small(self, n: int = 3) -> bool:
    \"""No mistake.\"""
    if n < 3:
        self.calls += 1
        print("é", n)
    return True
"""

CHANGED = {
    "negate": ["if not (n < 3):"],
    "swap": ["if (n <= 3):"],
    "replace": ["def small(self, n: int = (4)) -> bool:", "if n < (4):", "self.calls += (2)", "return (False)"],
    "drop": ["pass", "pass"],
    "return": ["return"],
}


@pytest.mark.parametrize(("operator", "lines"), CHANGED.items())
def test_each_operator_changes_each_place_that_it_fits(operator: str, lines: list[str]) -> None:
    found = []
    for line, mutant in mutants_of("a.py", TEXT):
        if mutant.name.endswith(f"-{operator}"):
            changed = mutant.planted(TEXT)
            compile(changed, "a.py", "exec")
            found.append(changed.splitlines()[line - 1].strip())
    assert sorted(found) == sorted(lines)


def test_a_test_that_runs_no_line_alone_and_kills_nothing_alone_is_needless() -> None:
    a, b = ("a.py", 1), ("a.py", 2)
    lines = {"one": frozenset({a, b}), "two": frozenset({a}), "three": frozenset({a})}
    assert coverage_map.needless(lines) == ["two", "three"]
    assert coverage_map.needless(lines, [["two"], ["one", "three"]]) == ["three"]
