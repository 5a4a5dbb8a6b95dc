"""Rows of the catalog that a newer version of EMQ has written, or somebody has damaged."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import sqlalchemy as sa
from support.rig import rig
from support.virtual import virtual

from emq import errors
from emq.database import tables
from emq.topics import catalog_rows
from emq.topics.model import Topic, split

TOPIC = split(Topic("orders", 100.0))


def newer(**more: Any) -> str:
    row = json.loads(catalog_rows.encode(TOPIC))
    row["region"] = {"home": "eu"}
    row["options"]["compression"] = "zstd"
    return json.dumps({**row, **more})


def test_what_this_version_does_not_know_is_ignored_and_kept() -> None:
    assert catalog_rows.decode("orders", newer()) == TOPIC
    again = json.loads(catalog_rows.encode(split(Topic("orders", 200.0)), newer()))
    assert again["qps"] == 200
    assert again["region"] == {"home": "eu"}
    assert again["options"]["compression"] == "zstd"
    assert json.loads(catalog_rows.encode(TOPIC)) == json.loads(catalog_rows.encode(TOPIC, "\0 damaged"))


def test_a_row_that_holds_no_topic_says_so_by_its_name() -> None:
    rng = random.Random(18)
    damaged = ["", "{}", "[]", "null", "7", '"x"', "\x00", "[" * 100_000, newer(kind="tree"), newer(qps="many")]
    damaged += [newer(name="other"), newer(groups=0), newer(state="frozen"), newer(options=7)]
    damaged += [rng.randbytes(50).decode("latin-1") for _ in range(50)]
    for body in damaged:
        with pytest.raises(errors.InvalidTopic, match="'orders'"):
            catalog_rows.decode("orders", body)
        assert catalog_rows.readable("orders", body) is None


@virtual
async def test_a_change_by_an_older_version_keeps_options_of_a_newer_one_and_damage_stops_no_other_topic() -> None:
    async with rig() as r:
        for name in ("orders", "broken", "fine"):
            await r.topic(name, 100)

        def write(name: str, body: str) -> None:
            at = sa.update(tables.topics).where(tables.topics.c.name == name)
            with r.db._engine.begin() as connection:
                connection.execute(at.values(body=body))

        write("orders", newer())
        write("broken", newer(name="broken", kind="tree"))
        changes = await r.catalog.changes_since(0)
        assert sorted(topic.name for topic in changes.changed) == ["fine", "orders"]
        assert not changes.deleted
        assert [topic.name for topic in await r.catalog.list()] == ["fine", "orders"]
        assert (await r.catalog.update("orders", qps=60)).qps == 60
        with r.db._engine.connect() as connection:
            rows = {n: b for n, b in connection.execute(sa.select(tables.topics.c.name, tables.topics.c.body))}  # noqa: C416
        assert json.loads(rows["orders"])["options"]["compression"] == "zstd"
        assert json.loads(rows["broken"])["kind"] == "tree"
        with pytest.raises(errors.InvalidTopic, match="'broken'"):
            await r.catalog.update("broken", qps=1)


@virtual
async def test_a_time_of_deletion_that_is_none_stops_no_other_topic() -> None:
    async with rig() as r:
        for name in ("bad", "good"):
            await r.topic(name, 50)
        for value in (b"\xff\x00", "never", ""):
            change = sa.update(tables.topics).where(tables.topics.c.name == "bad")
            await r.db.run(lambda c, value=value, change=change: c.execute(change.values(deleted_at=sa.literal(value))))
            assert "good" in {topic.name for topic in (await r.catalog.changes_since(0)).changed}
