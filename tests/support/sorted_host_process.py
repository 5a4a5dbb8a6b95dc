"""A host of sorted topics in a process of its own, which kills itself where it is told to.

Usage: sorted_host_process.py STORE DATABASE RECEIPTS POINT COUNT

POINT is where it dies, the COUNT-th time that it comes there: `claimed` (the store has answered a claim with something,
and no handler has seen it), `handling` (in a handler), `handled` (a handler has returned, and the store has not been
told), `settled` (the store has been told, and this host does not know), or `never`.

Every start and every end of a handler is one line of JSON in RECEIPTS, written by a single call: ["s" or "e", topic,
message id, attempt, payload, merged]. A payload that ends in `flaky` fails its first attempt.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

import emq
from emq.storage import slot_store


async def main(store: str, database: str, receipts: str, point: str, count: int) -> None:
    file = os.open(receipts, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    left = count

    def passed(here: str) -> None:
        nonlocal left
        if here == point:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def note(what: str, m: emq.Message) -> None:
        os.write(file, (json.dumps([what, m.topic, m.id, m.attempt, m.payload.decode(), m.merged]) + "\n").encode())

    async def handle(m: emq.Message) -> None:
        note("s", m)
        passed("handling")
        await asyncio.sleep(0.01)
        if m.payload.endswith(b"flaky") and m.attempt == 1:
            raise ValueError("flaky")
        note("e", m)

    app = emq.App(store, database=database)
    app.handler("*")(handle)
    async with app:
        _watch(app.store.sorted, passed)
        await app.run_until_signal()


def _watch(store: slot_store.SortedStore, passed: Any) -> None:
    real_claim, real_settle = store.claim, store.settle

    async def claim(claims: Sequence[slot_store.Claim], now_ms: int, *bounds: int) -> Any:
        answers = await real_claim(claims, now_ms, *bounds)
        if any(isinstance(answer, slot_store.Claimed) and answer.entries for answer in answers):
            passed("claimed")
        return answers

    async def settle(settles: Sequence[slot_store.Settle]) -> Any:
        has_acknowledged = any(s.verdict is slot_store.Verdict.ACK for s in settles)
        if has_acknowledged:
            passed("handled")
        answers = await real_settle(settles)
        if has_acknowledged:
            passed("settled")
        return answers

    vars(store).update(claim=claim, settle=settle)


if __name__ == "__main__":
    store_url, database_url, receipts_path, where, times = sys.argv[1:]
    asyncio.run(main(store_url, database_url, receipts_path, where, int(times)))
