"""What products record of finished messages is written before the host saves that the messages are finished."""

from __future__ import annotations

import asyncio

from emq.groups.records import Records
from emq.runtime import errors
from emq.storage.message import Message
from support.rig import Rig, Seen, running
from support.virtual import virtual
from support.waiting import until


class Log:
    """Records that a host has started; `written` has those that were written, `away` lets writing fail."""

    kind, lost = "records of tests", 0

    def __init__(self) -> None:
        self.pending: list[bytes] = []
        self.written: list[bytes] = []
        self.away = False

    @property
    def waiting(self) -> int:
        return len(self.pending)

    async def flush(self) -> None:
        if self.away:
            raise errors.DatabaseUnavailable("away")
        await asyncio.sleep(0.01)
        self.written += self.pending
        self.pending = []


async def finished(r: Rig) -> int:
    """Return how many messages no host would deliver any more."""
    lanes = [state for state in await r.store.real.lanes.inspect(["t/0"]) if not isinstance(state, Exception)]
    saved = await r.checkpoints.load(["t/0/p"])
    done = saved["t/0/p"].watermark - 1 if "t/0/p" in saved else 0
    return done - sum(state.waiting + state.prepared for state in lanes)


@virtual
async def test_nothing_is_saved_as_finished_before_it_is_recorded(r: Rig) -> None:
    await r.topic("t", 100, group_qps=100, priorities=("p",), backoff_s=(0.1,), jitter=0.0)
    log = Log()

    async def take(m: Message) -> None:
        if m.payload == b"retried" and m.attempt == 1:
            raise ValueError("no")
        log.pending.append(m.payload)

    host = r.host(Seen(take), records=Records([log]))
    log.away = True
    async with running(host):
        for payload in (b"a", b"b", b"retried"):
            await r.producer.publish("t", payload)
        await until(lambda: len(log.pending) == 2)
        await asyncio.sleep(3)
        assert await finished(r) == 0
        log.away = False
        await until(lambda: sorted(log.written) == [b"a", b"b", b"retried"])
        await asyncio.sleep(3)
        assert await finished(r) == 3
