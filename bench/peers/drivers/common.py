"""What the drivers written in Python share: their orders, payloads, and what handlers report.

A driver is run as `python -m bench.peers.drivers.NAME` by the interpreter that has the peer. Its orders are a JSON
object in the environment variable `PEERS_ORDERS`, so that processes which a peer starts by itself find them, too. A
driver imports nothing but this module and the peer.

- Role `publish`: publish messages, print `{"published": n, "published_s": s}` and end.
- Role `work`: consume until the process is killed. The handler calls `begun` and `ended`, which write to the files that
  the orders name.
"""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import json
import mmap
import os
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

SLOTS = 1 << 14
"""Counters of started messages in the file `counter`, 8 bytes each. The first says how many have an owner."""

PAYLOAD_BYTES = 100

CONNECTIONS = 20_000
"""Most connections of a client to Redis. redis-py has 100, which is too few for what some peers run at a time."""


@dataclass(frozen=True)
class Orders:
    """What a driver is asked to do.

    Attributes:
        role: `publish` or `work`.
        url: of the server.
        directory: where the driver may keep files.
        queues: number of queues, or of tenants where the peer has one queue for all.
        first_queue: number of the first one.
        messages: how many to publish, in turn to each queue.
        per_s: publish at this rate; 0 for as fast as possible.
        limit_s: end publishing after this time.
        wait_s: the handler waits this long.
        processes: worker processes, for peers that use several.
        in_flight: messages that the handler may work on at the same time, in all processes together.
        cap: most starts of each queue in a second; 0 for no cap.
        counter: file of `SLOTS` counters, which is there.
        log: file to which each start and each end is appended instead; empty for none.
    """

    role: str
    url: str
    directory: str
    queues: int = 1
    first_queue: int = 0
    messages: int = 0
    per_s: float = 0.0
    limit_s: float = 20.0
    wait_s: float = 0.0
    processes: int = 1
    in_flight: int = 1000
    cap: int = 0
    counter: str = ""
    log: str = ""

    def queue_of(self, number: int) -> int:
        return self.first_queue + number % self.queues

    @property
    def all_queues(self) -> range:
        return range(self.first_queue, self.first_queue + self.queues)


ORDERS = Orders(**json.loads(os.environ["PEERS_ORDERS"]))


# ------------------------------------------------------------------------------------------------------- publishing


def payload(number: int) -> str:
    """Return 100 characters that tell number, queue and time of the publish."""
    return f"{number} {ORDERS.queue_of(number)} {time.time():.6f} ".ljust(PAYLOAD_BYTES, "x")


def numbers() -> Iterator[int]:
    """Return the messages' numbers, each when its message is due; end at the time limit. Blocks between messages."""
    began = time.perf_counter()
    for number in range(ORDERS.messages):
        if ORDERS.per_s:
            time.sleep(max(0.0, began + number / ORDERS.per_s - time.perf_counter()))
        if time.perf_counter() - began > ORDERS.limit_s:
            return
        yield number


def batches(size: int) -> Iterator[list[int]]:
    """Return the numbers in batches of at most this size; single ones if the messages have a rate."""
    due = numbers()
    while batch := list(itertools.islice(due, 1 if ORDERS.per_s else size)):
        yield batch


def publish(call: Callable[[int], object]) -> None:
    """Call `call(number)` for each message, and report."""
    publish_batches(lambda batch: call(batch[0]), 1)


def publish_batches(call: Callable[[list[int]], object], size: int = 500) -> None:
    """Call `call(numbers)` for each batch, and report."""
    began, published = time.perf_counter(), 0
    for batch in batches(size):
        call(batch)
        published += len(batch)
    report(published, time.perf_counter() - began)


def batches_of_queues(size: int) -> Iterator[range]:
    """Return the numbers in batches of at most this size, each of one queue, in turn of each queue."""
    queues = ORDERS.queues
    for first in range(0, ORDERS.messages, size * queues):
        for start in range(first, min(first + queues, ORDERS.messages)):
            yield range(start, min(first + size * queues, ORDERS.messages), queues)


