"""`spark.read.format("emq")`: what is read is what is there, and no more of it than was asked for."""

from __future__ import annotations

import asyncio
import datetime
from typing import TYPE_CHECKING

import pytest
from emq_data import Data
from pyspark.errors import AnalysisException

from emq.app import App
from emq.runtime import errors
from emq.storage.lane_store import LaneAdd
from emq.storage.log_store import Batch, Read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("where", ["sqlite", "redis", "postgresql"])
def test_every_message_is_read_once_with_all_that_it_carries(
    spark: SparkSession, request: pytest.FixtureRequest, data: Data, where: str
) -> None:
    if where != "sqlite":
        url = request.getfixturevalue("redis_url" if where == "redis" else "postgres_url")
        data = Data(url, data.options["database"])
    for topic, qps in (("read.a", 100), ("read.b", 500)):
        data.create(topic, qps)
    data.publish("read.a", range(1_000), priority="high", headers={"a": "b"})
    data.publish("read.b", range(1_000), priority="low", ttl_s=60)
    rows = data.read(spark, topics="read.*", messages_per_partition=300).collect()
    assert sorted(int(r.payload) for r in rows) == sorted([*range(1_000)] * 2)
    assert len({r.id for r in rows}) == 2_000
    assert {(r.topic, r.priority, str(r.headers)) for r in rows} == {
        ("read.a", "high", "{'a': 'b'}"),
        ("read.b", "low", "None"),
    }
    assert all(r.key == f"k{int(r.payload) % 7}" for r in rows)
    assert all((r.expires is not None) == (r.topic == "read.b") for r in rows)
    now = datetime.datetime.now()
    assert all(datetime.timedelta() <= now - r.published < datetime.timedelta(minutes=5) for r in rows)
    of_queue: dict[tuple[str, int], list[int]] = {}
    for r in rows:
        of_queue.setdefault((r.topic, r.group), []).append(r.offset)
    assert all(sorted(offsets) == [*range(1, len(offsets) + 1)] for offsets in of_queue.values())


FILTERS = {
    "topic = 'a' and priority in ('high', 'mid')": 2,
    "`group` in (1, 5) and offset >= 20 and offset < 30 and key <> 'k3'": 4,
    "published >= timestamp'MIDDLE' and topic in ('b', 'c')": 4,
    "priority <> 'high' or offset = 1": 8,
}
"""Conditions, and how many of the tasks of about 50 messages are run for them."""


def filled(data: Data) -> None:
    for topic in ("a", "b"):
        data.create(topic)
        for priority in ("high", "low"):
            data.publish(topic, range(100), priority=priority)


