"""A store that forgot a queue gives its offsets out again. The audit compares nothing across that, and all else."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from emq.trail import events
from emq_spark.audit import interleaved, keys, local_rows, numbering, offsets, owners
from emq_spark.audit.store import QueueView, StoreView

S = 1_000_000
T0_US = 1_700_000_000 * S
SLACK_US = 250_000

ROWS = (
    "event string, topic string, `group` int, source string, time_us long, priority byte, offset long, id string, "
    "key string, attempt int, epoch long, published_us long, until long"
)
TIMES = [("in-between", 10, False), ("too-early", 1, True), ("too-late", 30, True), ("never", None, True)]
"""Topic, second in which the store forgot its queue, and whether the violation stands."""


def rows(spark: SparkSession, *told: dict[str, Any]) -> DataFrame:
    """Return the same rows for the topic of each case, and the case's own."""
    columns = [column.rpartition(" ")[0].strip("` ") for column in ROWS.split(",")]
    blank = {"group": 0, "source": "a", "priority": 0, "attempt": 1, "epoch": 1, "published_us": T0_US}
    found = [{**blank, **row, "topic": topic} for topic, _, _ in TIMES for row in told]
    for topic, at_s, _ in TIMES:
        if at_s is not None:
            forgotten = {"event": events.FORGOTTEN, "time_us": T0_US + at_s * S, "offset": 1, "until": 9}
            found.append({**blank, **forgotten, "topic": topic, "source": "leader"})
    return local_rows.frame(spark, [[row.get(column) for column in columns] for row in found], ROWS)


def start(name: str, at_s: float, offset: int, **more: Any) -> dict[str, Any]:
    return {"event": events.STARTED, "id": name, "time_us": T0_US + round(at_s * S), "offset": offset, **more}


def publish(name: str, at_s: float, offset: int, **more: Any) -> dict[str, Any]:
    return {**start(name, at_s, offset, **more), "event": events.PUBLISHED}


def forgotten(told: DataFrame) -> DataFrame:
    return told.where(f"event = '{events.FORGOTTEN}'")


def topics(found: DataFrame) -> set[str]:
    return {row["topic"] for row in found.collect()}


def violations() -> set[str]:
    return {topic for topic, _, stands in TIMES if stands}


def test_two_messages_at_one_offset(spark: SparkSession) -> None:
    told = rows(spark, publish("first", 5, 3), publish("second", 20, 3))
    published = numbering.published(told)
    nothing = published.where("false").selectExpr("'r' AS run", "0 AS partition", "offset AS seq")
    sums = numbering.offsets_of(published, numbering.numbers(nothing))
    found = numbering.one_offset(published, numbering.doubtful(sums), forgotten(told), SLACK_US)
    assert topics(found) == violations() - {"too-late"}, "a loss is noticed after it happened"


def test_the_order_of_a_key(spark: SparkSession) -> None:
    told = rows(spark, start("first", 5, 3, key="k"), start("second", 20, 2, key="k"))
    found = keys.disorder(keys.followed(keys.deliveries(told, ()), SLACK_US), forgotten(told))
    assert topics(found) == violations()


def test_a_key_that_was_started_before_passed_over_nothing_after(spark: SparkSession) -> None:
    told = rows(spark, start("first", 5, 3, key="k"))
    waiting = rows(spark, publish("second", 20, 2, key="k")).where(f"event = '{events.PUBLISHED}'")
    waiting = waiting.selectExpr("*", "cast(hash(key) AS long) AS key_low")
    starts = told.where(f"event = '{events.STARTED}'")
    found = keys.passed_over(waiting.drop("key"), starts, forgotten(told))
    assert topics(found) == violations() - {"too-late"}, "a loss is noticed after it happened"


def test_an_owner_before_and_after(spark: SparkSession) -> None:
    """It started offsets 7 and 8 before and 1 after; its successor went on with 2."""
    mine = (start("a", 5, 7), start("b", 5.1, 8), start("c", 20, 1))
    told = rows(spark, *mine, start("d", 20.1, 2, source="b", epoch=2))
    taken = [(T0_US, "a", 1, T0_US + 20 * S + 50_000), (T0_US + 20 * S + 60_000, "b", 2, None)]
    owned = [(topic, 0, who, epoch, us, end, us, us) for topic, _, _ in TIMES for us, who, epoch, end in taken]
    known = owners.beside(local_rows.frame(spark, owned, owners.FIELDS), is_whole=True)
    starts = told.where(f"event = '{events.STARTED}'")
    suspects = interleaved.suspects(interleaved.spans(starts), known, forgotten(told), SLACK_US)
    assert topics(interleaved.faults(starts, suspects)) == violations()


@pytest.mark.parametrize("is_forgotten", [True, False])
def test_an_open_message_from_before_is_nowhere_whatever_lies_at_its_offset(
    spark: SparkSession, is_forgotten: bool
) -> None:
    """A killed host may have ended it without a record."""
    fields = (
        "topic string, id string, `group` int, priority int, offset long, first_us long, last_us long, started long, "
        "in_lane boolean, last_begun_us long"
    )
    opened = local_rows.frame(spark, [("in-between", "m", 0, 0, 3, T0_US, T0_US, 1, False, T0_US)], fields)
    queue = QueueView("in-between", 0, 0, watermark=1, epoch=1, head=1, tail=9)
    reached = offsets.reach(rows(spark).where("false"), ())
    ranges = forgotten(rows(spark))
    found = offsets.placed(
        opened,
        ranges if is_forgotten else ranges.where("false"),
        StoreView([queue], at_us=T0_US + 60 * S),
        local_rows.nothing(spark, offsets.BLIND_GROUPS),
        reached,
        drops=(),
        live=False,
        slack_us=SLACK_US,
    )
    assert [row["place"] for row in found.collect()] == [offsets.NOWHERE if is_forgotten else offsets.QUEUED]


def test_a_queue_that_was_forgotten_since_the_last_audit_is_another_one() -> None:
    was = QueueView("t", 0, 1, watermark=7, epoch=2, head=7, tail=9, incarnation=4)
    now = was._replace(watermark=1, epoch=1, head=1, tail=3, incarnation=5)
    assert offsets.regressed([now], [was], None, {("t", 0, 1)}) == []
    [found] = offsets.regressed([now], [was], None, {("t", 0, 2)})
    assert found["kind"] == "made again"
    [past] = offsets.regressed([now._replace(watermark=4)], [was], None, {("t", 0, 1)})
    assert past["kind"] == "past the tail"
