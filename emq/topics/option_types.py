"""The keyword arguments by which programs create and change topics, for type checkers and editors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Required, TypedDict

from emq.storage.durability import Durability
from emq.topics.model import Kind

KindName = Literal["log", "range_merge", "priority", "fixed_time"]
StateName = Literal["active", "paused", "draining"]


class OptionArguments(TypedDict, total=False):
    """The options of a topic, each as it may be written; `emq.topics.model.TopicOptions` explains them."""

    pacing: Literal["window", "smooth"]
    burst: float | None
    priority_policy: Literal["strict", "weighted", "aging"]
    weights: Sequence[float]
    aging_s: float
    budget: str | None
    share: float
    max_in_flight: int | None
    max_length: int | None
    overflow: Literal["reject", "drop_oldest"]
    max_payload: int
    max_headers: int
    max_attempts: int
    backoff_s: Sequence[float]
    jitter: float
    handler_timeout_s: float | None
    retention_s: float
    ttl_s: float | None
    dedupe_s: float
    idle_s: float | None
    buckets: int
    delay_levels: Mapping[str, float]
    durability: Durability | Literal["accepted", "replicated", "fsynced"]
    attributes: Mapping[str, str]
    ordering: Literal["slot", "key", "none"]
    precision: Literal["second", "millisecond"]
    time_range_ms: int | None
    retry: Literal["rmq", "backoff"]
    merge: Literal["content", "key"]
    fold: Literal["latest", "sum", "max", "min", "union", "count", "lua"]
    fold_lua: str
    keep: Literal["first", "last", "earliest", "latest"] | None
    prepare_timeout_s: float


class FamilyArguments(OptionArguments, total=False):
    """What a program says of a family; see `App.create_topic`."""

    qps: Required[float]
    kind: Kind | KindName
    slots: int
    group_qps: float
    priorities: Sequence[str]
