"""Load on sorted topics of all kinds, and the account of it: what was published, delivered, settled, and is left."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import emq
from emq.observe import dead_letters
from emq.runtime import errors
from emq.storage import slot_store
from emq.storage.slot_store import SlotVerdict
from support.waiting import until

TOPICS: dict[str, dict[str, Any]] = {
    "range": {"kind": "range_merge", "time_range_ms": 20},
    "prio": {"kind": "priority", "ordering": "none"},
    "fixed": {"kind": "fixed_time", "precision": "millisecond", "merge": "key", "ordering": "key"},
    "sums": {"kind": "priority", "merge": "key", "fold": "sum"},
}
UNIQUE = ("range", "prio", "fixed")
"""Topics whose messages are each published once; those of `sums` are published again and again, and merge."""

QPS = 300.0
KEYS = 8
PREPARE_TIMEOUT_S = 1.0

Sent = tuple[str, str]
"""Topic and name of a message."""


class Load:
    """An app that publishes to all topics and consumes them.

    One message in ten fails at first, one in twenty-five is rejected. Deliveries are counted by attempt, and verdicts
    by the claim's token, so that nothing can be settled twice unseen. What is published to `sums` are ones; whatever
    merges and fails, the sum of what was handled is how many were published.

    Attributes:
        known, unknown, refused: by what became of their publishes.
        starts: by topic, name and attempt.
        done: by topic and name.
        settled: verdicts that were carried out, by slot, member, token and verdict; a member that is tried again at
            once has the same token, the second, twice.
        broken: calls to the slots of which a part failed, by name.
    """

    def __init__(self, url: str, directory: Path) -> None:
        self.app = emq.App(url, database=f"sqlite:///{directory}/catalog.db")
        self.known: Counter[Sent] = Counter()
        self.unknown: Counter[Sent] = Counter()
        self.refused: Counter[Sent] = Counter()
        self.starts: Counter[tuple[str, str, int]] = Counter()
        self.done: Counter[Sent] = Counter()
        self.settled: Counter[tuple[str, bytes, int, SlotVerdict]] = Counter()
        self.broken: Counter[str] = Counter()
        self.summed = 0
        self.stop = asyncio.Event()
        self.app.handler("*")(self._handle)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Publish and consume; at the end publish no more, drain, and stop in good order."""
        async with self.app:
            for name, options in TOPICS.items():
                await self.app.create_topic(name, QPS, slots=2, prepare_timeout_s=PREPARE_TIMEOUT_S, **options)
            self._watch(self.app.store.sorted)
            host = asyncio.create_task(self.app.run())
            publishers = [asyncio.create_task(self._publish(topic)) for topic in TOPICS]
            try:
                yield
                self.stop.set()
                await asyncio.gather(*publishers)
                await self._drained()
                await self._check()
            finally:
                for task in publishers:
                    task.cancel()
                self.app.stop()
                await host

    async def until(self, holds: Callable[[], bool], timeout_s: float = 15.0) -> None:
        await until(holds, timeout_s)

    async def more(self, count: int) -> None:
        """Wait until that many more messages were handled in each topic whose messages are unique."""
        before = Counter(topic for topic, _ in self.done)
        await self.until(
            lambda: (
                all(n >= count for n in (Counter(t for t, _ in self.done) - before).values())
                and len(Counter(t for t, _ in self.done) - before) == len(UNIQUE)
            )
        )

    # ------------------------------------------------------------------------------------------------------ both ends

    async def _publish(self, topic: str) -> None:
        for i in range(100_000):
            if self.stop.is_set():
                return
            sent = topic, f"{topic}-{i % KEYS if topic == 'sums' else i}"
            try:
                await self._publish_one(*sent)
                self.known[sent] += 1
            except errors.OutcomeUnknown:
                self.unknown[sent] += 1
            except (errors.StoreUnavailable, errors.StoreFull):
                self.refused[sent] += 1
            await asyncio.sleep(0.01)

    async def _publish_one(self, topic: str, name: str) -> None:
        match topic:
            case "range":
                await self.app.publish(topic, name)
            case "prio":
                await self.app.publish(topic, name, priority=20 + len(name))
            case "fixed":
                await self.app.publish(topic, f"{name}!", merge_key=name, delay_ms=15)
            case _:
                await self.app.publish(topic, "1", merge_key=name, priority=50, headers={"name": name})

    async def _handle(self, m: emq.Message) -> None:
        if m.topic == "sums":
            assert m.headers is not None
            if m.attempt == 1 and m.headers["name"] == "sums-3":
                raise ValueError("not at first")
            self.summed += int(m.payload)
            return
        name = m.payload.decode().rstrip("!")
        self.starts[m.topic, name, m.attempt] += 1
        number = int(name.rpartition("-")[2])
        if number % 25 == 7:
            raise emq.Reject("not this one")
        if number % 10 == 3 and not self.starts[m.topic, name, m.attempt - 1] and m.attempt < 10:
            raise ValueError("not at first")
        self.done[m.topic, name] += 1

    def _watch(self, store: slot_store.SortedStore) -> None:
        def watched(name: str) -> Callable[..., Any]:
            real = getattr(store, name)

            async def call(requests: Sequence[Any], *more: Any) -> Any:
                try:
                    answers = await real(requests, *more)
                except errors.StoreUnavailable:
                    self.broken[name] += 1
                    raise
                self.broken[name] += any(isinstance(answer, errors.StoreUnavailable) for answer in answers)
                if name == "settle":
                    pairs = zip(requests, answers, strict=True)
                    self.settled.update(
                        (s.slot.name, s.member, s.token, s.verdict) for s, answer in pairs if answer is True
                    )
                return answers

            return call

        vars(store).update({name: watched(name) for name in ("add", "claim", "settle", "recover")})

    # -------------------------------------------------------------------------------------------------------- account

    def _attempts(self, sent: Sent) -> list[int]:
        return [attempt for (topic, name, attempt), n in self.starts.items() for _ in range(n) if (topic, name) == sent]

    async def _drained(self) -> None:
        topics = [await self.app.catalog.get(name) for name in TOPICS]
        async with asyncio.timeout(15):
            while True:
                lags = await self.app.admin.slot_lag(topics)
                if not any(lag.ready + lag.delayed + lag.claimed for lag in lags):
                    return
                await asyncio.sleep(0.02)

    async def _check(self) -> None:
        dead: set[Sent] = set()
        for name in TOPICS:
            topic = await self.app.catalog.get(name)
            letters = [letter async for letter in dead_letters.find(self.app.store, topic)]
            assert {letter.reason for letter in letters} <= {"rejected: not this one"}
            dead |= {(name, letter.payload.decode().rstrip("!")) for letter in letters}
        unique = {sent for sent in self.known if sent[0] in UNIQUE}
        perhaps = {sent for sent in self.unknown if sent[0] in UNIQUE}
        refused = {sent for sent in self.refused if sent[0] in UNIQUE}
        ended = set(self.done) | dead
        assert unique <= ended <= unique | perhaps
        assert not refused & ended
        assert not set(self.done) & dead
        # What was acknowledged in the second of a lost claim, and by a call that was lost too, is delivered again as
        # a further attempt: nobody can know whether it was the old claim or a newer one that was acknowledged.
        again = {sent: self._attempts(sent) for sent, n in self.done.items() if n > 1}
        may_repeat = bool(self.broken["settle"] and self.broken["claim"])
        assert may_repeat or not again, again
        assert set(self.starts.values()) == {1}
        of_unique = [n for (slot, *_), n in self.settled.items() if not slot.startswith("sums")]
        assert max(of_unique) == 1
        sums = [sum(n for (t, _), n in of.items() if t == "sums") for of in (self.known, self.unknown)]
        assert sums[0] <= self.summed, (sums, self.summed)
        assert may_repeat or self.summed <= sum(sums), (sums, self.summed)
