"""The trial of mutants is not content with any failure: only a test that fails by itself has caught a mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from mutants import trial
from mutants.mutant import Mutant
from mutants.tree import Tree

PRODUCT = """
def twice(n):
    return 2 * n

def opened():
    return "open"
"""

TESTS = """
import pytest
import product

@pytest.fixture
def door():
    assert product.opened() == "open"

def test_twice():
    assert product.twice(3) == 6

def test_zero():
    assert product.twice(0) == 0

def test_door(door):
    pass

def test_skipped():
    pytest.skip("no reason")

def test_wrong():
    assert product.twice(3) == 7
"""


def mutant(name: str, before: str, after: str, caught_by: str) -> Mutant:
    return Mutant(name, "L", "a mistake", "product.py", before, after, f"test_product.py::{caught_by}")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    root = tmp_path / "root"
    root.mkdir()
    (root / "product.py").write_text(PRODUCT)
    (root / "test_product.py").write_text(TESTS)
    target = tmp_path / "target"
    target.mkdir()
    return Tree(root, target)


def test_only_a_test_that_fails_by_itself_has_caught_a_mistake(tree: Tree) -> None:
    verdicts = trial.trials(
        tree,
        [
            mutant("survives", "2 * n", "3 * n", "test_zero"),
            mutant("caught", "2 * n", "2 + n", "test_twice"),  # of the same size, and in the same second
            mutant("breaks-a-fixture", '"open"', '"shut"', "test_door"),
            mutant("does-not-fit", "4 * n", "5 * n", "test_twice"),
        ],
    )
    assert [(v.mutant.name, v.word, bool(v.trouble)) for v in verdicts] == [
        ("survives", "SURVIVED", False),
        ("caught", "caught", False),
        ("breaks-a-fixture", "BROKEN", True),
        ("does-not-fit", "BROKEN", True),
    ]
