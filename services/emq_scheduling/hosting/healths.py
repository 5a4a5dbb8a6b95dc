"""The health of a pool's resources on its host: what attempts tell of it, and what follows for starts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from emq.runtime import errors
from emq_scheduling.choice.health import Health
from emq_scheduling.choice.matching import Matching
from emq_scheduling.hosting.attempts import Placement, Stopped, describe
from emq_scheduling.limits.accounts import Accounts
from emq_scheduling.model import Pool
from emq_scheduling.outcomes import Overloaded, ResourceFailed, TryNext


class Healths:
    """Passes the health of resources on to accounts and matching.

    Args:
        on_changed: called when resources may start more, or less.

    Attributes:
        known: by resource; without those whose attempts have said nothing.
    """

    def __init__(self, pool: Pool, accounts: Accounts, matching: Matching, on_changed: Callable[[], None]) -> None:
        self.known: dict[str, Health] = {}
        self._pool = pool
        self._accounts = accounts
        self._matching = matching
        self._on_changed = on_changed

    def follow(self, pool: Pool, now: float) -> None:
        """Take over a changed pool."""
        self._pool = pool
        for name in list(self.known):
            resource = pool.resources.get(name)
            if resource is None or not resource.adapts:
                del self.known[name]
                if resource is not None:
                    self.apply(name, Health(), now)

    def look(self, now: float) -> None:
        """Let resources follow the time."""
        for name, health in self.known.items():
            if name in self._pool.resources:
                self.apply(name, health, now)

    def note(self, kind: str, placement: Placement, failure: BaseException | None, now: float) -> None:
        """Give the resource less, or close it, by the outcome of an attempt; `kind`: the task's type."""
        name = placement.resource
        resource = self._pool.resources.get(name)
        if resource is None or not resource.adapts or isinstance(failure, asyncio.CancelledError | Stopped):
            return
        health = self.known.get(name)
        if health is None:
            health = self.known[name] = Health()
        if failure is None or isinstance(failure, errors.Reject | TryNext):
            health.succeeded(placement.at, now, kind)
        elif isinstance(failure, Overloaded):
            health.too_much(placement.at, now, failure.reason, failure.after_s)
        elif isinstance(failure, ResourceFailed):
            health.broken(placement.at, now, failure.reason)
        else:
            health.failed(placement.at, now, describe(failure))
        self.apply(name, health, now)

    def apply(self, name: str, health: Health, now: float) -> None:
        """Pass a resource's present health on."""
        factor = health.factor(now)
        if factor != self._accounts.factor(name):
            self._accounts.set_factor(name, factor, now)
            self._matching.lineups.freed(name, is_refund=True)  # resources that sleep for ever may have room now
            self._on_changed()
        if health.closed_until != self._matching.lineups.closed_until(name):
            self._matching.lineups.close(name, health.closed_until)
            self._on_changed()

    def closed(self, now: float) -> dict[str, str]:
        """Return the reasons of resources that start nothing now, also because of a parent."""
        found = {}
        for name in self._pool.resources:
            for above in self._pool.line(name):
                health = self.known.get(above)
                if self._pool.resources[above].paused:
                    found[name] = "paused" if above == name else f"{above} is paused"
                elif health is not None and health.closed_until > now:
                    found[name] = health.reason if above == name else f"{above}: {health.reason}"
        return found

    def slowed(self, now: float) -> dict[str, str]:
        """Return the reasons of open resources that get less than their limits."""
        found = ((name, health) for name, health in self.known.items() if health.closed_until <= now)
        return {name: health.reason for name, health in found if health.factor(now) < 1}
