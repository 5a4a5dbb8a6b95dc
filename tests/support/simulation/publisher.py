"""Publishers that publish all the time."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any

from emq.producer import Producer
from emq.runtime import errors
from emq.storage import folds
from emq.topics.model import Kind
from support.simulation import folding
from support.simulation.evidence import Evidence
from support.simulation.plans import TopicPlan
from support.simulation.work import Work


class Publisher:
    """Publishes to one topic at about its rate, one message after the other, until it is told to stop."""

    def __init__(self, producer: Producer, plan: TopicPlan, evidence: Evidence, seed: int) -> None:
        self._producer = producer
        self._plan = plan
        self._evidence = evidence
        self._rng = random.Random(f"{seed} {plan.name}")
        self._probing = random.Random(f"{seed} {plan.name} probes")
        self._merges = random.Random(f"{seed} {plan.name} merges")
        self._numbers = itertools.count()

    async def run(self, until_s: float) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < until_s:
            for _ in range(self._rng.choice((1, 1, 1, 5))):
                await self._publish()
            await asyncio.sleep(self._rng.expovariate(self._plan.rate / 2))

    async def _publish(self) -> None:
        rng, plan = self._rng, self._plan
        fails = 0
        if rng.random() < plan.failing:
            fails = 99 if rng.random() * plan.failing < plan.doomed else rng.randint(1, 2)
        takes_ms = rng.randint(20, 2_500) if rng.random() < plan.slow else rng.choice((0, 0, 0, 2))
        if plan.ends_at_its_timeout(takes_ms):
            takes_ms += 200  # near a tie either may come first, and the evidence cannot tell which
        if plan.outlives(takes_ms):
            fails = 99
        key = f"k{rng.randrange(plan.keys)}" if plan.keys else ""
        work = Work(f"{plan.name}#{next(self._numbers)}", fails, takes_ms, key)
        priority: str | float | None = ("high", "mid", "low")[hash_of(key or work.name) % 3]
        if plan.kind is Kind.PRIORITY:
            priority = float(rng.randint(17, 40))
        elif plan.kind is not Kind.LOG:
            priority = None
        delay_ms = rng.uniform(100, 4_000) if rng.random() < plan.delayed else None
        await self._send(work, priority, delay_ms)

    async def probe(self, priority: str | float | None = None, delay_ms: float | None = None) -> tuple[str | None, str]:
        """Publish one message whose handler does not wait and succeeds; without a priority, the plan's or any.

        Returns:
            Its id, or None if it was not published, and the name of its work.
        """
        rng, plan = self._probing, self._plan
        key = f"k{rng.randrange(plan.keys)}" if plan.keys else ""
        work = Work(f"{plan.name}#{next(self._numbers)}", key=key)
        if plan.kind is Kind.PRIORITY:
            priority = float(rng.randint(17, 40))
        elif plan.kind is not Kind.LOG:
            priority = None
            if plan.kind is Kind.FIXED_TIME and delay_ms is None:
                delay_ms = 1.0
        elif plan.keys or priority is None:  # those of a key have one priority, which keeps them in order
            priority = ("high", "mid", "low")[hash_of(key or work.name) % 3]
        return await self._send(work, priority, delay_ms), work.name

    def _body(self, work: Work) -> bytes:
        """The work itself; of a topic with merge keys, what its fold works on."""
        plan = self._plan
        if not plan.merges:
            return work.payload()
        if plan.options["fold"] in folds.NUMERIC:
            return b"%d" % self._merges.randint(-9, 99)
        return f"{work.name}\n{self._merges.choice(('red', 'green'))}".encode()

    def _merging(self, work: Work) -> dict[str, Any]:
        if not self._plan.merges:
            return {}
        return {"merge_key": f"m{self._merges.randrange(self._plan.merging)}", "headers": {folding.WORK: work.name}}

    async def _send(self, work: Work, priority: str | float | None, delay_ms: float | None) -> str | None:
        confirmed, id_ = False, None
        self._evidence.published[work.name] = work, False
        try:
            id_ = await self._producer.publish(
                *(self._plan.name, self._body(work)),
                key=work.key or None,
                priority=priority,
                delay_ms=delay_ms,
                **self._merging(work),
            )
            confirmed = True
            self._evidence.confirmed_at[work.name] = self._evidence.now
        except (errors.StoreUnavailable, errors.DatabaseUnavailable, errors.UnknownTopic) as exc:
            self._evidence.note(self._plan.name, f"{work.name} may not have been published: {exc}")
            self._evidence.happened["publish in doubt"] += 1
        except (errors.StoreFull, errors.TopicFull) as exc:
            self._evidence.note(self._plan.name, f"{work.name} was not published: {exc}")
            self._evidence.happened["publish refused"] += 1
        self._evidence.published[work.name] = work, confirmed
        return id_


def hash_of(text: str) -> int:
    """Return a hash that is the same in every process, unlike `hash`."""
    return sum(text.encode())
