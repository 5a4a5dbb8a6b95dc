"""Ids that are published again and again, as in sorted topics, judged by the rules of `emq.trail.lives`.

The *reach* of a settle is the time at which its delivery was ready; the settle belongs to a publish that began before
its reach. The audit goes through publishes and reaches in order of time with a running sum: a settle is one too many
if more messages were settled than published by then. A merged publish went into a waiting message, so this publish
needs an end whose reach is later, too; one end serves all merged publishes. Publishers and hosts have clocks of their
own, so a reach also covers publishes that began later by at most the greatest difference of two clocks.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from emq.trail import events, lives
from emq_spark.audit.events import ENDINGS, SENT, count, origin
from emq_spark.audit.findings import EVIDENCE, found_in
from emq_spark.audit.messages import JUDGED

_BEGINS, _ENDS = 0, 1


def steps(rows: DataFrame) -> DataFrame:
    """Choose the events that lives consist of; add the published id (`origin`), and the reach of each end.

    Args:
        rows: events of ids that may come back.
    """
    event = F.col("event")
    chosen = rows.where(event.isin(SENT, *lives.EVENTS)).withColumn("origin", origin())
    ready = F.greatest(F.coalesce("ready_us", "time_us"), F.coalesce("published_us", F.lit(0)))
    chosen = chosen.withColumn("ready", F.when(event == events.STARTED, ready))
    in_time = [F.col("time_us"), F.when(event == events.STARTED, 0).otherwise(1)]
    own = Window.partitionBy("topic", "origin", "id", "source", "attempt").orderBy(*in_time)
    whole = Window.partitionBy("topic", "origin", "source", "attempt").orderBy(*in_time)
    of_origin = F.when((event == events.STARTED) & (F.col("id") == F.col("origin")), F.col("ready"))
    chosen = chosen.withColumns(
        {
            "before": F.lag("ready").over(own),
            "of_origin": F.last(of_origin, ignorenulls=True).over(whole.rowsBetween(Window.unboundedPreceding, -1)),
        }
    )
    is_end = event.isin(*ENDINGS)
    moves = is_end & (F.col("id") != F.col("origin")) & F.col("before").isNull()
    own_end = is_end & (F.col("id") == F.col("origin"))
    reach = (
        F.when(moves, F.coalesce("of_origin", "time_us"))
        .when(own_end, F.coalesce("before", "time_us"))
        .when(event == events.RECALLED, F.col("time_us"))
    )
    return chosen.withColumns({"reach": reach, "moves": moves})


def strays(steps: DataFrame) -> DataFrame:
    """Report ends of deliveries that their host did not start (E); see `steps`."""
    unstarted = F.coalesce("reason", F.lit("")).rlike(f"^({events.EXPIRED}$|{events.UNFIT})")
    is_end = F.col("event").isin(*ENDINGS) & F.col("before").isNull()
    needs = ~((F.col("event") == events.DEAD) & unstarted) & ~(F.col("moves") & F.col("of_origin").isNotNull())
    text = F.format_string("%s was %s by %s, which did not start its attempt %d", "id", "event", "source", "attempt")
    columns = ("topic", "group", "id", "source")
    return found_in(
        steps.where(is_end & needs),
        *(EVIDENCE, "ended without a start", *columns),
        at_us=F.col("time_us"),
        text=text,
    )


def judged(steps: DataFrame, slack_us: int) -> DataFrame:
    """Return the columns `emq_spark.audit.messages.JUDGED` for each origin.

    Args:
        slack_us: microseconds by which the clocks of publishers and hosts may differ.
    """
    event, is_origin = F.col("event"), F.col("id") == F.col("origin")
    whole = Window.partitionBy("topic", "origin")
    begun = F.coalesce("published_us", "time_us")
    rows = steps.withColumn("began", F.when(event.isin(SENT, events.PUBLISHED), begun))
    # A publish that is recorded twice, by ledger and trail or after a crash, counts once.
    told = F.row_number().over(Window.partitionBy("topic", "origin", "began").orderBy("time_us"))
    rows = rows.withColumn("began", F.when(told == 1, F.col("began")))
    rows = rows.withColumns(
        {
            "first_began": F.min("began").over(whole),
            "merged_us": F.when(event == events.MERGED, begun),
            "first_recall": F.min(F.when(event == events.RECALLED, F.col("time_us"))).over(whole),
        }
    )
    more = (F.col("began") > F.col("first_began")).cast("int")
    is_publish = F.col("began").isNotNull()
    settles = (event == events.SETTLED) & is_origin
    dies = (event == events.DEAD) & is_origin
    recalls = (event == events.RECALLED) & is_origin
    rows = rows.withColumns(
        {
            "at": F.coalesce("began", F.col("reach") + slack_us),
            "kind": F.when(is_publish, _BEGINS).otherwise(_ENDS),
            "settle": F.when(is_publish, more).otherwise(-settles.cast("int")),
            "taken": F.when(is_publish, more).otherwise(-(settles | recalls).cast("int")),
            "death": F.when(is_publish, more).otherwise(-dies.cast("int")),
        }
    )
    walk = Window.partitionBy("topic", "origin").orderBy("at", "kind").rowsBetween(Window.unboundedPreceding, 0)
    rows = rows.withColumns({f"{name}_sum": F.sum(name).over(walk) for name in ("settle", "taken", "death")})
    return _summed(rows, settles, dies, slack_us).select(*JUDGED)


def _summed(rows: DataFrame, settles: Column, dies: Column, slack_us: int) -> DataFrame:
    event, is_origin = F.col("event"), F.col("id") == F.col("origin")
    replays = (event == events.REPLAYED) & is_origin
    ends = settles | dies | (event == events.RECALLED) | F.col("moves")
    found = rows.groupBy("topic", F.col("origin").alias("id")).agg(
        F.max("group").alias("group"),
        F.max("priority").alias("priority"),
        F.lit(None).cast("long").alias("offset"),
        F.min("time_us").alias("first_us"),
        F.max("time_us").alias("last_us"),
        count(event == events.STARTED).alias("started"),
        F.lit(None).cast("int").alias("failed_attempt"),
        count(F.col("began").isNotNull()).alias("publishes"),
        count(settles).alias("settled"),
        count(settles & (F.col("reach") > F.col("first_recall") + lives.LEARN_US + slack_us)).alias("settled_later"),
        count(replays).alias("replayed"),
        count((event == events.DOUBTED) & is_origin).alias("doubted"),
        count((event == events.RECALLED) & is_origin).alias("recalled"),
        F.max(F.when(dies, F.col("reach"))).alias("last_death"),
        F.max(F.when(replays, F.col("time_us"))).alias("last_replay"),
        F.max(F.coalesce("began", "merged_us")).alias("last_publish"),
        F.max(F.coalesce("began", "merged_us", F.when(replays, F.col("time_us")))).alias("last_begin"),
        F.max(F.when(ends, F.col("reach"))).alias("last_end"),
        F.min("settle_sum").alias("settle_low"),
        F.min("taken_sum").alias("taken_low"),
        F.min("death_sum").alias("death_low"),
    )
    buried = F.coalesce("last_death", F.lit(-1)) > F.coalesce("last_replay", F.lit(-1))
    reached = F.coalesce(F.col("last_end") + slack_us, F.lit(-1))
    is_open = F.col("last_publish").isNotNull() & (reached < F.col("last_begin"))
    extra = F.col("last_publish").isNull() & (F.col("settled") > 0)
    # A recall takes a message away as a settle does, so recalls and settles together need as many publishes and
    # replays. Settles of messages that a host may have claimed before are excused.
    taken = F.least(F.col("settled_later"), -F.col("taken_low") - 1 - F.col("doubted") - F.col("replayed"))
    return found.withColumns(
        {
            "delivered": F.col("settled") > 0,
            "is_dead": buried & (F.col("settled") == 0),
            "is_recalled": (F.col("recalled") > 0) & (F.col("settled") == 0),
            "is_open": is_open,
            "in_lane": F.lit(True),
            "surplus": F.greatest(F.lit(0), -F.col("settle_low") - 1 - F.col("doubted"), taken),
            "died_again": F.greatest(F.lit(0), -F.col("death_low") - 1 - F.col("replayed") - F.col("doubted")),
            "extra": extra,
            "is_odd": F.lit(False),
            "steps": F.lit(0),
        }
    )
