"""`scripts/setup` on a machine without uv, or whose uv is refused by the registry, and whose pip is not."""

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
NO_UV = """#!/bin/sh
exit 1
"""
PYTHON = """#!/bin/sh
case "$*" in *"pip install"*) echo "WARNING: a place is ignored" >&2 ;; esac
case "$*" in *"pip install"*demo*) exit {code} ;; *"pip install"*" uv") exit 1 ;; esac
cat >/dev/null
"""


@pytest.mark.parametrize("code", [0, 1])
@pytest.mark.parametrize("uv", [UV, NO_UV], ids=["refused", "missing"])
def test_a_fallback_to_pip_is_told_of_only_if_pip_fails_too(tmp_path: Path, code: int, uv: str) -> None:
    for path, text in {"programs/uv": uv, ".venv/bin/python": PYTHON.format(code=code)}.items():
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
        assert ("error: 403 Forbidden" if uv == UV else "WARNING: a place is ignored") in ran.stderr
        assert "setup: could not install" in ran.stderr
    else:
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "setup: .venv is ready\n", "")
