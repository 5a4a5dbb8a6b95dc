"""Tells which sessions of other clients are over: the sessions of silent clients, and those of ended processes."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable

from emq.allocation.tree.database.nodes import Sighting

BREAK = 1 / 3
"""Share of a session's time-out. After a longer pause between two looks, the time-out of the session starts again."""


class Watchman:
    """Tells which sessions are over, by its own clock alone.

    A session is over when its beat did not change for its time-out while this process kept looking. So the clocks of
    other machines do not count, and neither does a jump of the database's clock. After an outage of the database or of
    this process, every session has its full time-out again, since no client could write meanwhile.
    """

    def __init__(self) -> None:
        self._since: dict[int, tuple[int, float]] = {}
        self._looked_s = float("-inf")

    def over(self, sightings: Iterable[Sighting], now_s: float) -> list[Sighting]:
        """Return the sessions that are over.

        Args:
            sightings: all sessions, as a look found them at `now_s`.
            now_s: seconds of a clock that goes on while this process is stopped.
        """
        pause_s, self._looked_s = now_s - self._looked_s, now_s
        since: dict[int, tuple[int, float]] = {}
        over: list[Sighting] = []
        for sighting in sightings:
            beat, first_s = self._since.get(sighting.id, (-1, now_s))
            if beat != sighting.beat or pause_s > sighting.timeout_ms / 1000 * BREAK:
                first_s = now_s
            since[sighting.id] = sighting.beat, first_s
            if now_s - first_s >= sighting.timeout_ms / 1000:
                over.append(sighting)
        self._since = since
        return over


def this_process() -> str:
    """Return an id that no other process ever has: the machine, the pid and the start time; empty if unknown."""
    machine = _machine()
    return f"{machine}/{os.getpid()}/{_began(os.getpid())}" if machine else ""


def is_gone(process: str) -> bool:
    """Return whether the process with this id has ended for certain; False for a process of another machine."""
    rest, _, began = process.rpartition("/")
    machine, _, pid = rest.rpartition("/")
    if not machine or machine != _machine():
        return False
    found = _began(int(pid))
    if found:
        return found != began
    try:
        os.kill(int(pid), 0)  # /proc may hide a process of another user, and this call still finds it
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _machine() -> str:
    """Return the id of the machine's boot and of the pid namespace, which differs between containers; empty if
    unknown."""
    try:
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def _began(pid: int) -> str:
    """Return a process's start in ticks since the boot; "ended" for a zombie, empty for a process out of sight."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()  # the name before the bracket may hold any character
    return "ended" if fields[0] in ("Z", "X") else fields[19]
