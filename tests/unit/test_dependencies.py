"""Dependencies of handlers: what they may ask for, how often they are made, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import pytest

import emq
import emq_testing
from emq.calls import signatures
from emq.host.handlers import Handlers
from emq.runtime import errors


def message(payload: bytes = b"{}", id_: str = "m") -> emq.Message:
    return emq.Message(id_, payload, topic="t")


async def called(function: Any, argument: Any = None, batch_size: int = 1, overrides: Any = ()) -> Any:
    """Return what the function returns as the handler of a message, or of a list of them."""
    handlers = Handlers()
    handlers.overrides.update(overrides)
    handlers.bind("*", function, batch_size=batch_size)
    try:
        return await handlers._bindings[0].call(argument or message())
    finally:
        handlers.close()


notes: list[Any] = []


@pytest.fixture(autouse=True)
def _fresh_notes() -> None:
    notes.clear()


async def settings() -> dict[str, int]:
    notes.append("settings")
    return {"rate": 5}


async def session(found: dict[str, int] = emq.Depends(settings)) -> AsyncIterator[str]:
    notes.append(f"open {found['rate']}")
    try:
        yield "session"
    except BaseException as exc:
        notes.append(f"roll back after {type(exc).__name__}")
        raise
    else:
        notes.append("commit")
    finally:
        notes.append("close")


def plain_session(about: emq.Message) -> Iterator[str]:
    notes.append(("open", threading.current_thread().name))
    yield about.id
    notes.append(("close", threading.current_thread().name))


class Client:
    def __init__(self, name: str = "client") -> None:
        self.name = name


class Callable_:
    async def __call__(self) -> AsyncIterator[int]:
        yield 5
        notes.append("callable closed")


Session = Annotated[str, emq.Depends(session)]


async def test_dependencies_are_made_once_a_call_and_closed_after_it_in_reverse_order() -> None:
    async def transaction(within: Session) -> AsyncIterator[str]:
        notes.append("begin")
        yield f"transaction of {within}"
        notes.append("end")

    async def handle(
        payload: dict[str, int],
        held: Session,
        message: emq.Message,
        begun: str = emq.Depends(transaction),
        rate: dict[str, int] = emq.Depends(settings),
        client: Client = emq.Depends(Client),
        *,
        five: Annotated[int, emq.Depends(Callable_())],
        more: int = 6,
    ) -> None:
        notes.append((payload, held, message.id, begun, rate, client.name, five, more))

    for _ in range(2):
        notes.clear()
        await called(handle, message(b'{"a": 1}'))
        assert notes == [
            "settings",
            "open 5",
            "begin",
            ({"a": 1}, "session", "m", "transaction of session", {"rate": 5}, "client", 5, 6),
            "callable closed",
            "end",
            "commit",
            "close",
        ]


async def test_an_error_of_the_handler_reaches_dependencies_and_goes_on() -> None:
    async def swallowing() -> AsyncIterator[None]:
        with contextlib.suppress(Exception):
            yield

    async def handle(payload: Any, held: Session, quiet: Annotated[None, emq.Depends(swallowing)]) -> None:
        raise emq.Reject("bad")

    with pytest.raises(emq.Reject, match="bad"):
        await called(handle)
    assert notes[2:] == ["roll back after Reject", "close"]


@pytest.mark.parametrize("plain", [False, True])
async def test_a_cleanup_that_fails_fails_the_call_and_the_others_are_closed(plain: bool) -> None:
    async def failing() -> AsyncIterator[None]:
        yield
        raise ConnectionError("the commit failed")

    def plain_failing() -> Iterator[None]:
        yield
        raise ConnectionError("the commit failed")

    async def handle(
        payload: Any, held: Session, broken: Any = emq.Depends(plain_failing if plain else failing)
    ) -> None:
        notes.append("handled")

    with pytest.raises(ConnectionError):
        await called(handle)
    assert notes[2:] == ["handled", "roll back after ConnectionError", "close"]


async def test_a_dependency_that_fails_fails_the_call_and_closes_those_before_it() -> None:
    async def broken(held: Session) -> None:
        raise emq.Retry("the pool is empty", after_s=3)

    async def handle(payload: Any, nothing: Annotated[None, emq.Depends(broken)]) -> None:
        notes.append("handled")

    with pytest.raises(emq.Retry, match="the pool is empty"):
        await called(handle)
    assert notes[2:] == ["roll back after Retry", "close"]


async def test_a_misfit_is_rejected_before_anything_is_made() -> None:
    async def handle(payload: dict[str, int], held: Session) -> None: ...

    with pytest.raises(emq.Reject):
        await called(handle, message(b"[]"))
    assert notes == []


async def test_a_cancelled_call_closes_its_dependencies() -> None:
    async def handle(payload: Any, held: Session) -> None:
        await asyncio.Event().wait()

    task = asyncio.ensure_future(called(handle))
    while len(notes) < 2:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert notes[2:] == ["roll back after CancelledError", "close"]


async def test_a_plain_handler_and_its_plain_dependencies_run_in_one_thread() -> None:
    def client(held: Annotated[str, emq.Depends(plain_session)]) -> str:
        notes.append(("client", threading.current_thread().name))
        return held

    def handle(payload: Any, of: Annotated[str, emq.Depends(client)], *, more: int = 1) -> None:
        notes.append((of, threading.current_thread().name))

    await called(handle)
    assert [what for what, _ in notes] == ["open", "client", "m", "close"]
    assert len({thread for _, thread in notes}) == 1
    assert notes[0][1].startswith("emq-handler")


async def test_plain_and_asynchronous_functions_mix() -> None:
    async def handle(payload: Any, of: Annotated[str, emq.Depends(plain_session)]) -> None:
        notes.append((of, threading.current_thread().name))

    def plain(payload: Any, held: Session, of: Annotated[str, emq.Depends(plain_session)]) -> None:
        notes.append((of + held, threading.current_thread().name))

    await called(handle)
    assert [what for what, _ in notes] == ["open", "m", "close"]
    assert [thread.startswith("emq-handler") for _, thread in notes] == [True, False, True]
    notes.clear()
    await called(plain)
    assert [n[0] if isinstance(n, tuple) else n for n in notes] == [
        *("settings", "open 5", "open", "msession", "close", "commit", "close")
    ]
    assert notes[3][1].startswith("emq-handler")


async def test_in_batches_dependencies_get_the_list_and_misfits_stay_apart() -> None:
    async def about(messages: list[emq.Message]) -> AsyncIterator[list[str]]:
        yield [m.id for m in messages]
        notes.append("closed")

    async def handle(payloads: list[dict[str, int]], ids: Annotated[list[str], emq.Depends(about)]) -> None:
        notes.append((payloads, ids))

    with pytest.raises(emq.PartialFailure) as failed:
        await called(handle, [message(b"{}", "a"), message(b"no", "b"), message(b'{"x": 1}', "c")], batch_size=3)
    assert [*failed.value.failures] == ["b"]
    assert notes == [([{}, {"x": 1}], ["a", "c"]), "closed"]


async def delivered(app: emq.App, overrides: Any = None) -> None:
    """Let the app's handler have one message."""
    async with emq_testing.Harness(app, overrides=overrides) as t:
        await app.create_topic("t", qps=50)
        await t.publish("t", b"x")
        await t.settled()


