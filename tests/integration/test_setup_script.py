"""`scripts/setup` on a machine whose uv is refused by the registry, and whose pip is not."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[2] / "scripts/setup"

UV = """#!/bin/sh
case "$*" in *--help) echo "--group" ;; *) echo "error: 403 Forbidden" >&2; exit 2 ;; esac
"""
PYTHON = """#!/bin/sh
case "$*" in *"pip install"*demo*) exit {code} ;; esac
cat >/dev/null
"""


@pytest.mark.parametrize("code", [0, 1])
def test_a_uv_that_is_refused_is_told_of_only_if_pip_fails_too(tmp_path: Path, code: int) -> None:
    for path, text in {"programs/uv": UV, ".venv/bin/python": PYTHON.format(code=code)}.items():
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(text)
        (tmp_path / path).chmod(0o755)
    (tmp_path / "scripts").mkdir()
    shutil.copy(SETUP, tmp_path / "scripts/setup")
    ran = subprocess.run(
        [str(tmp_path / "scripts/setup"), "demo"],
        env={**os.environ, "PATH": f"{tmp_path / 'programs'}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if code:
        assert ran.returncode == 1
        assert "error: 403 Forbidden" in ran.stderr
        assert "setup: could not install" in ran.stderr
    else:
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "setup: .venv is ready\n", "")
