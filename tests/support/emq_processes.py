"""Commands of `emq`, run in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from typer.testing import CliRunner

from emq_cli.commands import app

EMQ = (sys.executable, "-m", "emq_cli")


PATIENCE_S = 20.0


class Shell:
    """Starts `emq` processes in the current directory, and leaves none behind; `here` runs one in this process."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[str]] = []

    def here(self, line: str) -> str:
        result = CliRunner().invoke(app, line.split())
        assert result.exit_code == 0, result.output
        return result.stdout

    def json(self, line: str) -> Any:
        return json.loads(self.here(f"{line} --json"))

    def start(self, line: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [*EMQ, *line.split()],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def __call__(self, line: str, stdin: str = "", code: int = 0) -> tuple[str, str]:
        process = self.start(line)
        out, err = process.communicate(stdin, PATIENCE_S)
        assert process.returncode == code, err
        assert "Traceback" not in err
        return out, err

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate(timeout=PATIENCE_S)  # no child of it may keep its output open


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, "did not come true"
        time.sleep(0.02)


def line_with(process: subprocess.Popen[str], text: str) -> str:
    """Return the next line of the process's standard error that contains `text`."""
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return line
    raise AssertionError(f"ended without saying {text!r}")
