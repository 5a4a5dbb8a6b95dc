"""What type checkers say of a user's program, each in a process of its own: they take much memory."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_mypy_names_the_mistakes_of_a_program_and_each_of_the_tests_that_run_them() -> None:
    pytest.importorskip("mypy")  # the oldest versions are tried without type checkers
    program = ROOT / "tests/unit/planted_mistakes.py"
    # A mistake in the other file that mypy does not name is an unused `type: ignore`, which is an error.
    asked = [sys.executable, "-m", "mypy", "--strict", str(program), str(program.with_name("test_mistakes.py"))]
    environment = {**os.environ, "MYPYPATH": str(ROOT)}
    told = subprocess.run(
        asked, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT, env=environment
    ).stdout
    named = {int(line) for line in re.findall(r"planted_mistakes\.py:(\d+): error", told)}
    planted = {i for i, text in enumerate(program.read_text().splitlines(), 1) if text.endswith("# mistake")}
    assert len(planted) == 13
    assert named == planted, told
    assert told.count(": error: ") == 13, told


def test_pyright_names_the_mistakes_of_a_program_and_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("basedpyright")  # the oldest versions are tried without type checkers
    program = ROOT / "tests/unit/planted_mistakes.py"
    settings = {"include": [str(program)], "typeCheckingMode": "standard", "extraPaths": [str(ROOT)]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    asked = [sys.executable, "-m", "basedpyright", "--project", str(tmp_path), "--outputjson"]
    told = subprocess.run(
        [*asked, "--pythonpath", sys.executable], capture_output=True, text=True, timeout=120, check=False
    )
    found = json.loads(told.stdout)["generalDiagnostics"]
    planted = [i for i, text in enumerate(program.read_text().splitlines()) if text.endswith("# mistake")]
    assert len(planted) == 13
    named = {one["range"]["start"]["line"] for one in found if one["severity"] == "error"}
    assert sorted(named) == planted, told.stdout
