"""What the urgent leave of one limit to the less urgent; see `emq_scheduling.choice.keeping`.

A `Spread` measures the use of a limit by each level, and says how long a less urgent task should wait for it.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping

from emq.quota.bucket import Bucket
from emq_scheduling.limits import calendars
from emq_scheduling.limits.account import Key
from emq_scheduling.limits.limits import BucketMeter, DayMeter, EvenMeter, Meter
from emq_scheduling.limits.quote import Quote
from emq_scheduling.model import DEFAULT_COST, PERIODS_S

RELEASE = 0.98
"""Part of a second from which on nothing is kept: two hundredths are enough to use the kept room."""

BURST_S = 0.1
"""Seconds of a limit per second that less urgent tasks may use at once."""

HALF_LIFE_S = 30.0
"""Time after which a unit counts half in the rate of its level."""

DAY_HALF_LIFE_S = 3600.0
"""The same for quotas of a day, for which a short burst means little."""

MOST_OF_DAY = 0.5
"""Largest part of the rest of a day's quota that is kept for more urgent tasks."""

KEPT = 0.01
"""Part of a longer limit that is always kept for more urgent tasks, if it is enough for one of cost 1."""

LEAST = 1e-3
"""Units a second below which more urgent tasks count as none."""

LOOK_AGAIN_S = 0.02
"""Time after which a task looks again for room that is kept."""

LONG_S = 1.0
"""Most seconds after which it does so: less may be kept by then, or units may have been given back."""

DAY_AGAIN_S = 60.0
"""The same for room that is kept of a day's quota, in seconds."""

DAY_S = PERIODS_S["day"]


class Rate:
    """Units a second of one level, the older ones counting less.

    Args:
        half_life_s: time after which a unit counts half.
    """

    __slots__ = ("at", "half_life_s", "per_s", "size")

    def __init__(self, now: float, half_life_s: float) -> None:
        self.at = now
        self.half_life_s = half_life_s
        self.per_s = 0.0
        self.size = 0.0

    def count(self, units: float, now: float) -> None:
        self.per_s = self.value(now) + units * math.log(2) / self.half_life_s
        self.size += (units - self.size) * 0.1 if self.size else units
        self.at = now

    def value(self, now: float) -> float:
        return self.per_s * math.exp2(min(0.0, self.at - now) / self.half_life_s)


class Spread(abc.ABC):
    """One limit of one account: the use by each level."""

    __slots__ = ("_key", "_meter", "_most_urgent", "_quotes", "_rates")

    half_life_s = HALF_LIFE_S

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._most_urgent: float = math.inf
        self._rates: dict[float, Rate] = {}
        self._quotes: Mapping[Key, Quote] = {}
        self._key: Key = ("", "second")

    def heed(self, quotes: Mapping[Key, Quote], key: Key) -> None:
        """Also keep room of what providers say is left of a limit.

        Args:
            quotes: of the resource, now and later.
        """
        self._quotes, self._key = quotes, key

    def follow(self, meter: Meter, most_urgent: float) -> None:
        """Take over the meter, and the level of the most urgent type that may be charged to it."""
        self._meter, self._most_urgent = meter, most_urgent

    def count(self, level: float, units: float, now: float) -> None:
        """Count a start of a level."""
        rate = self._rates.get(level)
        if rate is None:
            rate = self._rates[level] = Rate(now, self.half_life_s)
        rate.count(units, now)

    def wait_s(self, level: float, units: float, now: float) -> float:
        """Return 0 if a task of the level may use `units`, which fit; else the seconds until it should ask again."""
        if level <= self._most_urgent:
            return 0.0
        rate = size = 0.0
        for other, of in self._rates.items():
            if other < level and (value := of.value(now)) > LEAST:
                rate += value
                size = max(size, of.size)
        wait_s = self._wait_s(units, now, rate, size)
        quote = self._quotes.get(self._key) if self._quotes else None
        return wait_s if quote is None else max(wait_s, self._quote_wait_s(quote, units, now, rate, size))

    def _quote_wait_s(self, quote: Quote, units: float, now: float, rate: float, size: float) -> float:
        """As `_wait_s`, for what a provider says is left until its reset."""
        found = quote.left(now)
        if found is None:
            return 0.0
        left, until = found
        kept = KEPT * self._meter.amount
        if rate:
            soon = rate * (until - now)
            kept = max(kept, size, soon + 2.0 * math.sqrt(soon * size))
        elif kept < DEFAULT_COST:
            return 0.0
        return 0.0 if left - units >= kept else min(LONG_S, max(LOOK_AGAIN_S, until - now))

    @abc.abstractmethod
    def _wait_s(self, units: float, now: float, rate: float, size: float) -> float:
        """See `wait_s`.

        Args:
            rate: units a second that more urgent tasks have used lately; 0 if none did.
            size: of the largest of these tasks.
        """


