"""Counts of deliveries by handler, for the metrics. A host without metrics keeps none of them."""

from __future__ import annotations

from collections.abc import Iterator

MAX_HANDLERS = 200
"""Most patterns counted apart; all others are counted together."""

SIZES = 64
"""Sizes of a time: its number of bits in microseconds. 63 bits are 292,000 years."""

QUICK_BITS = 5
QUICK_US = 1 << QUICK_BITS
"""A handler that returns within this many microseconds is quick: its time is counted with those of other quick
messages."""

OTHERS = "(others)"
RECEIVERS = "(receivers)"
NO_HANDLER = "(none)"


class Deliveries:
    """The deliveries to one handler, over all topics of its pattern.

    Times are counted by their *size*, the number of bits of their microseconds. So the sizes are powers of two of a
    microsecond.

    A message costs a host two microseconds, so counting it must cost nearly nothing. The dispatcher starts up to 64
    messages in a *visit*, and calls `open` before the first and `close` after the last. In between it only compares.
    Messages that were read together became ready at the same time, so their waits have the same size until the
    dispatcher calls `turn`. Handlers count as quick until it calls `slow`. The number of messages follows from the
    dispatcher's counter of starts, `started`.

    The counts of all sizes are exact. The sum of the waits assumes that quick messages between two calls start evenly
    spread. So it may be off by a quarter of a millisecond for each message, mostly by far less.

    Attributes:
        pattern: the handler's pattern.
        waits: counts of the times from ready in the buffer to start, by size. Their sum is the number of starts.
        waited_us: sum of these times, in microseconds.
        runs: counts of the times from start to the handler's end, by size; quick ones under `QUICK_BITS`. Each message
            of a batch counts with the time of the batch. Their sum is the number of deliveries that ended.
        ran_us: sum of these times, in microseconds.
        failed: deliveries that failed.
        retried: messages that failed and are tried again.
        dead: messages that went to the dead letters, without expired ones.
        expired: messages that had outlived their time to live.
        ready_us: when the messages that start now became ready; no message's time before a visit's first message.
        until_us: from then on, the waits of these messages have the next size.
    """

    enabled = True

    __slots__ = (
        "_ended",
        "_first_us",
        "_is_open",
        "_quick_us",
        "_size",
        "_turned",
        "dead",
        "expired",
        "failed",
        "pattern",
        "ran_us",
        "ready_us",
        "retried",
        "runs",
        "until_us",
        "waited_us",
        "waits",
    )

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.waits = [0] * SIZES
        self.runs = [0] * SIZES
        self.waited_us = self.ran_us = 0
        self.failed = self.retried = self.dead = self.expired = 0
        self.ready_us, self.until_us = -1, 0
        self._is_open = False
        self._turned = 0  # `started` at the last turn
        self._first_us = 0  # the first start since then
        self._size = 0  # of the waits since then
        self._ended = 0  # `started`, less the deliveries of this visit that are not counted in `runs` yet
        self._quick_us = 0  # when the first of these started

    def open(self, started: int, now_us: int) -> None:
        """Begin a visit: the next start is number `started` + 1."""
        self._is_open = True
        self._turned = self._ended = started
        self._first_us = self._quick_us = now_us
        self.ready_us, self.until_us = -1, 0

    def turn(self, started: int, ready_us: int, now_us: int) -> None:
        """The message that starts now became ready at another time, or its wait has another size."""
        self._count_waits(started, self._last_us(started, now_us))
        self._turned, self._first_us = started, now_us
        self._size = (now_us - ready_us).bit_length()
        self.ready_us, self.until_us = ready_us, ready_us + (1 << self._size)

    def slow(self, started: int, began_us: int, now_us: int) -> None:
        """The latest message, which began at `began_us`, has ended now without being quick."""
        self._count_waits(started, began_us)
        self._turned, self.ready_us = started, -1
        self._count_quick(started - 1, began_us)
        self._ended, self._quick_us = started, now_us
        self.ended(now_us - began_us)

    def close(self, started: int, now_us: int, running: bool) -> None:
        """End the visit. If the latest message is still `running`, it began at `now_us`, and `ended` counts its end."""
        if self._is_open:
            self._is_open = False
            self._count_waits(started, now_us if running else self._last_us(started, now_us))
            self._count_quick(started - running, now_us)

    def began(self, ready_us: int, now_us: int) -> None:
        """Count a start outside of a visit."""
        self.waits[(now_us - ready_us).bit_length()] += 1
        self.waited_us += now_us - ready_us

    def ended(self, took_us: int, n: int = 1) -> None:
        """Count `n` deliveries as ended that took `took_us` microseconds each."""
        self.runs[took_us.bit_length()] += n
        self.ran_us += took_us * n

    def count_failed(self) -> None:
        """Count a delivery that failed."""
        self.failed += 1

    def count_retried(self) -> None:
        """Count a message that failed and is tried again."""
        self.retried += 1

    def count_dead(self, is_expired: bool) -> None:
        """Count a message that went to the dead letters."""
        self.dead += not is_expired
        self.expired += is_expired

    def _last_us(self, started: int, now_us: int) -> int:
        """Return about when the latest message, which was quick and has ended now, started."""
        return now_us - (now_us - self._first_us) // max(1, started - self._turned)

    def _count_waits(self, started: int, last_us: int) -> None:
        """Count the starts since the last turn; the latest one was at `last_us`."""
        if n := started - self._turned:
            self.waits[self._size] += n
            self.waited_us += n * (self._first_us - self.ready_us) + (last_us - self._first_us) * n // 2

    def _count_quick(self, started: int, now_us: int) -> None:
        if n := started - self._ended:
            self.runs[QUICK_BITS] += n
            self.ran_us += now_us - self._quick_us


class NullDeliveries(Deliveries):
    """Counts nothing, on a host without metrics. Check `enabled` first where a call for each message costs time."""

    enabled = False

    __slots__ = ()

    def open(self, started: int, now_us: int) -> None:
        pass

    def close(self, started: int, now_us: int, running: bool) -> None:
        pass

    def began(self, ready_us: int, now_us: int) -> None:
        pass

    def ended(self, took_us: int, n: int = 1) -> None:
        pass

    def count_failed(self) -> None:
        pass

    def count_retried(self) -> None:
        pass

    def count_dead(self, is_expired: bool) -> None:
        pass


UNCOUNTED = NullDeliveries("(none)")


class HandlerDeliveries:
    """The deliveries of a host by the pattern of the handler, at most `most` patterns apart."""

    def __init__(self, most: int = MAX_HANDLERS) -> None:
        self._most = most
        self._by_pattern: dict[str, Deliveries] = {}

    def __iter__(self) -> Iterator[Deliveries]:
        return iter(list(self._by_pattern.values()))

    def of(self, pattern: str) -> Deliveries:
        """Return the counts of that pattern, or those of all others once `most` patterns are counted apart."""
        found = self._by_pattern.get(pattern)
        if found is None:
            own = len(self._by_pattern) < self._most or pattern.startswith("(")  # a name of EMQ or of an extension
            name = pattern if own else OTHERS
            found = self._by_pattern.get(name) or Deliveries(name)
            self._by_pattern[name] = found
        return found
