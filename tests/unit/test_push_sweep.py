"""The sweep: what the store has ended without a record does not stay pending, and all else stays as it is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from emq import App
from emq.storage.lane_store import LaneAdd, LaneClaim
from emq_push.service import reconciling
from emq_push.service.reconciling import Sweep
from support.push_tenant import ONE_SECOND_US, Tenant


class Sweeping(Tenant):
    """A tenant whose deliveries become old, and what the sweep does with them."""

    passed_us = 0

    def wait(self, s: float) -> None:
        """Let seconds pass for the services."""
        self.passed_us += round(s * 1e6)

    async def swept(self, sweep: Sweep | None = None) -> dict[str, str]:
        """Look twice, after the deliveries have become old; return their states."""
        self.wait(reconciling.OLD_S + 100)
        sweep = sweep or Sweep(self.parts)
        await sweep.look()
        self.wait(reconciling.CONFIRM_S + 1)
        await sweep.look()
        return await self.states()


@pytest.fixture
async def tenant(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Sweeping]:
    async with App(store="memory:") as app:
        made = await Sweeping.make(app, endpoints=("ep_a", "ep_b"))
        now_us = made.parts.now_us
        monkeypatch.setattr(made.parts, "now_us", lambda: now_us() + made.passed_us)
        yield made


async def test_an_expired_letter_ends_its_delivery_as_dead(tenant: Sweeping) -> None:
    ids = await tenant.add(3, "pending")
    await tenant.bury(ids[:1], reason="expired")
    assert await tenant.swept() == {ids[0]: "dead", ids[1]: "cancelled", ids[2]: "cancelled"}
    assert (await tenant.get(ids[0])).reason == "expired"
    assert (await tenant.get(ids[1])).reason == reconciling.GONE


async def test_no_delivery_counts_as_gone_while_letters_are_unread(
    tenant: Sweeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciling, "MOST_LETTERS", 2)
    monkeypatch.setattr(reconciling, "PAGE", 2)
    ids = await tenant.add(4, "pending")
    await tenant.bury(ids, reason="expired")
    states = await tenant.swept()
    assert sorted(states.values()) == ["dead", "dead", "pending", "pending"]


async def test_what_waits_in_a_lane_or_queue_stays_pending(tenant: Sweeping) -> None:
    [in_lane] = await tenant.add(1, "pending")
    [in_queue] = await tenant.add(1, "pending", first=10)
    [recalled] = await tenant.add(1, "pending", first=20, endpoint="ep_b")
    await tenant.app.publish(tenant.topic(), b"{}", message_id=in_lane, delay_ms=3_600_000)
    await tenant.app.publish(tenant.topic(), b"{}", message_id=in_queue)
    await tenant.app.publish(tenant.topic("ep_b"), b"{}", message_id=recalled, delay_ms=3_600_000)
    assert await tenant.app.admin.recall(tenant.topic("ep_b"), [recalled]) == {recalled}
    assert await tenant.swept() == {in_lane: "pending", in_queue: "pending", recalled: "cancelled"}


async def test_a_claimed_entry_has_no_name_so_nothing_of_its_lane_is_judged(tenant: Sweeping) -> None:
    await tenant.add(2, "pending")
    topic = await tenant.app.catalog.get(tenant.topic())
    lanes, now_ms = tenant.app.store.lanes, tenant.parts.now_us() // 1000
    await lanes.add([LaneAdd(topic.group(0), "m00000", b"", now_ms)])
    await lanes.claim([LaneClaim(topic.group(0), 1, 1)], now_ms)
    assert set((await tenant.swept()).values()) == {"pending"}


async def test_young_and_delayed_deliveries_are_not_doubted(tenant: Sweeping) -> None:
    await tenant.add(2, "pending")
    sweep = Sweep(tenant.parts)
    await sweep.look()
    tenant.wait(reconciling.CONFIRM_S + 1)
    await sweep.look()
    assert set((await tenant.states()).values()) == {"pending"}
    await tenant.add(1, "pending", first=10, next_us=tenant.parts.now_us() + 86_400 * ONE_SECOND_US)
    states = await tenant.swept()
    assert states["m00010"] == "pending"


async def test_one_look_alone_ends_nothing_that_is_only_absent(tenant: Sweeping) -> None:
    [id_] = await tenant.add(1, "pending")
    tenant.wait(reconciling.OLD_S + 100)
    sweep = Sweep(tenant.parts)
    await sweep.look()
    await sweep.look()
    assert (await tenant.get(id_)).state == "pending"
    # Between the looks it was sent again: it is not what the first look saw.
    await tenant.app.publish(tenant.topic(), b"{}", message_id=id_, delay_ms=3_600_000)
    tenant.wait(reconciling.CONFIRM_S + 1)
    await sweep.look()
    assert (await tenant.get(id_)).state == "pending"


async def test_the_deliveries_of_a_deleted_endpoint_are_cancelled(tenant: Sweeping) -> None:
    await tenant.add(3, "pending")
    await tenant.add(2, "delivered", first=10)
    await tenant.app.admin.delete(tenant.topic(), force=True)
    states = await tenant.swept()
    assert list(states.values()).count("cancelled") == 3
    assert (await tenant.get("m00000")).reason == reconciling.NO_ENDPOINT


async def test_a_topic_that_only_a_newer_version_can_read_is_not_gone(
    tenant: Sweeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    await tenant.add(3, "pending")

    async def nothing(_: Any) -> dict[str, Any]:
        return {}

    monkeypatch.setattr(tenant.app.catalog, "some", nothing)
    assert set((await tenant.swept()).values()) == {"pending"}


async def test_more_than_one_look_s_rows_are_all_found(tenant: Sweeping, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciling, "ROWS_AT_ONCE", 7)
    await tenant.add(40, "pending")
    tenant.wait(reconciling.OLD_S + 100)
    sweep = Sweep(tenant.parts)
    for _ in range(30):
        await sweep.look()
        tenant.wait(reconciling.CONFIRM_S + 1)
    assert set((await tenant.states()).values()) == {"cancelled"}
    assert sweep.settled == 40


async def test_suspects_that_were_none_leave_room_for_others(tenant: Sweeping, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciling, "MOST_TOPICS", 1)
    [id_] = await tenant.add(1, "pending")
    tenant.wait(reconciling.OLD_S + 100)
    sweep = Sweep(tenant.parts)
    await sweep.look()
    assert list(sweep._suspects) == [tenant.topic()]
    await tenant.app.publish(tenant.topic(), b"{}", message_id=id_, delay_ms=3_600_000)
    [other] = await tenant.add(1, "pending", first=10, endpoint="ep_b")
    assert await tenant.swept(sweep) == {id_: "pending", other: "cancelled"}
    assert sweep._suspects == {}


async def test_a_topic_that_cannot_be_looked_at_does_not_hold_up_the_others(
    tenant: Sweeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    [stays] = await tenant.add(1, "pending")
    [goes] = await tenant.add(1, "pending", first=10, endpoint="ep_b")
    inspect = tenant.app.store.lanes.inspect

    async def broken(lanes: Any) -> Any:
        if any(lane.startswith(tenant.topic()) for lane in lanes):
            raise RuntimeError("a damaged entry")
        return await inspect(lanes)

    monkeypatch.setattr(tenant.app.store.lanes, "inspect", broken)
    assert await tenant.swept() == {stays: "pending", goes: "cancelled"}


async def test_the_topics_take_turns(tenant: Sweeping, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciling, "TOPICS_AT_ONCE", 1)
    await tenant.add(1, "delivered")
    await tenant.add(1, "delivered", endpoint="ep_b", first=5)
    sweep, seen = Sweep(tenant.parts), []
    for _ in range(4):
        await sweep.look()
        seen.append(sweep._last)
    assert seen == ["t1.ep_a", "t1.ep_b", "", "t1.ep_a"]