class SecondSpread(Spread):
    """Of a second of the clock: a token bucket for the less urgent, and kept room, which is released at its end."""

    __slots__ = ("_bucket",)

    def __init__(self, meter: Meter, now: float) -> None:
        super().__init__(meter)
        self._bucket = Bucket(meter.amount, self._burst, 0.0, now)

    def count(self, level: float, units: float, now: float) -> None:
        super().count(level, units, now)
        left = self._filled(now).left
        is_rest = now % 1.0 >= RELEASE  # of a second, used all at once
        self._bucket.take(min(units, max(left, 0.0) if is_rest else left + self._meter.amount))

    def _wait_s(self, units: float, now: float, rate: float, size: float) -> float:
        phase = now % 1.0
        if phase >= RELEASE:
            return 0.0
        bucket = self._filled(now)
        release_s = RELEASE - phase  # then it may start in spite of kept room
        if (refill_s := bucket.wait(min(units, bucket.most))) > 0:
            return max(1e-3, min(refill_s, release_s))
        soon = rate * (1.0 - phase)
        kept = soon + 2.0 * math.sqrt(soon * size) + (size if rate else min(units, DEFAULT_COST))
        if self._meter.room(now) - units >= min(kept, self._meter.amount - units):
            return 0.0
        return max(1e-3, min(LOOK_AGAIN_S, release_s))

    @property
    def _burst(self) -> float:
        return max(1.0, self._meter.amount * BURST_S)

    def _filled(self, now: float) -> Bucket[float]:
        """Return the bucket with the tokens of now, at the rate of the meter's present amount."""
        if now < self._bucket.filled_at:  # the clock was put back
            self._bucket = Bucket(self._meter.amount, self._burst, self._bucket.left, now)
        self._bucket.follow(self._meter.amount, self._burst, now)
        return self._bucket


class EvenSpread(Spread):
    """Of rolling limits, of minutes and hours of the clock, and of buckets: even use, and a little kept room.

    The use of the less urgent follows an even rate, that of the urgent counted in. So the window never fills in lumps,
    which would leave it in lumps, and only the few units that the urgent use within a second need to be kept.
    """

    __slots__ = ()

    def _wait_s(self, units: float, now: float, rate: float, size: float) -> float:
        meter = self._meter
        if isinstance(meter, EvenMeter) and (ahead_s := meter.evenness.wait_s(now)) > 0:
            return max(1e-3, ahead_s)
        most = meter.most if isinstance(meter, BucketMeter) else meter.amount
        kept = KEPT * most
        if rate:
            kept = max(kept, size + 2.0 * math.sqrt(rate * size))
        elif kept < DEFAULT_COST:
            return 0.0
        wanted = min(units + kept, most)
        if meter.room(now) >= wanted - meter.slack:
            return 0.0
        return min(LONG_S, max(LOOK_AGAIN_S, meter.next_at(wanted, now) - now))


class DaySpread(Spread):
    """Of a day: the less urgent may use it at once, but for what the more urgent will probably use until its end."""

    __slots__ = ("_day_ends",)

    half_life_s = DAY_HALF_LIFE_S

    def __init__(self, meter: DayMeter) -> None:
        super().__init__(meter)
        self._day_ends = -math.inf

    def _wait_s(self, units: float, now: float, rate: float, size: float) -> float:
        if not rate:
            return 0.0
        left_s = self._day_left_s(now)
        kept = min(rate * left_s, MOST_OF_DAY * self._meter.amount * left_s / DAY_S)
        return 0.0 if self._meter.room(now) - units >= kept else DAY_AGAIN_S

    def _day_left_s(self, now: float) -> float:
        """Return the seconds until the day of the meter ends."""
        assert isinstance(self._meter, DayMeter)
        if not self._day_ends - 2 * DAY_S < now < self._day_ends:
            zone = self._meter.zone
            self._day_ends = calendars.day_start(zone, calendars.day_at(zone, now) + 1)
        return self._day_ends - now


def spread_of(meter: Meter, now: float, former: Spread | None) -> Spread:
    """Return the spread of a meter: the former one, if the limit still counts in the same way."""
    if isinstance(meter, DayMeter):
        return former if isinstance(former, DaySpread) else DaySpread(meter)
    if isinstance(meter, EvenMeter | BucketMeter):
        return former if isinstance(former, EvenSpread) else EvenSpread(meter)
    return former if isinstance(former, SecondSpread) else SecondSpread(meter, now)


def released_at(now: float) -> float:
    """Return when the room that is kept of a second is given to less urgent tasks next."""
    released = math.floor(now) + RELEASE
    return released if now < released else released + 1.0
