"""A child process: it reads its task from one line, prints one line when it is ready, and prints its log at the end."""

from __future__ import annotations

import subprocess
import sys


class Child:
    """Runs a module as a child process. The child ends when its standard input is closed.

    Args:
        module: its name, for `python -m`.
        task: the first line that the child reads.
        own_session: keep a terminal's Ctrl-C away from the child: the parent wants the log first.

    Attributes:
        ready: the line by which the child said that it is ready.

    Raises:
        RuntimeError: the child ended before that.
    """

    def __init__(self, module: str, task: bytes, *, own_session: bool = False) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=own_session,
        )
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(task + b"\n")
        self._process.stdin.flush()
        self.ready = self._process.stdout.readline()
        if not self.ready:
            self.end(timeout_s=10.0)
            raise RuntimeError(f"the process of {module} ended before it was ready; its error is above")

    def end(self, timeout_s: float) -> bytes:
        """Close the child's standard input, and return all that it prints until it ends; kill it if it takes longer."""
        try:
            log, _ = self._process.communicate(timeout=timeout_s)
        except BaseException:
            self._process.kill()
            self._process.communicate()
            raise
        return log
