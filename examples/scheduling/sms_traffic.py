"""The world around the SMS platform: a day's arrivals, what the messages say, and how the channels answer."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from typing import NamedTuple

from emq_scheduling import Overloaded, ResourceFailed

# Part of a type's peak in each hour of the day: codes follow people, parcels and invoices follow offices.
CURVES = {
    "verification": "12 8 5 4 5 9 22 45 62 70 74 76 80 78 74 73 76 84 94 100 97 82 52 26",
    "notification": "4 3 3 3 6 18 48 82 100 96 90 84 70 74 78 76 72 64 50 38 26 16 10 6",
    "marketing": "0 0 0 0 0 0 5 30 60 80 100 90 60 50 60 70 90 100 80 60 30 5 0 0",
}
PEAKS = {"verification": 16.0, "notification": 32.0, "marketing": 20.0}
"""Messages a second at the peak."""

FLOOD_AT, FLOOD_HOURS, FLOOD_TIMES = 9.0, 0.5, 20.0
"""A campaign: from this hour, for so many hours, so many times what all channels together send."""


class Trouble(NamedTuple):
    """What is wrong with a channel, from one hour of the day to another."""

    channel: str
    what: str
    since: float
    until: float


TROUBLES = (
    Trouble("us-short-code", "fails", 10.0, 13.0),
    Trouble("uk-long-code", "is slow", 11.0, 14.0),
    Trouble("us-10dlc-1", "asks for less", 14.0, 15.0),
    Trouble("in-direct", "fails", 15.0, 24.0),
)
SLOW_S = 1.6
THROTTLED_PER_S = 6
"""Messages a second above which a channel that asks for less refuses."""


class Day:
    """A day that takes some seconds.

    Args:
        seconds: that it takes.
        capacity: messages a second that all channels together send.
    """

    def __init__(self, seconds: float, capacity: float, seed: int = 7) -> None:
        self.seconds = seconds
        self._capacity = capacity
        self._random = random.Random(seed)

    def hour(self, elapsed_s: float) -> float:
        """Return the hour of the day, 0 to 24, and above once the day is over."""
        return elapsed_s * 24 / self.seconds

    def in_trouble(self, elapsed_s: float) -> set[str]:
        """Return the channels that are in trouble within the next second."""
        since, until = self.hour(elapsed_s), self.hour(elapsed_s + 1)
        return {trouble.channel for trouble in TROUBLES if trouble.since < until and since < trouble.until}

    def rate(self, kind: str, hour: float) -> float:
        """Return the messages of a type that come in a second at an hour of the day."""
        if hour >= 24:
            return 0.0
        shares = [float(share) / 100 for share in CURVES[kind].split()]
        before, after = shares[int(hour)], shares[(int(hour) + 1) % 24]
        rate = PEAKS[kind] * (before + (after - before) * (hour % 1))
        if kind == "marketing" and FLOOD_AT <= hour < FLOOD_AT + FLOOD_HOURS:
            rate += FLOOD_TIMES * self._capacity
        return rate

    def arrivals(self, kind: str, elapsed_s: float, over_s: float) -> int:
        """Return how many messages of a type come within a short time: a sample of a Poisson process."""
        mean = self.rate(kind, self.hour(elapsed_s)) * over_s
        if mean > 30:
            return max(0, round(self._random.gauss(mean, mean**0.5)))
        count, at = 0, self._random.expovariate(1.0)
        while at < mean:
            count, at = count + 1, at + self._random.expovariate(1.0)
        return count

    def payloads(self, kind: str, count: int) -> Iterator[str]:
        """Yield messages. The numbers are in the range that Ofcom keeps free for drama."""
        for _ in range(count):
            to = f"+447700900{self._random.randrange(1000):03}"
            yield json.dumps({"to": to, "text": self._text(kind)})

    def _text(self, kind: str) -> str:
        digits = self._random.randrange(10**6)
        if kind == "verification":
            return f"Your code is {digits:06}. It is valid for 5 minutes. Give it to nobody."
        if kind == "notification":
            return f"Parcel {digits:06} arrives today between 14:00 and 16:00."
        return f"Only this week: 20 % off with code SPRING{digits % 100:02}. Reply STOP to end."


class Gateways:
    """How the channels' operators answer: usually in about 60 ms."""

    def __init__(self, day: Day) -> None:
        self._day = day
        self._random = random.Random(11)
        self._began = 0.0
        self._taken: dict[str, tuple[int, int]] = {}

    def open(self) -> None:
        """Begin the day."""
        self._began = asyncio.get_running_loop().time()

    @property
    def elapsed_s(self) -> float:
        return asyncio.get_running_loop().time() - self._began

    async def send(self, channel: str, payload: bytes) -> str:
        """Send a message; return the operator's number of it.

        Raises:
            ResourceFailed: nobody answers.
            Overloaded: the operator takes less now.
        """
        hour = self._day.hour(self.elapsed_s)
        trouble = next((t.what for t in TROUBLES if t.channel == channel and t.since <= hour < t.until), "")
        if trouble == "fails":
            await asyncio.sleep(0.02)
            raise ResourceFailed("the operator refuses connections")
        if trouble == "asks for less" and self._taken_now(channel) > THROTTLED_PER_S:
            raise Overloaded("the operator answered 429", after_s=0.5)
        await asyncio.sleep(SLOW_S if trouble == "is slow" else 0.06 * self._random.lognormvariate(0.0, 0.4))
        return f"{channel}-{self._random.getrandbits(32):08x}"

    def _taken_now(self, channel: str) -> int:
        second = int(self.elapsed_s)
        at, count = self._taken.get(channel, (second, 0))
        self._taken[channel] = (second, count + 1 if at == second else 1)
        return self._taken[channel][1]
