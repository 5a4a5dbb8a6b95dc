"""The load of the comparison, the same for each gateway: chats that come at random times, and three tenants whose
workers always have a next batch call. Needs the standard library alone, since it also runs in a peer's environment.

A worker and a chat that are refused try again, after as long as the error says, or else after 1 s, 2 s, 4 s.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

Stream = Callable[..., AsyncIterator[str]]
"""`stream(messages, max_tokens=, tenant=, kind=)` yields the texts of an answer; an error may have `after_s`."""

WORKERS = {"acme": 8, "bolt": 24, "crux": 8}
"""Batch calls that each tenant has under way or waiting; bolt asks for three times as much as the others."""

CHATS_PER_S = 1.0
CHAT, BATCH = "chat", "batch"
LONGEST_BACKOFF_S = 8.0


class Refused(Exception):
    """A gateway refused a call, and said in how many seconds it may do it; 0 if it did not say."""

    def __init__(self, text: str, after_s: float) -> None:
        super().__init__(text)
        self.after_s = after_s


class Load:
    """Runs the load against one gateway, and notes what its callers see.

    Args:
        stream: makes one call.
        until: when nothing more is asked, by `time.time`.
    """

    def __init__(self, stream: Stream, until: float) -> None:
        self._stream = stream
        self._until = until
        self.first_word_s: list[float] = []
        self.unanswered_chats = self.errors = 0
        self.done = dict.fromkeys(WORKERS, 0)
        self.late_s = 0.0
        self._cpu_s = time.process_time()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for tenant, count in WORKERS.items():
                for number in range(count):
                    group.create_task(self._worker(tenant, number))
            group.create_task(self._chats())

    async def _chats(self) -> None:
        chance, due = random.Random(7), time.time()
        async with asyncio.TaskGroup() as group:
            while due < self._until:
                await asyncio.sleep(due - time.time())
                self.late_s = max(self.late_s, time.time() - due)
                group.create_task(self._chat(chance.randrange(150, 350), due))
                due += chance.expovariate(CHATS_PER_S)

    async def _chat(self, words: int, due: float) -> None:
        """Make one call; its wait counts from when it was due, also if a busy gateway kept it from being made."""
        first = await self._call(CHAT, "", "chat " * words, 300)
        if first is None:
            self.unanswered_chats += 1
        else:
            self.first_word_s.append(first - due)

    async def _worker(self, tenant: str, number: int) -> None:
        chance = random.Random(f"{tenant} {number}")
        while time.time() < self._until:
            words = chance.randrange(300, 900)
            if await self._call(BATCH, tenant, f"{tenant} {number} " * (words // 2), 400) is not None:
                self.done[tenant] += 1

    async def _call(self, kind: str, tenant: str, prompt: str, max_tokens: int) -> float | None:
        """Make one call, again and again if it is refused; return when its first word came, None if time is over."""
        messages, backoff_s = [{"role": "user", "content": prompt.strip()}], 1.0
        while True:
            first = None
            try:
                async with asyncio.timeout_at(asyncio.get_running_loop().time() + self._until - time.time()):
                    async for _ in self._stream(messages, max_tokens=max_tokens, tenant=tenant, kind=kind):
                        first = first or time.time()
                return first
            except TimeoutError:
                return None
            except Exception as exc:
                self.errors += 1
                wait_s = min(getattr(exc, "after_s", None) or backoff_s, LONGEST_BACKOFF_S)
                backoff_s *= 2
                if time.time() + wait_s >= self._until:
                    return None
                await asyncio.sleep(wait_s * random.uniform(0.8, 1.2))

    def told(self) -> dict[str, Any]:
        return {
            "first_word_s": self.first_word_s,
            "unanswered_chats": self.unanswered_chats,
            "errors": self.errors,
            "batch_calls": self.done,
            "late_s": self.late_s,
            "cpu_s": time.process_time() - self._cpu_s,
        }


def orders() -> dict[str, Any]:
    """Return what the benchmark asks of this driver."""
    found: dict[str, Any] = json.loads(sys.argv[1])
    return found


def tell(load: Load, **more: Any) -> None:
    print(json.dumps({**load.told(), **more}), flush=True)


async def begun(orders: dict[str, Any]) -> float:
    """Say that the gateway is ready, wait for the time at which the load begins, and return when it ends."""
    print("ready", flush=True)
    begin = float(await asyncio.to_thread(sys.stdin.readline))
    await asyncio.sleep(begin - time.time())
    return begin + float(orders["seconds"])
