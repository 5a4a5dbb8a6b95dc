"""Map tests to the lines that they run, and print those that add nothing: `python -m support.coverage_map --help`.

As a plugin of pytest (`-p support.coverage_map`) it writes the map to the file that `EMQ_COVERAGE_MAP` names. It traces
the process of the tests only. Lua, SQL and other processes are not in the map.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import pytest

from support.python_path import python_path

ROOT = pathlib.Path(__file__).parents[2]
FILE = "EMQ_COVERAGE_MAP"
OVER = "EMQ_COVERAGE_OVER"

Lines = Mapping[str, frozenset[tuple[str, int]]]
"""By test: the lines that it ran, as file (from the root of the tree) and number."""


class Recorder:
    """Notes the lines of product code that run during each test.

    Args:
        root: the root of the tree.
        over: files and folders below it whose lines count.
    """

    def __init__(self, root: pathlib.Path, over: Sequence[str]) -> None:
        self._prefixes = tuple(f"{root / path}" for path in over)
        self._root = root
        self._now: set[tuple[str, int]] = set()
        self.lines: dict[str, set[tuple[str, int]]] = {}

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._now = self.lines.setdefault(item.nodeid, set())
        threading.settrace(self._trace)
        sys.settrace(self._trace)
        yield
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        return self._line if frame.f_code.co_filename.startswith(self._prefixes) else None

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        self._now.add((frame.f_code.co_filename, frame.f_lineno))
        return self._line

    def pytest_sessionfinish(self) -> None:
        skip = len(f"{self._root}") + 1
        found = {test: sorted((file[skip:], line) for file, line in lines) for test, lines in self.lines.items()}
        pathlib.Path(os.environ[FILE]).write_text(json.dumps(found), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    if FILE in os.environ:
        config.pluginmanager.register(Recorder(config.rootpath, os.environ[OVER].split()))


def read(path: pathlib.Path) -> Lines:
    """Return the map that the plugin wrote."""
    found = json.loads(path.read_text(encoding="utf-8"))
    return {test: frozenset((file, line) for file, line in lines) for test, lines in found.items()}


def needless(lines: Lines, kills: Sequence[Sequence[str]] = ()) -> list[str]:
    """Return tests that run no line alone and kill no mutant alone.

    Args:
        lines: the map.
        kills: of each mutant, the tests that failed with it.
    """
    runs = Counter(line for ran in lines.values() for line in ran)
    alone = {tests[0] for tests in kills if len(tests) == 1}
    return [test for test, ran in lines.items() if test not in alone and all(runs[line] > 1 for line in ran)]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="support.coverage_map", description=__doc__)
    parser.add_argument("tests", nargs="+", help="files, folders or ids of tests, from the root of the tree")
    parser.add_argument(
        "--over", nargs="+", default=["emq", "services", "tools"], help="whose lines count (%(default)s)"
    )
    parser.add_argument("--kills", type=pathlib.Path, help="what `make mutants FILES=... ALL=1 JSON=1` printed")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        found = pathlib.Path(folder) / "map.json"
        added = {FILE: str(found), OVER: " ".join(options.over), "PYTHONPATH": python_path(ROOT, ROOT / "tests")}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "support.coverage_map", *options.tests]
        subprocess.run(command, cwd=ROOT, env={**os.environ, **added}, check=True, stdout=sys.stderr)
        lines = read(found)
    verdicts = json.loads(options.kills.read_text(encoding="utf-8")) if options.kills else []
    for test in needless(lines, [verdict["caught"] for verdict in verdicts]):
        sys.stdout.write(f"{test}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
