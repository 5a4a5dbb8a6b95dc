"""The matching of a pool on a virtual clock."""

from __future__ import annotations

import itertools

from emq_scheduling.choice.keeping import Keeping
from emq_scheduling.choice.matching import Matching, Start
from emq_scheduling.choice.waiting import Waiting
from emq_scheduling.limits.accounts import Accounts
from emq_scheduling.model import Costs, Pool
from emq_scheduling.tasks import Task


class Bench:
    """A matching on a virtual clock, which starts at the beginning of a second."""

    def __init__(self, pool: Pool, now: float = 1000.0, seed: int = 1) -> None:
        self.pool = pool
        self.now = now
        self.accounts = Accounts(pool, now)
        self.keeping = Keeping(pool, self.accounts, now)
        self.matching = Matching(pool, self.keeping)
        self.ids = itertools.count()

    def add(
        self,
        kind: str,
        count: int = 1,
        *,
        tenant: str = "",
        deadline: float | None = None,
        costs: Costs | None = None,
        key: str | None = None,
        keys: dict[str, str] | None = None,
        at: float | None = None,
    ) -> list[Waiting]:
        added = []
        for _ in range(count):
            number = next(self.ids)
            submitted_us = int((self.now if at is None else at) * 1e6) + number
            task = Task(
                f"{kind}-{number}",
                "p",
                kind,
                tenant,
                key,
                b"",
                1,
                submitted_us,
                deadline=deadline,
                costs=costs,
                keep=key is not None,
                keys=keys,
            )
            added.append(Waiting(task, 0))
            self.matching.add(added[-1], self.now)
        return added

    def run(self) -> list[Start]:
        """Start all that may start now."""
        found: list[Start] = []
        while some := self.matching.run(self.now, 16):
            found += some
        return found

    def end(self, start: Start) -> None:
        """A task that was started ends."""
        start.charge.end(self.now)
        self.matching.freed(start.charge, self.now, is_refund=False)

    def until(self, end: float) -> list[tuple[float, Start]]:
        """Go on until then; return the starts with their times."""
        found = [(self.now, start) for start in self.run()]
        while (at := self.matching.next_at(self.now)) < end:
            self.now = max(at, self.now + 1e-6)
            found += [(self.now, start) for start in self.run()]
        self.now = end
        return found
