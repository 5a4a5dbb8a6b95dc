"""Locks: the key of a message holds it back while another message of the key is unfinished.

The rule is that of `emq.trail.checks.inversions`. All sweeps here go by group, host and lock.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from emq.trail import events
from emq_spark.audit.events import NEVER_US, origin

_FINISHES, _STOPS, _STARTS, _READIES = range(4)
"""The order of steps at one time, as in `emq.trail.checks`; `_STOPS`: a message stops waiting, since it starts."""

_LOCK: Final = ("topic", "group", "source", "lock")


def locked(rows: DataFrame, groups: DataFrame) -> DataFrame:
    """Return the starts in these groups with their locks and ends.

    The lock of a message is its key. A message without a key has a lock of its own, which nothing holds. `over_us` is
    the end of the delivery, `finished_us` the last final end of the message; null if there is none. `is_first` is true
    for the first start of the message at its host.

    Args:
        rows: started rows, see `waiting`, and ends of messages with a key.
        groups: suspects.
    """
    lock = F.coalesce(F.concat(F.lit("key "), "key"), F.concat(F.lit("message "), origin()))
    mine = rows.join(groups, ["topic", "group"], "left_semi").withColumns(
        {
            "name": origin(),
            "lock": lock,
            "is_start": F.col("event") == events.STARTED,
            "p": F.col("priority").cast("int"),
        }
    )
    message = ("topic", "group", "lock", "name")
    delivery = Window.partitionBy(*message, "source", "attempt").orderBy("time_us", F.desc("is_start"))
    at_host = Window.partitionBy(*message, "source").orderBy(F.desc("is_start"), "time_us", "offset")
    ended_us = F.when(~F.col("is_start"), F.col("time_us"))
    final_us = F.when(~F.col("event").isin(*events.AGAIN), ended_us)
    over = {
        "over_us": F.min(ended_us).over(delivery.rowsBetween(1, Window.unboundedFollowing)),
        "finished_us": F.max(final_us).over(Window.partitionBy(*message)),
        "is_first": F.row_number().over(at_host) == 1,
    }
    times = ("time_us", "ready_us", "since_us", "until_us", *over)
    found = mine.repartition("topic", "group", "lock").withColumns(over).where("is_start")
    return found.select(*_LOCK, "name", "id", "key", "offset", "p", *times)


def free(starts: DataFrame, priorities: int) -> DataFrame:
    """Return begin (`step` 1) and end (-1) of each stretch in which a message of a lock was ready and not held back.

    A message that has begun and is not finished holds its lock, and the others of the lock wait, whatever their
    priority. Between two attempts the holder itself may be ready.

    Args:
        starts: see `locked`.
    """
    begin_us, end_us = F.greatest("ready_us", "ran_us"), F.least("gone_us", "finished_us")
    is_own = F.col("ran_us").isNotNull() & (begin_us < end_us)
    begin_kind = F.when(F.col("ran_us") > F.col("ready_us"), _FINISHES).otherwise(_READIES)
    end_kind = F.when(F.col("finished_us") < F.col("gone_us"), _FINISHES).otherwise(_STOPS)
    of_messages = (
        _ready(starts)
        .where(F.col("p") < priorities - 1)
        .select(
            *(*_LOCK, "p", "name", "gone_us"),
            F.inline(
                F.array(
                    _change(_at("ready_us", _READIES), ready=1),
                    _change(_at("gone_us", _STOPS), ready=-1),
                    F.when(is_own, _change(_at(begin_us, begin_kind), own=1)),
                    F.when(is_own, _change(_at(end_us, end_kind), own=-1)),
                )
            ),
        )
    )
    unfinished = F.col("finished_us").isNull() | (F.col("time_us") < F.col("finished_us"))
    holders = starts.where(F.col("is_first") & F.col("key").isNotNull() & unfinished)
    of_holders = holders.withColumn("p", F.explode(F.sequence(F.lit(0), F.lit(priorities - 2)))).select(
        *(*_LOCK, "p"),
        F.inline(
            F.array(
                _change(start(later=1), held=1),
                F.when(F.col("finished_us").isNotNull(), _change(_at("finished_us", _FINISHES), held=-1)),
            )
        ),
    )
    order = Window.partitionBy(*_LOCK, "p").orderBy("at")
    so_far = order.rowsBetween(Window.unboundedPreceding, 0)
    held, waits, own = (F.sum(name).over(so_far) for name in ("held", "ready", "own"))
    last = F.max(F.when(F.col("ready") == 1, F.struct("gone_us", "name"))).over(so_far)
    swept = of_messages.unionByName(of_holders, allowMissingColumns=True).where(F.col("at").isNotNull())
    free = ((held == 0) & (waits > 0)) | ((held == 1) & (own > 0))
    swept = swept.withColumns({"free": free.cast("int"), "name": last.getField("name")})
    swept = swept.withColumn("step", F.col("free") - F.lag("free", 1, 0).over(order)).where(F.col("step") != 0)
    return swept.select(*_LOCK[:-1], "p", "name", "at", "step", F.lead("at").over(order).alias("end")).withColumns(
        {"is_start": F.lit(False), "end": F.coalesce("end", _at(F.lit(NEVER_US), _READIES))}
    )


def _ready(starts: DataFrame) -> DataFrame:
    """Return the stretches in which a message was ready, each from `ready_us` to `gone_us`.

    `ran_us` is the time when the deliveries of the message before were over; null if there were none.
    """

    def step(time: str, kind: int, over_us: Column) -> Column:
        return F.struct(F.col(time).alias("us"), F.lit(kind).alias("kind"), over_us.cast("long").alias("over_us"))

    waited, stored = (F.col("ready_us") > 0) & (F.col("ready_us") < F.col("time_us")), F.col("since_us").isNotNull()
    steps = F.array(
        step("time_us", _STOPS, F.coalesce("over_us", F.lit(NEVER_US))),
        F.when(waited, step("ready_us", _READIES, F.lit(None))),
        F.when(stored, step("since_us", _READIES, F.lit(None))),
        F.when(stored, step("until_us", _STOPS, F.lit(None))),
    )
    every = starts.select(*_LOCK, "name", "p", "finished_us", F.inline(steps)).where(F.col("us").isNotNull())
    order = Window.partitionBy(*_LOCK, "name").orderBy("us", "kind")
    stops_us = F.when(F.col("kind") == _STOPS, F.col("us"))
    told = every.withColumns(
        {
            "was": F.lag("kind").over(order),
            "gone_us": F.min(stops_us).over(order.rowsBetween(1, Window.unboundedFollowing)),
            "ran_us": F.max("over_us").over(order.rowsBetween(Window.unboundedPreceding, -1)),
        }
    )
    begins = (F.col("kind") == _READIES) & ~F.col("was").eqNullSafe(_READIES)
    return told.where(begins).withColumnRenamed("us", "ready_us")


def start(later: int = 0) -> Column:
    """Return the place of a start in a sweep, or of the begin of its hold on its lock (`later` 1)."""
    return _at("time_us", _STARTS, 2 * F.coalesce("offset", F.lit(-1)) + later)


def _at(time: str | Column, kind: int | Column, tie: Column | None = None) -> Column:
    """Return the place of a step in a sweep."""
    us = F.col(time) if isinstance(time, str) else time
    of_kind = F.lit(kind) if isinstance(kind, int) else kind
    return F.struct(us.alias("us"), of_kind.alias("kind"), (F.lit(0) if tie is None else tie).cast("long").alias("tie"))


def _change(at: Column, *, held: int = 0, ready: int = 0, own: int = 0) -> Column:
    """Return a step in the sweep over a lock: changes of the holders, the ready messages, and the ready holders."""
    numbers = {"held": held, "ready": ready, "own": own}
    return F.struct(at.alias("at"), *(F.lit(number).alias(name) for name, number in numbers.items()))