async def test_overrides_replace_functions_for_a_while() -> None:
    app = emq.App("memory:", options=emq.Settings())
    got: list[Any] = []

    @app.handler("t")
    def handle(payload: bytes, held: Annotated[str, emq.Depends(plain_session)]) -> None:
        got.append(held)

    async def fake(found: Annotated[dict[str, int], emq.Depends(settings)]) -> str:
        return f"fake {found}"

    await delivered(app, {plain_session: fake, settings: lambda: "fake, too"})
    assert got == ["fake fake, too"]
    assert app.dependency_overrides == {}
    app.dependency_overrides[plain_session] = lambda: "another"
    await delivered(app)
    assert got[1:] == ["another"]
    assert [*app.dependency_overrides] == [plain_session]


async def test_app_current_works_in_dependencies_of_every_kind() -> None:
    app = emq.App("memory:", options=emq.Settings())
    got: list[Any] = []

    async def here() -> emq.App:
        return emq.App.current()

    def there() -> emq.App:
        return emq.App.current()

    @app.handler("t")
    async def handle(
        payload: bytes, one: Annotated[emq.App, emq.Depends(here)], two: Annotated[emq.App, emq.Depends(there)]
    ) -> None:
        got.append((one, two))

    await delivered(app)
    assert got == [(app, app)]


def refusal(function: Any, batch_size: int = 1) -> str:
    with pytest.raises(errors.InvalidSettings) as refused:
        Handlers().bind("t", function, batch_size=batch_size)
    assert "\n" not in str(refused.value)
    return str(refused.value)


