"""Mistakes in a user's program. Each is refused when the program runs, in one line; type checkers name it before.

Mypy reports a `type: ignore` comment that hides no error. So each comment below is a check, which
`tests/integration/test_types.py` makes: the types of `App` must name the mistake on its line.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import emq
from emq.runtime import errors


@pytest.fixture
async def app() -> AsyncIterator[emq.App]:
    async with emq.App("memory:", options=emq.Settings()) as opened:
        await opened.create_topic("t", qps=1)
        yield opened


CALLS: dict[str, tuple[Callable[[emq.App], Any], str]] = {
    "a kind that does not exist": (
        lambda app: app.create_topic("new", qps=1, kind="sorted"),  # type: ignore[arg-type]
        "kind 'sorted' is not known; choose log, range_merge, priority, fixed_time",
    ),
    "an option misspelt": (
        lambda app: app.create_topic("new", qps=1, max_attemps=3),  # type: ignore[call-arg]
        "no option 'max_attemps'; did you mean 'max_attempts'",
    ),
    "an option of a wrong type": (
        lambda app: app.create_topic("new", qps=1, max_attempts="3"),  # type: ignore[arg-type]
        "max_attempts = '3' does not fit: Expected `int`",
    ),
    "a choice that does not exist": (
        lambda app: app.create_topic("new", qps=1, pacing="fast"),  # type: ignore[arg-type]
        "pacing = 'fast' must be one of smooth, window",
    ),
    "a rate as text": (
        lambda app: app.create_topic("new", qps="10"),  # type: ignore[arg-type]
        "qps = '10' does not fit: Expected `float`",
    ),
    "an update misspelt": (
        lambda app: app.update_topic("t", qsp=3),  # type: ignore[call-arg]
        "no setting 'qsp'; did you mean 'qps'",
    ),
    "a state that does not exist": (
        lambda app: app.update_topic("t", state="stopped"),  # type: ignore[arg-type]
        "state = 'stopped' must be one of active, paused, draining",
    ),
    "a number as key": (
        lambda app: app.publish("t", b"x", key=5),  # type: ignore[arg-type]
        "key 5 is of type int; give text",
    ),
    "a number as payload": (
        lambda app: app.publish("t", 17),  # type: ignore[arg-type]
        "payload 17 is of type int; give bytes, text, a dict",
    ),
    "a number as header": (
        lambda app: app.publish("t", b"x", headers={"version": 2}),  # type: ignore[dict-item]
        "header 'version' 2 is of type int; give text",
    ),
    "a number as id": (
        lambda app: app.publish("t", b"x", message_id=7),  # type: ignore[arg-type]
        "message id 7 must be text of 1 to 128 characters",
    ),
    "a list as topic": (
        lambda app: app.publish(["t"], b"x"),  # type: ignore[arg-type]
        "topic name ['t'] is of type list; give text",
    ),
    "one key for many payloads": (
        lambda app: app.publish_many("t", [b"x"], keys=5),  # type: ignore[arg-type]
        "keys 5 is not a list; give one value for each payload",
    ),
    "ids as a list": (
        lambda app: app.recall("t", ["x"]),  # type: ignore[arg-type]
        "message id ['x'] is of type list; give text",
    ),
    "one payload for many": (
        lambda app: app.publish_many("t", "text"),  # a text is a list of texts, for type checkers
        "payloads 'text' is one payload; give a list of payloads, or use publish",
    ),
}


@pytest.mark.parametrize(("mistake", "said"), CALLS.values(), ids=CALLS)
async def test_a_mistake_in_a_call_is_refused_in_one_line(
    app: emq.App, mistake: Callable[[emq.App], Any], said: str
) -> None:
    with pytest.raises(errors.EMQError) as refused:
        await mistake(app)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert [topic.name for topic in await app.catalog.list()] == ["t"]
    assert [lag.unfinished for lag in await app.admin.lag(await app.catalog.list())] == [0, 0, 0]


def no_topic(app: emq.App) -> None:
    @app.handler  # type: ignore[call-overload]
    async def handle(message: emq.Message) -> None: ...


def no_parameter(app: emq.App) -> None:
    @app.handler("t")  # type: ignore[type-var]
    async def handle() -> None: ...


def a_batch_of_two_parameters(app: emq.App) -> None:
    @app.handler("t", batch_size=10)
    def handle(first: list[emq.Message], second: int) -> None: ...


def a_handler_of_one_message_for_batches(app: emq.App) -> None:
    @app.handler("t", batch_size=10)  # type: ignore[type-var]
    def handle(message: emq.Message) -> None: ...


def a_name_that_no_topic_has(app: emq.App) -> None:
    @app.handler("new orders")
    def handle(message: emq.Message) -> None: ...


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (no_topic, 'no_topic.<locals>.handle is bound to no topic; write @app.handler("orders")'),
        (no_parameter, "handle() -> 'None' for 't' cannot be called with one argument, the message; give it one"),
        (a_handler_of_one_message_for_batches, "a handler with batch_size gets lists; annotate list[Message]"),
        (a_batch_of_two_parameters, "cannot be called with one argument, a list of messages"),
        (a_name_that_no_topic_has, "topic name 'new orders' contains ' '"),
    ],
)
def test_a_handler_that_cannot_work_is_refused_when_it_is_bound(mistake: Callable[[emq.App], None], said: str) -> None:
    app = emq.App("memory:", options=emq.Settings())
    with pytest.raises(errors.EMQError) as refused:
        mistake(app)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert app.handlers.patterns() == ()


def test_a_handler_with_defaults_and_one_for_batches_are_bound() -> None:
    app = emq.App("memory:", options=emq.Settings())

    @app.handler("one")
    def one(message: emq.Message, retries: int = 3) -> None: ...

    @app.handler("many", batch_size=10)
    async def many(messages: list[emq.Message]) -> None: ...

    @app.handler("any.*")
    def untyped(message, *more):  # type: ignore[no-untyped-def]
        ...

    app.handler("lambda")(lambda message: None)
    assert set(app.handlers.patterns() or ()) == {"one", "many", "any.*", "lambda"}
