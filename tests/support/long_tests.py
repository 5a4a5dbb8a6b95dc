"""Which tests `make test` leaves to `make all-tests`: they get the mark `long`.

What takes more than `LONG_S` on a machine with three workers a core is in tests/long_tests.txt. Tests that match
`CHOSEN` are long whatever they take, and so are those of a store beside another database than `TOGETHER` says; `CORE`
never is.
To write the list anew, run all tests and give their times:

    make test TEST_ARGS="-m '' --junitxml=times.xml"
    cd tests && ../.venv/bin/python -m support.long_tests ../times.xml
"""

from __future__ import annotations

import functools
import itertools
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
LIST = TESTS / "long_tests.txt"

LONG_S = 3.0

CORE = (
    "simulation/test_simulation.py::test_every_promise_holds_for_every_seed[0-9]",
    "integration/test_cluster_restarts.py::test_twenty_joins_and_leaves_clean_or_by_kill_lose_nothing",
    "integration/test_demo.py::test_every_message_is_accounted_for_and_every_promise_held[sqlite]",
    "integration/test_hosts_on_one_database.py",
    "integration/test_pages.py::test_a_page_does_what_it_says[docs/tutorial.md]",
)
"""The core of what EMQ promises, which every run proves, however long it takes: tests, and files of tests."""

CHOSEN = re.compile(
    "|".join(
        (
            # What shares something dear (a session of Spark, the built site, all seeds), or keeps the machine busy.
            r"spark/.*",
            r"integration/test_site\.py::.*",
            r"integration/test_other_languages\.py::test_the_(client|page_does).*",
            r"integration/test_backups\.py::.*",
            r"simulation/test_simulation\.py::test_(each_kind_of_fault_happened|every_promise_holds_for_every_seed).*",
            r"day/test_day\.py::.*",
            # Judges of the simulation are tried one by one in test_judges.py; here whole clusters break a promise.
            r"simulation/test_(?!judges)\w+\.py::test_(?!nothing)\w+_(is|are)_found(\[.*)?",
            r"unit/test_bench_synthetic\.py::test_a_made_up_run_is_clean.*",
            r"integration/test_bench_(growth\.py::test_(a_backlog|each_size)|tenants_parts).*",
            r"integration/test_pages\.py::test_a_page_does_what_it_says.*",
            # More values of what `make test` tries with one value, or with a few, on each store.
            r"contract/test_bounds\.py::test_a_claim_of_many_slots\w+\[\w+-priority-apart\]",
            r"contract/test_bounds\.py::test_a_claim_of_many_lanes\w+\[\w+-10485760-2\]",
            r"contract/test_bounds\.py::test_many_large_members\w+\[\w+-latest\]",
            r"contract/test_sorted_models\.py::.*\[plain-(priority|fixed_time)-(memory|redis)\]",
            r"contract/test_sorted_models\.py::.*\[(apart-fixed_time-memory|apart-priority-sqlite)\]",
            r"contract/test_sorted_models\.py::.*\[(plain-range_merge-sqlite|apart-range_merge-redis)\]",
            r"integration/scheduling/test_many_tenants\.py::.*\[(redis|postgresql)\]",
            r"integration/test_host_crowds\.py::test_topics_that_hang_leave_places\w+\[(2-|250-).*",
            r"integration/test_hung_starts\.py::.*\[(10-90-.*|60-20-2000-.*never-waiting|60-20-20000-.*-8388608-waiting)\]",
            r"integration/test_hung_starts\.py::test_topics_that_hang_for_nine\w+\[(120-30|60-20-1000)-.*",
            r"integration/test_pytest_plugin\.py::.*\[asyncio-strict\]",
            r"integration/test_quota_use\.py::test_a_backlog_uses_the_old\w+\[50-(51|60)-.*",
            r"integration/test_sleeping_topics\.py::test_a_name_that_comes_again\w+\[False-.*",
            r"integration/test_topic_caps\.py::test_bursts_of_a_smooth_topic\w+\[100\.0-10\]",
            r"simulation/test_budgeted_units\.py::test_a_topic_becomes_a_budget\w+\[8\.0\]",
            r"simulation/test_simulated_database_losses\.py::test_a_host_that_starts\w+\[-.*",
            r"unit/scheduling/test_matching\.py::test_random_pools\w+\[[4-9]\]",
            r"unit/scheduling/test_prediction_replayed\.py::.*\[[134]\]",
            r"unit/scheduling/test_windows\.py::test_chats_wait_less_than_a_second_beside\w+\[.*-hour\]",
        )
    )
)
"""Names of tests that are long whatever they take. `make test` shows the promise of each by tests that take less."""

TOGETHER = {
    "memory": "sqlite",
    "sqlite": "sqlite",
    "postgresql": "postgresql",
    "redis": "postgresql",
    "redis_cluster": "sqlite",
    "redis_servers": "sqlite",
    "put_get": "sqlite",
}
"""The database beside which `make test` tries each store. No store knows the database; all pairs are in `all-tests`."""


def mark(items: Iterable[pytest.Item]) -> None:
    """Give the tests that are long the mark `long`."""
    for item in items:
        name = f"{item.path.relative_to(TESTS).as_posix()}::{item.name}"
        if name in _listed() or name.partition("[")[0] in _listed() or _is_chosen(name) or _is_another_pair(item):
            item.add_marker(pytest.mark.long)


def _is_chosen(name: str) -> bool:
    return CHOSEN.fullmatch(name) is not None and not name.startswith(CORE)


def _is_another_pair(item: pytest.Item) -> bool:
    given = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    return {"db", "target"} <= given.keys() and TOGETHER[given["target"]] != given["db"]


@functools.cache
def _listed() -> frozenset[str]:
    return frozenset(line for line in LIST.read_text().splitlines() if not line.startswith("#"))


def main(reports: list[str]) -> None:
    """Write the list from reports in JUnit's XML."""
    times = dict(itertools.chain.from_iterable(map(_times, reports)))
    long_ = {name for name, s in times.items() if s > LONG_S and not name.startswith(CORE) and not _is_chosen(name)}
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
