"""A host of a cluster in a process of its own; its settings come from the environment (`EMQ_STORE` and so on).

Usage: cluster_host_process.py RECEIPTS HANDLER_MS CLOCK_AHEAD_S

Every start and every end of a handler is one line of JSON in RECEIPTS, written by a single call, so that a kill cannot
lose or halve it; the fields are those of `support.cluster_receipts.Receipt`. A message whose payload begins with
`flaky` fails its first attempt. The host's clock is CLOCK_AHEAD_S ahead of the machine's. The log goes to standard
error. At SIGUSR1 the host's session with the ensemble is ended, as somebody else might. HOST_LOOP in the environment
names the event loop: asyncio or uvloop.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
from typing import Any

import uvloop
from kazoo.client import KazooClient

import emq
from emq.runtime import settings
from emq.runtime.clock import SystemClock

RETRY_AFTER_S = 0.3


class ClockAhead(SystemClock):
    """A clock that is set ahead."""

    def __init__(self, ahead_s: float) -> None:
        super().__init__()
        self._anchor_us += round(ahead_s * 1e6)


async def main(receipts: str, handler_ms: float, clock_ahead_s: float) -> None:
    file = os.open(receipts, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    app = emq.App(options=settings.load())
    app.clock = ClockAhead(clock_ahead_s)

    def note(what: str, m: emq.Message, epoch: int) -> None:
        noted_us = time.time_ns() // 1000
        id_ = m.id.partition("~")[0]  # as it was published, also of a member that is retried later
        fields = (what, id_, m.attempt, m.topic, m.group, m.priority, m.offset, m.started_us, epoch, noted_us)
        os.write(file, (json.dumps(fields) + "\n").encode())

    async def handle(m: emq.Message) -> None:
        assert app.host is not None
        owned = app.host.ownership.groups.get(f"{m.topic}/{m.group}")
        epoch = 0 if owned is None else owned.epoch
        note("start", m, epoch)
        await asyncio.sleep(handler_ms / 1000)
        if m.payload.startswith(b"flaky") and m.attempt == 1:
            raise emq.Retry("flaky", after_s=RETRY_AFTER_S)
        note("end", m, epoch)

    app.handler("*")(handle)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, lambda: loop.run_in_executor(None, end_session, app))
    async with app:
        await app.run_until_signal()


def end_session(app: Any) -> None:
    """Take the session over and close it; this needs the session's password."""
    ours = app.host.membership._inner._tree._session._client.kazoo
    hosts = ",".join(f"{host}:{port}" for host, port in ours.hosts)
    other = KazooClient(hosts=hosts, client_id=ours.client_id)
    other.start()
    other.stop()
    other.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(created).3f %(levelname)s %(name)s %(message)s")
    try:
        with asyncio.Runner(
            loop_factory=uvloop.new_event_loop if os.environ["HOST_LOOP"] == "uvloop" else None
        ) as runner:
            runner.run(main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3])))
    except emq.EMQError as exc:
        sys.exit(f"{type(exc).__name__}: {exc}")
