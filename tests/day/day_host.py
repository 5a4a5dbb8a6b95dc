"""A host of the day: handlers that do what messages say, and write down each run.

Usage: day_host.py LIFE DIRECTORY; other settings come from the environment (`EMQ_STORE` and so on).

LIFE names this life of the host. Its runs go to DIRECTORY/LIFE.runs, the moments in which it or its store had no time
to DIRECTORY/LIFE.late, its log to standard error.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
import time
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from day_plan import trait_of
from day_record import Journal, now_us

import emq
from emq.runtime import settings
from emq.trail.options import TrailOptions
from emq.trail.writer import Trail
from support.failure_lines import without_tracebacks

TRAIL = TrailOptions(rotate_s=0.25)
"""A kill loses what was not written yet; the less, the more the trail proves."""

SLOW_S = 0.3
HANG_S = 3600.0

BEAT_S = 0.1
LATE_S = 0.03
"""A beat is a sleep and a call of the store; a host of which one takes so much longer cannot use its quotas fully."""


class Handlers:
    """Binds a handler for each trait to an app."""

    def __init__(self, app: emq.App, life: str, directory: Path) -> None:
        self._journal = Journal(directory / f"{life}.runs")
        self._numbers = itertools.count()
        self._late = Journal(directory / f"{life}.late")
        self._app = app
        self._receiver = app.receiver("receiver-*")
        app.handler("batch-*", batch_size=8)(self._batch)
        app.handler("thread-*")(self._in_thread)
        app.handler("*")(self._one)

    @asynccontextmanager
    async def receiving(self) -> AsyncIterator[None]:
        """Receive from the topics of the trait `receiver`, and beat, for the length of a block."""
        tasks = asyncio.create_task(self._receive()), asyncio.create_task(self._beat())
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _one(self, m: emq.Message) -> None:
        with self._run(m):
            fate = _fate(m)
            if fate == "slow":
                await asyncio.sleep(SLOW_S)
            elif fate == "hang" and m.attempt == 1:
                await asyncio.sleep(HANG_S)
            elif trait_of(m.topic) in ("delayed", "wide"):
                await asyncio.sleep(0)  # to be suspended is another way through the dispatcher
            _fail(fate, m.attempt)

    def _in_thread(self, m: emq.Message) -> None:
        with self._run(m):
            time.sleep(0.002)
            _fail(_fate(m), m.attempt)

    async def _batch(self, batch: list[emq.Message]) -> None:
        failures: dict[str, Exception] = {}
        if any(_fate(m) == "slow" for m in batch):
            await asyncio.sleep(SLOW_S)
        for m in batch:
            try:
                with self._run(m):
                    _fail(_fate(m), m.attempt)
            except Exception as exc:
                failures[m.id] = exc
        if failures:
            raise emq.PartialFailure(failures)

    async def _receive(self) -> None:
        while True:
            for delivery in await self._receiver.receive(max_messages=10, timeout_s=1.0):
                try:
                    with self._run(delivery.message):
                        _fail(_fate(delivery.message), delivery.message.attempt)
                    delivery.ack()
                except emq.Reject as exc:
                    delivery.nack(exc.reason, dead=True)
                except Exception as exc:
                    delivery.nack(str(exc))

    async def _beat(self) -> None:
        while True:
            begun_us = now_us()
            await asyncio.sleep(BEAT_S)
            await self._app.store.lanes.inspect(["beat"])
            ended_us = now_us()
            if ended_us - begun_us > (BEAT_S + LATE_S) * 1e6:
                self._late.write(begun_us, ended_us)

    @contextmanager
    def _run(self, m: emq.Message) -> Iterator[None]:
        number = next(self._numbers)
        name = m.id if trait_of(m.topic) == "scheduled" else m.payload.decode()
        fields = (m.topic, name, m.id, m.group, m.priority, m.attempt, m.key, m.ready_us, m.started_us)
        self._journal.write(number, now_us(), "", *fields)
        outcome = "cancelled"
        try:
            yield
            outcome = "done"
        except Exception:
            outcome = "failed"
            raise
        finally:
            self._journal.write(number, now_us(), outcome)


def _fate(m: emq.Message) -> str:
    if trait_of(m.topic) == "sums":  # what merges has no fate of its own
        return "flaky" if zlib.crc32(b"%d" % m.published_us) % 20 == 0 else "ok"
    return m.payload.decode().rpartition(":")[2]


def _fail(fate: str, attempt: int) -> None:
    if fate == "reject":
        raise emq.Reject("not this one")
    if fate == "poison" or (fate == "flaky" and attempt == 1):
        raise ValueError(f"{fate} \x00 as it says")
    if fate == "again" and attempt == 1:
        raise emq.Retry("again", after_s=0.3)


async def main(life: str, directory: Path) -> None:
    options = settings.load()
    trail = Trail.open(directory / "trail", life, emq.runtime.clock.SystemClock(), TRAIL)
    app = emq.App(options=options, trail=trail)
    handlers = Handlers(app, life, directory)
    try:
        async with app, handlers.receiving():
            await app.run_until_signal()
    finally:
        trail.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s.%(msecs)03d %(levelname)s %(name)s %(message)s")
    try:
        with without_tracebacks():
            asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
    except emq.EMQError as exc:
        sys.exit(f"{type(exc).__name__}: {exc}")
