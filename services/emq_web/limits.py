"""The API's own limits, and their shares for callers: requests a second, requests at once, bytes of bodies.

A caller's *account* is the tenant of the key, so that a tenant gets no more by making more keys. A key without a tenant
is an account of its own. All requests without a valid key are one account, `STRANGERS`. Its requests have turns and
bytes of their own, which addresses share, so that nobody keeps others from signing in to the pages.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from typing import NamedTuple

from emq.quota.bucket import Bucket
from emq.quota.places import sharing
from emq.quota.places.places import Places
from emq_web.problems import Problem

STRANGERS = ""
"""The account of everybody without a valid key."""


class Limits(NamedTuple):
    """Attributes:
    body_bytes: most bytes of a body with messages, tasks or a pool.
    settings_bytes: most bytes of any other body; the event loop takes up to 50 ms for one.
    held_bytes: most bytes of all bodies that are in memory at the same time; one account gets four fifths at most.
    body_s: seconds within which a body must be here.
    at_once: most requests at the same time; see `emq.quota.places.sharing` for what one account gets.
    strangers_at_once: the same for requests without a valid key, whose turns addresses share.
    waiting: most requests of one account, or of one such address, that wait for their turn.
    wait_s: seconds for which a request waits for its turn.
    requests_per_s: most requests of one account a second, on the average; as many more may come at once.
    unknown_per_s: most requests a second of one address with an unknown key.
    strangers_per_s: most requests a second of one address without a valid key.
    sign_ins_per_s, sign_ins_at_once: most tries of one address to sign in to the pages, on the average and at once.
    form_bytes: most bytes of a body without a key, which only the forms of the pages have.
    forms_held_bytes: most bytes of all bodies without a key at the same time.
    """

    body_bytes: int = 8 << 20
    settings_bytes: int = 1 << 20
    held_bytes: int = 128 << 20
    body_s: float = 15.0
    at_once: int = 64
    strangers_at_once: int = 16
    waiting: int = 1_000
    wait_s: float = 5.0
    requests_per_s: float = 1_000.0
    unknown_per_s: float = 50.0
    strangers_per_s: float = 100.0
    sign_ins_per_s: float = 1.0
    sign_ins_at_once: float = 20.0
    form_bytes: int = 64 << 10
    forms_held_bytes: int = 2 << 20


class Rates:
    """Counts requests by name: a token bucket for each.

    Callers are told of it by the headers of draft-ietf-httpapi-ratelimit-headers-11: the bucket is a quota of `q`
    requests, which comes back within `w` seconds; `r` are left of it, and after `t` seconds it is whole again.

    Args:
        per_s: tokens a second.
        at_once: tokens of a full bucket; 0 for those of one second. One at least.
        policy: its name in the headers.
        now_s: monotonic.
    """

    MOST = 10_000
    """Most names in memory; a name that is forgotten begins with a full bucket."""

    def __init__(
        self,
        per_s: float,
        now_s: Callable[[], float] = time.monotonic,
        *,
        at_once: float = 0.0,
        policy: str = "requests",
    ) -> None:
        self._per_s = per_s
        self._most = max(at_once or per_s, 1.0)
        self._now_s = now_s
        self._name = policy
        self._policy = f'"{policy}";q={int(self._most)};w={math.ceil(self._most / per_s)}'
        self._buckets: dict[str, Bucket[float]] = {}

    def take(self, name: str) -> Mapping[str, str]:
        """Count once; return the headers that tell how many are left.

        Raises:
            Problem: the bucket is empty. Its answer has these headers, too.
        """
        bucket = self._check(name)
        if len(self._buckets) >= self.MOST and name not in self._buckets:
            self._buckets.clear()
        self._buckets[name] = bucket
        bucket.take(1)
        return self._told(bucket)

    def _told(self, bucket: Bucket[float]) -> dict[str, str]:
        left = bucket.left
        whole_s = math.ceil((self._most - left) / self._per_s)
        return {"RateLimit-Policy": self._policy, "RateLimit": f'"{self._name}";r={int(left)};t={whole_s}'}

    def check(self, name: str) -> None:
        """Raise as `take`; count nothing."""
        self._check(name)

    def _check(self, name: str) -> Bucket[float]:
        now_s = self._now_s()
        bucket = self._buckets.get(name) or Bucket(self._per_s, self._most, self._most, now_s)
        if bucket.fill(now_s) < 1:
            wait_s = math.ceil(bucket.wait(1))
            text = f"at most {self._per_s:g} requests a second; try again in {wait_s} s"
            raise Problem(429, "too_many_requests", text, headers={"Retry-After": str(wait_s), **self._told(bucket)})
        return bucket


class Turns:
    """Requests at once, shared by accounts like places in flight: the longest holder is held back first."""

    def __init__(self, limits: Limits) -> None:
        self._places = Places(limits.at_once)
        self._waiting: Counter[str] = Counter()
        self._most_waiting = limits.waiting
        self._wait_s = limits.wait_s

    def take_at_once(self, account: str) -> int | None:
        """Take a turn if the request need not wait; as `take`."""
        return self._places.take_at_once(account)

    def free(self, account: str, taken_us: int) -> None:
        """Give back a turn, with what `take` returned."""
        self._places.free(account, taken_us)

    async def take(self, account: str) -> int:
        """Wait for the turn of a request; give it back with `free`.

        Raises:
            Problem: it did not come in time, or too many of the account wait already.
        """
        if self._waiting[account] >= self._most_waiting:
            raise busy("too many of your requests wait for their turn")
        self._waiting[account] += 1
        try:
            async with asyncio.timeout(self._wait_s):
                return await self._places.take(account)
        except TimeoutError:
            raise busy(f"no turn came within {self._wait_s:g} s, since many requests are slow") from None
        finally:
            self._waiting[account] -= 1
            if not self._waiting[account]:
                del self._waiting[account]


class Turn:
    """The turn of one request.

    Args:
        taken_us: as `Turns.take` returned it.
    """

    def __init__(self, turns: Turns, account: str, taken_us: int) -> None:
        self._turns = turns
        self._account = account
        self._taken_us: int | None = taken_us

    def free(self) -> None:
        """Give the turn back. Safe to repeat."""
        taken_us, self._taken_us = self._taken_us, None
        if taken_us is not None:
            self._turns.free(self._account, taken_us)

    @contextlib.asynccontextmanager
    async def lent(self) -> AsyncIterator[None]:
        """Leave the turn to others while the request only waits, for the length of a block.

        Raises:
            Problem: no turn came after the block.
        """
        self.free()
        yield
        self._taken_us = await self._turns.take(self._account)


class Room:
    """Bytes of bodies in memory, shared by accounts: an account may have four times the free ones.

    Attributes:
        used: bytes taken.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: Counter[str] = Counter()
        self.used = 0

    def take(self, account: str, size: int) -> None:
        """Take bytes; give them back with `free`. Raises `Problem` if the account has used up its share."""
        if sharing.room(self._most, self.used, self._held[account]) < size:
            raise busy("the bodies of all your requests together are too large")
        self.used += size
        self._held[account] += size

    def free(self, account: str, size: int) -> None:
        """Give bytes back."""
        self.used -= size
        self._held[account] -= size
        if not self._held[account]:
            del self._held[account]


def busy(what: str) -> Problem:
    """Return the refusal of a request that may be repeated in a second."""
    return Problem(503, "busy", f"{what}; try again in a second", headers={"Retry-After": "1"})
