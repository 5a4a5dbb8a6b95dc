"""What pyright says of a user's program; `tests/unit/test_mistakes.py` asks mypy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_pyright_names_the_ten_mistakes_of_a_program_and_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("basedpyright")  # the oldest versions are tried without type checkers
    program = ROOT / "tests/unit/ten_mistakes.py"
    settings = {"include": [str(program)], "typeCheckingMode": "standard", "extraPaths": [str(ROOT)]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    asked = [sys.executable, "-m", "basedpyright", "--project", str(tmp_path), "--outputjson"]
    told = subprocess.run(
        [*asked, "--pythonpath", sys.executable], capture_output=True, text=True, timeout=120, check=False
    )
    found = json.loads(told.stdout)["generalDiagnostics"]
    planted = [i for i, text in enumerate(program.read_text().splitlines()) if text.endswith("# mistake")]
    assert len(planted) == 10
    assert sorted(one["range"]["start"]["line"] for one in found if one["severity"] == "error") == planted, told.stdout
