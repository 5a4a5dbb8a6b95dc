"""The deadline until which the calls of a database may wait for its server."""

from __future__ import annotations

import math
import threading
import time


class Deadline:
    """The deadline of the call that a thread works on; one object for each `Database`. Safe to use from any thread."""

    def __init__(self) -> None:
        self._of_thread = threading.local()
        self._at_most = math.inf

    def begin(self, until: float) -> None:
        """Let this thread's next call wait until `until`, in seconds of `time.monotonic`."""
        self._of_thread.until = until

    def cut(self, until: float) -> None:
        """Let no call of any thread wait past `until`, whatever its own deadline."""
        self._at_most = until

    def left_s(self) -> float:
        """Return the seconds that this thread's call may still wait; 0 or less if its deadline has passed."""
        until: float = min(getattr(self._of_thread, "until", math.inf), self._at_most)
        return until - time.monotonic()
