"""Topics that programs create and change: what a program asks for and does not get is said."""

from __future__ import annotations

import asyncio
import enum
import typing
from collections.abc import AsyncIterator

import pytest

import emq
from emq.runtime import errors
from emq.topics import asking
from emq.topics.model import Kind, State, TopicOptions
from emq.topics.option_types import KindName, OptionArguments, StateName


@pytest.fixture
async def app() -> AsyncIterator[emq.App]:
    async with emq.App("memory:", options=emq.Settings()) as opened:
        yield opened


def test_the_typed_options_are_those_of_a_topic() -> None:
    known = typing.get_type_hints(OptionArguments)
    assert known.keys() == set(TopicOptions.__struct_fields__)
    for name, hint in typing.get_type_hints(TopicOptions).items():
        if typing.get_origin(hint) is typing.Literal or type(None) in typing.get_args(hint):
            assert known[name] == hint, name
    assert set(typing.get_args(KindName)) == set(Kind)
    assert set(typing.get_args(StateName)) == set(State)


async def test_a_topic_that_exists_with_other_settings_is_said_to_keep_them(
    app: emq.App, caplog: pytest.LogCaptureFixture
) -> None:
    first = await app.create_topic("t", 10, max_attempts=3, backoff_s=[1, 2], priorities=["a", "b"])
    same = await app.create_topic("t", 10, backoff_s=(1.0, 2.0), priorities=["a", "b"], exist_ok=True)
    assert first == same == await app.create_topic("t", 10, exist_ok=True)
    assert not caplog.records
    assert await app.create_topic("t", 20, max_attempts=5, kind="priority", exist_ok=True) == first
    [said] = [record.getMessage() for record in caplog.records]
    assert "topic 't' exists and keeps its settings" in said
    assert "(qps is 10, not 20, kind is 'log', not 'priority', max_attempts is 3, not 5)" in said
    assert "update=True" in said
    with pytest.raises(errors.TopicExists, match=r"other settings \(qps is 10, not 20\); update it"):
        await app.create_topic("t", 20, max_attempts=3, backoff_s=[1, 2], priorities=["a", "b"])
    assert await app.catalog.get("t") == first


async def test_a_sorted_topic_is_the_same_however_many_slots_it_was_given(
    app: emq.App, caplog: pytest.LogCaptureFixture
) -> None:
    made = await app.create_topic("s", 10, kind=Kind.FIXED_TIME, slots=4)
    assert await app.create_topic("s", 10, kind="fixed_time", exist_ok=True) == made
    assert not caplog.records
    await app.create_topic("s", 10, kind="fixed_time", slots=8, exist_ok=True)
    assert "(slots is 4, not 8)" in caplog.text


async def test_a_topic_is_updated_to_what_the_program_asks_for_and_keeps_the_rest(
    app: emq.App, caplog: pytest.LogCaptureFixture
) -> None:
    await app.create_topic("t", 10, max_attempts=3, ttl_s=60.0)
    changed = await app.create_topic("t", 20, max_attempts=5, update=True)
    assert (changed.qps, changed.options.max_attempts, changed.options.ttl_s) == (20, 5, 60)
    assert changed == await app.catalog.get("t") == await app.create_topic("t", 20, update=True)
    with pytest.raises(errors.InvalidTopic, match="kind may not change"):
        await app.create_topic("t", 20, kind="priority", update=True)
    assert (await app.create_topic("new", 5, update=True)).qps == 5
    changed = await app.update_topic("t", qps=30, ttl_s=None, state="paused", backoff_s=[1.5])
    assert (changed.qps, changed.options.ttl_s, changed.state) == (30, None, "paused")
    assert (changed.options.max_attempts, changed.options.backoff_s) == (5, (1.5,))
    assert not caplog.records
    with pytest.raises(errors.UnknownTopic, match="no topic 'gone'"):
        await app.update_topic("gone", qps=1)
    with pytest.raises(errors.InvalidTopic, match="no setting 'colour'; the settings are qps, group_qps, state"):
        await app.update_topic("t", colour="red")  # type: ignore[call-arg]


async def test_a_list_given_as_one_text_is_refused(app: emq.App) -> None:
    with pytest.raises(errors.InvalidTopic, match="priorities 'abc' is one text; give a list"):
        await app.create_topic("t", 10, priorities="abc")
    with pytest.raises(errors.InvalidTopic, match="give texts and numbers"):
        await app.create_topic("t", object())  # type: ignore[arg-type]


class Text(str):
    """A text of a class of the user's own."""


class Name(enum.StrEnum):
    KEY = "k"


class Old(str, enum.Enum):  # noqa: UP042
    KEY = "k"


@pytest.mark.parametrize("key", [Text("k"), Name.KEY, Old.KEY])
async def test_texts_of_other_classes_are_stored_as_plain_texts(app: emq.App, key: str) -> None:
    await app.create_topic("t", 1000)
    got: list[emq.Message] = []
    app.handler("t")(got.append)
    ids = [
        await app.publish("t", key, key=key, headers={key: key}, message_id=Text("id-0")),
        await app.publish("t", key, key=key, headers={key: key}, message_id=Text("id-1"), delay_ms=1),
        *await app.publish_many("t", [key], keys=[key], headers={key: key}, message_ids=[Text("id-2")]),
    ]
    assert ids == ["id-0", "id-1", "id-2"]
    async with app.running():
        while len(got) < 3:
            await asyncio.sleep(0.01)
    assert {(type(m.key), m.key, m.payload, *m.headers.items()) for m in got if m.headers} == {
        (str, "k", b"k", ("k", "k"))
    }


def test_what_a_program_may_ask_for_is_what_a_topic_has() -> None:
    assert set(asking.SETTINGS) <= {*emq.Topic.__struct_fields__, *TopicOptions.__struct_fields__}
