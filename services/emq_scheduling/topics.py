"""The topics of a pool: its root, which makes all of them one unit on one host, and those in which tasks wait.

Pool `sms` with a type `code` has:

- the family `sms.*` with one bucket, in which all topics below are: so the plan has one entry for the pool. Nobody
  makes topics of this family by publishing.
- the topic `sms..pool`, the root: the budget of all others. It holds no messages.
- the topic `sms.code`, in which tasks of the type wait that have no tenant.
- the family `sms.code.*`. The first task of a tenant makes the tenant's topic, such as `sms.code.acme`, and no topic of
  a tenant that has no tasks is anywhere. Only a tenant that is fast has a setting of its own (`is_fast`).

EMQ's counters do not limit tasks: a topic's qps is far above the rate of the pool's resources. Its places in flight are
the window from which the scheduler chooses.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, Any

from emq.runtime import errors
from emq.topics.families import MAX_TOPICS, Bounds, Family
from emq.topics.model import Topic, TopicOptions
from emq_scheduling.forecast.pacing import Pace
from emq_scheduling.model import Pool
from emq_scheduling.pools.values import MAX_TENANT_BYTES
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
"""Most qps of the topic of a fast tenant."""

GROUP_QPS = 150.0
"""Starts a second of one group; the most that any store's queue takes. The topic of a tenant has one group at first:
there may be many tenants, and each group costs memory and look-ups."""

FAST = 0.7
"""Part of a second's starts of that one group from which a tenant is fast, and gets more groups."""

FAST_IDLE_S = 600.0
"""Seconds after which a tenant that was not fast any more has one group again."""

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


ANY_CHARACTER = "!-\U0010ffff"
"""The alphabet of families of tenants: `emq_scheduling.pools.rules` says what their names may have."""


def root_name(pool: str) -> str:
    """Return the name of the pool's root: the empty type, which no task has."""
    return f"{pool}..pool"


def family_of(pool: str, task_type: str = "") -> str:
    """Return the name of the family of a type's tenants; without a type, of the pool's other topics."""
    return f"{pool}.{task_type}.*" if task_type else f"{pool}.*"


def root_of(pool: Pool, gains: Mapping[str, float]) -> Topic:
    """Return the topic of the pool, the budget of all others; `gains` as for `ensure`."""
    total = math.fsum(min(gains.get(kind, 1.0) * Pace(pool, kind).per_s(), MOST_QPS) for kind in pool.types)
    qps = float(math.ceil(min(max(REFILL * total, 2 * LEAST_QPS), 2 * MOST_QPS)))
    return Topic(root_name(pool.name), qps, group_qps=GROUP_QPS, priorities=("task",))


def of_type(pool: Pool, task_type: str, gain: float = 1.0) -> Topic:
    """Return the topic in which tasks of a type wait that have no tenant.

    Args:
        gain: how many times as fast as by the pool's costs they start, since they cost less.
    """
    qps = _qps(pool, task_type, gain, MOST_QPS)
    window = max(LEAST_WINDOW, min(MOST_WINDOW, math.ceil(qps * WINDOW_S)))
    return Topic(
        topic_of(pool.name, task_type, ""), qps, GROUP_QPS, ("task",), options=_options(pool, task_type, window)
    )


def of_tenants(pool: Pool, task_type: str) -> Family:
    """Return the family of topics in which tasks of a type wait that have a tenant."""
    options = _options(pool, task_type, TENANT_WINDOW, idle_s=TENANT_IDLE_S, buckets=0)
    topic = Topic(family_of(pool.name, task_type), GROUP_QPS, GROUP_QPS, ("task",), options=options)
    return Family(topic, Bounds(MAX_TOPICS, MAX_TENANT_BYTES, ANY_CHARACTER))


def fast_qps(pool: Pool, task_type: str, gain: float = 1.0) -> float:
    """Return the qps of a fast tenant's topic; `gain` as for `of_type`."""
    return max(GROUP_QPS, _qps(pool, task_type, gain, MOST_TENANT_QPS))


def _qps(pool: Pool, task_type: str, gain: float, most: float) -> float:
    return float(math.ceil(min(max(AMPLE * gain * Pace(pool, task_type).per_s(), LEAST_QPS), most)))


def _options(pool: Pool, task_type: str, window: int, **more: Any) -> TopicOptions:
    kind = pool.types[task_type]
    return TopicOptions(
        budget=root_name(pool.name),
        max_in_flight=window,
        dedupe_s=DEDUPE_S,
        max_attempts=kind.max_attempts + WAITS_FOR_HOURS,
        backoff_s=kind.backoff_s,
        ttl_s=kind.ttl_s,  # EMQ drops what expired without a start, so that an expired backlog delays nothing behind it
        **more,
    )


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


async def ensure(app: App, pool: Pool, gains: Mapping[str, float] | None = None) -> None:
    """Create the topics and families of the pool and of its types where they are missing.

    Args:
        gains: as for `of_type`, by type.
    """
    gains = gains or {}
    if not pool.types:
        return  # a root without topics below it would be no budget
    families = await app.catalog.families.all()  # each attempt to create what is there would be a change of the catalog
    frame = Topic(family_of(pool.name), LEAST_QPS, GROUP_QPS, ("task",), options=TopicOptions(buckets=1))
    await _create(app, Family(frame, Bounds(max_topics=0)), families)
    made = [root_of(pool, gains), *(of_type(pool, kind, gains.get(kind, 1.0)) for kind in pool.types)]
    if len(await app.catalog.some([topic.name for topic in made])) < len(made):
        await app.admin.create(made, exist_ok=True)  # together, so that the budget holds from the first second on
    for kind in pool.types:
        await _create(app, of_tenants(pool, kind), families)


async def _create(app: App, family: Family, there: Container[str]) -> None:
    if family.name not in there:
        with contextlib.suppress(errors.TopicExists):  # with other settings, which `adapt_all` changes
            await app.families.create(family)


async def adapt_all(app: App, pool: Pool, gains: Mapping[str, float]) -> None:
    """Give the pool's topics the options that follow from its limits, its types and what tasks cost."""
    if not pool.types:
        return
    with contextlib.suppress(errors.TopicExists):
        await ensure(app, pool, gains)
    for kind in pool.types:
        wanted = of_tenants(pool, kind)
        family = (await app.families.get(wanted.name)).family
        if changes := differences(family.topic, wanted.topic):
            await app.families.set(wanted.name, changes)  # and all topics of tenants, but what is their own
    topics = [*(of_type(pool, kind, gains.get(kind, 1.0)) for kind in pool.types), root_of(pool, gains)]
    found = await app.catalog.some([topic.name for topic in topics])
    for topic in topics:
        if topic.name in found:
            await adapt(app, found[topic.name], topic)


async def adapt(app: App, topic: Topic, wanted: Topic) -> None:
    """Give a topic the qps and options that it should have, if they differ by much."""
    if changes := differences(topic, wanted):
        await app.admin.update(topic.name, **changes)


def differences(topic: Topic, wanted: Topic) -> dict[str, Any]:
    """Return the changes that a topic needs; a slightly different qps needs none."""
    changes: dict[str, Any] = {}
    if not 0.7 <= topic.qps / wanted.qps <= 1.5:
        changes["qps"] = wanted.qps
    for name in ("max_in_flight", "max_attempts", "backoff_s", "ttl_s", "dedupe_s", "idle_s"):
        if (value := getattr(wanted.options, name)) != getattr(topic.options, name):
            changes[name] = value
    return changes
