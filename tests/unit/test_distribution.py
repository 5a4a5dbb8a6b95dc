"""`make test` hands out what takes long first, keeps together what is dear to start, mixes waiting with work.

Its workers stay small.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support import memory
from support.distribution import TESTS, distribute


class Item:
    """A test as far as its distribution is concerned."""

    def __init__(self, path: str, *fixtures: str, unit: str = "") -> None:
        self.path = TESTS / Path(path)
        self.fixturenames = fixtures
        self.marks = [pytest.mark.xdist_group(unit).mark] if unit else []

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return next((mark for mark in self.marks if mark.name == name), None)

    def add_marker(self, marker: pytest.MarkDecorator) -> None:
        self.marks.append(marker.mark)

    def told(self) -> tuple[str, list[str]]:
        return self.path.relative_to(TESTS).as_posix(), [str(mark.args[0]) for mark in self.marks]


def test_units_are_the_session_of_spark_the_ensemble_files_of_short_tests_and_lone_long_ones() -> None:
    items: list[Any] = [
        Item("unit/test_a.py"),
        Item("contract/test_b.py", "redis_url"),
        Item("integration/test_c.py", "tmp_path", "zookeeper_ensemble"),
        Item("integration/test_d.py", "redis_url"),
        Item("integration/test_d.py", unit="own"),
        Item("day/test_e.py"),
        Item("spark/test_f.py", "data"),
        Item("spark/test_g.py", "data", "spark"),
        Item("simulation/test_i.py"),
        Item("simulation/test_simulation.py"),
    ]
    distribute(items)
    assert [item.told() for item in items] == [
        ("spark/test_f.py", ["spark"]),  # before the session is there
        ("spark/test_g.py", ["spark"]),
        ("integration/test_c.py", ["ensemble"]),
        ("day/test_e.py", ["day"]),
        ("simulation/test_simulation.py", []),
        ("simulation/test_i.py", []),
        ("integration/test_d.py", []),  # waits while the next computes
        ("unit/test_a.py", ["unit/test_a.py"]),
        ("integration/test_d.py", ["own"]),
        ("contract/test_b.py", ["contract/test_b.py"]),
    ]


def test_what_a_test_leaves_in_a_cycle_is_given_back() -> None:
    tidying, before = memory.Tidying(), memory.resident()
    left: list[object] = [b"x" * (2 * memory.GROWTH)]
    left.append(left)
    del left
    tidying.pytest_runtest_logfinish()
    assert memory.resident() < before + memory.GROWTH
