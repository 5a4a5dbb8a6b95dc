"""The data of the report's charts, small enough for the driver: rates and lag over time, pauses, waits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from emq.topics.model import MICRO, Topic
from emq.trail import events
from emq_spark.audit.caps import Cap
from emq_spark.audit.events import SENT
from emq_spark.audit.overview import STEPS
from emq_spark.audit.owners import Pause
from emq_spark.audit.seconds import OWNED

BUCKETS = 120
TENANTS = 40
"""Most tenants (topics) in the charts: the charts have those with the most starts."""
PAUSES = 2_000

_FINISHED = (events.SETTLED, events.DEAD, events.RECALLED)


@dataclass(frozen=True)
class Series:
    """Rates and lag over time, a value for each bucket of time.

    Attributes:
        name: name of the tenant (topic), or "" for all.
        cap: starts a second; 0 if unknown.
        published, started: messages a second.
        lag: messages that were published and not finished at the end of the bucket.
        broken: buckets in which a second exceeded the cap of the tenant or of one of its groups.
    """

    name: str
    cap: float
    published: tuple[float, ...]
    started: tuple[float, ...]
    lag: tuple[int, ...]
    broken: frozenset[int] = frozenset()

    @property
    def peak(self) -> float:
        """The highest rate of starts."""
        return max(self.started, default=0.0)


@dataclass(frozen=True)
class Charts:
    """The data of all charts.

    Attributes:
        first_s, step_s: begin of the first bucket (seconds since the epoch), and seconds of each bucket.
        total: the series of all tenants together.
        tenants: the series of the busiest tenants, in order of their starts.
        all_tenants: number of all tenants.
        pauses: pauses at moves of groups between hosts; the longest ones if there are many.
        all_pauses: number of all pauses.
        waits: by priority, (microseconds, messages) in order of the microseconds.
        priorities: names of priorities by number, if all topics use the same names.
    """

    first_s: int
    step_s: int
    total: Series
    tenants: Sequence[Series]
    all_tenants: int
    pauses: Sequence[Pause]
    all_pauses: int
    waits: Mapping[int, Sequence[tuple[float, int]]]
    priorities: Mapping[int, str] = field(default_factory=dict)


def of(
    seconds: DataFrame,
    waits: Sequence[Row],
    pauses: DataFrame,
    moves: int,
    caps: Sequence[Cap],
    findings: DataFrame,
    topics: Sequence[Topic],
) -> Charts:
    """Gather the data.

    Args:
        findings: findings of this audit; the charts show those about caps.
        topics: the topics of the catalog; empty if it is unknown.
        seconds: see `emq_spark.audit.seconds.counted`.
        pauses, moves: see `emq_spark.audit.owners.pauses`, and their number.
        waits: see `emq_spark.audit.overview.Overview`.
    """
    seconds = seconds.where(~F.col("event").isin(*OWNED))
    started = F.sum(F.when(F.col("event") == events.STARTED, F.col("n")))
    limits = (F.min("second").alias("first"), F.max("second").alias("last"), started.alias("started"))
    tenants = seconds.groupBy("topic").agg(*limits).collect()
    first = min((row["first"] for row in tenants), default=0)
    last = max((row["last"] for row in tenants), default=0)
    busy = [row for row in tenants if row["topic"] is not None and row["started"] is not None]
    busiest = [row["topic"] for row in sorted(busy, key=lambda row: (-row["started"], row["topic"]))[:TENANTS]]
    step = max(1, -(-(last - first + 1) // BUCKETS))
    bucket = F.expr(f"(second - {first}) div {step}").cast("int").alias("bucket")
    drawn = F.when(F.col("topic").isin(busiest), F.col("topic")).alias("topic")
    found = seconds.groupBy(drawn, "event", bucket).agg(F.sum("n").alias("n")).collect()
    n = (last - first) // step + 1
    caps_of: dict[str, float] = defaultdict(float)
    for cap in (cap for cap in caps if cap.group == -1):
        caps_of[cap.topic] += cap.whole + cap.part / MICRO
        caps_of[""] += cap.whole + cap.part / MICRO
    counts: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0] * n))
    for row in found:
        counts[""][row["event"]][row["bucket"]] += row["n"]
        if row["topic"] is not None:
            counts[row["topic"]][row["event"]][row["bucket"]] = row["n"]
    broken: dict[str, set[int]] = defaultdict(set)
    over = findings.where((F.col("promise") == "Q") & F.col("topic").isin(busiest))
    at = F.expr(f"(at_us div {MICRO} - {first}) div {step}").cast("int").alias("bucket")
    for row in over.select("topic", at).distinct().collect():
        broken[row["topic"]].add(row["bucket"])
    series = {
        name: _series(name, counts[name], caps_of[name], step, n, frozenset(broken[name])) for name in ("", *busiest)
    }
    longest = pauses.orderBy(F.desc("gap_us"), *Pause._fields).limit(PAUSES).collect() if moves else []
    return Charts(
        first,
        step,
        series[""],
        [series[name] for name in busiest],
        len(tenants),
        [Pause(*row) for row in longest],
        moves,
        _by(waits),
        _names(topics),
    )


def _names(topics: Sequence[Topic]) -> dict[int, str]:
    """Return the names of the priorities if all topics use the same names."""
    called = {topic.priorities for topic in topics if topic.priorities}
    return dict(enumerate(called.pop())) if len(called) == 1 else {}


def _series(
    name: str, counts: Mapping[str, list[int]], cap: float, step: int, n: int, broken: frozenset[int]
) -> Series:
    zero = [0] * n
    # A publish that both a ledger and a producer's trail record counts once.
    pairs = zip(counts.get(SENT, zero), counts.get(events.PUBLISHED, zero), strict=True)
    published = [max(pair) for pair in pairs]
    finished = [sum(counts.get(event, zero)[i] for event in _FINISHED) for i in range(n)]
    lag, lags = 0, []
    for came, went in zip(published, finished, strict=True):
        lag = max(0, lag + came - went)
        lags.append(lag)
    started = counts.get(events.STARTED, zero)
    return Series(name, cap, tuple(v / step for v in published), tuple(v / step for v in started), tuple(lags), broken)


def _by(waits: Sequence[Row]) -> dict[int, list[tuple[float, int]]]:
    counts: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for row in waits:
        if row["n"]:
            counts[row["priority"]][row["bucket"]] += row["n"]
    return {p: [(2 ** (b / STEPS), n) for b, n in sorted(found.items())] for p, found in sorted(counts.items())}
