"""The map of tests to the lines of product code that they run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support import coverage_map


def test_the_map_tells_which_lines_a_test_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "product.py").write_text("def f():\n    return 1\n\ndef g():\n    return 2\n")
    (tmp_path / "test_it.py").write_text("import product\n\ndef test_f():\n    product.f()\n")
    found = tmp_path / "map.json"
    monkeypatch.setenv(coverage_map.FILE, str(found))
    monkeypatch.setenv(coverage_map.OVER, "product.py")
    monkeypatch.setenv("PYTHONPATH", f"{coverage_map.ROOT / 'tests'}")
    command = [sys.executable, "-m", "pytest", "-p", "support.coverage_map", "--rootdir", str(tmp_path), "test_it.py"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert coverage_map.read(found)["test_it.py::test_f"] >= {("product.py", 2)}
    assert ("product.py", 5) not in coverage_map.read(found)["test_it.py::test_f"]
