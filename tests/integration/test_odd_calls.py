"""Odd handlers and odd middleware: no message is lost, and each failure is told in one clear line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import msgspec
import pytest

import emq
import emq_testing
from emq.host.handlers import Handlers
from emq.storage.message import Message


async def outcomes(app: emq.App, payloads: int = 2, **options: Any) -> tuple[int, list[str], list[str]]:
    """Publish; return how many were delivered, and the reasons of failures and of dead letters."""
    async with emq_testing.Harness(app) as t:
        await app.create_topic("o", qps=100, group_qps=100, **options)
        await app.publish_many("o", [str(number) for number in range(payloads)])
        await t.settled(within_s=20)
        return len(t.delivered), [f.reason for f in t.failures], [f.reason for f in t.dead_letters]


# ------------------------------------------------------------------------------------------------------------- batches


async def test_a_partial_failure_with_an_id_of_another_kind_acknowledges_nothing_in_silence() -> None:
    app = emq.App()

    @app.handler("o", batch_size=9)
    async def handle(messages: list[Message]) -> None:
        raise emq.PartialFailure({messages[0].id: emq.Reject("the first"), "order 17": ValueError("another")})

    delivered, failures, dead = await outcomes(app, 3)
    assert delivered == 0
    assert dead == ["rejected: the first"]
    unclear = "RuntimeError: PartialFailure names 'order 17', which is not the id of a message here"
    assert sorted(failures) == [unclear, unclear, "rejected: the first"]


async def test_a_partial_failure_may_give_the_class_of_an_error() -> None:
    app = emq.App()

    @app.handler("o", batch_size=9)
    async def handle(messages: list[Message]) -> None:
        given: Any = {messages[0].id: emq.Reject, messages[1].id: UnicodeDecodeError, messages[2].id: None}
        raise emq.PartialFailure(given)

    delivered, failures, dead = await outcomes(app, 3)
    assert (delivered, len(dead)) == (1, 1)
    assert "rejected: handler rejected the message" in failures
    assert any("PartialFailure gives <class 'UnicodeDecodeError'>, which is not an exception" in f for f in failures)


class Passing(emq.Middleware):
    """Passes on what a function makes of the messages."""

    def __init__(self, chosen: Callable[[list[Message]], list[Message]]) -> None:
        self._chosen = chosen

    async def handle(self, call: emq.HandlerCall, call_next: emq.HandleNext) -> object:
        return await call_next(call.with_messages(self._chosen(call.messages)))


@pytest.mark.parametrize("plain", [False, True])
async def test_a_middleware_that_passes_no_message_of_a_batch_on_has_skipped_all(plain: bool) -> None:
    app, called = emq.App(middleware=[Passing(lambda _: [])]), []

    async def handle(messages: list[Message]) -> None:
        called.append(messages[0])

    app.handler("o", batch_size=9)((lambda messages: called.append(messages[0])) if plain else handle)
    assert await outcomes(app) == (2, [], [])
    assert not called


async def test_misfits_of_messages_with_other_ids_do_not_count_as_successes() -> None:
    renamed = Passing(lambda messages: [msgspec.structs.replace(m, uid=f"copy of {m.uid}") for m in messages])
    app = emq.App(middleware=[renamed])

    @app.handler("o", batch_size=9)
    async def handle(orders: list[dict[str, int]]) -> None: ...

    delivered, failures, _ = await outcomes(app)
    assert delivered == 0
    assert all("PartialFailure names 'copy of " in reason for reason in failures)


# ---------------------------------------------------------------------------------------------------------- generators


def numbers(message: object) -> Iterator[int]:
    yield 1


async def later_numbers(message: object) -> AsyncIterator[int]:
    yield 1


class Yielding:
    def __call__(self, message: object) -> Iterator[int]:
        yield 1


class YieldingLater:
    async def __call__(self, message: object) -> AsyncIterator[int]:
        yield 1


def test_an_object_whose_call_is_a_generator_cannot_be_a_handler() -> None:
    for handler in (Yielding(), YieldingLater()):
        with pytest.raises(emq.EMQError, match="without `yield`"):
            Handlers().bind("o", handler)


def typed(payload: bytes) -> object:
    return numbers(payload)


async def tenant() -> str:
    return "acme"


def dependent(message: Message, name: str = emq.Depends(tenant)) -> object:
    return later_numbers(message)


def plain_tenant() -> str:
    return "acme"


def all_plain(message: Message, name: str = emq.Depends(plain_tenant)) -> object:
    return numbers(message)


@pytest.mark.parametrize(
    "handler", [lambda m: numbers(m), lambda m: later_numbers(m), typed, dependent, all_plain], ids=range(5)
)
async def test_a_handler_that_returns_a_generator_has_failed(handler: Callable[..., object]) -> None:
    app = emq.App()
    app.handler("o")(handler)
    delivered, failures, _ = await outcomes(app, 1)
    assert delivered == 0
    assert [f.split(" (")[0] for f in failures] == ["TypeError: the handler returned a generator"]


# ---------------------------------------------------------------------------------------- payloads that handlers change


@pytest.mark.parametrize("batch_size", [1, 5])
@pytest.mark.parametrize("waits_s", [None, 0.0, 0.01])
@pytest.mark.parametrize("fails", [False, True])
async def test_a_handler_that_sets_the_payload_to_a_number_holds_nothing_up(
    fails: bool, waits_s: float | None, batch_size: int
) -> None:
    app = emq.App()

    @app.handler("o", batch_size=batch_size)
    async def handle(given: Any) -> None:
        for message in given if isinstance(given, list) else [given]:
            message.payload = float(message.payload)
        if waits_s is not None:
            await asyncio.sleep(waits_s)
        if fails:
            raise ValueError("no")

    delivered, _, dead = await outcomes(app, 12)
    assert (delivered, len(dead)) == ((0, 12) if fails else (12, 0))
    assert all("the handler set payload to a value that cannot be stored" in reason for reason in dead)


# ---------------------------------------------------------------------------------------------------- groups of errors


async def fail(error: Exception) -> None:
    raise error


async def test_an_error_that_a_task_group_raises_alone_counts_as_if_the_handler_had_raised_it() -> None:
    app = emq.App()

    @app.handler("o")
    async def handle(number: int) -> None:
        error = [emq.Reject("no such order"), emq.Retry("later", after_s=7), ValueError("bad")][number]
        async with asyncio.TaskGroup() as outer, asyncio.TaskGroup() as inner:
            inner.create_task(fail(error))
            outer.create_task(asyncio.sleep(1))

    async with emq_testing.Harness(app) as t:
        await app.create_topic("o", qps=50)
        for number in range(3):
            await t.publish("o", str(number))
        await t.settled()
        reasons = [failure.reason for failure in t.failures]
        assert reasons == ["rejected: no such order", "later", "ValueError: bad"]
        await t.advance(7.5)
        assert [failure.message.attempt for failure in t.failures if failure.reason == "later"] == [1, 2]


async def test_a_partial_failure_that_a_task_group_raises_tells_about_its_batch() -> None:
    app = emq.App()

    @app.handler("o", batch_size=9)
    async def handle(messages: list[Message]) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail(emq.PartialFailure({messages[0].id: emq.Reject("the first")})))

    assert await outcomes(app, 3) == (2, ["rejected: the first"], ["rejected: the first"])


async def test_the_reason_of_several_errors_names_them() -> None:
    app = emq.App()

    @app.handler("o")
    async def handle(message: Message) -> None:
        raise ExceptionGroup("all " * 200, [ValueError("a"), KeyError("b"), ExceptionGroup("c", [OSError()])])

    _, [reason], _ = await outcomes(app, 1)
    assert reason.startswith("ExceptionGroup: all all ")
    assert reason.endswith(": ValueError: a; KeyError: 'b'; ExceptionGroup: c (1 sub-exception)")
    assert len(reason) < 400
