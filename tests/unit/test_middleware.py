"""Middleware: its order, what it may change and answer, and what happens where it fails."""

from __future__ import annotations

import dataclasses
import traceback
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

import emq
import emq_testing
from emq.host.handlers import Handlers
from emq.runtime import errors


class Noting(emq.Middleware):
    """Notes what passes."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name = name
        self.notes = notes

    async def publish(self, call: emq.PublishCall, call_next: emq.PublishNext) -> list[str]:
        self.notes.append(f"{self.name} {call.method} {len(call.payloads)}")
        return await call_next(call)

    async def handle(self, call: emq.HandlerCall, call_next: emq.HandleNext) -> object:
        self.notes.append(f"{self.name} before {len(call.messages)}")
        try:
            return await call_next(call)
        except BaseException as exc:
            self.notes.append(f"{self.name} {type(exc).__name__}")
            raise
        finally:
            self.notes.append(f"{self.name} after")


def new_app(*middleware: emq.Middleware) -> emq.App:
    return emq.App("memory:", options=emq.Settings(), middleware=middleware)


@dataclasses.dataclass
class Order:
    id: int


async def test_the_first_is_the_outermost_and_sees_errors() -> None:
    notes: list[str] = []
    app = new_app(Noting("a", notes))

    @app.handler("t")
    async def handle(order: Order) -> None:
        notes.append(f"order {order.id}")

    app.add_middleware(Noting("b", notes))
    async with emq_testing.Harness(app) as t:
        await app.create_topic("t", qps=50)
        await t.publish("t", Order(1))
        await t.settled()
        assert notes == ["a publish 1", "b publish 1", "a before 1", "b before 1", "order 1", "b after", "a after"]
        notes.clear()
        await t.publish("t", {"id": "x"})
        await t.settled()
        failed = ["b Reject", "b after", "a Reject", "a after"]
        assert notes == ["a publish 1", "b publish 1", "a before 1", "b before 1", *failed]
        assert len(t.dead_letters) == 1


async def test_a_batch_and_publish_many_pass_once_a_call_and_a_schedule_too() -> None:
    notes: list[str] = []
    app = new_app(Noting("a", notes))

    @app.handler("t", batch_size=10)
    def handle(orders: list[Order], messages: list[emq.Message]) -> None:
        notes.append(f"orders {[o.id for o in orders]}")

    async with emq_testing.Harness(app) as t:
        await app.create_topic("t", qps=100, group_qps=100)
        ids = await app.publish_many("t", [Order(i) for i in range(3)])
        assert len(ids) == 3
        await t.settled()
        assert notes == ["a publish_many 3", "a before 3", "orders [0, 1, 2]", "a after"]
        notes.clear()
        await app.schedule("t", Order(7), every_s=10, repeat=0)
        assert notes == ["a schedule 1"]


class Changing(emq.Middleware):
    """Seals payloads on their way out, and opens them again."""

    async def publish(self, call: emq.PublishCall, call_next: emq.PublishNext) -> list[str]:
        call.headers["tenant"] = "acme"
        call.topic = call.topic.replace("old", "t")
        call.payloads = [{"sealed": payload} for payload in call.payloads]
        assert call.options == {"key": "k"}
        call.options["priority"] = "high"
        call.content_type = "application/msgpack"
        return await call_next(call)

    async def handle(self, call: emq.HandlerCall, call_next: emq.HandleNext) -> object:
        assert (call.topic, call.pattern, call.handler) == ("t", "t", call.handler)
        body = msgspec.msgpack.encode(msgspec.msgpack.decode(call.message.payload)["sealed"])
        return await call_next(call.with_messages([msgspec.structs.replace(call.message, payload=body)]))


async def test_it_may_change_what_is_published_and_what_the_handler_gets() -> None:
    app = new_app(Changing())
    got: list[Any] = []

    @app.handler("t")
    async def handle(order: Order, message: emq.Message) -> None:
        got.append((order, message.headers, message.priority, message.key))

    async with emq_testing.Harness(app) as t:
        await app.create_topic("t", qps=10)
        await t.publish("old", Order(5), key="k")
        await t.settled()
        [message] = t.delivered
    assert got == [(Order(5), {"tenant": "acme", "content-type": "application/msgpack"}, 0, "k")]
    assert msgspec.msgpack.decode(message.payload) == {"sealed": {"id": 5}}


class Answering(emq.Middleware):
    """Answers for the handler."""

    async def handle(self, call: emq.HandlerCall, call_next: emq.HandleNext) -> object:
        match call.message.payload:
            case b"reject":
                raise emq.Reject("not wanted")
            case b"retry" if call.message.attempt == 1:
                raise emq.Retry("not now", after_s=5)
            case b"break":
                raise RuntimeError("the middleware broke")
            case b"skip":
                return None
            case b"twice":
                await call_next(call)
        return await call_next(call)


async def test_it_may_answer_for_the_handler_and_call_it_twice() -> None:
    app = new_app(Answering())
    handled: list[bytes] = []

    @app.handler("t")
    async def handle(message: emq.Message) -> None:
        handled.append(message.payload)

    async with emq_testing.Harness(app) as t:
        await app.create_topic("t", qps=50)
        for payload in ("reject", "retry", "break", "skip", "twice", "plain"):
            await t.publish("t", payload)
        await t.settled()
        assert sorted(handled) == [b"plain", b"twice", b"twice"]
        assert [f.reason for f in t.dead_letters] == ["rejected: not wanted"]
        assert [f.reason for f in t.failures if f.again_at] == ["not now", "RuntimeError: the middleware broke"]
        await t.advance(5)
        assert handled[-1] == b"retry"
        assert sorted(m.payload for m in t.delivered) == [b"plain", b"retry", b"skip", b"twice"]


class Refusing(emq.Middleware):
    """Does on publish what it is asked to."""

    async def publish(self, call: emq.PublishCall, call_next: emq.PublishNext) -> Any:
        match call.payloads[0]:
            case "refuse":
                raise PermissionError("not you")
            case "forget":
                await call_next(call)
                return None
            case "never":
                return []
            case "own":
                return ["mine"]
            case "more":
                call.payloads = ["a", "b"]
            case "twice":
                await call_next(call)
        return await call_next(call)


async def test_a_publish_that_middleware_spoils_is_refused() -> None:
    app = new_app(Refusing())
    async with emq_testing.Harness(app) as t:
        await app.create_topic("t", qps=10)
        with pytest.raises(PermissionError):
            await t.publish("t", "refuse")
        for payload in ("forget", "never"):
            with pytest.raises(errors.InvalidSettings, match=r"the middleware \(Refusing\) returned .* from publish"):
                await t.publish("t", payload)
        with pytest.raises(errors.InvalidMessage, match="made 2 payloads of the one of a publish"):
            await t.publish("t", "more")
        with pytest.raises(errors.InvalidMessage, match="'text' is one payload"):
            await app.publish_many("t", "text")
        with pytest.raises(errors.InvalidMessage, match="header 'a' 5 is of type int"):
            await t.publish("t", "x", headers={"a": 5})
        assert await t.publish("t", "own") == "mine"
        assert isinstance(await t.publish("t", "twice"), str)
        assert [p.payload for p in t.published] == ["forget", "twice", "twice"]


class Picking(emq.Middleware):
    """Passes only some messages of a batch on."""

    async def handle(self, call: emq.HandlerCall, call_next: emq.HandleNext) -> object:
        kept = [m for m in call.messages if m.payload == b'{"id":1}']
        call.messages.clear()  # of no effect on the engine
        return await call_next(call.with_messages(kept))


async def test_messages_of_a_batch_that_it_leaves_out_are_done() -> None:
    app = new_app(Picking())
    handled: list[Order] = []

    @app.handler("many", batch_size=10)
    async def many(orders: list[Order]) -> None:
        handled.extend(orders)

    @app.handler("one")
    async def one(order: Order) -> None:
        handled.append(order)

    async with emq_testing.Harness(app) as t:
        await app.create_topic("many", qps=50)
        await app.create_topic("one", qps=50)
        await app.publish_many("many", [Order(1), Order(2)])
        await app.publish_many("many", [Order(3)])
        await app.publish_many("one", [Order(4)])
        await t.settled()
        assert handled == [Order(1)]
        assert len(t.delivered) == 3
        assert [f.reason for f in t.failures] == [
            "InvalidSettings: middleware passed 0 messages to the handler "
            "test_messages_of_a_batch_that_it_leaves_out_are_done.<locals>.one, which takes one at a time"
        ]


async def test_the_log_shows_the_users_steps_and_not_those_of_emq_between(caplog: pytest.LogCaptureFixture) -> None:
    app = new_app(Noting("a", []), Noting("b", []))

    def broken() -> None:
        raise ConnectionError("down")

    @app.handler("t")
    def handle(payload: dict[str, int], it: Annotated[None, emq.Depends(broken)]) -> None: ...

    @app.handler("u")
    async def publishing(payload: str) -> None:
        await app.publish("u", payload, priority="unknown")

    async with emq_testing.Harness(app) as t:
        await app.create_topic("t", qps=50)
        await app.create_topic("u", qps=50)
        await t.publish("t", {})
        await t.publish("u", "x")
        await t.settled()
    shown: dict[str, list[tuple[str, str]]] = {}
    for record in caplog.records:
        steps = traceback.extract_tb(record.exc_info[2] if record.exc_info else None)
        shown[vars(record)["topic"]] = [(Path(step.filename).name, step.name) for step in steps]
    here = Path(__file__).name
    assert [s for s in shown["t"] if s[0] != "contextlib.py"] == [(here, "handle"), (here, "handle"), (here, "broken")]
    # An error that EMQ raises keeps its steps in EMQ behind those of the user's code.
    assert shown["u"][:5] == [(here, name) for name in ("handle", "handle", "publishing", "publish", "publish")]
    assert shown["u"][-1] == ("model.py", "priority_index")


async def test_without_middleware_for_handlers_nothing_is_added_to_the_call() -> None:
    class OnlyPublish(emq.Middleware):
        async def publish(self, call: emq.PublishCall, call_next: emq.PublishNext) -> list[str]:
            return await call_next(call)

    class OnlyHandle(emq.Middleware):
        __slots__ = ()

        async def handle(self, call: emq.HandlerCall, call_next: emq.HandleNext) -> object:
            return await call_next(call)

    app = new_app(OnlyPublish())

    @app.handler("t")
    async def handle(message: emq.Message) -> None: ...

    assert app.handlers._bindings[0].call is handle
    assert new_app(OnlyHandle())._publish_chain is None
    app.add_middleware(OnlyHandle())
    assert app.handlers._bindings[0].call is not handle


async def test_receivers_have_no_middleware_and_can_be_bound_again() -> None:
    notes: list[str] = []
    app = new_app(Noting("a", notes))
    async with app:
        await app.create_topic("t", qps=1000)
        await app.publish("t", b"x")
        [delivery] = await app.receive("t")
        assert delivery.ack()
    assert notes == ["a publish 1"]
    receiver = app.receiver("u")
    app.add_middleware(Noting("b", notes))
    assert {b.pattern: b.call for b in app.handlers._bindings}["u"] == receiver.handle
    handlers = Handlers()
    for _ in range(2):
        handlers.bind_receiver("u", receiver)
        assert handlers._bindings[0].call == receiver.handle
        handlers.unbind_receiver("u", receiver)
    assert handlers._bare == {}


async def test_what_is_no_middleware_is_refused() -> None:
    class Plain(emq.Middleware):
        def handle(self, call: emq.HandlerCall, call_next: emq.HandleNext) -> Any:
            return None

    app = new_app()
    wrong: list[tuple[Any, str]] = [
        (Plain, "Plain is a class; give an object of it"),
        (print, "is of type builtin_function_or_method; derive it from emq.Middleware"),
        (Plain(), "Plain.handle must be an `async def`"),
    ]
    for middleware, said in wrong:
        with pytest.raises(errors.InvalidSettings, match=said):
            app.add_middleware(middleware)
    async with app:
        with pytest.raises(errors.WrongState, match="before `async with app:`"):
            app.add_middleware(Noting("a", []))
