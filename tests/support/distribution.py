"""How the workers of `make test` share the tests (`pytest -n 6 --dist loadgroup --no-loadscope-reorder`).

xdist hands out *units*: the tests of one `xdist_group` make a unit, in the order of the collection, and one worker runs
all tests of a unit. A test with that mark keeps its group. The others are dealt with here:

- The tests of Spark make one unit, and so do those that ask for the ensemble of ZooKeeper. Both take much memory and
  time to start, so a run has one of each; and no two clusters of host processes compete for the machine. Commands that
  are tested begin a Spark session where the worker has none, so all of `spark/` belongs to the unit.
- The tests of a realistic day make one unit: each keeps the machine busy by itself.
- Unit and contract tests are short: a file is a unit.
- Any other test is a unit of its own. A file whose tests share a fixture that is dear says so by the mark.

xdist 3.8 writes a test's group into the test's id. pytest 9.2 keeps the id in another place, so the mark has no effect
there: each test is a unit, whatever its group. pyproject.toml therefore asks for an older pytest.

The units that take longest come first, so that at the end no worker is left alone with a long one. Behind them, units
that mostly wait (for servers, leases and time-outs) take turns with units that mostly compute, so that the cores have
work while the former wait.
"""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

ENSEMBLE = "zookeeper_ensemble"
"""The fixture of the whole run that only one worker makes."""

SHORT = ("unit/", "contract/")
"""Directories whose files are units."""

LONG_UNITS = ("spark", "ensemble")
LONG_PLACES = ("day/", "simulation/test_simulation.py", "simulation/")
"""What comes first: these units, then what is at these places below `tests`."""

WAITING = "integration/"
"""The place of tests that mostly wait."""

TESTS = Path(__file__).parents[1]


def distribute(items: list[pytest.Item]) -> None:
    """Mark each test with its unit, and put the tests into the order in which they are to be handed out."""
    units = {item: _unit(item) for item in items}
    for item, unit in units.items():
        if unit and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(unit))
    # A test of Spark that needs no session starts a Spark of its own: before the session, so that one runs at a time.
    items.sort(key=lambda item: (_rank(units[item], _path(item)), "spark" in getattr(item, "fixturenames", ())))
    first = [item for item in items if _rank(units[item], _path(item)) < len(LONG_UNITS) + len(LONG_PLACES)]
    rest = items[len(first) :]
    waiting = [item for item in rest if _path(item).startswith(WAITING)]
    working = [item for item in rest if not _path(item).startswith(WAITING)]
    turns = {**_turns(waiting, units), **_turns(working, units)}
    items[:] = [*first, *sorted(rest, key=lambda item: (turns[item], not _path(item).startswith(WAITING)))]


def _unit(item: pytest.Item) -> str:
    """Name of the unit; "" if the test is one by itself."""
    mark = item.get_closest_marker("xdist_group")
    if mark is not None:
        return str(mark.args[0])
    path = _path(item)
    if path.startswith(("spark/", "day/")):
        return path.partition("/")[0]
    if ENSEMBLE in getattr(item, "fixturenames", ()):
        return "ensemble"
    return path if path.startswith(SHORT) else ""


def _turns(items: list[pytest.Item], units: dict[pytest.Item, str]) -> dict[pytest.Item, float]:
    """Return when each test has its turn, from 0 to 1; the tests of a unit have the turn of the unit."""
    order: dict[object, int] = {}
    for item in items:
        order.setdefault(units[item] or item, len(order))
    return {item: order[units[item] or item] / len(order) for item in items}


def _rank(unit: str, path: str) -> int:
    if unit in LONG_UNITS:
        return LONG_UNITS.index(unit)
    places = (n for n, place in enumerate(LONG_PLACES) if path.startswith(place))
    return len(LONG_UNITS) + next(places, len(LONG_PLACES))


def _path(item: pytest.Item) -> str:
    return _place(item.path)


@functools.cache  # thousands of tests are in hundreds of files
def _place(path: Path) -> str:
    return path.relative_to(TESTS).as_posix()
