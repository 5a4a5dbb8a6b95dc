"""Logs a trouble once, not at each repeat.

`Troubles` also remembers the entries that a store could not serve, and lets each rest.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from emq.runtime import errors

T = TypeVar("T")

log = logging.getLogger(__name__)

RESTS_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds that an entry rests before it is sent again, by the number of its failures in a row."""

SAID_AGAIN_S = 60.0
"""Seconds before the log repeats the same error."""

SAID = 1_000
"""Most errors remembered as logged."""


class Unexpected(errors.OutcomeUnknown):
    """A call failed with an error that a driver should not raise; one of its entries may be the cause.

    The caller sends each entry alone next time, so that one bad entry does not fail the others again.
    """


class Troubles:
    """The failed entries of one loop, by name. A healthy entry costs one look at an empty dict.

    Args:
        waits: the clause of the log about the entries, such as "deliveries wait".

    Attributes:
        latest: the last error while any entry has failed; else None.
    """

    def __init__(self, waits: str) -> None:
        self._waits = waits
        self._failed: dict[str, int] = {}
        self._alone: set[str] = set()
        self._said: dict[str, float] = {}
        self.latest: str | None = None

    def failed(self, name: str, failure: errors.EMQError) -> float:
        """Note that the entry failed; return the seconds that it must rest."""
        times = self._failed.get(name, 0)
        self._failed[name] = times + 1
        self.latest = str(failure)
        if isinstance(failure, Unexpected):
            self._alone.add(name)
            self.latest = f"{name}: {failure}"
        self._say(self.latest)
        return RESTS_S[min(times, len(RESTS_S) - 1)]

    def well(self, name: str) -> None:
        """Note that the entry was served, or belongs to another host now."""
        if self._failed:
            self._failed.pop(name, None)
            self._alone.discard(name)
            if not self._failed:
                self.latest = None
                self._said.clear()

    def apart(self, entries: Sequence[T], name: Callable[[T], str]) -> list[Sequence[T]]:
        """Split entries into healthy ones and failed ones, to be sent in separate calls.

        So no healthy entry waits for a server that is known to fail slowly. Entries that failed unexpectedly go in
        calls of one entry each, since a single one of them may be the cause.
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
            log.warning("%s; %s, and EMQ tries again every few seconds", text, self._waits)


class Complaint:
    """Logs a trouble once, until something works again. Texts that differ only behind a semicolon are the same trouble.

    Attributes:
        said: the trouble; empty once something has worked again.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self.said = ""

    def say(self, text: str) -> None:
        """Log the text as a warning, unless the last one told of the same trouble."""
        trouble = text.partition(";")[0]
        if trouble != self.said:
            self.said = trouble
            self._log.warning("%s", text)

    def over(self) -> None:
        """Note that something has worked again, so that the next trouble is logged."""
        self.said = ""
