"""Tells by the latest outcomes of calls whether the called thing, such as an endpoint, is out of order, and its rest.

It is out of order if four fifths of the latest calls failed, and five at least, or many in a row. It rests for 5 s;
then one call at a time probes it. Each rest after a failed probe is twice as long, up to 5 minutes.

Pure: times are seconds since the epoch, passed in.
"""

from __future__ import annotations

import math
import random

FAILURES = 5
SHARE = 0.8
"""Something is out of order from this many failures on, if they are this share of the latest calls."""

HALVING_S = 10.0
HALVING_CALLS = 10
"""Half of the former calls are forgotten after this many seconds, or this many calls, whichever takes longer; else few
calls would never count `FAILURES`."""

CLOSED_S = 5.0
MOST_CLOSED_S = 300.0
"""Seconds for which something out of order rests: at first, and at most."""

JITTER = 0.2
"""Rests are longer by a random part of up to this fraction, so that what failed together is not probed together."""


class Breaker:
    """The latest calls of one thing.

    Args:
        most_in_a_row: failures in a row after which it is out of order in any case.

    Attributes:
        good, bad: the latest calls that succeeded and failed, the older ones counting less.
        in_a_row: failures since the last success.
    """

    __slots__ = ("_closed_s", "_counted_at", "_most_in_a_row", "_random", "bad", "good", "in_a_row")

    def __init__(self, most_in_a_row: int, random_: random.Random | None = None) -> None:
        self.good = self.bad = 0.0
        self.in_a_row = 0
        self._most_in_a_row = most_in_a_row
        self._random = random_ or random.Random()
        self._closed_s = CLOSED_S
        self._counted_at = -math.inf

    def fade(self, now: float, call_s: float) -> None:
        """Let former calls fade, before the next one is counted.

        Args:
            call_s: seconds between two calls lately.
        """
        fade = math.exp2(-max(0.0, now - self._counted_at) / max(HALVING_S, HALVING_CALLS * call_s))
        self.good, self.bad, self._counted_at = self.good * fade, self.bad * fade, now

    def succeeded(self) -> None:
        """Count a call that succeeded."""
        self.good += 1
        self.in_a_row = 0

    def failed(self) -> None:
        """Count a call that failed."""
        self.bad += 1
        self.in_a_row += 1

    @property
    def is_out(self) -> bool:
        """Whether the latest calls say that it is out of order."""
        is_share = self.bad >= FAILURES - 0.5 and self.bad >= SHARE * (self.good + self.bad)
        return is_share or self.in_a_row >= self._most_in_a_row

    def rest_s(self, most_s: float = MOST_CLOSED_S) -> float:
        """Return the seconds of the next rest: twice those of the last one, beside a random part."""
        closed_s = min(most_s, self._closed_s)
        self._closed_s = min(MOST_CLOSED_S, 2 * closed_s)
        return closed_s * (1 + JITTER * self._random.random())

    def begin_again(self) -> None:
        """Let the next rest be as short as the first one."""
        self._closed_s = CLOSED_S

    def answers_again(self) -> None:
        """A probe succeeded: forget the failures before it."""
        self.begin_again()
        self.bad = 0.0
        self.in_a_row = 0
