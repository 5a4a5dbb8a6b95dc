"""SQLite: copies the write-ahead log to the file in the background, instead of in the middle of a commit."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from pathlib import Path

from emq.database.forks import ForkGuard
from emq.database.same_file import SameFile

COPY_EVERY_S = 1.5
"""Seconds between two copies while something is written. SQLite itself copies at a commit once the log has grown to a
bound, and that commit then takes tens of milliseconds longer."""

SELDOM_S = 6.0
"""The same after a copy of at most `FEW` pages. Else the copies would be a tenth of an idle process's CPU."""

FEW = 500
"""Pages. A process that begins to write more fills less than the engine's bound in `SELDOM_S`."""


class LogCopier:
    """A thread that opens a connection of its own for each copy, asleep while nothing is written.

    A passive checkpoint waits for nobody and lets readers and the writer go on. Where it cannot keep up, the engine's
    own bound on the log still holds.
    """

    def __init__(self, file: SameFile) -> None:
        self._file = file
        self._written = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._guard = ForkGuard(lambda: None)

    def written(self) -> None:
        """Note that something was committed. Call always from the same thread."""
        if not self._written.is_set():
            self._written.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="emq-log-copier", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End the thread; waits for a copy under way."""
        self._closed.set()
        self._written.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        rest_s = COPY_EVERY_S
        while not self._closed.wait(rest_s):
            self._written.wait()
            self._written.clear()
            if self._closed.is_set():
                return
            # The writer will meet and report any error here (a full disk, a locked file, a file that was replaced).
            with contextlib.suppress(sqlite3.Error), self._guard:
                if not self._file.trouble():
                    rest_s = SELDOM_S if self.copy() <= FEW else COPY_EVERY_S

    def copy(self) -> int:
        """Copy the log to the file; return the number of pages that the log holds, copied or not."""
        url = f"{Path(self._file.path).as_uri()}?mode=rw"  # makes no new file
        with contextlib.closing(sqlite3.connect(url, uri=True)) as connection:
            return int(connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1])
