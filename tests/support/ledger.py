"""A host in this process under load, and its judge, who knows the publishers' ledger and the handler's log alone."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import emq
from emq.runtime import errors
from support.cluster import Note
from support.waiting import until

QPS = 150.0
PUBLISHERS = 4
PAUSE_S = 0.01
"""Of a publisher between two publishes; together they publish more than the cap lets start."""

FLAKY_EVERY = 10


class Start(NamedTuple):
    """Of a handler: its message, and when by the time of the environment."""

    payload: bytes
    attempt: int
    at_us: int


class Ledger:
    """Publishes numbered messages, each publisher with a key of its own, to one topic, and consumes them.

    One message in ten fails at its first attempt.

    Args:
        note: takes what was measured.
        cluster: the ZooKeeper of the hosts; empty if they meet in the database.
        options: of the topic.

    Attributes:
        known, unknown, refused: payloads, by what became of their publishes.
        starts: of the handler, in their order, over the lives of all hosts.
        handled: payloads of those that did not fail.
    """

    def __init__(self, store: str, database: str, note: Note, *, cluster: str = "", **options: Any) -> None:
        self.known: set[bytes] = set()
        self.unknown: set[bytes] = set()
        self.refused: set[bytes] = set()
        self.starts: list[Start] = []
        self.handled: set[bytes] = set()
        self._urls = store, database
        self._note = note
        self._cluster = cluster
        self._options = options
        self._numbers = itertools.count()
        self._stop = asyncio.Event()

    @property
    def repeats(self) -> int:
        return sum(n - 1 for n in Counter((s.payload, s.attempt) for s in self.starts).values())

    @contextlib.asynccontextmanager
    async def app(self) -> AsyncIterator[emq.App]:
        """Open an app, of which no host runs yet."""
        store, database = self._urls
        async with emq.App(
            store, database=database, options=emq.Settings(checkpoint_s=0.2, cluster=self._cluster)
        ) as app:
            app.handler("*")(self._handle)
            await app.create_topic("orders", QPS, group_qps=50, exist_ok=True, **self._options)
            yield app

    @contextlib.asynccontextmanager
    async def host(self) -> AsyncIterator[emq.App]:
        """Run a host and publish for the length of the block; then let it handle all, and stop it in good order."""
        async with self.app() as app:
            running = asyncio.create_task(app.run())
            try:
                async with self.publishing(app):
                    yield app
                with contextlib.suppress(AssertionError):  # the judge says what is wanting
                    await until(lambda: self.known <= self.handled, 60.0, 0.05)
            finally:
                app.stop()
                await running

    @contextlib.asynccontextmanager
    async def publishing(self, app: emq.App) -> AsyncIterator[None]:
        """Publish for the length of the block."""
        self._stop.clear()
        publishers = [asyncio.create_task(self._publish(app, f"k{i}")) for i in range(PUBLISHERS)]
        try:
            yield
        finally:
            self._stop.set()
            await asyncio.gather(*publishers)

    async def more(self, count: int, timeout_s: float = 30.0) -> None:
        """Wait until that many more publishes were acknowledged, and as many messages handled."""
        known, started = len(self.known) + count, len(self.handled) + count
        await until(lambda: len(self.known) >= known and len(self.handled) >= started, timeout_s)

    def judge(self) -> None:
        """Fail with each promise that was broken, and note what was measured."""
        seconds = Counter(s.at_us // 1_000_000 for s in self.starts)
        broken: dict[str, Sequence[Any]] = {
            "lost": sorted(self.known - self.handled),
            "handled though refused": sorted(self.handled & self.refused),
            "never published": sorted(self.handled - self.known - self.unknown),
            "over cap": [(second, n) for second, n in seconds.items() if n > QPS],
            "key disorder": list(_disorder(self.starts)),
        }
        pauses = (b.at_us - a.at_us for a, b in itertools.pairwise(self.starts))
        self._note("messages", len(self.known))
        self._note("repeats", self.repeats)
        self._note("pause_s", round(max(pauses) / 1e6, 1))
        found = {name: (len(cases), cases[:5]) for name, cases in broken.items() if cases}
        assert not found, found

    async def _publish(self, app: emq.App, key: str) -> None:
        while not self._stop.is_set():
            payload = b"%s %d" % (key.encode(), next(self._numbers))
            try:
                await app.publish("orders", payload, key=key)
                self.known.add(payload)
            except errors.OutcomeUnknown:
                self.unknown.add(payload)
            except (errors.StoreUnavailable, errors.StoreFull):
                self.refused.add(payload)
            await asyncio.sleep(PAUSE_S)

    async def _handle(self, m: emq.Message) -> None:
        self.starts.append(Start(m.payload, m.attempt, m.started_us))
        if m.attempt == 1 and int(m.payload.split()[1]) % FLAKY_EVERY == 3:
            raise emq.Retry("flaky", after_s=0.1)
        self.handled.add(m.payload)


def _disorder(starts: Iterable[Start]) -> Iterator[tuple[Start, int]]:
    """Yield each first delivery of a message behind a later one of its key, with the number of that one."""
    latest: dict[bytes, int] = {}
    seen: set[bytes] = set()
    for start in starts:
        if start.payload in seen:
            continue
        seen.add(start.payload)
        key, number = start.payload.split()
        if int(number) < latest.get(key, -1):
            yield start, latest[key]
        latest[key] = max(int(number), latest.get(key, -1))
