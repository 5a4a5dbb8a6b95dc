"""The trial of mutants is not content with any failure: only a test that fails by itself has caught a mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from mutants import trial
from mutants.mutant import Misfit, Mutant
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


def test_a_test_that_does_not_pass_without_the_mistake_catches_none(tree: Tree) -> None:
    tests = ("test_wrong", "test_skipped")
    found = trial.unfit(tree, [mutant(test, "2 * n", "3 * n", test) for test in tests])
    assert found["test_product.py::test_wrong"] == "it fails without the mistake"
    assert "skipped" in found["test_product.py::test_skipped"]


def test_a_mistake_is_taken_out_again_also_if_its_test_breaks(tree: Tree, tmp_path: Path) -> None:
    wrong = mutant("any", "2 * n", "3 * n", "test_twice")
    product = tmp_path / "target/tree/product.py"

    def plant() -> None:
        with tree.planted(wrong):
            assert "3 * n" in product.read_text()
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError):
        plant()
    assert product.read_text() == PRODUCT
    with pytest.raises(Misfit, match="occurs 0 times"), tree.planted(wrong._replace(before="4 * n")):
        raise AssertionError("it was planted")
