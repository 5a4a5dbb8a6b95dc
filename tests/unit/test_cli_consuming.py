"""`emq up` says when it has nothing to hand messages to."""

from __future__ import annotations

import asyncio
import logging

import pytest

import emq
from emq.runtime.settings import Settings
from emq_cli import consuming
from emq_push.cli import pushing


async def announced(
    app: emq.App, caplog: pytest.LogCaptureFixture, topics: dict[str, dict[str, str]], said: str = "neither a handler"
) -> list[str]:
    """Be the host of these topics, given with their attributes, as `emq up` is; return the lines with `said`."""
    async with pushing.with_push(app), app:
        for name, attributes in topics.items():
            budget = attributes.pop("budget", None)
            await app.create_topic(name, qps=10, attributes=attributes, budget=budget)
        with caplog.at_level(logging.INFO, "emq"):
            async with app.running():
                await asyncio.wait_for(consuming._announce(app), 10)
    return [record.getMessage() for record in caplog.records if said in record.getMessage()]


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


async def test_a_budget_is_no_topic_that_lacks_a_handler(caplog: pytest.LogCaptureFixture) -> None:
    """Such as the topic of a pool, whose tasks wait in other topics."""
    app = bare()
    app.handler("sms.*")(print)
    (line,) = await announced(app, caplog, {"sms": {}, "sms.code": {"budget": "sms"}}, "consuming ")
    assert line.startswith("consuming 1 topic in 2 groups from memory: [online]; Ctrl-C stops")
    caplog.clear()
    app = bare()
    app.handler("a")(print)
    (line,) = await announced(app, caplog, {"a": {}, "b": {}}, "consuming ")
    assert "(1 topic without a handler or push.url, or paused)" in line
