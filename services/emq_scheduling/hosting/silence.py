"""Finds tasks that run and have not beaten for longer than their type's `beats_within_s`."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar

LOOK_S = 0.25
"""Seconds between looks."""

STALL_S = 1.0
"""Most seconds that count between two looks: what is beyond is no silence of the tasks, since the whole process was
stopped, or busy, and no task could beat."""

K = TypeVar("K", bound=Hashable)


class Beating(Protocol):
    """An attempt: `emq_scheduling.hosting.attempts.Run`."""

    beats: int
    is_over: bool


class _Watched:
    __slots__ = ("beats", "heard_s", "run", "within_s")

    def __init__(self, run: Beating, within_s: float, now_s: float) -> None:
        self.run = run
        self.within_s = within_s
        self.beats = run.beats
        self.heard_s = now_s


class Silence(Generic[K]):
    """The running tasks whose types have a `beats_within_s`.

    It counts by the event loop's clock, not by that on the wall: a clock that jumps changes nothing.
    """

    def __init__(self) -> None:
        self._watched: dict[K, _Watched] = {}
        self._now_s = 0.0  # of a clock that does not count stalls
        self._looked_at = math.inf

    def watch(self, key: K, run: Beating, within_s: float) -> None:
        """Watch an attempt that starts."""
        if not self._watched:
            self._looked_at = asyncio.get_running_loop().time()
        self._watched[key] = _Watched(run, within_s, self._now_s)

    def look(self) -> list[K]:
        """Return the attempts that have been silent for too long, each once; call it often."""
        now = asyncio.get_running_loop().time()
        if not self._watched or now < self._looked_at + LOOK_S:
            return []
        self._now_s += min(now - self._looked_at, STALL_S)
        self._looked_at = now
        found = []
        self._watched = {key: watched for key, watched in self._watched.items() if not watched.run.is_over}
        for key, watched in self._watched.items():
            if watched.beats != watched.run.beats:
                watched.beats, watched.heard_s = watched.run.beats, self._now_s
            elif self._now_s - watched.heard_s > watched.within_s:
                found.append(key)
        for key in found:
            del self._watched[key]
        return found
