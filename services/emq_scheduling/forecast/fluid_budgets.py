"""The units that the limits of a pool leave for a step of a fluid simulation.

A fluid simulation counts tasks instead of running each, so an amount may be a fraction. A budget belongs to one limit,
or to the same limit of several equal resources together. Before a step of `dt` seconds it returns the units left for
this step; afterwards it counts the used ones. Times are seconds from the beginning of the simulation.

- per second: the amount times dt;
- per minute and hour, and a rolling day: the amount, less the units used since one period before the end of the step.
  The past is kept as a line of (time, units so far), so a burst comes back one period later, as with real limits. Less
  urgent tasks get the amount evenly. Minutes and hours of the calendar count as rolling ones;
- per day of the calendar: the amount less the units used since midnight; no step goes beyond a midnight;
- of a bucket: the units that it holds, and those that come in the step;
- in flight: the amount less the units that still run at the end of the step.
"""

from __future__ import annotations

import bisect
import math

from emq_scheduling.model import PERIODS_S


class Line:
    """A sum that only grows, as a function of time; straight between its points."""

    __slots__ = ("sums", "times")

    def __init__(self, since: float = 0.0, before: float = 0.0) -> None:
        """Begin at time 0 with the sum `before`, which grew evenly since `since`."""
        self.times, self.sums = ([since, 0.0], [0.0, before]) if since < 0 else ([0.0], [before])

    def add(self, time: float, units: float) -> None:
        """Let the sum grow by so many units from the last point until `time`."""
        self.times.append(time)
        self.sums.append(self.sums[-1] + units)

    def since(self, time: float) -> float:
        """Return by how much the sum has grown since `time`."""
        times, sums = self.times, self.sums
        at = bisect.bisect_right(times, time) - 1
        if at < 0:
            return sums[-1]
        if at == len(times) - 1:
            return 0.0
        part = (time - times[at]) / (times[at + 1] - times[at])
        return sums[-1] - sums[at] - (sums[at + 1] - sums[at]) * part


class Budget:
    """Units of one limit with a period.

    Attributes:
        amount: units in each period now, all members together.
        total: units used since the beginning.
        possible: units that the amounts would have allowed since the beginning.
    """

    __slots__ = ("_line", "_period_s", "amount", "possible", "total")

    def __init__(self, period_s: float, amount: float, used: float) -> None:
        self.amount = amount
        self.total = self.possible = 0.0
        self._period_s = period_s
        self._line = Line(-period_s, used) if period_s > 1 else None

    def left(self, now: float, dt: float) -> float:
        """Return the units left for the step from `now` to `now + dt`."""
        if self._line is None or dt >= self._period_s:
            return self.amount * dt / self._period_s
        return max(0.0, self.amount - self._line.since(now + dt - self._period_s))

    def even(self, dt: float) -> float:
        """Return the units for tasks in a step of `dt` which others are more urgent than."""
        return math.inf if self._line is None else self.amount * dt / self._period_s

    def use(self, now: float, dt: float, units: float) -> None:
        """Count the units that the step used."""
        self.total += units
        self.possible += self.amount * dt / self._period_s
        if self._line is not None:
            self._line.add(now + dt, units)


class DayBudget(Budget):
    """Units of a limit per day. `midnight` starts another day."""

    __slots__ = ("_used",)

    def __init__(self, amount: float, used: float) -> None:
        super().__init__(PERIODS_S["day"], amount, used)
        self._line = None
        self._used = used

    def left(self, now: float, dt: float) -> float:
        return max(0.0, self.amount - self._used)

    def use(self, now: float, dt: float, units: float) -> None:
        super().use(now, dt, units)
        self._used += units

    def midnight(self) -> None:
        self._used = 0.0


class BucketBudget(Budget):
    """Units of a bucket, of which `used` are missing at the beginning.

    Attributes:
        most: units that the full bucket holds.
    """

    __slots__ = ("_missing", "most")

    def __init__(self, period_s: float, amount: float, used: float) -> None:
        super().__init__(period_s, amount, used)
        self._line = None
        self._missing = used
        self.most = amount

    def left(self, now: float, dt: float) -> float:
        return max(0.0, self.most - self._missing + self.amount * dt / self._period_s)

    def use(self, now: float, dt: float, units: float) -> None:
        super().use(now, dt, units)
        self._missing = max(0.0, self._missing + units - self.amount * dt / self._period_s)


class FlightBudget(Budget):
    """Units in flight, by the durations of the tasks that hold them. Its `total` is unit seconds.

    Args:
        used: units that run at the beginning; they end evenly over the next `usual_s` seconds.
    """

    __slots__ = ("_lines", "_usual_s")

    def __init__(self, amount: float, used: float, usual_s: float) -> None:
        super().__init__(1.0, amount, 0.0)
        self._usual_s = max(usual_s, 1e-6)
        self._lines: dict[float, Line] = {self._usual_s: Line(-self._usual_s, used)}

    def left(self, now: float, dt: float) -> float:
        running = sum(line.since(now + dt - duration) for duration, line in self._lines.items() if duration > dt)
        return max(0.0, self.amount - running)

    def start(self, now: float, dt: float, units: float, duration: float) -> None:
        """Count units that tasks of that duration took in the step."""
        line = self._lines.get(duration)
        if line is None:
            line = self._lines[duration] = Line()
            if now > 0:
                line.add(now, 0.0)
        elif line.times[-1] < now:
            line.add(now, 0.0)
        line.add(now + dt, units)
        self.total += units * duration

    def use(self, now: float, dt: float, units: float) -> None:
        self.possible += self.amount * dt
