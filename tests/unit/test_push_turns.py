"""Turns of those who need a connection: how many begin at once, and who gets one that has become free."""

from __future__ import annotations

import asyncio
import itertools
from typing import cast

import aiohttp
import yarl

from emq_push.turns import STEP_S, STEPS, Turns
from emq_push.wire import Answer, Wire
from emq_push.wires import Wires
from support.virtual import virtual

pytestmark = virtual  # a machine that is busy would make steps look shorter

HERE = ("shop.example", 80, "http", None)
THERE = ("mart.example", 80, "http", None)


class Closing:
    """A connection of which only the end matters."""

    is_closed = False

    def close(self) -> None:
        self.is_closed = True


class Refusing:
    """Makes no connections; notes when it was asked for one, in the time of the event loop."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.wires = Wires(self._connect)

    async def _connect(self, *_: object) -> aiohttp.connector.Connection:
        self.asked.append(asyncio.get_running_loop().time())
        raise ConnectionRefusedError

    def post(self, host: str = "shop.example") -> asyncio.Future[Answer]:
        return asyncio.ensure_future(self.wires.post(yarl.URL(f"http://{host}/"), b"", {}, 3_600.0))


async def test_many_connections_at_once_begin_one_after_the_other() -> None:
    refusing = Refusing()
    posting = [refusing.post() for _ in range(60)]
    cancelled = posting[20:30]
    asyncio.get_running_loop().call_soon(lambda: [post.cancel() for post in cancelled])
    failures = await asyncio.gather(*posting, return_exceptions=True)
    assert sum(isinstance(failure, ConnectionRefusedError) for failure in failures) == 50
    steps = [later - earlier for earlier, later in itertools.pairwise(refusing.asked)]
    assert min(steps[:-1]) >= STEP_S * 0.9
    await asyncio.sleep(0.05)
    await asyncio.gather(refusing.post(), return_exceptions=True)
    assert len(refusing.asked) == 51, "one that comes later begins, too"


async def test_thousands_of_connections_at_once_take_few_steps() -> None:
    refusing = Refusing()
    await asyncio.gather(*[refusing.post(f"shop-{i}.example") for i in range(5_000)], return_exceptions=True)
    assert len(refusing.asked) == 5_000
    steps = sum(later - earlier >= STEP_S * 0.9 for earlier, later in itertools.pairwise(refusing.asked))
    assert steps < 6 * STEPS  # each step takes a part of those that are left, then one


async def test_those_who_wait_for_a_turn_leave_nothing_behind() -> None:
    refusing = Refusing()
    posting = [refusing.post(f"shop-{i}.example") for i in range(50)]
    await asyncio.sleep(0)
    for post in posting:
        post.cancel()
    await asyncio.gather(*posting, return_exceptions=True)
    turns = refusing.wires._turns
    assert not turns._waiting
    assert not turns._at


async def test_a_free_connection_goes_to_the_first_who_waits_for_its_place() -> None:
    turns, wire = Turns(), cast(Wire, Closing())
    assert await turns.take(THERE) is None
    waiting = [asyncio.ensure_future(turns.take(place)) for place in (THERE, HERE, HERE, HERE)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    assert turns.hand_over(HERE, wire)
    assert await waiting[2] is wire
    assert await waiting[0] is None
    assert await waiting[3] is None
    assert not turns.hand_over(HERE, wire)


async def test_a_free_connection_that_is_given_to_a_cancelled_request_is_closed() -> None:
    turns, wire = Turns(), Closing()
    await turns.take(HERE)
    waiting = asyncio.ensure_future(turns.take(HERE))
    await asyncio.sleep(0)
    assert turns.hand_over(HERE, cast(Wire, wire))
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert wire.is_closed
