"""Gives out places (connections, threads) that many tenants share, by the rules of `emq.quota.places.sharing`."""

from __future__ import annotations

import asyncio
from collections import deque

from emq.quota.places import sharing

KNOWN = 10_000
"""Most tenants without a place whose pace is remembered."""

LOOK_AGAIN_S = 0.25
LOOK_AGAIN = 64
"""Number of waiting tenants to look at again every `LOOK_AGAIN_S` seconds, even if no place became free."""


class _Tenant:
    __slots__ = ("held", "pace", "waiting")

    def __init__(self) -> None:
        self.held = 0
        self.pace = sharing.HoldingTimes()
        self.waiting: deque[asyncio.Future[int]] = deque()


class Places:
    """`capacity` places, given out by `sharing.room`. The requests of one tenant are served in their order.

    The object belongs to one event loop at a time; in another loop all places are free again.

    Attributes:
        used: number of places taken.
        waiting: number of requests that wait for a place.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._loop: asyncio.AbstractEventLoop | None = None
        self._begin()

    def _begin(self) -> None:
        self.used = self.waiting = 0
        self._tenants: dict[str, _Tenant] = {}
        self._crowd: sharing.Crowd[_Tenant] = sharing.Crowd()
        self._looking: asyncio.TimerHandle | None = None

    def take_at_once(self, name: str) -> int | None:
        """Take a place for the tenant `name` as `take` does, if the tenant need not wait.

        Returns:
            What `take` returns; None if the tenant has to wait: then call `take`.
        """
        tenant, now_us = self._tenant(name), self._now_us()
        if tenant.waiting:
            return None
        # Below a quarter no tenant's share is smaller than the free places.
        if self.used * 4 >= self.capacity:
            full_at = sharing.ceiling(self.capacity, tenant.pace.hold_s(now_us))
            if sharing.room(full_at, self.used, tenant.held) <= 0:
                return None
        return self._give(tenant, now_us)

    async def take(self, name: str) -> int:
        """Wait for a place for the tenant `name`, and take it. Safe to cancel: then no place is taken.

        Returns:
            The time at which the place was taken, in microseconds; pass it to `free`.
        """
        tenant = self._tenant(name)
        assert self._loop is not None
        place: asyncio.Future[int] = self._loop.create_future()
        tenant.waiting.append(place)
        self.waiting += 1
        try:
            self._serve(tenant)
            return await place
        except BaseException:  # cancelled, most of all
            if place.done() and not place.cancelled():
                self.free(name, place.result())
            elif place in tenant.waiting:
                tenant.waiting.remove(place)
                self.waiting -= 1
            raise

    def _tenant(self, name: str) -> _Tenant:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            self._begin()
        tenant = self._tenants.get(name)
        if tenant is None:
            self._forget_some()
            tenant = self._tenants[name] = _Tenant()
        return tenant

    def free(self, name: str, taken_us: int) -> None:
        """Give back a place; `taken_us` is the time that `take` returned."""
        tenant = self._tenants.get(name)
        if tenant is None or not tenant.held:
            return  # the place was taken in an event loop that has ended
        self.used -= 1
        tenant.held -= 1
        tenant.pace.ended(taken_us, self._now_us())
        if tenant.waiting:
            self._serve(tenant)
        while self.used <= self._crowd.wakes_at:
            self._serve(self._crowd.first())

    def _serve(self, tenant: _Tenant) -> None:
        while tenant.waiting:
            now_us = self._now_us()
            full_at = sharing.ceiling(self.capacity, tenant.pace.hold_s(now_us))
            if sharing.room(full_at, self.used, tenant.held) <= 0:
                self._crowd.wait(tenant, sharing.used_at_most(full_at, tenant.held))
                if self._looking is None and self._loop is not None:
                    self._looking = self._loop.call_later(LOOK_AGAIN_S, self._look_again)
                return
            self.waiting -= 1
            place = tenant.waiting.popleft()
            if not place.done():
                place.set_result(self._give(tenant, now_us))

    def _give(self, tenant: _Tenant, now_us: int) -> int:
        tenant.pace.began(now_us)
        tenant.held += 1
        self.used += 1
        return now_us

    def _look_again(self) -> None:
        self._looking = None
        for _ in range(min(LOOK_AGAIN, len(self._crowd))):
            self._serve(self._crowd.longest())
        if self._crowd and self._looking is None and self._loop is not None:
            self._looking = self._loop.call_later(LOOK_AGAIN_S, self._look_again)

    def _forget_some(self) -> None:
        """If there are too many tenants, forget the longest known one that holds no place and waits for none."""
        if len(self._tenants) >= KNOWN:
            for name, tenant in self._tenants.items():
                if not tenant.held and not tenant.waiting:
                    del self._tenants[name]
                    return

    def _now_us(self) -> int:
        return int(self._loop.time() * 1e6) if self._loop is not None else 0
