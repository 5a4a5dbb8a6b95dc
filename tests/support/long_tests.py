"""Which tests `make test` leaves to `make all-tests`: those of tests/long_tests.txt, which get the mark `long`.

What takes more than `LONG_S` on a machine with three workers a core is long, and so is `NEED_LONG`; `CORE` never is.
Tests of a store and a database get the mark by a rule, see `TOGETHER`. To write the list anew, run all tests and give
their times:

    make test TEST_ARGS="-m '' --junitxml=times.xml"
    cd tests && ../.venv/bin/python -m support.long_tests ../times.xml
"""

from __future__ import annotations

import functools
import itertools
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
LIST = TESTS / "long_tests.txt"

LONG_S = 3.0

CORE = (
    "simulation/test_simulation.py::test_every_promise_holds_for_every_seed[0-19]",
    "integration/test_cluster_restarts.py::test_twenty_joins_and_leaves_clean_or_by_kill_lose_nothing",
    "integration/test_demo.py::test_every_message_is_accounted_for_and_every_promise_held[sqlite]",
    "integration/test_hosts_on_one_database.py",
    "integration/test_pages.py::test_a_page_does_what_it_says[docs/tutorial.md]",
)
"""The core of what EMQ promises, which every run proves, however long it takes: tests, and files of tests."""

NEED_LONG = (
    "day/test_day.py",
    "integration/test_site.py",
    "simulation/test_simulation.py::test_each_kind_of_fault_happened",
    "spark/",
)
"""Tests that are long because they keep the machine busy, or share something dear, such as a session of Spark:
beginnings of names."""


TOGETHER = {
    "memory": "sqlite",
    "sqlite": "sqlite",
    "postgresql": "postgresql",
    "redis": "postgresql",
    "redis_cluster": "sqlite",
    "put_get": "sqlite",
}
"""The database beside which `make test` tries each store. No store knows the database; all pairs are in `all-tests`."""


def mark(items: Iterable[pytest.Item]) -> None:
    """Give the tests of the list, and those of other pairs than `TOGETHER`, the mark `long`."""
    for item in items:
        name = f"{item.path.relative_to(TESTS).as_posix()}::{item.name}"
        if name in _listed() or name.partition("[")[0] in _listed() or _is_another_pair(item):
            item.add_marker(pytest.mark.long)


def _is_another_pair(item: pytest.Item) -> bool:
    given = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    return {"db", "target"} <= given.keys() and TOGETHER[given["target"]] != given["db"]


@functools.cache
def _listed() -> frozenset[str]:
    return frozenset(line for line in LIST.read_text().splitlines() if not line.startswith("#"))


def main(reports: list[str]) -> None:
    """Write the list from reports in JUnit's XML."""
    times = dict(itertools.chain.from_iterable(map(_times, reports)))
    long_ = {name for name, s in times.items() if s > LONG_S or name.startswith(NEED_LONG)}
    long_ -= {name for name in long_ if name.startswith(CORE)}
    short = {name.partition("[")[0] for name in times.keys() - long_}
    # A test all of whose parameters are long is one line.
    lines = {name if name.partition("[")[0] in short else name.partition("[")[0] for name in long_}
    about = "# Tests that `make test` leaves to `make all-tests`; support/long_tests.py writes this list.\n"
    LIST.write_text(about + "".join(f"{line}\n" for line in sorted(lines)))


def _times(report: str) -> Iterator[tuple[str, float]]:
    for case in ElementTree.parse(report).iter("testcase"):
        place, name = case.get("classname", ""), case.get("name", "")
        if not name.endswith("]"):  # xdist has added the test's group
            name = name.rpartition("@")[0] or name
        yield f"{place.removeprefix('tests.').replace('.', '/')}.py::{name}", float(case.get("time", 0))


if __name__ == "__main__":
    main(sys.argv[1:])
