"""The plan of a load, read from TOML: tenants (topics) that publish at given rates, or a file to replay.

    duration_s = 60

    [[tenants]]
    name = "shop-{n}"                   # {n} becomes 1, 2, ... up to count
    count = 200
    qps = 2000.0                        # messages a second, of all of them together, on average
    zipf = 1.1                          # the k-th tenant publishes in proportion to 1 / k**zipf
    priorities = { high = 0.1, mid = 0.3, low = 0.6 }
    keys = 1000
    payload_bytes = [100, 2000]

`spark/emq_spark/load/plans` has complete examples. The structs below list all keys.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from emq.topics.model import MAX_DELAY_S, Kind, Topic, TopicOptions

NUMBER = "{n}"
"""Placeholder for the tenant's number in its name."""
MAX_TENANTS = 1_000_000
MAX_SEED = (1 << 63) - 1
MOST = 10**9
"""Bound for numbers that only have to be finite."""

Positive = Annotated[float, Meta(gt=0, le=MOST)]
Part = Annotated[float, Meta(gt=0, le=1)]
DelayS = Annotated[float, Meta(gt=0, le=int(MAX_DELAY_S))]
Zipf = Annotated[float, Meta(ge=0, le=5)]


class Burst(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A time in which tenants publish more, or less.

    Attributes:
        from_s: seconds after the begin of the load, 0 or more.
        for_s: seconds that the burst lasts, above 0.
        factor: multiplier of the rate, 0 or more. Bursts at one time add up their differences from 1 (3 and 4 make 6);
            the sum is at least 0.
        share: share of the tenants that burst, above 0 and up to 1: the first ones of the table and at least one.
        every_s: seconds from the begin of one burst to the next, above `for_s`; None for one burst only.
    """

    from_s: Annotated[float, Meta(ge=0, le=MOST)]
    for_s: Positive
    factor: Annotated[float, Meta(ge=0, le=1_000_000)]
    share: Part = 1.0
    every_s: Positive | None = None


class Diurnal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A day's curve: a cosine around the average rate, which keeps the average.

    Attributes:
        period_s: seconds of a day, above 0; make a day shorter to see several in minutes.
        depth: 0 for a constant rate, up to 1 for a rate between 0 and twice the average.
        peak_s: seconds from the begin of the load to the highest rate.
    """

    period_s: Positive = 86_400.0
    depth: Annotated[float, Meta(ge=0, le=1)] = 0.5
    peak_s: Annotated[float, Meta(ge=-MOST, le=MOST)] = 0.0


class Delay(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Delayed messages. Exactly one of `between_s` and `every_s` is given.

    Attributes:
        share: share of the messages, above 0 and up to 1.
        between_s: (least, most) seconds from publish to due time, evenly spread.
        every_s: seconds; messages become due together at the next multiple since the begin, like reports on the hour.
    """

    share: Part
    between_s: tuple[DelayS, DelayS] | None = None
    every_s: DelayS | None = None


class TopicPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of topics that the load creates; see `emq.topics.model.Topic` and `TopicOptions`.

    Attributes:
        qps: starts a second of each topic; None for `headroom` times the tenant's average rate.
        headroom: factor above 0.
    """

    qps: float | None = None
    headroom: Positive = 1.25
    kind: Kind = Kind.LOG
    group_qps: float | None = None
    slots: int = 0
    priorities: tuple[str, ...] | None = None
    options: TopicOptions = TopicOptions()

    def topic(self, name: str, per_s: float, priorities: tuple[str, ...] = ()) -> Topic:
        """Return the topic of a tenant that publishes `per_s` messages a second.

        Args:
            priorities: priorities of the tenant's messages; used if the plan lists no priorities for the topic.
        """
        fields: dict[str, Any] = {} if self.group_qps is None else {"group_qps": self.group_qps}
        if self.kind is not Kind.LOG:
            fields["priorities"] = ()
        elif chosen := self.priorities or priorities:
            fields["priorities"] = chosen
        qps = self.qps if self.qps is not None else round(max(1.0, per_s * self.headroom), 6)
        return Topic(name, qps, kind=self.kind, slots=self.slots, options=self.options, **fields)


class Tenants(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tenants that behave alike, each with a topic of its own.

    Attributes:
        name: name of the topics; must contain `{n}` if there is more than one tenant.
        qps: messages a second that all tenants publish together on average, without bursts; above 0.
        count: number of tenants, 1 or more.
        zipf: skew between tenants, 0 (none) to 5; the k-th tenant's share is in proportion to 1 / k**zipf.
        priorities: shares by name, highest priority first; empty for messages without one. Shares need not add up to 1.
        numbers: (lowest, highest) priority number, for topics of kind priority.
        keys: number of different message keys of each tenant; 0 for messages without a key.
        key_zipf: skew between keys, 0 to 5.
        payload_bytes: bytes of each message, or (least, most). Each payload begins with 17 bytes that name the message.
        payload: "text", or "number" for topics that fold payloads as numbers.
        duplicates: share of messages, 0 to below 1, that repeat the content (the merge key, if the topic merges by key)
            of one of the `duplicate_window` messages before.
        delays: delayed parts of the messages.
    """

    name: str
    qps: Positive
    count: Annotated[int, Meta(ge=1, le=MAX_TENANTS)] = 1
    zipf: Zipf = 0.0
    priorities: dict[str, float] = {}
    numbers: tuple[int, int] | None = None
    keys: Annotated[int, Meta(ge=0, le=1 << 40)] = 0
    key_zipf: Zipf = 0.0
    payload_bytes: int | tuple[int, int] = 100
    payload: Literal["text", "number"] = "text"
    duplicates: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    duplicate_window: Annotated[int, Meta(ge=1)] = 1000
    delays: tuple[Delay, ...] = ()
    bursts: tuple[Burst, ...] = ()
    diurnal: Diurnal | None = None
    topic: TopicPlan = TopicPlan()

    def topic_name(self, number: int) -> str:
        """Return the name of the tenant's topic; tenants count from 1."""
        return self.name.replace(NUMBER, str(number))


class Replay(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file whose rows the load publishes in order, at the intervals of their times.

    Attributes:
        file: Parquet (`.parquet`) or JSON lines (any other name), in order of time; or `demo:flights`, the flights of
            the demonstration. Paths count from the plan's directory, and every executor must see them.
        to: the topic, with names of columns in braces: `airline-{carrier}`.
        time: column with the time of each row: a number, or text in ISO 8601 (JSON) or a timestamp (Parquet).
        unit: unit of `time` if it holds numbers.
        speed: seconds of the file that pass in one second, above 0.
        payload: column with the payload; None for the whole row as a JSON object.
        key, priority: columns with key and priority, or None. A row with null there gets none.
        topic: settings of topics that the load creates.
    """

    file: str
    to: str
    time: str
    unit: Literal["s", "ms", "us"] = "s"
    speed: Positive = 1.0
    payload: str | None = None
    key: str | None = None
    priority: str | None = None
    topic: TopicPlan = TopicPlan()


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A load.

    Attributes:
        duration_s: seconds, above 0; for a replay None means the whole file.
        name: begin of the ids of runs; None for the name of the plan's file.
        seed: seed, so that each run publishes the same messages; None for a different seed each time.
        tenants, replay: exactly one of the two is given.
    """

    duration_s: Positive | None = None
    name: str | None = None
    seed: Annotated[int, Meta(ge=0, le=MAX_SEED)] | None = None
    tenants: tuple[Tenants, ...] = ()
    replay: Replay | None = None
