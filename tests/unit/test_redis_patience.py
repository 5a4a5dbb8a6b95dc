"""How long a server is waited for, and what a silent one costs; in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from emq.runtime import errors
from emq_stores.redis.server_patience import AT_ONCE, LEAST_S, MEASURED_EVERY, MOST_S, PROBE_S, Patience, sending_s
from support.virtual import virtual

pytestmark = virtual


class Node:
    """A server that takes `takes_s` to answer, or does not answer at all."""

    def __init__(self) -> None:
        self.takes_s: float | None = 0.001
        self.calls = 0
        self.pings = 0
        self.patience = Patience("node:1", self._ping)

    async def _answer(self) -> str:
        self.calls += 1
        await asyncio.sleep(self.takes_s if self.takes_s is not None else 10_000)
        return "well"

    async def _ping(self) -> None:
        self.pings += 1
        await asyncio.sleep(0.001 if self.takes_s is not None else 10_000)

    async def call(self, longer_s: float = 0.0, sending: float = 0.0) -> str:
        return await self.patience.answer(self._answer, longer_s, sending)


async def timed(call: asyncio.Future[str] | asyncio.Task[str]) -> tuple[float, object]:
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        return 0.0, await call
    except errors.EMQError as exc:
        return loop.time() - began, exc


async def test_a_silent_server_costs_each_caller_one_deadline_and_later_ones_nothing_until_it_answers() -> None:
    node = Node()
    assert await node.call() == "well"
    node.takes_s = None
    waits = await asyncio.gather(*(timed(asyncio.ensure_future(node.call())) for _ in range(5)))
    assert all(LEAST_S * 0.7 <= took <= LEAST_S * 1.5 for took, _ in waits)
    assert all(isinstance(failure, errors.OutcomeUnknown) for _, failure in waits)
    sent = node.calls
    for _ in range(50):
        took, failure = await timed(asyncio.ensure_future(node.call()))
        assert took == 0
        assert type(failure) is errors.StoreUnavailable
    assert node.calls == sent, "a call was sent to a silent server"
    await asyncio.sleep(30)
    assert 10 <= node.pings <= 30 / PROBE_S
    node.takes_s = 0.001
    await asyncio.sleep(LEAST_S + 2 * PROBE_S)
    assert await node.call() == "well"
    await node.patience.close()


async def test_a_deadline_follows_the_measured_answer_times_within_its_bounds() -> None:
    node = Node()
    for takes_s, deadline_s in ((0.001, LEAST_S), (0.2, 4.0), (0.9, MOST_S), (0.001, LEAST_S)):
        node.takes_s = takes_s
        for _ in range(5 * MEASURED_EVERY):
            await node.call()
        assert node.patience.deadline_s == pytest.approx(deadline_s, rel=0.05)
    await node.patience.close()


async def test_a_call_that_asks_the_server_to_wait_is_waited_for_longer_and_its_wait_is_no_silence() -> None:
    node = Node()
    node.takes_s = 3.0
    waiting = asyncio.ensure_future(node.call(longer_s=5.0))
    await asyncio.sleep(0)
    node.takes_s = 0.01
    for _ in range(100):
        assert await node.call() == "well"
    assert await waiting == "well"
    await node.patience.close()


async def test_a_large_call_is_waited_for_longer_by_its_bytes() -> None:
    node = Node()
    node.takes_s = 2.5
    assert await node.call(sending=sending_s(["EVALSHA", 1, bytes(10 << 20)])) == "well"
    assert (await timed(asyncio.ensure_future(node.call(sending=sending_s(["EVALSHA", 1, b"x"])))))[0] < 2
    await node.patience.close()


async def test_a_server_that_is_slow_and_answers_pings_is_waited_for_longer_each_time() -> None:
    node = Node()
    node.takes_s = 2.5
    outcomes = []
    for _ in range(4):
        outcomes.append((await timed(asyncio.ensure_future(node.call())))[1])
        await asyncio.sleep(0.1)
    assert [isinstance(outcome, errors.OutcomeUnknown) for outcome in outcomes[:2]] == [True, True]
    assert outcomes[-1] == "well"
    await node.patience.close()


async def test_a_process_that_was_held_up_does_not_count_that_time_against_the_server() -> None:
    node = Node()
    node.takes_s = 0.3
    call = asyncio.ensure_future(node.call())
    await asyncio.sleep(0)
    loop: Any = asyncio.get_running_loop()
    loop._virtual.now += 60  # as if something else had kept the process from running
    assert await call == "well"
    await node.patience.close()


@pytest.mark.parametrize("refusal", [None, errors.StoreFull("full")])
async def test_a_cancellation_that_the_driver_loses_ends_the_caller_all_the_same(refusal: Exception | None) -> None:
    node = Node()

    async def loses() -> str:
        try:
            await asyncio.sleep(0.5)
        except asyncio.CancelledError:
            if refusal is not None:
                raise refusal from None
        return "sent"

    async def caller() -> None:
        for _ in range(100):
            with contextlib.suppress(errors.StoreFull):
                await node.patience.answer(loses)

    calling = asyncio.create_task(caller())
    await asyncio.sleep(0.7)
    calling.cancel()
    done, _ = await asyncio.wait([calling], timeout=10)
    assert calling in done
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await node.patience.answer(loses)


async def test_closing_ends_the_calls_that_wait_and_refuses_later_ones_unsent() -> None:
    node = Node()
    node.takes_s = None
    waiting = asyncio.create_task(node.call())
    await asyncio.sleep(0.01)
    await node.patience.close()
    with pytest.raises(errors.OutcomeUnknown):
        await waiting
    sent = node.calls
    with pytest.raises(errors.StoreUnavailable, match="closed; open the store again"):
        await node.call()
    assert node.calls == sent


async def test_a_call_that_its_caller_cancels_is_no_answer() -> None:
    node = Node()
    node.takes_s = None
    calls = [asyncio.create_task(node.call()) for _ in range(4)]
    for call in calls[1:]:
        await asyncio.sleep(LEAST_S / 5)
        call.cancel()
    _, failure = await timed(calls[0])
    assert isinstance(failure, errors.OutcomeUnknown)
    with pytest.raises(errors.StoreUnavailable, match="does not answer"):
        await node.call()
    await node.patience.close()


async def test_more_calls_than_the_driver_has_connections_wait_for_their_turn_and_for_no_silent_server() -> None:
    node = Node()
    under_way = most = 0

    async def answer() -> str:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.01)
        under_way -= 1
        return "well"

    assert set(await asyncio.gather(*(node.patience.answer(answer) for _ in range(3_000)))) == {"well"}
    assert most == AT_ONCE
    node.takes_s = None
    waits = await asyncio.gather(*(timed(asyncio.ensure_future(node.call())) for _ in range(3_000)))
    assert max(took for took, _ in waits) <= LEAST_S * 1.5
    assert node.calls == AT_ONCE
    refused = [failure for _, failure in waits if type(failure) is errors.StoreUnavailable]
    assert len(refused) == 3_000 - AT_ONCE, "nothing of them was sent"


@pytest.mark.parametrize(("longer_s", "sending"), [(5.0, 0.0), (0.0, 0.1)])
async def test_a_short_call_does_not_wait_behind_long_ones(longer_s: float, sending: float) -> None:
    node = Node()
    node.takes_s = 2.0  # such as for a replica that is gone
    node.patience.deadline_s = MOST_S
    long = [asyncio.create_task(node.call(longer_s, sending)) for _ in range(500)]
    await asyncio.sleep(1.0)
    node.takes_s = 0.001
    async with asyncio.timeout(0.1):
        assert await node.call() == "well"
    assert not any(call.done() for call in long)
    assert set(await asyncio.gather(*long)) == {"well"}
    await node.patience.close()