async def publish_together(
    call: Callable[[Sequence[int]], Awaitable[object]], size: int = 1, at_once: int = 200
) -> None:
    """Await `call(numbers)` for each batch, up to `at_once` at the same time, and report.

    The messages of a batch go to one queue. Messages that have a rate go one by one.
    """
    began, published = time.perf_counter(), 0
    due = batches_of_queues(1 if ORDERS.per_s else size)

    async def publisher() -> None:
        nonlocal published
        for batch in due:
            if ORDERS.per_s:
                await asyncio.sleep(max(0.0, began + batch[0] / ORDERS.per_s - time.perf_counter()))
            if time.perf_counter() - began > ORDERS.limit_s:
                return
            await call(batch)
            published += len(batch)

    await asyncio.gather(*(publisher() for _ in range(at_once)))
    report(published, time.perf_counter() - began)


def report(published: int, published_s: float) -> None:
    print(json.dumps({"published": published, "published_s": published_s}), flush=True)


# ---------------------------------------------------------------------------------------------------------- working


class _Slot(threading.local):
    """This thread's place among the counters."""

    counters: memoryview | None = None
    index = 0

    def take(self) -> memoryview:
        with open(ORDERS.counter, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            counters = memoryview(mmap.mmap(file.fileno(), SLOTS * 8)).cast("Q")
            counters[0] += 1
            self.index = min(counters[0], SLOTS - 1)
            fcntl.flock(file, fcntl.LOCK_UN)  # by hand: the map keeps a copy of the file, and so would keep the lock
        self.counters = counters
        return counters


_slot = _Slot()
os.register_at_fork(after_in_child=_slot.__dict__.clear)
_log = os.open(ORDERS.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT) if ORDERS.log else -1


def begun(message: str) -> None:
    """Report that a handler has begun with a payload."""
    if _log >= 0:
        os.write(_log, f"b {time.time():.6f} {_head(message)}\n".encode())
        return
    counters = _slot.counters or _slot.take()
    counters[_slot.index] += 1


def ended(message: str) -> None:
    """Report that a handler has ended with a payload."""
    if _log >= 0:
        os.write(_log, f"e {time.time():.6f} {_head(message)}\n".encode())


def handle(message: str) -> None:
    """The handler of peers whose handlers are plain functions."""
    begun(message)
    if ORDERS.wait_s:
        time.sleep(ORDERS.wait_s)
    ended(message)


async def handle_async(message: str) -> None:
    """The handler of peers whose handlers are coroutines."""
    begun(message)
    if ORDERS.wait_s:
        await asyncio.sleep(ORDERS.wait_s)
    ended(message)


def queue_name(queue: int) -> str:
    return f"t-{queue}"


def instead(program: str, *arguments: str) -> None:
    """Become a program that lies beside this interpreter."""
    import sys

    path = os.path.join(os.path.dirname(sys.executable), program)
    os.execv(path, [path, *arguments])


def each_process(work: Callable[[], object], processes: int | None = None) -> None:
    """Do the work in this many processes, or in as many as are ordered."""
    for _ in range((processes or ORDERS.processes) - 1):
        if not os.fork():
            break
    work()


def publish_or_work(
    publish: Callable[[], Coroutine[Any, Any, object]],
    work: Callable[[], Coroutine[Any, Any, object]],
    processes: int | None = None,
) -> None:
    """Do what is ordered, on uvloop; the work as `each_process` does."""
    import uvloop  # not every peer's environment has it

    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    if ORDERS.role == "publish":
        asyncio.run(publish())
    else:
        each_process(lambda: asyncio.run(work()), processes)


def texts(batch: Sequence[int]) -> list[str]:
    return [payload(number) for number in batch]


def _head(message: str) -> str:
    """Return number, queue and time of a payload."""
    return message[: message.rindex(" ")]
