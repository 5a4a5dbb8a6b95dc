"""What callers may hand in: whatever is not right is refused with one clear line before anything is stored."""

from __future__ import annotations

import math
from collections.abc import Awaitable
from typing import Any

import pytest

from emq.runtime import errors
from emq.storage.opening import open_store
from emq.storage.slot_store import Keep, Slot, SlotAdd, SlotKind, SlotSettle, SlotVerdict
from support.rig import Rig
from support.virtual import virtual

HUGE = 10**400
ENDLESS = 10**5000
"""Python refuses to write it in decimal."""
HALF = "caf\ud800"
"""Half of a character, as careless slicing of UTF-16 leaves it."""
UNFIT = [math.nan, math.inf, -math.inf, HUGE, -HUGE, ENDLESS]


async def topics(r: Rig) -> None:
    await r.topic("log")
    await r.topic("priority", kind="priority", slots=8)
    await r.topic("fixed", kind="fixed_time", slots=8)
    await r.topic("merge", kind="range_merge", slots=8, time_range_ms=1000)
    await r.topic("keyed", kind="range_merge", slots=8, time_range_ms=1000, merge="key", fold="sum")


async def stored(r: Rig) -> int:
    await r.producer.refresh()
    lags = await r.admin.lag([await r.catalog.get("log")])
    slots = [t.slot(i) for t in await r.catalog.list("*") for i in range(t.slots)]
    states = await r.store.sorted.inspect(slots, 0)
    return sum(lag.unfinished for lag in lags) + sum(s.waiting + s.prepared + s.dead for s in states)


async def refused(call: Awaitable[object], *told: Any, error: Any = errors.InvalidMessage) -> None:
    """Fail unless the call is refused with one line; `told` says which call it is."""
    with pytest.raises(error) as caught:
        await call
    text = str(caught.value)
    assert 0 < len(text) < 400, told
    assert "\n" not in text, told


@virtual
@pytest.mark.parametrize("unfit", UNFIT, ids=["nan", "inf", "-inf", "huge", "-huge", "endless"])
async def test_numbers_that_are_not_finite_are_refused_before_anything_is_stored(r: Rig, unfit: Any) -> None:
    await topics(r)
    now_s = r.clock.now()
    ahead = [int(now_s * 1000) + 60_000] * 3000
    calls: list[tuple[str, dict[str, Any]]] = [
        ("log", {"delay_ms": unfit}),
        ("log", {"at": unfit}),
        ("log", {"delay": unfit}),
        ("log", {"ttl_s": unfit}),
        ("log", {"ttl_s": unfit, "delay_ms": 5}),
        ("log", {"priority": unfit}),
        ("priority", {"priority": unfit}),
        ("priority", {"priority": 50, "delay_ms": unfit}),
        ("fixed", {"at": unfit}),
        ("merge", {"time_range_ms": unfit}),
        ("keyed", {"ttl_s": unfit}),
    ]
    for topic, options in calls:
        await refused(r.producer.publish(topic, "1", **options), topic, options)
    payloads = [b"%d" % i for i in range(3000)]
    for topic, scores in (("priority", [50] * 3000), ("fixed", ahead), ("merge", ahead)):
        for place in (0, 1, 1500, 2999):
            wrong = [*scores[:place], unfit, *scores[place + 1 :]]
            await refused(r.producer.publish_many(topic, payloads, scores=wrong), topic, place)
    await refused(r.producer.schedule("log", "x", every_s=unfit), error=(errors.InvalidMessage, errors.EMQError))
    await refused(r.producer.schedule("log", "x", every_s=1, delay_ms=unfit))
    assert await stored(r) == 0


@virtual
@pytest.mark.parametrize("unfit", UNFIT[:4], ids=["nan", "inf", "-inf", "huge"])
async def test_topics_take_finite_numbers_only(r: Rig, unfit: Any) -> None:
    for name in ("qps", "group_qps", "burst", "aging_s", "jitter", "handler_timeout_s", "retention_s", "ttl_s"):
        await refused(r.topic("t", **{name: unfit}), name, error=errors.InvalidTopic)
    for options in ({"backoff_s": (1.0, unfit)}, {"weights": (1.0, unfit, 1.0)}, {"delay_levels": {"a": unfit}}):
        await refused(r.topic("t", **options), options, error=errors.InvalidTopic)
    assert await r.catalog.list("*") == []


@virtual
async def test_texts_that_are_none_are_refused_before_anything_is_stored(r: Rig) -> None:
    await topics(r)
    many = [f"m{i}" for i in range(1200)]
    for wrong in (HALF, b"bytes", 5):
        await refused(r.producer.publish(wrong, "x"), error=(errors.InvalidTopic, errors.UnknownTopic))  # type: ignore[arg-type]
        await refused(r.topic(wrong), error=errors.InvalidTopic)  # type: ignore[arg-type]
        told: list[dict[str, Any]] = [
            {"key": wrong},
            {"headers": {"a": wrong}},
            {"headers": {wrong: "a"}},
            {"message_id": wrong},
        ]
        for options in told:
            await refused(r.producer.publish("log", "x", **options), options)
        for field in ("keys", "message_ids"):
            await refused(r.producer.publish_many("log", many, **{field: [*many[:-1], wrong]}), field)
    with pytest.raises(errors.InvalidMessage, match="headers"):
        await r.producer.publish("log", "x", headers=["a"])  # type: ignore[arg-type]
    for payload in (HALF, 5, None):
        for topic in ("log", "merge"):
            await refused(r.producer.publish_many(topic, [*many, payload]))  # type: ignore[list-item]
    await refused(r.producer.publish_many("keyed", ["1"] * 1200, merge_keys=[*many[:-1], HALF]))
    assert await stored(r) == 0


@pytest.mark.parametrize("url", ["memory:", "sqlite"])
@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf, HUGE])
async def test_no_store_keeps_a_score_that_is_not_finite(url: str, score: Any, tmp_path: Any) -> None:
    store = await open_store(url if url == "memory:" else f"sqlite:///{tmp_path}/s.db", "online")
    try:
        slot = Slot("t/0", SlotKind.PRIORITY)
        with pytest.raises(errors.InvalidMessage, match="finite"):
            await store.sorted.add([SlotAdd(slot, b"a", 50, Keep.LAST), SlotAdd(slot, b"b", score, Keep.LAST)])
        with pytest.raises(errors.InvalidMessage, match="finite"):
            await store.sorted.settle([SlotSettle(slot, b"a", SlotVerdict.REPLAY, score=score)])
        assert (await store.sorted.inspect([slot], 0))[0].waiting == 0
    finally:
        await store.close()
