"""What was seen of each test: one line of JSON for each run, in a file that a run that was stopped goes on with."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]

SEEN = TESTS / "faults" / "seen.jsonl"
"""The lines that docs/faults.md shows."""

Seen = Mapping[str, Mapping[str, Any]]
"""By test: its last line.

A line has `test`, `result` (passed, failed, skipped), `s`, `on`, `commit`, `form` (short, full), and what the test has
measured: `messages`, `repeats`, `pause_s` (longest time between two starts of a group), `back_s` (time until all is
normal, after the fault is over).
"""


def read(*files: Path) -> dict[str, dict[str, Any]]:
    """Return the last line of each test; a line that a kill cut short is left out."""
    lines: dict[str, dict[str, Any]] = {}
    for file in files:
        for text in file.read_text(encoding="utf-8").split("\n")[:-1] if file.exists() else ():
            line = json.loads(text)
            lines[line["test"]] = line
    return lines


def write(lines: Seen) -> None:
    """Write the lines that the page shows, by test."""
    SEEN.write_text("".join(json.dumps(lines[test]) + "\n" for test in sorted(lines)), encoding="utf-8")


def stands_for(name: str, test: str) -> bool:
    """Return whether a name of the table stands for this test, whatever parameters it has."""
    pattern = re.escape(name).replace(r"\*", ".*")
    return re.fullmatch(rf"{pattern}(\[.*\])?", test, re.DOTALL) is not None


def of(names: Iterable[str], tests: Iterable[str]) -> list[str]:
    """Return the tests for which one of the names stands."""
    names = tuple(names)
    return [test for test in tests if any(stands_for(name, test) for name in names)]
