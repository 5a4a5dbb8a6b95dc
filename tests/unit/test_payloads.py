"""What a handler gets for each annotation, how objects are encoded, and what happens to payloads that do not fit."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import functools
import itertools
import json
import math
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, NewType, TypedDict
from unittest import mock

import msgspec
import pydantic
import pytest

import emq
import emq_testing
from emq.calls import content_types, encoding
from emq.host.handlers import Handlers
from emq.runtime import errors

if TYPE_CHECKING:
    from emq.storage.message import Message

JSON, MSGPACK = content_types.JSON, content_types.MSGPACK


@dataclasses.dataclass
class Address:
    city: str


@dataclasses.dataclass
class Order:
    id: int
    to: Address
    note: str = ""


class Struct(msgspec.Struct):
    id: int
    at: datetime.datetime | None = None


class Typed(TypedDict):
    id: int


class Model(pydantic.BaseModel):
    id: int
    sku: Annotated[str, pydantic.Field(alias="SKU", max_length=3)] = "A"


class Strict(pydantic.BaseModel, strict=True):
    at: datetime.datetime


@pydantic.dataclasses.dataclass
class Checked:
    id: pydantic.PositiveInt


def message(payload: bytes, content_type: str | None = None, id_: str = "m") -> emq.Message:
    headers = None if content_type is None else {"content-type": content_type}
    return emq.Message(id_, payload, topic="t", headers=headers)


def published(payload: Any, content_type: str = JSON) -> emq.Message:
    body, headers = encoding.encoded(payload, None, None, content_type)
    return emq.Message(
        "m", body if isinstance(body, bytes) else body.encode(), headers=dict(headers) if headers else None
    )


async def called(function: Callable[..., Any], argument: Any, batch_size: int = 1) -> Any:
    handlers = Handlers()
    handlers.bind("*", function, batch_size=batch_size)
    found = handlers.find("t")
    assert found is not None
    try:
        return await found.call(argument)
    finally:
        handlers.close()


async def got(annotation: Any, argument: Any) -> Any:
    """Return what a handler with this annotation gets."""

    async def handle(payload: Any) -> Any:
        return payload

    handle.__annotations__["payload"] = annotation
    return await called(handle, argument)


Sku = NewType("Sku", str)

NOON = datetime.datetime(2030, 1, 1, 12, tzinfo=datetime.UTC)


@pytest.mark.parametrize("content_type", [JSON, MSGPACK])
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (bytes, b"\xff"),
        (str, "grün"),
        (dict, {"a": [1, None]}),
        (dict[str, Any], {"a": 1.5}),
        (list[Address], [Address("Bonn"), Address("Ulm")]),
        (Order, Order(1, Address("Bonn"))),
        (Annotated[Order, "order"], Order(1, Address("Bonn"))),
        (Struct, Struct(2, NOON)),
        (Typed, {"id": 3}),
        (Model, Model.model_validate({"id": 4, "SKU": "B"})),
        (Strict, Strict(at=NOON)),
        (list[Model], [Model(id=5)]),
        (Checked, Checked(6)),
        (Order | None, Order(1, Address("Bonn"))),
        (Annotated[bytes, "raw"], b"\xff"),
        (Annotated[str, msgspec.Meta(max_length=4)], "grün"),
        (Sku, "apple"),
    ],
)
async def test_a_payload_arrives_as_it_was_published(kind: Any, value: Any, content_type: str) -> None:
    sent = published(value, content_type)
    assert sent.headers == (None if isinstance(value, bytes | str) else {"content-type": content_type})
    assert await got(kind, sent) == value


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        (None, b'{"id": 1}'),
        ("Application/JSON; charset=utf-8", b'{"id": 1}'),
        ("application/vnd.shop+json", b'{"id": 1}'),
        ("application/x-msgpack", msgspec.msgpack.encode({"id": 1})),
    ],
)
async def test_the_content_type_says_how_to_decode(content_type: str | None, body: bytes) -> None:
    assert await got(Struct, message(body, content_type)) == Struct(1)
    upper = emq.Message("m", body, headers=None if content_type is None else {"Content-Type": content_type})
    assert await got(Model, upper) == Model(id=1)


@pytest.mark.parametrize(
    ("kind", "body", "content_type", "said"),
    [
        (str, b"ok\xff", None, "the payload is no UTF-8 text: invalid start byte at byte 2"),
        (Annotated[str, msgspec.Meta(max_length=4)], b"green", None, "no str: Expected `str` of length <= 4"),
        (Order, b'{"id": "x", "to": {"city": "Bonn"}}', None, "no Order: Expected `int`, got `str` - at `$.id`"),
        (Order, b'{"id": 1, "to": {"city": 5}}', None, "no Order: Expected `str`, got `int` - at `$.to.city`"),
        (Order, b'{"id": 1}', None, "no Order: Object missing required field `to`"),
        (Order, b'{"id": NaN}', None, "no Order: JSON is malformed"),
        (Order, b"", None, "no Order: Input data was truncated"),
        (Order, b"\xff", None, "no Order: JSON is malformed"),
        (Struct, b'{"id": 1, "at": "\xff"}', None, "no Struct: "),
        (list[int], b"[1, 2", None, "no list[int]: Input data was truncated"),
        (Struct, b"\xc1", MSGPACK, "no Struct: MessagePack data is malformed"),
        (Struct, b"\x81\xa1\xff\x01", MSGPACK, "no Struct: "),
        (dict, b'{"a":' * 100_000, None, "no dict: nested too deeply"),
        (list, b"\x91" * 100_000, MSGPACK, "no list: nested too deeply"),
        (Model, b'{"id": "x", "SKU": "long"}', None, "unable to parse string as an integer - at `$.id`; String should"),
        (Model, b'{"a":' * 100_000, None, "no Model: Invalid JSON: recursion limit exceeded"),
        (Model, b"\x91" * 100_000, MSGPACK, "no Model: nested too deeply"),
        (Checked, b'{"id": -1}', None, "no Checked: Input should be greater than 0 - at `$.id`"),
        (list[Model], b'[{"id": 1}, {}]', None, "no list[Model]: Field required - at `$[1].id`"),
        (Order, b"{}", "text/csv", "no Order: EMQ cannot decode its content type 'text/csv'"),
        (Order, b"[" + b"1," * 5_000_000 + b"1]", None, "no Order: Expected `object`, got `array`"),
    ],
    ids=itertools.count(),
)
async def test_a_payload_that_does_not_fit_is_rejected_with_the_field_and_the_type(
    kind: Any, body: bytes, content_type: str | None, said: str
) -> None:
    with pytest.raises(emq.Reject) as rejected:
        await got(kind, message(body, content_type))
    assert said in rejected.value.reason
    assert rejected.value.reason.startswith("the payload is no ")


async def test_numbers_that_json_cannot_hold_are_refused_when_they_are_published() -> None:
    for value in ({"a": math.nan}, [None, [math.inf]], {"m": Model(id=1), "x": (math.nan,)}):
        with pytest.raises(errors.InvalidMessage, match="a number that is NaN or infinite, which JSON cannot hold"):
            encoding.encode(value, JSON)
        assert encoding.encode(value, MSGPACK)
    assert encoding.encode({"a": None}, JSON) == b'{"a":null}'


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (17, "payload 17 is of type int; give bytes, text, a dict"),
        (None, "payload None is of type NoneType; give"),
        (Order, "is of type type; give"),
        (object(), "is of type object; give"),
        (emq.Message("m", b""), "is a message; give its payload"),
        ({"a": object()}, "payload of type dict cannot be encoded as application/json: it holds <object object"),
        (
            {(1, 2): 3},
            "cannot be encoded as application/json: it holds (1, 2), of a type that is not supported there (tuple)",
        ),
        (["\ud800"], "payload of type list cannot be encoded as application/json: 'utf-8' codec can't encode"),
    ],
)
def test_what_cannot_be_encoded_is_refused_in_one_line(value: Any, said: str) -> None:
    with pytest.raises(errors.InvalidMessage) as refused:
        encoding.encode(value, JSON)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(errors.InvalidMessage, match="nested too deeply"):
        encoding.encode(endless, JSON)


def test_a_header_of_the_caller_decides_on_the_content_type() -> None:
    own = {"Content-Type": "application/vnd.msgpack"}
    assert encoding.encoded({"a": 1}, own, JSON, JSON) == (msgspec.msgpack.encode({"a": 1}), own)
    assert encoding.encoded(b"x", {"content-type": "text/csv"}, JSON, JSON) == (b"x", {"content-type": "text/csv"})
    assert encoding.encoded(b"x", None, "text/csv", JSON) == (b"x", {"content-type": "text/csv"})
    assert encoding.encoded(b"x", None, None, JSON) == (b"x", None)
    with pytest.raises(errors.InvalidMessage, match="'text/csv': EMQ encodes application/json and application/msgpack"):
        encoding.encoded({"a": 1}, {"content-type": "text/csv"}, None, JSON)


def test_the_payloads_of_one_call_are_all_objects_or_all_bytes() -> None:
    both: Any = [b"x", {"a": 1}]
    with pytest.raises(errors.InvalidMessage, match="1 of 2 payloads is bytes or text and the rest are objects"):
        encoding.encoded_many(both, None, None, JSON)
    assert encoding.encoded_many([{}, []], None, None, JSON) == ([b"{}", b"[]"], {"content-type": JSON})
    assert encoding.encoded_many(["a", b"b"], None, None, JSON) == (["a", b"b"], None)
    for single in (b"x", {"a": 1}, Model(id=1), 5):  # the producer refuses a single payload
        assert encoding.encoded_many(single, None, None, JSON) == (single, None)  # type: ignore[arg-type]


def test_without_annotation_or_with_message_the_handler_is_called_itself() -> None:
    def bare(m): ...  # type: ignore[no-untyped-def]

    async def untyped(m, more=1): ...  # type: ignore[no-untyped-def]
    async def anything(m: Any) -> None: ...
    async def of_message(m: Message) -> None: ...
    async def of_emq(m: emq.Message) -> None: ...
    async def quoted(m: Annotated[emq.Message, "one"]) -> None: ...
    async def all_of_them(*messages: object) -> None: ...
    async def optional(m: emq.Message | None = None) -> None: ...
    async def either(m: emq.Message | list[emq.Message]) -> None: ...

    for function in (untyped, anything, of_message, of_emq, quoted, all_of_them, optional, either):
        handlers = Handlers()
        handlers.bind("*", function)
        assert handlers._bindings[0].call is function
    for kind in (
        emq.Message | list[emq.Message],
        "list[emq.Message]",
        list,
        list[emq.Message],
        "list[Message]",
        list[Any],
        Any,
    ):

        async def batch(messages: Any) -> None: ...

        batch.__annotations__["messages"] = kind
        handlers = Handlers()
        handlers.bind("*", batch, batch_size=10)
        assert handlers._bindings[0].call is batch


class Callable_:
    async def __call__(self, order: Struct, *, m: emq.Message) -> Any:
        return order, m.id

    async def method(self, order: Struct, m: Message, more: int = 5) -> Any:
        return order, m.id

    def plain(self, order: Struct, m: emq.Message, **more: Any) -> Any:
        assert threading.current_thread().name.startswith("emq-handler")
        return order, m.id

    @classmethod
    async def of_class(cls, order: Struct, m: emq.Message | None = None) -> Any:
        return order, "m"


async def _with_extra(extra: str, order: Struct, m: Message) -> Any:
    return order, m.id


def decorated(function: Any) -> Any:
    @functools.wraps(function)
    async def around(*args: Any, **kwargs: Any) -> Any:
        return await function(*args, **kwargs)

    return around


@pytest.mark.parametrize(
    "function",
    [
        Callable_(),
        Callable_().method,
        Callable_().plain,
        Callable_.of_class,
        functools.partial(_with_extra, "x"),
        functools.partial(Callable_().method, more=6),
        decorated(Callable_().method),
    ],
)
async def test_functions_of_every_kind_get_payload_and_message(function: Any) -> None:
    assert await called(function, message(b'{"id": 1}')) == (Struct(1), "m")


async def test_odd_callables_get_the_message() -> None:
    def wrapping_itself(m: Order) -> object:
        return m

    wrapping_itself.__wrapped__ = wrapping_itself  # type: ignore[attr-defined]
    assert await called(wrapping_itself, message(b"x")) == message(b"x")
    handle = mock.AsyncMock(return_value=5)
    assert await called(handle, message(b"x")) == 5
    handle.assert_awaited_once_with(message(b"x"))
    taken: list[Any] = []
    await called(taken.append, message(b"x"))
    assert taken == [message(b"x")]


async def test_a_class_that_is_local_to_the_code_that_binds_is_found() -> None:
    @dataclasses.dataclass
    class Local:
        id: int

    async def handle(order: Local) -> Any:
        return order

    assert await called(handle, message(b'{"id": 1}')) == Local(1)


def refusal(function: Any, batch_size: int = 1) -> str:
    with pytest.raises(errors.InvalidSettings) as refused:
        Handlers().bind("t", function, batch_size=batch_size)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_annotations_that_emq_cannot_decode_are_refused_when_bound() -> None:
    async def unknown(order: Ordr) -> None: ...  # type: ignore[name-defined]  # noqa: F821
    async def nested(order: list[Ordr]) -> None: ...  # type: ignore[name-defined]  # noqa: F821
    async def foreign(order: threading.Thread) -> None: ...
    async def within(order: dict[str, threading.Thread]) -> None: ...
    async def no_type(order: "not a type") -> None: ...  # type: ignore[valid-type]  # noqa: F722
    async def star(*order: Order) -> None: ...
    async def keyword(*, order: Order) -> None: ...
    async def two(order: Order, other: Order) -> None: ...
    async def many(orders: list[emq.Message]) -> None: ...
    async def one(order: Order) -> None: ...
    async def later(order: Order, m: emq.Message) -> None: ...
    async def mixed(orders: list[Order], m: emq.Message) -> None: ...
    async def union(order: Order | Address) -> None: ...
    async def holds_messages(order: dict[str, emq.Message]) -> None: ...
    async def struct_in_model(order: tuple[Struct, Model]) -> None: ...

    assert "annotation Ordr of the parameter 'order' of the handler " in refusal(unknown)
    assert "cannot be resolved (name 'Ordr' is not defined); import the name where" in refusal(unknown)
    assert "name 'Ordr' is not defined" in refusal(nested)
    assert "annotated Thread, and EMQ cannot decode a payload to this type (EMQ cannot decode Thread);" in refusal(
        foreign
    )
    assert "EMQ cannot decode Thread" in refusal(within)
    assert "cannot be resolved" in refusal(no_type)
    assert "a payload needs a parameter of its own, without *" in refusal(star)
    assert "cannot be called with one argument" in refusal(keyword)
    assert "cannot be called with one argument" in refusal(two)
    assert "annotated list[Message], but gets one message; annotate Message, or give a batch_size" in refusal(many)
    assert "gets lists; annotate list[Order]" in refusal(one, batch_size=2)
    assert "gets lists; annotate list[Order]" in refusal(later, batch_size=2)
    assert "the parameter 'm' of the handler" in refusal(mixed, batch_size=2)
    assert "annotate list[Message]" in refusal(mixed, batch_size=2)
    assert "is annotated Order | Address, and EMQ cannot decode" in refusal(union)
    assert "more than one dataclass" in refusal(union)
    assert "(it holds Message, which is no payload)" in refusal(holds_messages)
    assert "pydantic cannot decode it: Unable to generate pydantic-core schema" in refusal(struct_in_model)


def batch(*bodies: bytes) -> list[emq.Message]:
    return [message(body, id_=str(i)) for i, body in enumerate(bodies)]


MIXED = batch(b'{"id": 0}', b"no", b'{"id": 2}', b'{"id": "x"}')


@pytest.mark.parametrize("plain", [False, True])
async def test_in_a_batch_only_the_misfits_fail(plain: bool) -> None:
    seen: list[Any] = []

    async def handle(orders: list[Struct], messages: list[Message]) -> None:
        seen.append((orders, [m.id for m in messages]))

    def in_thread(orders: list[Struct], messages: list[emq.Message]) -> None:
        seen.append((orders, [m.id for m in messages]))

    function: Any = in_thread if plain else handle
    with pytest.raises(emq.PartialFailure) as failed:
        await called(function, MIXED, batch_size=4)
    assert seen == [([Struct(0), Struct(2)], ["0", "2"])]
    assert {id_: type(failure) for id_, failure in failed.value.failures.items()} == {"1": emq.Reject, "3": emq.Reject}
    await called(function, MIXED[::2], batch_size=4)
    assert seen[1] == seen[0]
    with pytest.raises(emq.PartialFailure) as failed:
        await called(function, MIXED[1:2], batch_size=4)
    assert len(seen) == 2
    assert [*failed.value.failures] == ["1"]


async def test_a_batch_that_fails_keeps_its_misfits_dead() -> None:
    async def broken(orders: list[Struct]) -> None:
        raise emq.Retry("later")

    async def in_part(orders: list[Struct]) -> None:
        raise emq.PartialFailure({"2": ValueError("two")})

    async def odd(orders: list[Struct]) -> None:
        failure = emq.PartialFailure({})
        failure.failures = None  # type: ignore[assignment]
        raise failure

    async def cancelled(orders: list[Struct]) -> None:
        raise asyncio.CancelledError

    async def failures(function: Any) -> dict[str, str]:
        with pytest.raises(emq.PartialFailure) as failed:
            await called(function, MIXED, batch_size=4)
        return {id_: type(failure).__name__ for id_, failure in failed.value.failures.items()}

    dead = {"1": "Reject", "3": "Reject"}
    assert await failures(broken) == {"0": "Retry", "2": "Retry", **dead}
    assert await failures(in_part) == {"2": "ValueError", **dead}
    assert await failures(odd) == {"0": "PartialFailure", "2": "PartialFailure", **dead}
    with pytest.raises(asyncio.CancelledError):
        await called(cancelled, MIXED, batch_size=4)


class Failing(msgspec.Struct):
    id: int

    def __post_init__(self) -> None:
        if self.id == 1:
            raise ValueError("id 1 is taken")
        if self.id == 2:
            raise ConnectionError("the registry is down")


async def test_a_check_of_the_class_rejects_and_its_breakdown_is_tried_again() -> None:
    with pytest.raises(emq.Reject, match="no Failing: id 1 is taken"):
        await got(Failing, message(b'{"id": 1}'))
    with pytest.raises(ConnectionError):
        await got(Failing, message(b'{"id": 2}'))

    async def handle(orders: list[Failing]) -> None:
        assert [o.id for o in orders] == [0]

    with pytest.raises(emq.PartialFailure) as failed:
        await called(handle, batch(b'{"id": 0}', b'{"id": 1}', b'{"id": 2}'), batch_size=3)
    assert [type(failure) for failure in failed.value.failures.values()] == [emq.Reject, ConnectionError]


async def test_a_misfit_becomes_a_dead_letter_with_its_reason_at_the_first_attempt() -> None:
    app = emq.App("memory:", options=emq.Settings())
    handled: list[Any] = []

    @app.handler("orders")
    async def handle(order: Order, m: emq.Message) -> None:
        handled.append((order, m.attempt))

    @app.handler("many", batch_size=10)
    def many(orders: list[Order]) -> None:
        handled.extend(orders)

    good, bad = Order(1, Address("Bonn")), {"id": "x", "to": {}}
    async with emq_testing.Harness(app) as t:
        await app.create_topic("orders", qps=50)
        await app.create_topic("many", qps=50)
        for topic in ("orders", "many"):
            await t.publish(topic, good)
            await t.publish(topic, bad)
        await app.publish_many("many", [good, bad, good], content_type=MSGPACK)
        await t.settled()
        reasons = [(f.message.topic, f.message.attempt, f.reason) for f in t.dead_letters]
    assert len(t.failures) == 3
    assert {reason for _, _, reason in reasons} == {
        "rejected: the payload is no Order: Expected `int`, got `str` - at `$.id`"
    }
    assert sorted((topic, attempt) for topic, attempt, _ in reasons) == [("many", 1), ("many", 1), ("orders", 1)]
    assert handled.count((good, 1)) == 1
    assert handled.count(good) == 3


async def test_objects_go_into_schedules_and_the_app_chooses_the_content_type() -> None:
    app = emq.App("memory:", options=emq.Settings(), content_type="application/msgpack")
    got_: list[Any] = []

    @app.handler("t")
    async def handle(order: Struct, m: emq.Message) -> None:
        got_.append((order, m.headers))

    async with emq_testing.Harness(app) as t:
        await app.create_topic("t", qps=100)
        await app.schedule("t", Struct(1), every_s=10, repeat=2, headers={"a": "b"})
        await t.publish("t", Struct(2), content_type=JSON, delay_ms=100_000)
        await t.drained()
    packed = {"a": "b", "content-type": MSGPACK}
    assert got_ == [(Struct(1), packed)] * 3 + [(Struct(2), {"content-type": JSON})]
    assert json.loads(t.published[0].payload) == {"id": 2, "at": None}
    wrong: Any = "text/csv"
    with pytest.raises(errors.InvalidSettings, match="content_type 'text/csv' must be 'application/json' or"):
        emq.App("memory:", content_type=wrong)


LITERAL = Literal["a", "b"]


async def test_a_scalar_of_json_fits_an_annotation_of_its_type() -> None:
    assert await got(int, message(b"5")) == 5
    assert await got(LITERAL, message(b'"a"')) == "a"
    with pytest.raises(emq.Reject, match="Invalid enum value 'c'"):
        await got(LITERAL, message(b'"c"'))
