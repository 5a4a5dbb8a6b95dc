"""The starts of messages, recorded in the host's process, and read and counted in others meanwhile."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

from bench.tenants.waits import Waits
from emq.runtime import plurals

_RECORD = struct.Struct("<qd")
LOOK_S = 0.005


class StartFile:
    """The file to which a host writes each start with one small write, so that it keeps nothing in memory."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def add(self, number: int) -> None:
        """Write that the message of this number starts now."""
        os.write(self._file, _RECORD.pack(number, time.monotonic()))


def count(path: Path) -> int:
    return path.stat().st_size // _RECORD.size if path.exists() else 0


def read(path: Path) -> dict[int, float]:
    """Return when each message first started, by the clock that all processes of the machine share."""
    found: dict[int, float] = {}
    if path.exists():
        data = path.read_bytes()
        for number, at_s in _RECORD.iter_unpack(data[: len(data) - len(data) % _RECORD.size]):
            found.setdefault(number, at_s)
    return found


async def reached(path: Path, wanted: int, waits: Waits) -> None:
    """Wait until a file has this many starts. Raises `InvalidRun` as `Waits.until`."""

    async def are_there() -> bool:
        return count(path) >= wanted

    await waits.until(are_there, LOOK_S, f"{plurals.count(wanted, 'message')} started")
