"""A host in a process of its own, for tests that kill it.

Usage: host_process.py STORE DATABASE RECEIPTS HANDLER_MS CHECKPOINT_S

Every start and every end of a handler is one line in RECEIPTS, written by a single call, so that a kill cannot lose or
halve it: `s|e`, message id, attempt, topic, group, priority, offset, and the time of the start in microseconds since
the epoch, by the host's clock. A message whose payload begins with `flaky` fails its first attempt.
"""

from __future__ import annotations

import asyncio
import os
import sys

import emq


async def main(store: str, database: str, receipts: str, handler_ms: float, checkpoint_s: float) -> None:
    file = os.open(receipts, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(what: str, m: emq.Message) -> None:
        fields = (what, m.id, m.attempt, m.topic, m.group, m.priority, m.offset, m.started_us)
        os.write(file, (" ".join(map(str, fields)) + "\n").encode())

    async def handle(m: emq.Message) -> None:
        note("s", m)
        await asyncio.sleep(handler_ms / 1000)
        if m.payload.startswith(b"flaky") and m.attempt == 1:
            raise emq.Retry("flaky", after_s=0.3)
        note("e", m)

    app = emq.App(store, database=database, options=emq.Settings(checkpoint_s=checkpoint_s))
    app.handler("*")(handle)
    async with app:
        await app.run_until_signal()


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]), float(sys.argv[5])))
    except emq.EMQError as exc:
        sys.exit(f"{exc}")
