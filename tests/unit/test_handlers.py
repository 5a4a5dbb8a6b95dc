"""Which handler a topic gets, and how functions of every kind are called."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from emq.host.handlers import Handlers, with_timeout
from emq.runtime import errors


async def name_of(handlers: Handlers, topic: str) -> object:
    found = handlers.find(topic)
    return None if found is None else await found.call(topic)


def bind_names(handlers: Handlers, *patterns: str) -> None:
    for pattern in patterns:

        async def named(_: Any, pattern: str = pattern) -> str:
            return pattern

        handlers.bind(pattern, named)


async def test_the_most_specific_pattern_wins() -> None:
    handlers = Handlers()
    bind_names(handlers, "*", "orders.*", "orders.eu.*", "orders.eu.de", "x[12]", "orders.eu.*.long")
    wanted = {
        "orders.eu.de": "orders.eu.de",
        "orders.eu.fr": "orders.eu.*",
        "orders.us": "orders.*",
        "x1": "x[12]",
        "x3": "*",
        "orders.eu.x.long": "orders.eu.*.long",
    }
    for topic, pattern in wanted.items():
        assert await name_of(handlers, topic) == pattern


async def test_a_name_goes_before_a_longer_pattern_and_an_earlier_of_two_before_the_later() -> None:
    handlers = Handlers()
    bind_names(handlers, "[abc][abc][abc]", "abc", "a?d", "ab?", "?bd", "log[1]")
    assert await name_of(handlers, "abc") == "abc"
    assert await name_of(handlers, "acd") == "a?d"
    assert await name_of(handlers, "abd") == "a?d"
    assert await name_of(handlers, "log[1]") == "log[1]", "a name with brackets matches itself"
    assert await name_of(handlers, "nope") is None


def test_a_second_handler_for_a_pattern_and_a_batch_of_none_are_refused() -> None:
    handlers = Handlers()
    bind_names(handlers, "a")
    with pytest.raises(errors.InvalidSettings, match="'a' already"):
        bind_names(handlers, "a")
    with pytest.raises(errors.InvalidSettings, match="batch_size 0"):
        handlers.bind("b", print, batch_size=0)


def test_what_cannot_be_a_handler_is_refused() -> None:
    def generator(m: object) -> Iterator[object]:
        yield m

    async def async_generator(m: object) -> Any:
        yield m

    for function in (generator, async_generator, "print", None):
        with pytest.raises(errors.InvalidSettings, match="bind an `async def` or a plain function"):
            Handlers().bind("a", function)  # type: ignore[arg-type]


async def called(function: Any) -> Any:
    """Return what the function returns as the handler of a message."""
    handlers = Handlers()
    handlers.bind("*", function)
    found = handlers.find("t")
    assert found is not None
    try:
        return await found.call("m")
    finally:
        handlers.close()


class Plain:
    def __call__(self, m: object) -> object:
        return m, threading.current_thread().name

    def method(self, m: object) -> object:
        return self(m)


class Asynchronous:
    async def __call__(self, m: object) -> object:
        return m, threading.current_thread().name

    async def method(self, m: object) -> object:
        return await self(m)


async def _coroutine(m: object, extra: object = None) -> object:
    return m, threading.current_thread().name


def _plain(m: object, extra: object = None) -> object:
    return m, threading.current_thread().name


@pytest.mark.parametrize(
    "function", [_coroutine, Asynchronous(), Asynchronous().method, functools.partial(_coroutine, extra=1)]
)
async def test_coroutine_functions_of_every_kind_run_in_the_loop(function: Any) -> None:
    assert await called(function) == ("m", threading.current_thread().name)


@pytest.mark.parametrize("function", [_plain, Plain(), Plain().method, functools.partial(_plain, extra=1)])
async def test_plain_callables_of_every_kind_run_in_a_thread(function: Any) -> None:
    what, thread = await called(function)
    assert what == "m"
    assert thread.startswith("emq-handler")


async def test_a_plain_function_that_returns_a_coroutine_has_it_awaited() -> None:
    done: list[object] = []

    async def work(m: object) -> None:
        await asyncio.sleep(0)
        done.append(m)

    await called(lambda m: work(m))
    assert done == ["m"]


async def test_a_plain_function_that_raises_stop_iteration_fails_and_does_not_hang() -> None:
    async with asyncio.timeout(5):
        with pytest.raises(RuntimeError, match="StopIteration"):
            await called(lambda m: next(iter(())))


async def test_at_most_so_many_plain_functions_run_at_once() -> None:
    lock, gate = threading.Lock(), threading.Event()
    running = most = 0

    def work(m: Any) -> Any:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        gate.wait(5)
        with lock:
            running -= 1
        return m

    handlers = Handlers(threads=3)
    handlers.bind("*", work)
    found = handlers.find("t")
    assert found is not None
    calls = [asyncio.ensure_future(found.call(i)) for i in range(10)]
    while running < 3:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)
    assert running == 3
    gate.set()
    assert await asyncio.gather(*calls) == list(range(10))
    assert most == 3
    handlers.close()
    handlers.close()


async def test_a_timeout_says_how_long_and_other_timeouts_are_the_handlers_own() -> None:
    async def slow(m: object) -> None:
        await asyncio.sleep(10)

    async def own(m: object) -> None:
        raise TimeoutError("of a socket")

    with pytest.raises(errors.Retry, match=r"took longer than 0\.005 s"):
        await with_timeout(slow, 0.005)("m")
    with pytest.raises(TimeoutError, match="of a socket"):
        await with_timeout(own, 5)("m")
    task = asyncio.ensure_future(with_timeout(slow, 5)("m"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("name", ["on_expired", "withdraws"])
def test_what_looks_at_single_messages_must_be_a_plain_function(name: str) -> None:
    async def late(m: object) -> None:
        """Would never be awaited."""

    for function in (late, "print"):
        with pytest.raises(errors.InvalidSettings, match=rf"{name} .* of the handler for 'a' must be a plain function"):
            Handlers().bind("a", print, **{name: function})  # type: ignore[arg-type]
