"""Gives back what tests leave behind: a worker of `make test` otherwise grows to more than a gigabyte.

Large bodies outlive their tests in two ways: in cycles, since `tests/conftest.py` makes Python's collector rare, and in
freed blocks, which the C library keeps for its next `malloc`.
"""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable
from pathlib import Path

GROWTH = 64 << 20
"""Bytes by which the process may grow before it is tidied."""


class Tidying:
    """A plugin of pytest that looks at the size of the process after each test."""

    def __init__(self) -> None:
        self._most = resident() + GROWTH
        self._trim: Callable[[int], int] = getattr(ctypes.CDLL(None), "malloc_trim", int)  # only glibc has it

    def pytest_runtest_logfinish(self) -> None:
        if resident() > self._most:
            gc.collect()
            self._trim(0)
            self._most = resident() + GROWTH


def resident() -> int:
    """Return the bytes of memory that the process takes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
