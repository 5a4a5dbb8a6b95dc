"""The options of publishing are spelled out once for users, and are those that the producer takes."""

from __future__ import annotations

import inspect
import typing
from collections.abc import AsyncIterator

import pytest

from emq import App, Middleware
from emq.producer import Producer
from emq.producer.options import PublishManyOptions, PublishOptions, ScheduleOptions


@pytest.mark.parametrize(
    ("method", "options"),
    [("publish", PublishOptions), ("publish_many", PublishManyOptions), ("schedule", ScheduleOptions)],
)
def test_the_options_are_the_keywords_of_the_producer(method: str, options: type) -> None:
    function = getattr(Producer, method)
    keywords = [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    hints = typing.get_type_hints(inspect.unwrap(function))
    assert {name: hints[name] for name in keywords} == typing.get_type_hints(options)
    assert options.__optional_keys__ == set(keywords)  # type: ignore[attr-defined]


class Noting(Middleware):
    def __init__(self) -> None:
        self.calls = 0

    async def publish(self, call: object, call_next: object) -> list[str]:  # type: ignore[override]
        self.calls += 1
        raise AssertionError("a call with a misspelt keyword must not come here")


@pytest.fixture(params=[False, True], ids=["plain", "middleware"])
async def app(request: pytest.FixtureRequest) -> AsyncIterator[App]:
    middleware = [Noting()] if request.param else []
    async with App("memory:", database="sqlite://", middleware=middleware) as opened:
        await opened.create_topic("t", 10)
        yield opened


@pytest.mark.parametrize("method", ["publish", "publish_many", "schedule"])
async def test_a_misspelt_keyword_is_named(app: App, method: str) -> None:
    with pytest.raises(TypeError, match=rf"{method}\(\) got an unexpected keyword argument 'prioriti'"):
        await getattr(app, method)("t", b"x" if method != "publish_many" else [b"x"], prioriti="high")
