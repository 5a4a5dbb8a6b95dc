"""Rows of the catalog that a newer version of EMQ has written, or somebody has damaged."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from emq.database import levels, tables
from emq.runtime import errors
from emq.topics import row_codec
from emq.topics.model import Topic, TopicOptions, split
from support.rig import rig
from support.virtual import virtual

TOPIC = split(Topic("orders", 100.0))


def row(**more: Any) -> str:
    return json.dumps({**json.loads(row_codec.encode(TOPIC, levels.LEVEL)), **more})


def newer(name: str = "orders") -> str:
    """The row of a version that knows more."""
    options = json.loads(row())["options"] | {"compression": "zstd"}
    return row(name=name, options=options)


def test_a_row_is_read_as_it_was_written_and_not_if_it_has_what_this_version_does_not_know() -> None:
    assert row_codec.decode("orders", row()) == TOPIC
    for body in (newer(), row(region={"home": "eu"})):
        with pytest.raises(errors.InvalidTopic, match=r"'orders' .* unknown field"):
            row_codec.decode("orders", body)


def test_topics_with_equal_options_share_them_in_memory() -> None:
    told = TopicOptions(ttl_s=5.0, attributes={"a": "b"})
    made = [split(Topic(f"t{i}", 5.0, priorities=("x", "y"), options=told)) for i in range(3)]
    other = split(Topic("t3", 5.0, options=TopicOptions(ttl_s=5.0, attributes={"a": "c"})))
    first, *rest, last = [row_codec.decode(t.name, row_codec.encode(t, levels.LEVEL)) for t in (*made, other)]
    assert [first, *rest, last] == [*made, other]
    assert all(t.options is first.options and t.priorities is first.priorities for t in rest)


def test_a_row_has_only_what_hosts_of_its_level_can_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "SINCE", {"ttl_s": 3, "layout": 2, "earlier": 2})
    assert "ttl_s" not in row_codec.encode(TOPIC, 2)
    limited = split(Topic("orders", 100.0, options=TopicOptions(ttl_s=5.0)))
    assert row_codec.decode("orders", row_codec.encode(limited, 3)) == limited
    for topic, level, field in ((limited, 2, "ttl_s"), (msgspec.structs.replace(TOPIC, layout=7), 1, "layout")):
        with pytest.raises(errors.InvalidTopic, match=f"'orders': {field} needs feature level"):
            row_codec.encode(topic, level)


def test_a_row_that_holds_no_topic_says_so_by_its_name() -> None:
    rng = random.Random(18)
    damaged = ["", "{}", "[]", "null", "7", '"x"', "\x00", "[" * 100_000, row(kind="tree"), row(qps="many")]
    damaged += [row(name="other"), row(groups=0), row(state="frozen"), row(options=7)]
    damaged += [rng.randbytes(50).decode("latin-1") for _ in range(50)]
    for body in damaged:
        with pytest.raises(errors.InvalidTopic, match="'orders'"):
            row_codec.decode("orders", body)
        assert row_codec.readable("orders", body) is None


@virtual
async def test_a_row_that_cannot_be_read_is_left_alone_and_stops_no_other_topic() -> None:
    async with rig() as r:
        for name in ("orders", "broken", "fine"):
            await r.topic(name, 100)

        def write(name: str, body: str) -> None:
            at = sa.update(tables.topics).where(tables.topics.c.name == name)
            with r.db._engine.begin() as connection:
                connection.execute(at.values(body=body))

        write("orders", newer())
        write("broken", row(name="broken", kind="tree"))
        changes = await r.catalog.changes_since(0)
        assert [topic.name for topic in changes.changed] == ["fine"]
        assert not changes.deleted
        assert [topic.name for topic in await r.catalog.list()] == ["fine"]
        assert (await r.catalog.update("fine", qps=60)).qps == 60
        for name in ("orders", "broken"):
            with pytest.raises(errors.InvalidTopic, match=f"'{name}'"):
                await r.catalog.update(name, qps=1)
        with r.db._engine.connect() as connection:
            rows = {n: b for n, b in connection.execute(sa.select(tables.topics.c.name, tables.topics.c.body))}  # noqa: C416
        assert rows["orders"] == newer()
        assert json.loads(rows["broken"])["kind"] == "tree"


@virtual
async def test_a_time_of_deletion_that_is_none_stops_no_other_topic() -> None:
    async with rig() as r:
        for name in ("bad", "good"):
            await r.topic(name, 50)
        for value in (b"\xff\x00", "never", ""):
            change = sa.update(tables.topics).where(tables.topics.c.name == "bad")
            await r.db.run(lambda c, value=value, change=change: c.execute(change.values(deleted_at=sa.literal(value))))
            assert "good" in {topic.name for topic in (await r.catalog.changes_since(0)).changed}
