"""The topics of a pool: the pool's own, which makes all of them one unit on one host, and those in which tasks wait.

EMQ's counters do not limit tasks: a topic's qps is far above the rate of the pool's resources. Its places in flight are
the window from which the scheduler chooses.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from emq.runtime import errors
from emq.topics.model import Topic, TopicOptions
from emq_scheduling.forecast.pacing import Pace
from emq_scheduling.model import Pool
from emq_scheduling.tasks import topic_of

if TYPE_CHECKING:
    from emq.app import App

AMPLE = 2.0
"""A topic's qps is this many times the rate of the resources of its type."""

REFILL = 5.0
"""The same for the pool's own topic, which bounds all of them together. The windows of many tenants fill at the part
above the resources' rate; until then tenants with little in their windows get less than their parts."""

LEAST_QPS = 100.0
MOST_QPS = 5_000.0
"""Least and most qps of the topic of a type."""

MOST_TENANT_QPS = 1_000.0
"""The same for the topic of a tenant: each 150 starts a second are another group, and there may be many tenants."""

GROUP_QPS = 150.0
"""Starts a second of one group; the most that any store's queue takes."""

WINDOW_S = 1.0
LEAST_WINDOW = 64
MOST_WINDOW = 2_000
TENANT_WINDOW = 48
"""Tasks of a topic that may wait for a resource or run: those of `WINDOW_S`, in these bounds. Fewer for a tenant, since
the windows of hundreds of tenants together must stay below a host's places in flight (20,000); otherwise tenants with
an empty window would get nothing."""

WAITS_FOR_HOURS = 1_000
"""Deliveries that a task may use up without an attempt: its type's hours were over, or no resource took it."""

DEDUPE_S = 600.0
"""Seconds for which a repeated submit with the same id, as after `OutcomeUnknown`, stores nothing."""

TENANT_IDLE_S = 3_600.0
"""`idle_s` of the topic of a tenant. The task that wakes it starts later than others (docs/families.md, "Idle topics
sleep"). The few topics of types stay awake, so that a host has them before the next task comes."""


def root_of(pool: Pool, gains: Mapping[str, float]) -> Topic:
    """Return the topic of the pool, the budget of all others; `gains` as for `ensure`."""
    total = math.fsum(min(gains.get(kind, 1.0) * Pace(pool, kind).per_s(), MOST_QPS) for kind in pool.types)
    qps = float(math.ceil(min(max(REFILL * total, 2 * LEAST_QPS), 2 * MOST_QPS)))
    return Topic(pool.name, qps, group_qps=GROUP_QPS, priorities=("task",))


def of_tasks(pool: Pool, task_type: str, tenant: str, gain: float = 1.0) -> Topic:
    """Return the topic in which tasks of a type, and of a tenant or none, wait.

    Args:
        gain: how many times as fast as by the pool's costs they start, since they cost less.
    """
    kind = pool.types[task_type]
    qps = min(max(AMPLE * gain * Pace(pool, task_type).per_s(), LEAST_QPS), MOST_TENANT_QPS if tenant else MOST_QPS)
    window = TENANT_WINDOW if tenant else max(LEAST_WINDOW, min(MOST_WINDOW, math.ceil(qps * WINDOW_S)))
    options = TopicOptions(
        budget=pool.name,
        max_in_flight=window,
        dedupe_s=DEDUPE_S,
        idle_s=TENANT_IDLE_S if tenant else None,
        max_attempts=kind.max_attempts + WAITS_FOR_HOURS,
        backoff_s=kind.backoff_s,
        ttl_s=kind.ttl_s,  # EMQ drops what expired without a start, so that an expired backlog delays nothing behind it
    )
    name = topic_of(pool.name, task_type, tenant)
    return Topic(name, float(math.ceil(qps)), group_qps=GROUP_QPS, priorities=("task",), options=options)


def parsed(topic: str) -> tuple[str, str, str]:
    """Return pool, type and tenant of a topic's name; the tenant is empty for none.

    Raises:
        InvalidTopic: it is not the name of a topic in which tasks wait.
    """
    pool, _, rest = topic.partition(".")
    task_type, _, tenant = rest.partition(".")
    if not task_type:
        raise errors.InvalidTopic(f"topic {topic!r} holds no tasks; those of a pool do, such as {topic}.TYPE")
    return pool, task_type, tenant


async def ensure(
    app: App, pool: Pool, wanted: Sequence[tuple[str, str]], gains: Mapping[str, float] | None = None
) -> None:
    """Create the pool's topic, and those of the given types and tenants, where they are missing.

    Args:
        gains: as for `of_tasks`, by type.
    """
    gains = gains or {}
    made = [root_of(pool, gains), *(of_tasks(pool, kind, tenant, gains.get(kind, 1.0)) for kind, tenant in wanted)]
    await app.admin.create(made, exist_ok=True)


async def adapt_all(app: App, pool: Pool, gains: Mapping[str, float]) -> None:
    """Give the pool's topics the options that follow from its limits, its types and what tasks cost."""
    with contextlib.suppress(errors.TopicExists):
        await ensure(app, pool, [(kind, "") for kind in pool.types], gains)
    for topic in await app.catalog.list(f"{pool.name}.*"):  # also those that sleep
        kind, tenant = parsed(topic.name)[1:]
        if kind in pool.types and topic.options.budget == pool.name:
            await adapt(app, topic, of_tasks(pool, kind, tenant, gains.get(kind, 1.0)))
    await adapt(app, await app.catalog.get(pool.name), root_of(pool, gains))


async def adapt(app: App, topic: Topic, wanted: Topic) -> None:
    """Give a topic the qps and options that it should have, if they differ by much."""
    changes: dict[str, Any] = {}
    if not 0.7 <= topic.qps / wanted.qps <= 1.5:
        changes["qps"] = wanted.qps
    for name in ("max_in_flight", "max_attempts", "backoff_s", "ttl_s", "dedupe_s", "idle_s"):
        if (value := getattr(wanted.options, name)) != getattr(topic.options, name):
            changes[name] = value
    if changes:
        await app.admin.update(topic.name, **changes)
