"""Follow each message to its end: no loss, at least once, dead once (L, D, X), for ids that are published once.

Each message becomes one row of counts. Rows of two audits can be merged, so an audit hands on an open message without
its events. Ids of sorted topics come back (can be published again); `emq_spark.audit.lives` judges those.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from emq.trail import events
from emq_spark.audit.events import ENDINGS, SENT, count, is_copy

KEY: Final = ("topic", "id")

COUNTED_EVENTS: Final = ("sent", "published", "started", "settled", "retried", "dead", "replayed", "recalled")
SUMS: Final = (*COUNTED_EVENTS, "first_starts", "odd", "balance")
HIGHEST: Final[Mapping[str, str]] = {
    "group": "int",
    "priority": "byte",
    "offset": "long",
    "failed_attempt": "int",
    "last_us": "long",
    "last_place": "long",
    "last_begun_us": "long",
    "last_dead_us": "long",
    "last_replay_us": "long",
    "due_ms": "long",
    "key_high": "long",
}
LOWEST: Final = (
    *("first_us", "first_place", "first_begun_us"),
    *("first_start_us", "first_end_us", "low_priority", "key_low"),
)

COUNTED: Final = ", ".join(
    (
        *(f"{name} string" for name in KEY),
        *(f"{name} long" for name in (*SUMS, *LOWEST)),
        *(f"`{name}` {kind}" for name, kind in HIGHEST.items()),
    )
)
"""The columns of `aggregate`."""

JUDGED: Final = (
    *("topic", "id", "group", "priority", "offset", "first_us", "last_us", "started", "failed_attempt"),
    *("publishes", "delivered", "is_dead", "is_recalled", "is_open", "in_lane", "surplus", "died_again", "extra"),
    *("is_odd", "steps"),
)
"""The columns that `judged` and `emq_spark.audit.lives.judged` return for each message.

publishes: number of publishes; delivered: settled at least once; is_open: published and not ended yet; in_lane: if the
message waits anywhere, it waits in a lane or slot; surplus: number of surplus settles; died_again: number of surplus
deaths; extra: delivered and not published here; is_odd: the message has other events than one publish, one start and
one settle that fit together, see `emq_proof.histories`; steps: number of events.
"""


_CODES: Final = (
    *(SENT, events.PUBLISHED, events.STARTED),
    *ENDINGS,
    *(events.REPLAYED, events.RECALLED, events.DOUBTED),
)
"""Kinds of events; a kind's number is its position here. All other kinds share the number after the last."""
_ENDS: Final = tuple(map(_CODES.index, ENDINGS))


def aggregate(rows: DataFrame) -> DataFrame:
    """Return one row of counts for each message.

    Args:
        rows: events with an id.
    """
    # Each event goes through the exchange as a few numbers and the id. Counting before the exchange would save hardly
    # any rows, and each row would carry all the counts.
    steps = _steps(rows).repartition(*KEY)
    kind = F.col("kind")
    counted = [count(kind == _CODES.index(name)).alias(name) for name in COUNTED_EVENTS]
    is_start, is_end = kind == _CODES.index(events.STARTED), kind.isin(*_ENDS)
    is_return = kind == _CODES.index(events.RETURNED)
    is_first = (F.col("offset") >= 0) & (F.col("attempt") == 1)
    # The weights of a message's starts and ends add up to 0 if each end has a start of its host, attempt and place.
    weight = F.when(is_start, F.col("who")).when(is_end, -F.col("who")).otherwise(0)
    return steps.groupBy(*KEY).agg(
        *counted,
        count(F.col("is_odd")).alias("odd"),
        F.sum(weight).alias("balance"),
        (count(is_start & is_first) - count(is_return & is_first)).alias("first_starts"),
        F.max("group").alias("group"),
        F.max("priority").alias("priority"),
        F.max(F.when(_is_publish(kind), F.col("offset"))).alias("offset"),
        F.max(F.when(kind == _CODES.index(events.RETRIED), F.col("attempt"))).alias("failed_attempt"),
        F.max("time_us").alias("last_us"),
        F.max("place").alias("last_place"),
        F.max("begun").alias("last_begun_us"),
        F.max(F.when(kind == _CODES.index(events.DEAD), F.col("time_us"))).alias("last_dead_us"),
        F.max(F.when(kind == _CODES.index(events.REPLAYED), F.col("time_us"))).alias("last_replay_us"),
        F.max(F.when(_is_publish(kind), F.col("due_ms"))).alias("due_ms"),
        F.min("time_us").alias("first_us"),
        F.min("place").alias("first_place"),
        F.min("begun").alias("first_begun_us"),
        F.min(F.when(is_start, F.col("time_us"))).alias("first_start_us"),
        F.min(F.when(is_end, F.col("time_us"))).alias("first_end_us"),
        F.min("priority").cast("long").alias("low_priority"),
        F.max("key").alias("key_high"),
        F.min("key").alias("key_low"),
    )


def _steps(rows: DataFrame) -> DataFrame:
    """Reduce each event to the numbers that `aggregate` counts."""
    numbered = F.lit(len(_CODES))
    for number, name in enumerate(_CODES):
        numbered = F.when(F.col("event") == name, number).otherwise(numbered)
    told = rows.withColumn("kind", numbered.cast("byte"))
    kind = F.col("kind")
    is_start = kind == _CODES.index(events.STARTED)
    in_queue = (is_start & (F.col("offset") >= 0)) | (_is_publish(kind) & F.col("offset").isNotNull())
    place = F.expr("(cast(`group` as bigint) * 16 + priority) * 1099511627776 + offset")
    return told.select(
        *(*KEY, "kind", "time_us", "group", "priority", "offset", "attempt", "due_ms"),
        F.hash("source", "attempt", "group", "priority", "offset").cast("long").alias("who"),
        F.when(_is_publish(kind) | is_start, F.hash("key").cast("long")).alias("key"),
        F.when(in_queue, place).alias("place"),
        F.when(_is_publish(kind), F.coalesce("published_us", "time_us")).alias("begun"),
        _is_odd(kind).alias("is_odd"),
    )


