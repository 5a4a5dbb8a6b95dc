"""What the push service shows: states of deliveries, lists, lag in its parts, and what limits a rate."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from emq.allocation.records import Entry, Pointer, Record, Running
from emq.host.statistics import ThrottledTopic, WatchedTopic
from emq.topics import buckets
from emq_clients.push.answers import Hold, PlannedHost, Rate
from emq_push.records import tables
from emq_push.records.cursors import InvalidCursor
from emq_push.service.cluster import ClusterService, summary_of
from emq_push.service.host_facts import HostView
from emq_push.service.lagging import LaggingService, total
from emq_push.service.reading import DeliveryFilter, ReadingService, ShownDelivery
from emq_push.service.refusals import Conflict, NotFound
from emq_push.service.states import State
from emq_trace import cluster_view
from support import push_hosts, push_tenant
from support.push_tenant import ONE_SECOND_US, Tenant, through

EVERY = DeliveryFilter()


tenant = push_tenant.fixture("ep_a", "ep_b")


def reading(tenant: Tenant) -> ReadingService:
    return ReadingService(tenant.parts, HostView(tenant.parts))


def lagging(tenant: Tenant) -> LaggingService:
    return LaggingService(tenant.parts, HostView(tenant.parts))


async def shown(tenant: Tenant, message: str, endpoint: str = "ep_a") -> ShownDelivery:
    return await reading(tenant).delivery(tenant.id, f"{endpoint}:{message}")


# --------------------------------------------------------------------------------------------------------------- states


async def test_states_by_what_hosts_say(tenant: Tenant) -> None:
    await tenant.add(3, "pending")
    await tenant.add(1, "pending", first=50, next_us=tenant.parts.now_us() + 60 * ONE_SECOND_US)
    await tenant.add(1, "delivered", first=60)
    # No host has said anything.
    first = await shown(tenant, "m00000")
    assert (first.state, first.hold.name) == (State.WAITING, "unknown")
    assert (await shown(tenant, "m00050")).state is State.DELAYED
    assert (await shown(tenant, "m00060")).state is State.DELIVERED
    await push_hosts.save(tenant.app, push_hosts.topic(tenant.topic(), in_flight=2, started_per_s=1))
    states = [(await shown(tenant, id_)).state for id_ in ("m00000", "m00001", "m00002", "m00050")]
    assert states == [State.IN_FLIGHT, State.IN_FLIGHT, State.WAITING, State.DELAYED]
    await push_hosts.save(tenant.app, push_hosts.topic(tenant.topic(), started_per_s=9.9))
    capped = await shown(tenant, "m00000")
    assert (capped.state, capped.hold.name) == (State.HELD, "endpoint_cap")
    await push_hosts.save(tenant.app, push_hosts.topic(tenant.topic()), push_hosts.topic("t1.ep_b", started_per_s=99))
    assert (await shown(tenant, "m00000")).hold.name == "tenant_cap"
    await push_hosts.save(tenant.app, push_hosts.topic(tenant.topic(), held_by="t1"))
    by_budget = await shown(tenant, "m00000")
    assert (by_budget.state, by_budget.hold[:2]) == (State.HELD, ("tenant_cap", "the tenant uses its whole rate"))
    until = tenant.app.clock.now() + 30
    closed = ThrottledTopic(tenant.topic(), None, 0.0, until, "HTTP 503")
    await push_hosts.save(tenant.app, push_hosts.topic(tenant.topic(), in_flight=1), throttled=(closed,))
    parked = await shown(tenant, "m00000")
    assert (parked.state, *parked.hold[:3]) == (State.PARKED, "circuit_open", "HTTP 503", until)
    limited = ThrottledTopic(tenant.topic(), 2.5, 0.0, 0.0, "HTTP 429")
    await push_hosts.save(tenant.app, push_hosts.topic(tenant.topic()), throttled=(limited,))
    held = await shown(tenant, "m00000")
    assert (held.state, held.hold.name, held.hold.rate) == (State.HELD, "throttled", 2.5)


async def test_what_an_old_snapshot_says_does_not_count(tenant: Tenant) -> None:
    await tenant.add(1, "pending")
    await push_hosts.save(tenant.app, push_hosts.topic(tenant.topic(), in_flight=1, started_per_s=10), age_s=60)
    found = await shown(tenant, "m00000")
    assert (found.state, found.hold.name) == (State.WAITING, "unknown")


async def test_a_disabled_or_paused_or_deleted_endpoint_parks_without_any_host(tenant: Tenant) -> None:
    await tenant.add(1, "pending")
    await tenant.add(1, "pending", endpoint="ep_b", first=1)
    attributes = {"push.url": "https://example.com/", "push.disabled": "HTTP 410"}
    await tenant.app.update_topic(tenant.topic(), attributes=attributes)
    found = await shown(tenant, "m00000")
    assert (found.state, *found.hold[:2]) == (State.PARKED, "disabled", "HTTP 410")
    await tenant.app.update_topic(tenant.topic("ep_b"), state="paused")
    assert (await shown(tenant, "m00001", "ep_b")).hold.name == "paused"
    await tenant.app.admin.delete(tenant.topic("ep_b"), force=True)
    assert (await shown(tenant, "m00001", "ep_b")).hold.name == "gone"


# ---------------------------------------------------------------------------------------------------------------- lists


async def ids(tenant: Tenant, wanted: DeliveryFilter, limit: int = 3) -> list[str]:
    service = reading(tenant)
    shown = await through(lambda cursor: service.deliveries(tenant.id, wanted, limit, cursor), limit)
    return [each.delivery.message for each in shown]


async def test_filters_of_deliveries(tenant: Tenant) -> None:
    await tenant.add(10, "delivered")
    await tenant.add(5, "dead", first=100, endpoint="ep_b", event_type="rare.one")
    await tenant.add(4, "pending", first=200, next_us=tenant.parts.now_us() + 60 * ONE_SECOND_US)
    await tenant.add(3, "pending", first=300)
    assert len(await ids(tenant, EVERY)) == 22
    assert len(await ids(tenant, DeliveryFilter(endpoint="ep_a"))) == 17
    assert await ids(tenant, DeliveryFilter(state=State.DELAYED)) == ["m00203", "m00202", "m00201", "m00200"]
    assert await ids(tenant, DeliveryFilter(state=State.WAITING)) == ["m00302", "m00301", "m00300"]
    assert await ids(tenant, DeliveryFilter(state=State.DEAD, event_types=("order.paid",))) == []
    assert len(await ids(tenant, DeliveryFilter(event_types=("rare.*",)))) == 5
    assert await ids(tenant, DeliveryFilter(message="m00003")) == ["m00003"]
    assert await ids(tenant, DeliveryFilter(message="m00003", endpoint="ep_b")) == []
    third = (await tenant.get("m00003")).created_us
    assert await ids(tenant, DeliveryFilter(since_us=third, until_us=third + 1, state=State.DELIVERED)) == ["m00003"]


async def test_the_deliveries_of_a_message_in_pages(tenant: Tenant) -> None:
    for n in range(5):
        await tenant.add_endpoint(f"ep_m{n}")
    await tenant.add(1, "delivered", endpoint="ep_m0")
    [row] = await tenant.parts.read(lambda c: tenant.rows.of_message(c, "t1", "m00000"))
    for n in range(1, 5):
        copy = (f"t1.ep_m{n}", row.message, row.tenant, row.created_us, 0)
        await tenant.parts.write(lambda c, d=copy: tenant.rows.add(c, [d]))  # type: ignore[misc]
    assert len(await ids(tenant, DeliveryFilter(message="m00000"), 2)) == 5


async def test_a_filtered_page_ends_after_a_bounded_number_of_rows(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emq_push.service.reading.LOOKED_AT", 40)
    monkeypatch.setattr("emq_push.service.reading.CHUNK", 9)
    await tenant.add(1, "delivered", event_type="rare.one", ago_s=1000)
    await tenant.add(100, "delivered", first=100)
    page = await reading(tenant).deliveries(tenant.id, DeliveryFilter(event_types=("rare.one",)), 5)
    assert (page.rows, bool(page.next)) == ([], True)
    assert await ids(tenant, DeliveryFilter(event_types=("rare.one",))) == ["m00000"]
    assert len(await ids(tenant, DeliveryFilter(event_types=("*",)), 7)) == 101


@pytest.mark.parametrize("text", ["x", "%%%", "W10", "bnVsbA", "eyJhIjoxfQ", "WyJhIiwxXQ", "\u00fc" * 9, "A" * 2000])
async def test_made_up_cursors_are_refused(tenant: Tenant, text: str) -> None:
    service = reading(tenant)
    await tenant.add(1, "delivered")
    for page in (
        service.deliveries(tenant.id, EVERY, 5, text),
        service.attempts(tenant.id, "ep_a:m00000", 5, text),
        service.attempts_at(tenant.id, "ep_a", 5, text),
        lagging(tenant).lag(tenant.id, 5, text),
    ):
        with pytest.raises(InvalidCursor):
            await page


async def test_a_cursor_of_another_list_filter_or_tenant_is_refused(tenant: Tenant) -> None:
    other = await Tenant.make(tenant.app, "t2")
    await other.add(5, "delivered")
    await tenant.add(5, "delivered")
    service = reading(tenant)
    cursor = (await service.deliveries(tenant.id, EVERY, 2)).next
    assert (await service.deliveries(tenant.id, EVERY, 2, cursor)).rows
    with pytest.raises(InvalidCursor):
        await service.deliveries("t2", EVERY, 2, cursor)
    with pytest.raises(InvalidCursor):
        await service.deliveries(tenant.id, DeliveryFilter(state=State.DELIVERED), 2, cursor)


@pytest.mark.parametrize(
    "id_", ["", ":", "ep_a", "ep_a:", ":m00000", "ep_a:m0\0", "ep_x:m00000", "ep_a:nobody", "t1.ep_a:m00000"]
)
async def test_ids_that_are_not_the_tenant_s_are_not_found(tenant: Tenant, id_: str) -> None:
    await tenant.add(1, "delivered")
    with pytest.raises(NotFound):
        await reading(tenant).delivery(tenant.id, id_)
    with pytest.raises(NotFound):
        await reading(tenant).delivery("t2", "ep_a:m00000")


async def test_attempts_in_pages(tenant: Tenant) -> None:
    await tenant.add(2, "delivered")
    row = {"environment": "online", "took_us": 5, "status": 500, "outcome": "retry", "reason": "HTTP 500"}
    row |= {"answer": "down", "host": "h1", "topic": tenant.topic()}
    rows = [{**row, "message": f"m0000{i % 2}", "started_us": 10 + i // 2, "number": 1 + i // 2} for i in range(10)]
    await tenant.app.database.run(lambda c: c.execute(sa.insert(tables.attempts), rows))
    service = reading(tenant)
    of_one = await through(lambda cursor: service.attempts(tenant.id, "ep_a:m00001", 3, cursor), 3)
    assert [a.number for a in of_one] == [5, 4, 3, 2, 1]
    found = await through(lambda cursor: service.attempts_at(tenant.id, "ep_a", 3, cursor), 3)
    wanted = sorted(((r["started_us"], r["message"]) for r in rows), reverse=True)
    assert [(a.started_us, a.message) for a in found] == wanted
    with pytest.raises(NotFound):
        await service.attempts_at("t2", "ep_a", 3)


# ----------------------------------------------------------------------------------------------------------- lag, rates


async def test_lag_is_told_in_parts(tenant: Tenant) -> None:
    [old] = await tenant.add(1, "pending")
    await tenant.bury(["d1", "d2"])
    for n in range(5):
        await tenant.app.publish(tenant.topic(), b"{}", message_id=f"q{n}")
    await tenant.app.publish(tenant.topic(), b"{}", delay_ms=3_600_000)
    [a, b] = (await lagging(tenant).lag(tenant.id, 10)).rows
    assert (a.endpoint, a.ready, a.held_by_rate, a.delayed, a.in_flight, a.parked, a.dead) == (
        *("ep_a", 5, None, 1, None, None, 2),
    )
    assert a.oldest_claimable_s is not None
    assert 0.5 < a.oldest_claimable_s < 60
    assert (b.ready, b.delayed, b.dead, b.oldest_claimable_s) == (0, 0, 0, None)
    await push_hosts.save(tenant.app, push_hosts.topic(tenant.topic(), in_flight=2, started_per_s=10))
    [held] = (await lagging(tenant).lag(tenant.id, 10, endpoint="ep_a")).rows
    assert (held.ready, held.held_by_rate, held.in_flight, held.parked) == (0, 3, 2, 0)
    closed = ThrottledTopic(tenant.topic(), None, 0.0, 9e9, "HTTP 503")
    await push_hosts.save(tenant.app, push_hosts.topic(tenant.topic()), throttled=(closed,))
    [parked] = (await lagging(tenant).lag(tenant.id, 10, endpoint="ep_a")).rows
    assert (parked.ready, parked.held_by_rate, parked.parked) == (0, 0, 5)
    assert old
    assert total([1, 2]) == 3
    assert total([1, None]) is None


async def test_lag_of_endpoints_in_pages_and_of_strangers(tenant: Tenant) -> None:
    service = lagging(tenant)
    found = await through(lambda cursor: service.lag(tenant.id, 1, cursor), 1)
    assert [each.endpoint for each in found] == ["ep_a", "ep_b"]
    for asked in (service.lag("t2", 10, endpoint="ep_a"), service.rates("t2", 10, endpoint="ep_a")):
        with pytest.raises(NotFound):
            await asked
    assert (await service.lag("t2", 10)).rows == []


async def test_the_status_of_rates(tenant: Tenant) -> None:
    service = lagging(tenant)
    [whole, a, _] = (await service.rates(tenant.id, 10)).rows
    unknown = Hold("unknown", "no host has reported lately")
    assert whole == Rate(cap_per_s=100, limited_by=unknown)
    assert a == Rate(endpoint="ep_a", cap_per_s=10, limited_by=unknown)
    # Asking lets hosts count each second.
    second = int(tenant.app.clock.now())
    busy = push_hosts.topic(tenant.topic(), started_per_s=4)
    for host, starts in (("h1", (1, 2, 3)), ("h2", (5, 6, 7, 8))):
        await push_hosts.save(
            *(tenant.app, busy),
            host=host,
            watched=(WatchedTopic(f"{tenant.id}.ep_*", second + (host == "h2"), starts),),
        )
    [whole, a, _] = (await lagging(tenant).rates(tenant.id, 10)).rows
    assert whole.last_seconds == [6, 8, 10]
    assert whole.used_per_s == 8
    assert (a.used_per_s, a.limited_by) == (8, None)
    [only] = (await lagging(tenant).rates(tenant.id, 10, endpoint="ep_b")).rows
    assert (only.endpoint, only.used_per_s) == ("ep_b", 0)


# -------------------------------------------------------------------------------------------------------------- cluster


async def test_hosts_and_the_lack_of_a_plan(tenant: Tenant) -> None:
    await push_hosts.save(tenant.app)
    service = ClusterService(tenant.parts, HostView(tenant.parts))
    assert [seen.host.host for seen in await service.hosts()] == ["h1"]
    with pytest.raises(Conflict, match="one host alone"):
        await service.plan()


def test_a_plan_counts_groups_and_buckets_apart() -> None:
    record = Record("online", 5, 1, "a", 0.0, {"a": Pointer("i", 5, 1)})
    owned = cluster_view.Owned("a", Entry(5, ""))
    entries = dict.fromkeys(("mails/0", buckets.name_of("orders.*", 1), buckets.name_of("orders.*", 2)), owned)
    members = {"a": Running("i", "m", 1, 1.0, 0.0, generation=5)}
    found = summary_of(cluster_view.View("online", record, members, {}, entries, "a"))
    assert (found.groups, found.buckets) == (1, 2)
    assert (found.holding, found.holding_buckets) == ({"held": 1}, {"held": 2})
    assert [*found.hosts] == [PlannedHost("a", 1, member=True, drained=False, buckets=2)]


async def test_the_trace_of_a_delivery_is_the_tenant_s_own(tenant: Tenant) -> None:
    await tenant.add(1, "pending")
    await tenant.app.publish(tenant.topic(), b"{}", message_id="m00000", delay_ms=60_000)
    service = ClusterService(tenant.parts, HostView(tenant.parts))
    found = await service.trace_delivery(tenant.id, "ep_a:m00000")
    assert found.state == "waiting"
    with pytest.raises(NotFound):
        await service.trace_delivery("t2", "ep_a:m00000")
    with pytest.raises(NotFound, match="topic"):
        await service.trace("m00000")
