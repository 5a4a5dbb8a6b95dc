"""Entries that a store could not serve: how long each rests, and how often the log says so."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from emq import errors
from emq.storage.answers import Unexpected

T = TypeVar("T")

log = logging.getLogger(__name__)

RESTS_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""How long an entry rests before it is sent again, by how often it has failed in a row."""

SAID_AGAIN_S = 60.0
"""How long the log is silent about a trouble that it has told of."""

SAID = 1_000
"""Troubles that are remembered as told."""


class Troubles:
    """Of one loop, by the entry's name. An entry that is well costs one look at an empty dict.

    Args:
        waits: what the log says of the entries, as in "deliveries wait".

    Attributes:
        latest: the last error, while any entry has one.
    """

    def __init__(self, waits: str) -> None:
        self._waits = waits
        self._failed: dict[str, int] = {}
        self._alone: set[str] = set()
        self._said: dict[str, float] = {}
        self.latest: str | None = None

    def failed(self, name: str, failure: errors.EMQError) -> float:
        """The entry failed; returns for how many seconds it rests."""
        times = self._failed.get(name, 0)
        self._failed[name] = times + 1
        self.latest = str(failure)
        if isinstance(failure, Unexpected):
            self._alone.add(name)
            self.latest = f"{name}: {failure}"
        self._say(self.latest)
        return RESTS_S[min(times, len(RESTS_S) - 1)]

    def well(self, name: str) -> None:
        """The entry was served, or is not ours any more."""
        if self._failed:
            self._failed.pop(name, None)
            self._alone.discard(name)
            if not self._failed:
                self.latest = None
                self._said.clear()

    def apart(self, entries: Sequence[T], name: Callable[[T], str]) -> list[Sequence[T]]:
        """The entries that are well and those that have failed, each as a call of its own.

        So nothing that is well waits for a server that is known to be slow to fail. What failed unexpectedly goes in
        calls of one entry each, since the cause may be one entry among them.
        """
        if not self._failed:
            return [entries] if entries else []
        well = [entry for entry in entries if name(entry) not in self._failed]
        failed = [entry for entry in entries if name(entry) in self._failed]
        if self._alone:
            singles = [[entry] for entry in failed if name(entry) in self._alone]
            failed = [entry for entry in failed if name(entry) not in self._alone]
            return [part for part in (well, failed, *singles) if part]
        return [part for part in (well, failed) if part]

    def _say(self, text: str) -> None:
        now = time.monotonic()
        if now - self._said.get(text, -SAID_AGAIN_S) >= SAID_AGAIN_S:
            if len(self._said) >= SAID:
                self._said.clear()
            self._said[text] = now
            log.warning("%s; %s, and are tried again every few seconds", text, self._waits)
