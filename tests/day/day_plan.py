"""Which topics a day has: every kind and every option, mixed.

A topic is named `<trait>-<number>`. Its trait says how it is made, how it is published to and how its messages are
handled; `TRAITS` is the list to extend when the product learns something new.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from emq.topics.model import Kind, Topic, TopicOptions

TOPICS = 300

PRIORITIES = ("high", "mid", "low")

MAX_ATTEMPTS = 4

MAX_LENGTH = 20
"""Of a topic that drops its oldest messages."""

_RETRIES: dict[str, Any] = {"max_attempts": MAX_ATTEMPTS, "backoff_s": (0.3, 0.6), "jitter": 0.5}


class Trait(NamedTuple):
    """What topics of a name have in common.

    Attributes:
        count: how many of the day's topics have it.
        qps: to choose from.
        options: fields of `TopicOptions`, beside those of all.
        fields: fields of `Topic`.
        keys: how many keys its messages have; 0 for none.
        strict: priorities are strict, and nothing but its priority decides about a message.
        unique: each message is published once, and nothing merges.
        fates: in which ways its messages may fail, see `fate_of`.
    """

    count: int
    qps: tuple[float, ...]
    options: Mapping[str, Any] = {}
    fields: Mapping[str, Any] = {}
    keys: int = 0
    strict: bool = False
    unique: bool = True
    fates: Mapping[str, float] = {"flaky": 0.02, "again": 0.015, "reject": 0.01, "poison": 0.005, "slow": 0.03}


_ONE_QUEUE: dict[str, Any] = {"priorities": ("only",)}
_RMQ = {"flaky": 0.03, "again": 0.01, "reject": 0.01, "slow": 0.03}
_QPS = (2.0, 5.0, 10.0, 20.0)

TRAITS: dict[str, Trait] = {
    "plain": Trait(24, _QPS, strict=True),
    "keyed": Trait(16, (5.0, 10.0), fields=_ONE_QUEUE, keys=3),
    "moving": Trait(8, (8.0,), fields={**_ONE_QUEUE, "group_qps": 2.0}, keys=12),
    "weighted": Trait(10, (5.0, 10.0), {"priority_policy": "weighted", "weights": (5.0, 3.0, 2.0)}),
    "aging": Trait(10, (5.0, 10.0), {"priority_policy": "aging", "aging_s": 2.0}),
    "delayed": Trait(20, _QPS),
    "mortal": Trait(10, (2.0, 5.0), {"ttl_s": 30.0}),
    "batch": Trait(16, (10.0, 20.0)),
    "grown": Trait(10, (20.0,), fields={"group_qps": 5.0}),
    "smooth": Trait(16, (5.0, 10.0), {"pacing": "smooth"}),
    "wide": Trait(14, (12.0, 20.0), fields={"group_qps": 4.0}),
    "little": Trait(16, (0.5, 1.0, 2.5)),
    "thread": Trait(12, (5.0, 10.0)),
    "hanging": Trait(12, (5.0, 10.0), {"handler_timeout_s": 1.0}, fates={"hang": 0.03, "flaky": 0.02, "slow": 0.1}),
    "receiver": Trait(10, (5.0, 10.0)),
    "scheduled": Trait(8, (5.0,), fates={}),
    "recalled": Trait(8, (5.0,), fates={}),
    "bounded": Trait(8, (2.0,), {"max_length": 20}),
    "dropping": Trait(8, (2.0,), {"max_length": MAX_LENGTH, "overflow": "drop_oldest"}, _ONE_QUEUE),
    "flood": Trait(12, (4.0, 10.0), strict=True),
    "range": Trait(10, (5.0, 10.0), {"time_range_ms": 300}, {"kind": Kind.RANGE_MERGE}, unique=False, fates=_RMQ),
    "rank": Trait(10, (5.0, 10.0), {"ordering": "none"}, {"kind": Kind.PRIORITY}, fates=_RMQ),
    "timed": Trait(8, (5.0, 10.0), fields={"kind": Kind.FIXED_TIME}, fates=_RMQ),
    "moment": Trait(
        8,
        (5.0, 10.0),
        {"precision": "millisecond", "merge": "key", "ordering": "key"},
        {"kind": Kind.FIXED_TIME},
        fates=_RMQ,
    ),
    "sums": Trait(
        8, (5.0,), {"merge": "key", "fold": "sum"}, {"kind": Kind.PRIORITY}, unique=False, fates={"odd": 0.05}
    ),
    "rankback": Trait(8, (5.0, 10.0), {"retry": "backoff"}, {"kind": Kind.PRIORITY}),
}


RATES = {"moving": 0.5, "dropping": 1.5}
"""Publishes a second as a part of the qps, where it is not the usual one."""

FLOODED = ("flood", "grown")
"""Traits of topics that have a backlog for the first half of the day."""

BURSTS = {"moving": 24, "dropping": 60}


class Tenant(NamedTuple):
    """A topic of the day.

    Attributes:
        rate_per_s: publishes a second.
        burst: messages published at once when the day begins.
    """

    topic: Topic
    trait: str
    rate_per_s: float
    burst: int

    @property
    def name(self) -> str:
        return self.topic.name

    @property
    def of(self) -> Trait:
        return TRAITS[self.trait]


def trait_of(topic: str) -> str:
    return topic.partition("-")[0]


def topic_named(name: str, qps: float) -> Topic:
    """A topic made as its trait says."""
    trait = TRAITS[trait_of(name)]
    options = TopicOptions(**{**_RETRIES, **trait.options})
    kind = trait.fields.get("kind", Kind.LOG)
    fields = dict(trait.fields)
    if kind is not Kind.LOG:
        fields["slots"] = 2
    elif "priorities" not in fields:
        fields["priorities"] = PRIORITIES
    return Topic(name, qps, options=options, **fields)


def tenants(seed: int, seconds: float, topics: int = TOPICS) -> list[Tenant]:
    """The day's topics; the same for the same seed. Fewer `topics` have the same mix."""
    chance = random.Random(f"tenants {seed}")
    made = []
    for name, trait in TRAITS.items():
        for number in range(max(1, round(trait.count * topics / TOPICS))):
            topic = topic_named(f"{name}-{number}", chance.choice(trait.qps))
            rate = topic.qps * RATES[name] if name in RATES else min(topic.qps * 0.5, 1.5)
            burst = round(topic.qps * seconds * 0.6) if name in FLOODED else BURSTS.get(name, round(min(topic.qps, 5)))
            made.append(Tenant(topic, name, rate, burst))
    return made


def fate_of(trait: str, chance: random.Random) -> str:
    """What is to become of a message: `ok`, or one of the trait's fates.

    `flaky` fails at first; `again` asks for a retry at first; `reject` and `poison` end dead, at once and after all
    attempts; `slow` takes its time; `hang` never returns at first.
    """
    drawn = chance.random()
    for fate, share in TRAITS[trait].fates.items():
        if drawn < share:
            return fate
        drawn -= share
    return "ok"


def names(planned: Sequence[Tenant], *traits: str) -> frozenset[str]:
    """Names of the topics that have one of the traits."""
    return frozenset(t.name for t in planned if t.trait in traits)
