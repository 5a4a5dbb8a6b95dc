"""Files that only their owner may read, since they hold secrets, keys or payloads."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

MODE = 0o600
DIRECTORY_MODE = 0o700


def create(path: str | Path) -> None:
    """Create an empty file that only its owner may read, unless it exists.

    Ignores a failure, which opening the file will show.
    """
    with contextlib.suppress(OSError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, MODE))


def write_text(path: Path, text: str) -> None:
    """Write a file that only its owner may read; it may replace another one. Raises `OSError`."""
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, MODE)
    with open(descriptor, "w", encoding="utf-8") as file:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):  # not a terminal or a pipe
            os.fchmod(descriptor, MODE)
            os.ftruncate(descriptor, 0)
        file.write(text)
