"""Hooks of an app: when they run, in which order, and what follows if one fails or hangs."""

from __future__ import annotations

import asyncio
import itertools
import logging
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any
from unittest import mock

import pytest

import emq
from emq.app import hooks
from emq.runtime import errors
from emq_testing import Harness
from support.waiting import until


@pytest.fixture
def app() -> emq.App:
    return emq.App("memory:")


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def recorded(app: emq.App, said: list[str]) -> emq.App:
    """The app, with hooks of each form, which say that they run."""

    @app.on_startup
    async def first() -> None:
        said.append("first")

    @app.on_startup
    async def resource() -> AsyncIterator[None]:
        said.append("resource begins")
        yield
        said.append("resource ends")

    @app.on_startup
    def plain() -> None:
        said.append("plain")

    @app.on_shutdown
    async def last() -> None:
        said.append("last")

    @app.on_shutdown
    def before_last() -> None:
        said.append("before last")

    @app.on_startup(host_only=True)
    async def host_begins() -> None:
        said.append("host begins")

    @app.on_shutdown(host_only=True)
    async def host_ends() -> None:
        said.append("host ends")

    return app


OPEN = ["first", "resource begins", "plain"]
CLOSED = ["before last", "last", "resource ends"]


async def test_hooks_run_in_order_and_those_for_hosts_only_while_the_app_is_a_host(
    recorded: emq.App, said: list[str]
) -> None:
    async with recorded:
        async with recorded.running():
            assert said == [*OPEN, "host begins"]
        assert said == [*OPEN, "host begins", "host ends"]
    assert said == [*OPEN, "host begins", "host ends", *CLOSED]


async def test_a_harness_runs_the_hooks_and_sees_what_they_publish(recorded: emq.App, said: list[str]) -> None:
    @recorded.handler("greetings")
    async def greet(message: emq.Message) -> None:
        said.append(f"{recorded.state.greeting} {message.payload.decode()}")

    @recorded.on_startup
    async def publish() -> None:
        recorded.state.greeting = "hello"
        await recorded.create_topic("greetings", qps=50)
        await recorded.publish("greetings", b"open")

    @recorded.on_startup(host_only=True)
    async def publish_as_host() -> None:
        await emq.App.current().publish("greetings", b"host")

    for _ in range(2):  # an app that a module has is opened by each test
        said.clear()
        async with Harness(recorded) as t:
            await t.settled()
            assert [p.payload for p in t.published] == [b"open", b"host"]
        assert said == [*OPEN, "host begins", "hello open", "hello host", "host ends", *CLOSED]


async def test_tasks_of_hooks_run_in_virtual_time(app: emq.App) -> None:
    ticks: list[float] = []

    @app.on_startup(host_only=True)
    async def ticking() -> AsyncIterator[None]:
        async def tick() -> None:
            while True:
                await asyncio.sleep(600)
                ticks.append(asyncio.get_running_loop().time())

        task = asyncio.create_task(tick())
        yield
        task.cancel()

    async with Harness(app) as t:
        await t.advance(hours=1)
    # A leap over a timer would let the ticks come late and all too few.
    assert len(ticks) == 6
    assert all(b - a == pytest.approx(600, abs=0.1) for a, b in itertools.pairwise(ticks))


async def test_messages_start_after_the_hooks_and_end_before_them(app: emq.App, said: list[str]) -> None:
    @app.on_startup(host_only=True)
    async def connect() -> AsyncIterator[None]:
        await asyncio.sleep(5)
        said.append("connected")
        yield
        said.append("disconnected")

    @app.handler("orders")
    async def handle(message: emq.Message) -> None:
        said.append("handled")
        await asyncio.sleep(1)
        said.append("done")

    @app.on_startup
    async def publish() -> None:
        await app.create_topic("orders", qps=10)
        await app.publish("orders", b"1")

    async with Harness(app) as t:
        await t.settled()
    assert said == ["connected", "handled", "done", "disconnected"]