def _is_publish(kind: Column) -> Column:
    return kind <= _CODES.index(events.PUBLISHED)


def _is_odd(kind: Column) -> Column:
    """True for retries, deaths, replays, doubted publishes, starts after the first attempt, and starts after expiry."""
    others = (events.RETRIED, events.RETURNED, events.DEAD, events.REPLAYED, events.DOUBTED)
    is_late = (F.col("attempt") != 1) | _true(F.col("until") <= F.col("time_us"))
    return kind.isin(*map(_CODES.index, others)) | ((kind == _CODES.index(events.STARTED)) & is_late)


def merged(rows: DataFrame, carried: DataFrame) -> DataFrame:
    """Merge the rows of this audit with those carried from the last one, one row for each message."""
    return (
        rows.unionByName(carried)
        .groupBy(*KEY)
        .agg(
            *(F.sum(name).alias(name) for name in SUMS),
            *(F.max(name).alias(name) for name in HIGHEST),
            *(F.min(name).alias(name) for name in LOWEST),
        )
    )


def judged(messages: DataFrame, slack_us: int) -> DataFrame:
    """Add the columns `JUDGED` to the columns of `aggregate`.

    Args:
        slack_us: microseconds by which the clocks of publishers and hosts may differ.
    """
    copy = is_copy()
    # A message that left its slot has a new id (a copy's id) and was published under another.
    publishes = F.greatest(F.col("sent"), F.col("published"), copy.cast("long"))
    # A publish that is recorded twice counts once; one that began a second time or lies in two places counts twice.
    is_twice = (F.col("first_place") < F.col("last_place")) | (F.col("first_begun_us") < F.col("last_begun_us"))
    allowed = F.when(is_twice, F.greatest(publishes, F.lit(2))).otherwise(1)
    told = F.col("sent") + F.col("published") > 0
    odd = (
        (F.col("odd") > 0)
        | (F.col("balance") != 0)
        | (F.col("started") > 1)
        | _true(F.col("first_place") < F.col("last_place"))
        | _true(F.col("low_priority") < F.col("priority"))
        | _true(F.col("key_low") < F.col("key_high"))
        | ((F.col("recalled") > 0) & (F.col("started") > 0))
        | _true(F.col("first_end_us") < F.col("first_start_us"))
        | _true(F.col("first_start_us") < F.col("due_ms") * 1000)
        | _true(F.col("first_start_us") < F.col("first_begun_us") - slack_us)
        | told & F.col("offset").isNotNull() & (F.col("started") > 0) & (F.col("first_starts") == 0)
        | told & F.col("offset").isNull() & (F.col("first_starts") > 0)
    )
    # The first death of a message that was published before the trail began may have been before the trail, too. So the
    # number of its deaths proves nothing, and times decide.
    again = ~told & (F.col("last_dead_us") > F.col("last_replay_us"))
    begun = F.col("first_begun_us") - slack_us
    # An end before the publish belongs to another message of this id.
    buried = ((F.col("dead") > F.col("replayed")) & ~_true(F.col("last_dead_us") < begun)) | _true(again)
    others = F.col("started") + F.col("settled") + F.col("dead")
    recalled = (F.col("recalled") > _true(F.col("first_us") < begun).cast("long")) | (
        (F.col("recalled") > 0) & (others > 0)
    )
    ended = (F.col("settled") > 0) | buried | recalled
    return messages.withColumns(
        {
            "publishes": publishes,
            "delivered": F.col("settled") > 0,
            "is_dead": buried & (F.col("settled") == 0),
            "is_recalled": recalled & (F.col("settled") == 0),
            # A message that was put back or replayed is in its lane, whoever published it.
            "is_open": ((publishes > 0) | (F.col("retried") + F.col("replayed") > 0)) & ~_true(ended),
            "in_lane": F.col("offset").isNull() | (F.col("retried") + F.col("replayed") > 0),
            "surplus": F.greatest(F.lit(0), F.col("settled") - allowed),
            "died_again": F.greatest(F.lit(0), F.col("dead") - allowed - F.col("replayed")),
            "extra": (publishes == 0) & (F.col("settled") > 0),
            "is_odd": odd & ~copy,
            "steps": functools.reduce(Column.__add__, map(F.col, COUNTED_EVENTS)),
        }
    )


def counts() -> list[Any]:
    """Return the counts over all messages; a name with `done_` counts the messages that are not handed on."""
    counted = {
        # A message that left its slot for a lane was published under another id.
        "published": (F.col("publishes") > 0) & ~is_copy(),
        "delivered": F.col("delivered"),
        "dead": F.col("is_dead"),
        "recalled": F.col("is_recalled"),
        "open": F.col("is_open"),
        "extra": F.col("extra"),
        "restarted": F.coalesce("restarted", F.lit(False)),
        "odd": F.col("is_odd"),
    }
    found = [count(condition).alias(name) for name, condition in counted.items()]
    done = [count(c & ~F.col("goes_on")).alias(f"done_{name}") for name, c in counted.items()]
    return [*found, *done, *(F.sum(name).alias(name) for name in ("surplus", "died_again"))]


def _true(condition: Column) -> Column:
    return F.coalesce(condition, F.lit(False))