async def test_what_cannot_be_filled_is_refused_when_the_handler_is_bound() -> None:
    async def needy(number: int) -> int:
        return number

    async def of_one(m: emq.Message) -> None: ...

    async def asks(payload: Any, n: Annotated[int, emq.Depends(needy)]) -> None: ...
    async def batch(payloads: list[Any], m: Annotated[None, emq.Depends(of_one)]) -> None: ...
    async def first(n: Annotated[int, emq.Depends(settings)], payload: Any) -> None: ...
    async def default(n: Any = emq.Depends(settings)) -> None: ...
    async def positional(payload: Any, n: Any = emq.Depends(settings), /) -> None: ...

    assert "EMQ cannot fill the parameter 'number' of the dependency " in refusal(asks)
    assert "is annotated Message; annotate list[Message]" in refusal(batch, batch_size=2)
    for function in (first, default):
        assert "is a dependency; put one for message or payload before it" in refusal(function)
    assert "is positional only" in refusal(positional)
    with pytest.raises(errors.InvalidSettings, match=r"give the function itself, without \(\)"):
        emq.Depends({})  # type: ignore[call-overload]

    def one(other: Any) -> None: ...

    one.__defaults__ = (emq.Depends(one),)

    async def circle(payload: Any, it: Any = emq.Depends(one)) -> None: ...

    assert "depends on itself; break the circle" in refusal(circle)


async def test_a_plain_function_that_returns_a_coroutine_is_named() -> None:
    async def handle(payload: Any, n: Any = emq.Depends(lambda: settings())) -> None: ...

    def plain(payload: Any, n: Any = emq.Depends(lambda: settings())) -> None: ...

    for function in (handle, plain):
        with pytest.raises(errors.InvalidSettings, match="returned a coroutine; make it an `async def`"):
            await called(function)


@dataclasses.dataclass
class Unhashable:
    name: str

    def __call__(self) -> str:
        return self.name


async def test_a_callable_object_that_cannot_be_hashed_is_a_dependency() -> None:
    async def handle(payload: Any, name: Annotated[str, emq.Depends(Unhashable("x"))]) -> str:
        return name

    assert await called(handle, overrides={settings: lambda: 5}) == "x"


class Pool:
    """Counts the sessions that it hands out."""

    def __init__(self) -> None:
        self.sessions = 0

    def session(self) -> int:
        self.sessions += 1
        return self.sessions


async def test_a_method_of_an_object_is_called_once_for_each_call_of_the_handler() -> None:
    pool, other = Pool(), Pool()

    async def inner(n: int = emq.Depends(pool.session)) -> int:
        return n

    async def handle(
        payload: Any,
        a: int = emq.Depends(pool.session),
        b: int = emq.Depends(inner),
        c: int = emq.Depends(other.session),
    ) -> tuple[int, int, int]:
        return a, b, c

    assert await called(handle) == (1, 1, 1)
    assert await called(handle, overrides={pool.session: lambda: 9}) == (9, 9, 2)


@pytest.mark.parametrize("is_plain", [False, True])
async def test_shared_dependencies_are_looked_at_once(is_plain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    levels, looks = 12, 0
    signature_of = signatures.signature_of

    def counting(function: Any) -> Any:
        nonlocal looks
        looks += 1
        return signature_of(function)

    monkeypatch.setattr(signatures, "signature_of", counting)

    def level(below: Any) -> Any:
        if is_plain:

            def made(a: int = emq.Depends(below), b: int = emq.Depends(below)) -> int:
                return max(a, b) + 1

            return made

        async def made_async(a: int = emq.Depends(below), b: int = emq.Depends(below)) -> int:
            return max(a, b) + 1

        return made_async

    function: Any = lambda: 0  # noqa: E731
    for _ in range(levels):
        function = level(function)

    def handle(payload: Any, n: int = emq.Depends(function)) -> int:
        return n

    assert await called(handle) == levels
    assert looks == levels + 2
    assert await called(handle, overrides={settings: lambda: 5}) == levels


def test_a_long_row_of_dependencies_is_refused_in_words() -> None:
    def level(below: Any) -> Any:
        async def made(n: int = emq.Depends(below)) -> int:
            return n

        return made

    function: Any = settings
    for _ in range(1_000):
        function = level(function)

    async def handle(payload: Any, n: int = emq.Depends(function)) -> None: ...

    assert "ask for each other more than 100 deep" in refusal(handle)


async def test_an_override_that_asks_for_the_function_that_it_replaces_is_named() -> None:
    async def spied(real: Any = emq.Depends(settings)) -> Any:
        return real

    async def handle(payload: Any, n: Any = emq.Depends(settings)) -> None: ...

    def plain(payload: Any, n: Any = emq.Depends(settings)) -> None: ...

    for function in (handle, plain):
        with pytest.raises(errors.InvalidSettings, match=r"the override .*spied depends on itself"):
            await called(function, overrides={settings: spied})
