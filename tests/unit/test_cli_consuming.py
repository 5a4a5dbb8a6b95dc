"""`emq up` says when it has nothing to hand messages to."""

from __future__ import annotations

import asyncio
import logging

import pytest

import emq
from emq.cli import consuming, pushing
from emq.settings import Settings


async def announced(app: emq.App, caplog: pytest.LogCaptureFixture, topics: dict[str, dict[str, str]]) -> list[str]:
    """Be the host of these topics, given with their attributes, as `emq up` is; return its warnings."""
    async with pushing.with_push(app), app:
        for name, attributes in topics.items():
            await app.create_topic(name, qps=10, attributes=attributes)
        with caplog.at_level(logging.WARNING, "emq"):
            async with app.running():
                await asyncio.wait_for(consuming._announce(app), 10)
    return [record.getMessage() for record in caplog.records if "neither a handler" in record.getMessage()]


def bare(app: str = "") -> emq.App:
    return emq.App(options=Settings(store="memory:", app=app))


async def test_topics_without_handler_and_url_are_named_with_the_remedy(caplog: pytest.LogCaptureFixture) -> None:
    assert await announced(bare(), caplog, {"a": {}, "b": {}}) == [
        "2 topics have neither a handler nor push.url, so this host consumes nothing; "
        "give --app MODULE:APP, or set push.url of a topic"
    ]


async def test_an_app_whose_handlers_match_no_topic_is_named(caplog: pytest.LogCaptureFixture) -> None:
    app = bare("shop.handlers")
    app.handler("other")(print)
    (line,) = await announced(app, caplog, {"a": {}})
    assert line.startswith("1 topic has neither")
    assert "in shop.handlers" in line


@pytest.mark.parametrize("topics", [{}, {"a": {}, "b": {"push.url": "http://127.0.0.1:9/"}}])
async def test_no_topics_and_pushed_topics_are_no_mistake(
    caplog: pytest.LogCaptureFixture, topics: dict[str, dict[str, str]]
) -> None:
    assert await announced(bare(), caplog, topics) == []


async def test_one_handler_is_enough(caplog: pytest.LogCaptureFixture) -> None:
    app = bare()
    app.handler("a")(print)
    assert await announced(app, caplog, {"a": {}, "b": {}}) == []