def test_filters_that_are_pushed_down_find_what_spark_would_and_spare_it_the_rest(
    spark: SparkSession, data: Data
) -> None:
    filled(data)
    read = data.read(spark)
    everything = read.collect()
    middle = sorted(r.published for r in everything)[len(everything) // 2]
    as_spark = spark.createDataFrame(everything, read.schema).cache()
    for text, most in FILTERS.items():
        condition = text.replace("MIDDLE", str(middle))
        found = data.read(spark, messages_per_partition=60, pushdown=True).where(condition)
        assert sorted(r.id for r in found.collect()) == sorted(r.id for r in as_spark.where(condition).collect()), text
        assert found.rdd.getNumPartitions() <= most, text


def test_a_data_frame_may_be_used_with_filter_after_filter(spark: SparkSession, data: Data) -> None:
    filled(data)
    read = data.read(spark)
    of_a = read.where("topic = 'a'")
    assert [of_a.count(), read.count(), read.where("topic = 'b' or offset = 1").count()] == [200, 400, 204]
    assert of_a.union(read).count() == 600
    assert of_a.join(read.where("topic = 'b'"), "offset").count() > 0


def test_only_the_columns_asked_for_are_read(spark: SparkSession, data: Data) -> None:
    data.create("t")
    data.publish("t", range(10))
    assert data.read(spark, columns="offset,key").columns == ["offset", "key"]
    reader = spark.read.format("emq").options(**data.options).schema("payload binary, `group` int")
    assert sorted(int(r.payload) for r in reader.load().collect()) == [*range(10)]
    assert data.read(spark, columns="topic").distinct().count() == 1


def test_reading_takes_nothing_from_the_owner_of_a_queue(spark: SparkSession, redis_data: Data) -> None:
    redis_data.create("owned", 50)
    redis_data.publish("owned", range(10))

    async def own(app: App) -> int:
        [batch] = await app.store.log.read([Read("owned/0/mid", 1, 5, 7)])
        assert isinstance(batch, Batch)
        assert await asyncio.to_thread(redis_data.read(spark, topics="owned").count) == 10
        [batch] = await app.store.log.read([Read("owned/0/mid", 6, 10, 7)])
        assert isinstance(batch, Batch)
        return len(batch.bodies)

    assert redis_data.do(own) == 5


def test_a_body_that_no_producer_made_is_shown_as_it_is(spark: SparkSession, data: Data) -> None:
    from emq.storage.log_store import Put

    data.create("t", 50)
    data.do(lambda app: app.store.log.put([Put("t/0/mid", [b"\xff\xff foreign"])]))
    [row] = data.read(spark).collect()
    assert (bytes(row.payload), row.id, row.published) == (b"\xff\xff foreign", None, None)


def test_catalog_offsets_lag_and_dead_letters_are_tables(spark: SparkSession, data: Data) -> None:
    data.create("t", 100)
    data.create("merged", 50, kind="range_merge")
    data.publish("t", range(30))
    data.publish("merged", range(5), time_range_ms=3_600_000)
    data.do(lambda app: app.checkpoints.reset("t/0/mid", 4))
    for n in range(3):
        data.do(lambda app, n=n: app.store.lanes.add([LaneAdd("t/1", f"dead{n}", b"x", 0, "no luck")]))

    catalog = {r.topic: r for r in data.read(spark, what="catalog").collect()}
    assert (catalog["t"].groups, catalog["t"].priorities, catalog["merged"].kind) == (
        2,
        ["high", "mid", "low"],
        "range_merge",
    )
    offsets = {(r.topic, r.group, r.priority): r for r in data.read(spark, what="offsets").collect()}
    assert len(offsets) == 6
    first = offsets["t", 0, "mid"]
    assert (first.watermark, first.unfinished) == (4, first.tail - 4)
    lag = data.read(spark, what="lag").where("topic = 't'").collect()
    assert {r.priority: r.unfinished for r in lag if r.priority} == {"high": 0, "mid": 27, "low": 0}
    assert [(r.delayed, r.dead) for r in lag if r.priority is None] == [(0, 3)]
    dead = data.read(spark, what="dead")
    assert sorted((r.id, r.reason, r.group) for r in dead.collect()) == [(f"dead{n}", "no luck", 1) for n in range(3)]
    _, second, third = sorted(r.died for r in dead.collect())

    def found(condition: str) -> list[str]:
        return [r.id for r in data.read(spark, what="dead", pushdown=True).where(condition).collect()]

    assert found(f"died >= timestamp'{second}' and died < timestamp'{third}'") == ["dead1"]
    assert found(f"died > timestamp'{second}'") == ["dead2"]
    assert found("topic = 'merged'") == []


def test_plans_do_not_show_where_the_data_lies(
    spark: SparkSession, data: Data, capsys: pytest.CaptureFixture[str]
) -> None:
    """A store's URL may hold a password; what plans show comes to the web interface and the event log as well."""
    data.read(spark).explain("extended")
    spark.readStream.format("emq").options(**data.options).load().explain("extended")
    shown = capsys.readouterr().out
    assert "[database=***" in shown
    assert data.options["store"] not in shown


def test_what_cannot_be_read_says_so_in_a_line(spark: SparkSession, data: Data) -> None:
    data.create("shop.eu")
    wrong: dict[str, dict[str, object]] = {
        "no topic 'shop' in online .*; did you mean 'shop.eu'": {"topics": "shop"},
        "there is no option 'topcis'": {"topcis": "shop.eu"},
        "'messages' has no column 'body'": {"columns": "body"},
        "cannot be seen by Spark's workers": {"store": "memory:"},
    }
    for text, options in wrong.items():
        with pytest.raises(AnalysisException, match=text):
            data.read(spark, **options).count()
    assert data.read(spark, topics="nothing.*").count() == 0


def test_without_java_or_pyspark_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from emq_spark import session
    from emq_spark.source import registration

    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(errors.EMQError, match="needs Java 17 or newer, which is missing; apt install"):
        session.require()
    monkeypatch.setattr(session, "_java", lambda: "java")
    monkeypatch.setattr(session, "_java_version", lambda _: 11)
    with pytest.raises(errors.EMQError, match="java is 11; install a newer one, or set JAVA_HOME"):
        session.require()
    monkeypatch.setattr(registration, "PACKAGES", ("pyspark", "nothing_of_that_name"))
    with pytest.raises(errors.EMQError, match=r"needs nothing_of_that_name; pip install .*'pyspark>="):
        session.require()