@pytest.mark.parametrize("host_only", [False, True])
async def test_a_failing_start_is_undone_and_told_in_one_line(
    recorded: emq.App, said: list[str], host_only: bool, caplog: pytest.LogCaptureFixture
) -> None:
    @recorded.on_shutdown(host_only=host_only)
    async def disconnect() -> None:
        said.append("disconnect")
        del recorded.state.never_set

    @recorded.on_startup(host_only=host_only)
    async def connect() -> None:
        raise ConnectionError("no server\nat all")

    @recorded.on_startup(host_only=host_only)
    async def later() -> None:
        said.append("never")

    with pytest.raises(errors.HookFailed) as caught:
        async with recorded, recorded.running():
            said.append("never")
    [line] = str(caught.value).splitlines()
    assert "the start-up hook test_hooks." in line
    assert ".connect failed: ConnectionError: no server at all" in line
    assert "test_hooks.py, line " in line
    assert isinstance(caught.value.__cause__, ConnectionError)
    ends = ["host begins", "disconnect", "host ends", *CLOSED] if host_only else ["disconnect", *CLOSED]
    assert said == OPEN + ends
    [told] = [record for record in caplog.records if record.name == hooks.__name__]
    assert told.levelno == logging.WARNING
    assert told.exc_info is None
    said.clear()
    async with emq.App("memory:"):  # nothing is left open
        assert emq.App._open == {0}


