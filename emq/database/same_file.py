"""SQLite: notices that an open file was deleted or replaced, so that nobody else would see a write.

A connection keeps its file open, whatever happens to the file's name. It would go on committing to a file without a
name, and all would be gone when it closes. So EMQ looks at the file and its write-ahead log before each transaction,
and after each write: a few microseconds for two calls of `stat`.
"""

from __future__ import annotations

import os

REMEDY = "put the former file back, or stop this process and start it again to use the file that is there now"

Identity = tuple[int, int]
"""Device and number of a file; the number is not used again while somebody has the file open."""


class SameFile:
    """The file of one database, by its name.

    Attributes:
        path: absolute, since the process may change its directory.
    """

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self._file: Identity | None = None

    def connected(self) -> None:
        """Remember the file when it is first open."""
        if self._file is None:
            self._file = _identity(self.path)

    def trouble(self, log: Identity | None = None) -> str:
        """Return a text if the file was deleted or replaced; empty while it is the one that was opened first.

        Args:
            log: the identity of the write-ahead log that the connection has open; None before it has one.
        """
        if self._file is None:
            return ""
        found = _identity(self.path)
        if found != self._file:
            became = "deleted" if found is None else "replaced by another one"
            return f"the file {self.path} was {became} while this process had it open; {REMEDY}"
        if log is not None and self.log() != log:
            return (
                f"the write-ahead log {self.path}-wal was deleted or replaced while this process had it open; stop "
                "this process, which saves what the log holds, and start it again"
            )
        return ""

    def log(self) -> Identity | None:
        """Return the identity of the write-ahead log; None if there is none."""
        return _identity(f"{self.path}-wal")


def _identity(path: str) -> Identity | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
