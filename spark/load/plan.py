"""The plan of a load: which tenants publish what, how fast and when, or which file is replayed; read from TOML.

    duration_s = 60

    [[tenants]]
    name = "shop-{n}"                   # {n} becomes 1, 2, ... up to count
    count = 200
    qps = 2000.0                        # messages a second, of all of them together, on average
    zipf = 1.1                          # the k-th tenant publishes in proportion to 1 / k**zipf
    priorities = { high = 0.1, mid = 0.3, low = 0.6 }
    keys = 1000
    payload_bytes = [100, 2000]

`spark/plans` has complete examples, and every struct below says what may stand there.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Literal

import msgspec

from emq import errors
from emq.topics.model import Kind, Topic, TopicOptions
from spark.load import plan_check
from spark.load.ledger import RUN
from spark.load.plan_check import NUMBER


class Burst(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A time in which tenants publish more, or less.

    Attributes:
        from_s: seconds after the begin of the load, 0 or more.
        for_s: how long it lasts, above 0.
        factor: what the rate is multiplied by, 0 or more; factors of bursts at one time add up (3 and 4 make 6), and
            come to nothing at least.
        share: of the tenants, the first ones of the table and at least one, above 0 and up to 1.
        every_s: it comes again so often, above `for_s`; None for once.
    """

    from_s: float
    for_s: float
    factor: float
    share: float = 1.0
    every_s: float | None = None


class Diurnal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A day's curve: a cosine around the average, so that the average stays.

    Attributes:
        period_s: length of a day, above 0; shorten it to have days in minutes.
        depth: 0 for none, 1 for a rate between nothing and twice the average.
        peak_s: when the rate is highest, seconds after the begin.
    """

    period_s: float = 86_400.0
    depth: float = 0.5
    peak_s: float = 0.0


class Delay(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Messages that are meant for later: after a while, or by a timetable. Exactly one of the two is given.

    Attributes:
        share: of the messages, above 0 and up to 1.
        between_s: (least, most) seconds after the publish, evenly spread.
        every_s: due at the next multiple of so many seconds since the begin, all together, as reports on the hour.
    """

    share: float
    between_s: tuple[float, float] | None = None
    every_s: float | None = None


class TopicPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How topics that are missing are created; see `emq.topics.model.Topic` and `TopicOptions`.

    Attributes:
        qps: starts a second of each topic; None for `headroom` times what its tenant publishes on average.
        headroom: above 0.
    """

    qps: float | None = None
    headroom: float = 1.25
    kind: Kind = Kind.LOG
    group_qps: float | None = None
    slots: int = 0
    priorities: tuple[str, ...] | None = None
    options: TopicOptions = TopicOptions()

    def topic(self, name: str, per_s: float, priorities: tuple[str, ...] = ()) -> Topic:
        """The topic of a tenant that publishes `per_s` messages a second.

        Args:
            priorities: those that its messages have, for plans that do not list the topic's.
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
        name: of the topics; with `{n}` in it if there is more than one.
        qps: messages a second that all of them publish together on average, bursts not counted; above 0.
        count: how many, 1 or more.
        zipf: skew between them, 0 (none) to 5; the k-th has a share in proportion to 1 / k**zipf.
        priorities: shares by name, highest priority first; empty for messages without one. Shares need not add up to 1.
        numbers: (lowest, highest) priority number, for topics of kind priority.
        keys: different message keys of each tenant; 0 for messages without a key.
        key_zipf: skew between keys, 0 to 5.
        payload_bytes: of each message, or (least, most). The 17 bytes at its front, which name it, are always there.
        payload: "text", or "number" for topics that fold payloads as numbers.
        duplicates: share of messages that repeat the content (the merge key, where the topic merges by key) of one
            of the `duplicate_window` before, 0 to below 1.
        delays: parts of the messages that are meant for later.
    """

    name: str
    qps: float
    count: int = 1
    zipf: float = 0.0
    priorities: dict[str, float] = {}
    numbers: tuple[int, int] | None = None
    keys: int = 0
    key_zipf: float = 0.0
    payload_bytes: int | tuple[int, int] = 100
    payload: Literal["text", "number"] = "text"
    duplicates: float = 0.0
    duplicate_window: int = 1000
    delays: tuple[Delay, ...] = ()
    bursts: tuple[Burst, ...] = ()
    diurnal: Diurnal | None = None
    topic: TopicPlan = TopicPlan()

    def topic_name(self, number: int) -> str:
        """Name of the tenant's topic; tenants count from 1."""
        return self.name.replace(NUMBER, str(number))


class Replay(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file whose rows are published one after the other, in their own rhythm.

    Attributes:
        file: Parquet (`.parquet`) or JSON lines (any other name), in order of time; or `demo:flights`, the flights of
            the demonstration. Paths count from the plan's directory, and every executor must see them.
        to: the topic, with names of columns in braces: `airline-{carrier}`.
        time: column with the time of each row: a number, or text in ISO 8601 (JSON) or a timestamp (Parquet).
        unit: of numbers.
        speed: seconds of the file that pass in one second, above 0.
        payload: column that is sent; None for the whole row, as a JSON object.
        key, priority: columns, or None. Rows that have none there get none.
        topic: how topics that are missing are created.
    """

    file: str
    to: str
    time: str
    unit: Literal["s", "ms", "us"] = "s"
    speed: float = 1.0
    payload: str | None = None
    key: str | None = None
    priority: str | None = None
    topic: TopicPlan = TopicPlan()


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A load.

    Attributes:
        duration_s: seconds, above 0; of a replay None for the whole file.
        name: begins the ids of runs; None for the name of the file.
        seed: by which the load can be repeated, unless another is asked for; None for a different one each time.
        tenants, replay: one of the two.
    """

    duration_s: float | None = None
    name: str | None = None
    seed: int | None = None
    tenants: tuple[Tenants, ...] = ()
    replay: Replay | None = None


def read(path: Path | str) -> Plan:
    """Read a plan from its file; `name` and the file of a replay are made complete.

    Raises:
        InvalidSettings: it cannot be read, or does not make sense; the text names key and value.
    """
    path = Path(path)
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as exc:
        reason = getattr(exc, "strerror", None) or "it is no UTF-8 text"
        raise errors.InvalidSettings(f"plan {str(path)!r} cannot be read ({reason}); name a TOML file") from exc
    plan = parse(text, str(path))
    if plan.name is None:
        plan = msgspec.structs.replace(plan, name=_name(path.stem))
    replay = plan.replay
    if replay is not None and not replay.file.startswith("demo:"):
        replay = msgspec.structs.replace(replay, file=str((path.parent / replay.file).resolve()))
        plan = msgspec.structs.replace(plan, replay=replay)
    return plan


def parse(text: str, source: str = "the plan") -> Plan:
    """A plan from its text.

    Args:
        source: what errors call it.

    Raises:
        InvalidSettings: as for `read`.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise errors.InvalidSettings(f"{source} is not valid TOML: {exc}") from exc
    plan = plan_check.converted(document, Plan, source)
    plan_check.check(plan, source)
    return plan


def _name(stem: str) -> str:
    """A file's name as far as it may stand in the id of a run."""
    name = "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "-" for c in stem).strip("-_")[:40]
    return name if RUN.fullmatch(name) else "load"