async def test_each_shutdown_hook_runs_although_others_fail(
    recorded: emq.App, said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    @recorded.on_shutdown
    async def failing() -> None:
        raise ValueError("cannot close")

    @recorded.on_startup
    async def failing_late() -> AsyncIterator[None]:
        yield
        raise ValueError("cannot close, either")

    async with recorded:
        pass
    assert said == OPEN + CLOSED
    told = [record for record in caplog.records if record.name == hooks.__name__]
    assert ["cannot close, either" in told[0].message, "cannot close" in told[1].message] == [True, True]
    assert all(record.exc_info for record in told)


async def test_a_hook_that_hangs_can_be_cancelled(
    recorded: emq.App, said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    hanging, thread = asyncio.Event(), threading.Event()

    @recorded.on_startup
    async def hang() -> None:
        hanging.set()
        await asyncio.sleep(3600)

    @recorded.on_startup(host_only=True)
    def hang_in_thread() -> None:
        thread.wait()

    opening = asyncio.create_task(recorded.__aenter__())
    await hanging.wait()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert said == OPEN + CLOSED
    recorded.hooks._hooks = [h for h in recorded.hooks._hooks if h.function is not hang]
    said.clear()
    async with recorded:
        host = asyncio.create_task(recorded.run())
        await until(lambda: recorded.host is not None)
        recorded.stop()
        await asyncio.wait_for(host, 5)
        assert said == [*OPEN, "host begins", "host ends"]
    thread.set()


async def test_a_shutdown_hook_that_hangs_gives_way_to_the_others(recorded: emq.App, said: list[str]) -> None:
    hanging = asyncio.Event()

    @recorded.on_shutdown
    async def hang() -> None:
        hanging.set()
        await asyncio.sleep(3600)

    await recorded.__aenter__()
    closing = asyncio.create_task(recorded.__aexit__())
    await hanging.wait()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert said == OPEN + CLOSED
    assert not recorded.is_open


async def test_a_slow_hook_is_named(app: emq.App, caplog: pytest.LogCaptureFixture) -> None:
    @app.on_startup
    async def load_the_model() -> None:
        await asyncio.sleep(60)

    async with Harness(app):
        pass
    [line] = [record.message for record in caplog.records if record.name == hooks.__name__]
    assert "load_the_model has been running for 10 s" in line


async def test_a_signal_during_the_hooks_of_a_host_stops_it(recorded: emq.App, said: list[str]) -> None:
    @recorded.on_startup(host_only=True)
    async def hang() -> None:
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(3600)

    async with recorded:
        await asyncio.wait_for(recorded.run_until_signal(), 5)
    assert said == [*OPEN, "host begins", "host ends", *CLOSED]


def needs_arguments(number: int) -> None: ...


def generator() -> Iterator[None]:
    yield


async def async_generator() -> AsyncIterator[None]:
    yield


def test_a_function_that_cannot_be_a_hook_or_is_one_is_refused(app: emq.App) -> None:
    app.on_startup(async_generator)
    add: Any
    for add, function, text in (
        (app.on_startup, async_generator, "there already"),
        (app.on_startup, needs_arguments, "give it no parameters"),
        (app.on_startup, generator, "only a start-up hook that is `async def`"),
        (app.on_shutdown, async_generator, "only a start-up hook that is `async def`"),
        (app.on_startup, 5, "decorate a function"),
    ):
        with pytest.raises(errors.InvalidSettings, match=text):
            add(function)


async def test_a_hook_must_yield_once(app: emq.App, caplog: pytest.LogCaptureFixture) -> None:
    @app.on_startup
    async def twice() -> AsyncIterator[None]:
        yield
        yield

    async with app:
        pass
    assert "it yielded twice" in caplog.text

    @app.on_startup
    async def never() -> AsyncIterator[None]:
        if app.settings is None:
            yield

    with pytest.raises(errors.HookFailed, match="it did not yield"):
        async with app:
            pass


async def test_a_plain_hook_that_raises_stop_iteration_fails(app: emq.App) -> None:
    """No future of an event loop can carry a StopIteration; the start must not wait for it for ever."""

    @app.on_startup
    def first_of_none() -> None:
        next(iter([]))

    with pytest.raises(errors.HookFailed, match=r"first_of_none failed: .*StopIteration"):
        async with asyncio.timeout(10), app:
            pass


async def test_two_lifespans_at_the_same_time_open_the_app_once(recorded: emq.App, said: list[str]) -> None:
    async def served() -> None:
        async with recorded.lifespan():
            await asyncio.sleep(0.01)

    outcomes = await asyncio.gather(served(), served(), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [type(None), errors.WrongState]
    assert said == OPEN + CLOSED


async def test_an_app_whose_close_was_cancelled_can_be_opened_again(app: emq.App) -> None:
    await app.__aenter__()
    closing = asyncio.create_task(app.__aexit__())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    async with app:
        assert app.is_open


async def test_an_app_is_a_host_once_at_a_time(app: emq.App) -> None:
    received: list[emq.Message] = []
    app.handler("orders")(received.append)
    async with asyncio.timeout(10), app:
        await app.create_topic("orders", qps=10)
        host = asyncio.create_task(app.run())
        await until(lambda: app.host is not None and app.host.running.is_set())
        with pytest.raises(errors.WrongState, match="host already"):
            await app.run()
        with pytest.raises(errors.WrongState, match="host already"):
            async with app.running():
                pass
        await app.publish("orders", b"17")
        await until(lambda: received)
        app.stop()
        await host
        # As a host that has ended, the app becomes one again for whoever receives.
        await app.create_topic("mails", qps=10)
        await app.publish("mails", b"18")
        [delivery] = await app.receive("mails", timeout_s=5)
        delivery.ack()


async def test_a_topic_whose_receiver_could_not_be_bound_has_one_at_the_next_call(app: emq.App) -> None:
    async with asyncio.timeout(10), app:
        for name in ("orders", "mails"):
            await app.create_topic(name, qps=10)
            await app.publish(name, b"17")
        [delivery] = await app.receive("orders", timeout_s=5)  # which makes the app a host
        delivery.ack()
        assert app.host is not None
        with (
            mock.patch.object(app.host.ownership, "rebind", side_effect=RuntimeError("nobody expected this")),
            pytest.raises(RuntimeError, match="nobody expected"),
        ):
            await app.receive("mails", timeout_s=5)
        [delivery] = await app.receive("mails", timeout_s=5)
        delivery.ack()


async def test_an_app_is_no_host_after_its_host_was_cancelled_while_it_began(app: emq.App) -> None:
    delays_s = [60.0, 0.0]

    @app.on_startup(host_only=True)
    async def begin() -> None:
        await asyncio.sleep(delays_s.pop(0))

    async with app:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1), app.running():
                pytest.fail("the host has begun")
        async with app.running() as host:
            assert host.is_member


async def test_a_host_that_cannot_begin_tells_why() -> None:
    app = emq.App("memory:", options=emq.runtime.settings.Settings(cluster="zookeeper://127.0.0.1:1"))
    async with app:
        with pytest.raises(errors.InvalidSettings, match="cannot be shared"):
            async with app.running():
                pass
