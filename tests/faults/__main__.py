"""Run the tests of the table, in its order; a run that was stopped goes on where it was."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from faults import page, seen, table

ROOT = seen.TESTS.parent

FULL = {"EMQ_SIMULATED_SEEDS": "2000", "EMQ_DAY_S": "300"}
"""How much more the full form does of what takes as long as one likes."""


class Runner:
    """A plugin of pytest that chooses the tests, and writes a line for each that has run.

    Args:
        names: of the table.
        done: tests to leave out, since they have passed.
    """

    def __init__(self, names: list[str], done: set[str], file: Path, *, is_short: bool) -> None:
        self._names, self._done, self._file, self._is_short = names, done, file, is_short
        self._form = _form(is_short)
        self._commit = _git("rev-parse", "--short", "HEAD") + ("+" if _git("status", "--porcelain") else "")
        self.unknown: list[str] = []
        """Names that stand for no test."""

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        of = {_name(item.nodeid): item for item in items}
        chosen: dict[str, pytest.Item] = {}
        for name in self._names:
            found = seen.of([name], of)
            self.unknown += [] if found else [name]
            chosen |= {test: of[test] for test in found}
        items[:] = [item for test, item in chosen.items() if test not in self._done and not self._leaves(item)]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or (report.when == "setup" and not report.passed):
            on = datetime.datetime.now(datetime.UTC).date().isoformat()
            line = {"test": _name(report.nodeid), "result": report.outcome, "s": round(report.duration, 1)}
            line |= {"on": on, "commit": self._commit, "form": self._form, **dict(report.user_properties)}
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    def _leaves(self, item: pytest.Item) -> bool:
        return self._is_short and item.get_closest_marker("long") is not None


def _form(is_short: bool) -> str:
    return "short" if is_short else "full"


def _name(node: str) -> str:
    return node.removeprefix("tests/")


def _git(*command: str) -> str:
    return subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="faults", description=__doc__)
    parser.add_argument(
        "--short", action="store_true", help="leave out what `make test` leaves out; minutes, not hours"
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="faults whose name contains this text")
    parser.add_argument("--fresh", action="store_true", help="begin anew, also with what has passed")
    parser.add_argument("--folder", type=Path, default=ROOT / ".faults", help="of the run (default .faults)")
    parser.add_argument("--check", action="store_true", help="only see that each test of the table is there")
    parser.add_argument("--write", action="store_true", help="only write docs/faults.md, from what was seen until now")
    options = parser.parse_args(arguments)
    file = options.folder / "seen.jsonl"
    if options.write:
        seen.write(seen.read(seen.SEEN, file))
        page.PAGE.write_text(page.page(table.FAULTS, seen.read(seen.SEEN)), encoding="utf-8")
        return 0
    faults = [fault for fault in table.FAULTS if options.only in fault.name]
    if not faults:
        parser.error(f"no fault has {options.only!r} in its name; docs/faults.md lists them")
    if options.fresh:
        file.unlink(missing_ok=True)
    options.folder.mkdir(exist_ok=True)
    names = list(dict.fromkeys(test for fault in faults for cell in page.cells(fault) for test in cell.tests))
    forms = {"full", _form(options.short)}
    lines = seen.read(file).items()
    done = {test for test, line in lines if line["result"] == "passed" and line["form"] in forms}
    if not options.short:
        os.environ.update({name: value for name, value in FULL.items() if name not in os.environ})
    runner = Runner(names, done, file, is_short=options.short)
    files = dict.fromkeys(f"tests/{name.partition('::')[0]}" for name in names)
    status = pytest.main(["--rootdir", str(ROOT), "--collect-only" if options.check else "-q", "-q", *files], [runner])
    for name in runner.unknown:
        sys.stderr.write(f"faults: no test is named {name}; correct tests/faults/table.py\n")
    if not options.check:
        told = page.verdicts(faults, seen.read(file))
        sys.stderr.write(f"faults: cells {', '.join(f'{n} {what}' for what, n in told.items())}; results: {file}\n")
    is_well = status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    return 1 if runner.unknown else 0 if is_well else int(status)


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main(sys.argv[1:]))
