"""Exceptions of every kind that a handler may raise, and messages that it has changed: each is a failed delivery."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import msgspec
import pytest

import emq
import emq_testing
from emq.observe import dead_letters
from emq.runtime import errors
from emq.storage import message
from emq.storage.message import Message
from support.rig import Rig, bound
from support.virtual import virtual
from support.waiting import until


class _Native(BaseException):
    """As extension modules raise."""


class _BareRetry(errors.Retry):
    def __init__(self) -> None:
        pass


class _BareReject(errors.Reject):
    def __init__(self) -> None:
        pass


class _BarePartial(errors.PartialFailure):
    def __init__(self) -> None:
        pass


class _Wordless(Exception):
    def __str__(self) -> str:
        raise SystemExit("no words")

    __repr__ = __str__


ODD: dict[str, Any] = {
    "native": lambda: _Native("panic"),
    "exit": lambda: SystemExit(3),
    "interrupt": KeyboardInterrupt,
    "generator exit": GeneratorExit,
    "stop": lambda: StopAsyncIteration(),
    "bare retry": _BareRetry,
    "bare reject": _BareReject,
    "bare partial": _BarePartial,
    "retry at a word": lambda: _odd_retry("soon"),
    "wordless": _Wordless,
    "long": lambda: ValueError("x" * 10_000_000),
    "group": lambda: BaseExceptionGroup("several", [ValueError("a"), SystemExit(1)]),
    "surrogate": lambda: ValueError("\udc80 of a file's name"),
    "reject with a surrogate": lambda: errors.Reject("\udc80"),
    "retry never": lambda: errors.Retry(after_s=math.inf),
    "time out of its own": TimeoutError,
    "partial of nothing": lambda: errors.PartialFailure(None),  # type: ignore[arg-type]
    "partial of a list": lambda: errors.PartialFailure(["x"]),  # type: ignore[arg-type]
}


def _odd_retry(after: Any) -> errors.Retry:
    failure = errors.Retry("later")
    failure.after_s = after
    return failure


@pytest.mark.parametrize("options", [{}, {"kind": "range_merge", "time_range_ms": 10, "retry": "backoff"}], ids=str)
@pytest.mark.parametrize("batch_size", [1, 5])
@pytest.mark.parametrize("suspends", [False, True])
@virtual
async def test_whatever_a_handler_raises_is_a_failed_delivery_and_the_group_goes_on(
    r: Rig, suspends: bool, batch_size: int, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    good: list[str] = []

    async def handle(given: Message | list[Message]) -> None:
        for m in given if isinstance(given, list) else [given]:
            if suspends:
                await asyncio.sleep(0.01)
            if m.payload.decode() in ODD:
                raise ODD[m.payload.decode()]()
            good.append(m.payload.decode())

    topic = await r.topic("orders", 100, max_attempts=1, **options)
    for name in ODD:
        await r.producer.publish_many("orders", [name, f"after {name}"], key=name)
    async with r.consuming(bound({"*": handle}, batch_size=batch_size)) as host:
        await until(lambda: len(good) >= len(ODD), 20)
        await until(lambda: host.work.dispatcher.flight.count == 0, 20)
        assert not any(group.busy or group.running for group in host.ownership.groups.values())
    letters = [letter async for letter in dead_letters.find(r.store, topic, dead_letters.EVERY)]
    assert {letter.payload.decode() for letter in letters} >= ODD.keys()
    assert all(len(letter.reason) <= 500 for letter in letters)
    assert caplog.text.encode(), "a log file takes it"


@virtual
async def test_a_message_that_its_handler_made_unfit_to_store_is_a_dead_letter_and_its_neighbours_retry(r: Rig) -> None:
    spoils = {
        "surrogate": {"headers": {"a": "\ud800"}},
        "object": {"headers": {"a": object()}},
        "number": {"headers": {1: 2}},
        "list": {"headers": ["a"]},
        "payload": {"payload": {"no": "bytes"}},
    }
    done: list[str] = []

    async def handle(m: Message) -> None:
        name = m.payload.decode()
        if m.attempt > 1:
            done.append(name)
            return
        for field, value in spoils.get(name, {}).items():
            setattr(m, field, value)
        raise ValueError("no")

    topic = await r.topic("orders", 100, max_attempts=3, backoff_s=(0.5,))
    await r.producer.publish_many("orders", [*spoils, "good", "better"])
    async with r.consuming(bound({"*": handle})) as host:
        await until(lambda: len(done) == 2, 20)
        await until(lambda: host.work.dispatcher.flight.count == 0, 20)
    letters = [letter async for letter in dead_letters.find(r.store, topic, dead_letters.EVERY)]
    assert sorted(done) == ["better", "good"]
    assert len(letters) == len(spoils)
    assert all("cannot be stored" in letter.reason for letter in letters)


def test_a_stored_body_sets_no_field_that_only_a_host_may_set() -> None:
    plain = message.encode("a", b"p", "k", 5, {"h": "v"})
    first = message.read(plain)
    assert (first.id, first.payload, first.key, first.headers) == ("a", b"p", "k", {"h": "v"})
    fields = ["a", b"p", "k", 5, None, -3, -9, -1, None, "", 0, -1, float("inf"), [(1, "x")] * 50, None, 0]
    internal = [7, 8, 9, b"member", 10, 11]
    body = msgspec.msgpack.encode([*fields, *internal])
    m = message.read(body)
    assert (m.offset, m.ready_us, m.started_us, m.member, m.token, m.layout) == (-1, 0, 0, None, 0, 0)
    assert (m.priority, m.attempt, m.first_us, m.expires_us, m.score, m.merged) == (0, 1, 0, 0, 0, 1)
    assert m.history is not None
    assert len(m.history) == 16


@pytest.mark.parametrize("fails", [False, True])
async def test_a_handler_that_empties_its_batch_has_handled_the_batch(fails: bool) -> None:
    app = emq.App("memory:", options=emq.Settings())
    seen: list[int] = []

    @app.handler("t", batch_size=10)
    async def handle(messages: list[Message]) -> None:
        seen.append(len(messages))
        while messages:
            m = messages.pop()
            if fails and m.attempt == 1:
                raise ValueError("not at first")

    async with emq_testing.Harness(app) as t:
        await app.create_topic("t", qps=50)
        await app.publish_many("t", [b"x"] * 5)
        await t.settled(within_s=5)
        await t.advance(15)
        await t.settled(within_s=5)
        assert len(t.delivered) == sum(seen) - 5 * fails == 5
        assert len(t.failures) == 5 * fails
