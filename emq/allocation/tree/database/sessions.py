"""Which sessions of others are over: those that nobody heard of for too long, and those of processes that are gone."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable

from emq.allocation.tree.database.nodes import Sighting

BREAK = 1 / 3
"""Of the time-out: who has not looked for longer has seen nothing meanwhile, and begins to watch anew."""


class Watchman:
    """Sees sessions end, by its own clock alone.

    A session is over when its beat stood still for its time-out while this process looked again and again. So no clock
    of another machine counts, nor a jump of the database's; and after an outage of the database, or of this process,
    every session has its full time-out again, since nobody could be heard meanwhile.
    """

    def __init__(self) -> None:
        self._since: dict[int, tuple[int, float]] = {}
        self._looked_s = float("-inf")

    def over(self, sightings: Iterable[Sighting], now_s: float) -> list[Sighting]:
        """Sessions that are over, by what was found at `now_s` seconds of a clock that counts also while stopped."""
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
    """Where this process runs and when it began, as no other one does; empty where that cannot be told."""
    machine = _machine()
    return f"{machine}/{os.getpid()}/{_began(os.getpid())}" if machine else ""


def is_gone(process: str) -> bool:
    """Whether a process, by its `this_process`, is known to have ended; False for one of another machine."""
    rest, _, began = process.rpartition("/")
    machine, _, pid = rest.rpartition("/")
    if not machine or machine != _machine():
        return False
    found = _began(int(pid))
    if found:
        return found != began
    try:
        os.kill(int(pid), 0)  # a process of another user may be hidden, but not from this
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _machine() -> str:
    """This run of this machine, and the processes that are visible here; containers differ in these."""
    try:
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def _began(pid: int) -> str:
    """When a process began, in ticks since the machine did; "ended" if it is a zombie, empty if it cannot be seen."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()  # the name before may hold anything
    return "ended" if fields[0] in ("Z", "X") else fields[19]
