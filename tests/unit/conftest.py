"""A unit test starts no process and no server; one that needs some belongs to `tests/integration`."""

from __future__ import annotations

import multiprocessing.process
import subprocess
from pathlib import Path

import pytest

from support.emq_shell import Shell, shell


@pytest.fixture(autouse=True)
def _no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        pytest.fail("a unit test starts a process; move it to tests/integration")

    monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", refuse)


@pytest.fixture
def emq(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Commands in an empty directory, without settings from the environment."""
    return shell(tmp_path, monkeypatch)
