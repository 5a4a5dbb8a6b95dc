"""What a host tells those who watch it: its counts are those of its deliveries, and its health names what is wrong."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from importlib import metadata
from typing import Any
from unittest import mock

import pytest

import emq
from emq.groups.deliveries import HandlerDeliveries
from emq.host import lag_sampler
from emq.host.host import Host
from emq.host.lag_parts import Part
from emq.host.options import LAG_S, HostOptions
from emq.host.surroundings import Services, Storage
from emq.observe.metrics import exposition, health, host_families
from emq.runtime import errors, settings
from emq.runtime.settings import Settings
from emq.storage.lane_store import LaneAdd
from emq.storage.message import Message
from emq.topics.model import State
from emq_stores.memory import MemoryStore
from support.doubles import FaultyStore
from support.local_cluster import LocalCluster
from support.rig import Rig, Seen, bound
from support.scraped import Scraped
from support.virtual import virtual
from support.waiting import until

pytestmark = virtual


class App:
    """Stands for an app whose host runs."""

    waits_for = None
    is_open = True

    def __init__(self, r: Rig, host: Host | None) -> None:
        self.settings = Settings()
        self.host = host
        self.database = r.db
        self.producer = r.producer

    def host_name(self) -> str:
        return "the-name-of-the-app"


def page_of(r: Rig, host: Host) -> str:
    return "".join(exposition.pieces(host_families.of_process(App(r, host))))


def scraped(r: Rig, host: Host) -> Scraped:
    return Scraped(page_of(r, host))


def ready(r: Rig, host: Host) -> dict[str, health.Check]:
    return {check.name: check for check in health.ready(App(r, host))}


@contextlib.asynccontextmanager
async def counting(
    r: Rig, handlers: dict[str, Callable[[Any], Any]], lag_s: float = LAG_S, **how: Any
) -> AsyncIterator[Host]:
    """Yield a running host with metrics."""
    host = Host(
        Storage(r.store, r.catalog, r.checkpoints),
        LocalCluster(r.next_epoch).member("host-1"),
        bound(handlers, **how),
        Services(r.clock, deliveries=HandlerDeliveries()),
        HostOptions(catalog_poll_s=0.05, checkpoint_s=0.25, lag_s=lag_s, drain_s=5.0),
    )
    task = asyncio.create_task(host.run())
    await host.running.wait()
    try:
        yield host
    finally:
        host.stop()
        await task


async def handle(message: Message) -> None:
    if message.payload == b"again" and message.attempt == 1:
        raise emq.Retry("not yet", after_s=1)
    if message.payload == b"never":
        raise emq.Reject("no")


@pytest.mark.parametrize("batch_size", [1, 3], ids=["one-by-one", "in-batches"])
async def test_each_outcome_is_counted_for_its_handler(r: Rig, batch_size: int) -> None:
    async def many(messages: list[Message]) -> None:
        for message in messages:
            await handle(message)

    one = handle if batch_size == 1 else many
    await r.topic("shop.a", 100)
    await r.topic("shop.b", 100, ttl_s=3.0)
    await r.topic("idle", 100)
    await r.producer.publish_many("shop.a", [b"well"] * 5, key="k")
    await r.producer.publish("shop.b", b"late")
    await asyncio.sleep(5)  # what waits in shop.b expires
    async with counting(r, {"shop.*": one, "other": one}, batch_size=batch_size) as host:
        await asyncio.sleep(3)
        for payload in (b"again", b"never"):
            await r.producer.publish("shop.a", payload)
            await asyncio.sleep(3)
        await asyncio.sleep(10)
        page = scraped(r, host)
    assert page.value("emq_started_total", handler="shop.*") == 8
    outcomes = {
        s.labels["outcome"]: s.value
        for s in page.families["emq_outcomes_total"].samples
        if s.labels["handler"] == "shop.*"
    }
    assert outcomes == {"succeeded": 6, "retried": 1, "dead": 1, "expired": 1}
    assert page.value("emq_failed_total", handler="shop.*") == 2
    assert page.value("emq_wait_seconds_count", handler="shop.*") == 8
    assert page.value("emq_handler_seconds_count", handler="shop.*") == 8
    assert page.value("emq_published_total") == 8
    assert page.value("emq_lag_messages", part="dead") == 2
    assert page.value("emq_loop_failures_total", loop="fetch 1") == 0
    assert page.value("emq_checkpoint_unsaved_seconds") == 0
    assert page.value("emq_plan_hosts") == 1
    assert page.value("emq_info", host="host-1", environment="online", version=metadata.version("emq")) == 1
    assert page.value("emq_lease_valid") == 1


async def test_no_label_holds_a_topic_a_queue_or_a_tenant(r: Rig) -> None:
    for n in range(30):
        await r.topic(f"tenant-{n}.mail", 100)
        await r.producer.publish(f"tenant-{n}.mail", b"x", key=f"secret-{n}")
    async with counting(r, {"tenant-*": handle}) as host:
        await asyncio.sleep(12)
        page = page_of(r, host)
    assert "tenant-*" in page
    assert "tenant-1" not in page
    assert "secret" not in page


async def test_a_host_without_metrics_counts_no_deliveries(r: Rig) -> None:
    await r.topic("t", 100)
    await r.producer.publish("t", b"x")
    async with r.consuming(Seen()) as host:
        await asyncio.sleep(12)
        assert [owner.deliveries.enabled for owner in host.ownership.owned.values()] == [False]
        assert "emq_buffered_messages" in scraped(r, host).families


async def test_lag_is_told_apart_by_what_the_messages_wait_for(r: Rig) -> None:
    gate = asyncio.Event()

    async def wait(_: Message) -> None:
        await gate.wait()

    await r.topic("slow", 100, max_in_flight=2)
    await r.topic("rate", 1, priorities=("p",))
    await r.topic("paused", 100)
    await r.topic("keyed", 100)
    await r.topic("orphan", 100)
    await r.topic("members", 100, kind="fixed_time", slots=1)
    await r.producer.publish_many("slow", [b"x"] * 3_000)
    await r.producer.publish_many("rate", [b"x"] * 40)
    await r.producer.publish_many("paused", [b"x"] * 7)
    await r.producer.publish_many("orphan", [b"x"] * 5)
    await r.producer.publish_many("keyed", [b"x"] * 9, key="k")
    await r.producer.publish("keyed", b"later", delay_ms=3_600_000)
    await r.producer.publish("members", b"later", delay_ms=3_600_000)
    await r.admin.update("paused", state=State.PAUSED)
    async with counting(r, dict.fromkeys(("slow", "rate", "paused", "keyed", "members"), wait)) as host:
        await asyncio.sleep(3.5)
        await host.lag.look()
        counts = host.lag.counts
        flying = host.work.dispatcher.flight.count
        gate.set()
    assert counts[Part.PARKED] == 12
    assert counts[Part.HELD_BY_ROOM] == 2_998
    assert counts[Part.HELD_BY_KEY] == 8
    assert counts[Part.DELAYED] == 2
    assert counts[Part.HELD_BY_RATE] + flying - 2 - 1 == 40  # the started ones of `rate`, and those that wait
    assert counts[Part.READY] == counts[Part.DEAD] == 0


async def test_lanes_that_hold_nothing_are_asked_for_in_turn(r: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag_sampler, "GROUPS_AT_ONCE", 2)

    async def fail(message: Message) -> None:
        if message.payload == b"dead":
            raise emq.Reject("no such order")
        if message.payload == b"retry":
            raise emq.Retry(after_s=86_400)

    looks_s = 3 * lag_sampler.QUIET_S  # in which the host looks at all lanes once or more, at rest as at work
    for name in ("a", "b", "dead", "retry", "delayed", "empty"):
        await r.topic(name, 10)
    store = FaultyStore(MemoryStore(r.world))
    async with r.consuming(Seen(then=fail), store=store) as host:
        await asyncio.sleep(looks_s)
        asked = store.lanes.noted("inspect")
        await asyncio.sleep(looks_s)
        assert len(asked) >= 3, "one call at each look, as a sign of life"
        assert {tuple(call) for call in asked} == {("a/0", "b/0"), ("dead/0", "retry/0"), ("delayed/0", "empty/0")}
        await r.producer.publish("dead", b"dead")
        await r.producer.publish("retry", b"retry")
        await r.producer.publish("delayed", b"x", delay_ms=86_400_000)
        await asyncio.sleep(looks_s)
        counts = host.lag.counts
        assert (counts[Part.DEAD], counts[Part.DELAYED]) == (1, 2)


async def test_the_dead_letters_of_dropped_groups_are_counted_at_the_next_look(
    r: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host that drops them puts these into the topic's first lane, which wakes nobody."""
    monkeypatch.setattr(lag_sampler, "GROUPS_AT_ONCE", 1)
    for i in range(20):
        await r.topic(f"a{i}", 10)
    topic = await r.topic("shrunk", 400, group_qps=100)
    await r.store.lanes.add([LaneAdd(topic.group(3), "id", b"x", 0, "no such order", since_ms=0)])
    async with counting(r, {"*": handle}, lag_s=1e6) as host:
        await asyncio.sleep(3)
        await r.admin.update("shrunk", qps=100)
        await until(lambda: [*host.ownership.owned["shrunk"].groups] == [0], 60)
        await asyncio.sleep(1)
        await host.lag.look()
        assert host.lag.counts[Part.DEAD] == 1


@pytest.mark.parametrize("name", ["inspect", "claim"])
async def test_a_dead_letter_that_comes_during_a_call_is_counted_at_the_next_look(
    r: Rig, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The answer of the call tells of the lane as it was before."""

    async def fail(message: Message) -> None:
        raise emq.Reject("no such order")

    async def bury() -> None:
        await r.producer.publish("t", b"x")
        await asyncio.sleep(5)

    for topic in ("a", "b", "c", "d", "t"):
        await r.topic(topic, 10)
    store = FaultyStore(MemoryStore(r.world))
    async with r.consuming(Seen(then=fail), store=store, lag_s=1e6) as host:
        await asyncio.sleep(5)
        store.lanes.after[name] = bury
        host.reports.due("t/0", 0)
        await host.lag.look()
        await asyncio.sleep(6)
        monkeypatch.setattr(lag_sampler, "GROUPS_AT_ONCE", 1)
        await host.lag.look()
        assert host.lag.counts[Part.DEAD] == 1


async def test_dead_letters_that_come_to_a_lane_from_elsewhere_are_counted_soon(
    r: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of a group that was dropped: they wake nobody."""
    monkeypatch.setattr(lag_sampler, "GROUPS_AT_ONCE", 1)
    for name in ("a", "b", "c"):
        await r.topic(name, 10)
    async with counting(r, dict.fromkeys("abc", handle)) as host:
        await asyncio.sleep(3)
        await r.store.lanes.add([LaneAdd("c/0", "id", b"x", 0, "no such order", since_ms=0)])
        await asyncio.sleep(4 * (LAG_S + 1))
        assert host.lag.counts[Part.DEAD] == 1


async def test_a_silent_store_keeps_the_last_counts_and_is_named(r: Rig) -> None:
    await r.topic("t", 100)
    async with counting(r, {"t": handle}) as host:
        await asyncio.sleep(1)
        await host.lag.look()
        at = host.lag.sampled_at
        with silent_lanes(r):
            await asyncio.sleep(1)
            await host.lag.look()
            assert host.lag.sampled_at == at
            assert ready(r, host)["store"] == health.Check("store", False, "no answer")
            assert host.statistics().store_unreachable == "no answer", "`emq top` and `emq hosts` say it, too"
            assert scraped(r, host).value("emq_store_reachable") == 0
            assert scraped(r, host).value("emq_lag_age_seconds") >= 1
        await host.lag.look()
        assert ready(r, host)["store"].ok


def silent_lanes(r: Rig) -> Any:
    return mock.patch.object(r.store.lanes, "inspect", side_effect=errors.StoreUnavailable("no answer"))


async def test_a_host_is_ready_soon_after_its_store_is_back(r: Rig) -> None:
    await r.topic("t", 100)
    async with counting(r, {"t": handle}) as host:
        await asyncio.sleep(1)
        with silent_lanes(r):
            await until(lambda: not ready(r, host)["store"].ok, 15)
            await asyncio.sleep(30)
        await until(lambda: ready(r, host)["store"].ok, 3)


async def test_a_host_is_ready_from_its_first_assignment_until_it_stops(r: Rig) -> None:
    await r.topic("t", 100)
    async with counting(r, {"t": handle}) as host:
        checks = health.ready(App(r, host))
        assert health.is_ok(checks), health.report(checks)
        assert [check.name for check in checks] == [
            *("running", "joined", "plan", "groups", "store", "database", "clock", "lease", "loops")
        ]
        host.stop()
        assert not ready(r, host)["running"].ok
        assert health.is_ok(health.live(App(r, host)))
    assert not health.is_ok(health.ready(App(r, host)))


async def test_a_host_whose_lease_is_over_is_not_ready(r: Rig) -> None:
    await r.topic("t", 100)
    async with counting(r, {"t": handle}) as host:
        host.membership.lease.end()
        assert not ready(r, host)["lease"].ok
        assert scraped(r, host).value("emq_lease_valid") == 0
        host.membership.lease.renew(r.clock.now() + 60)
        assert ready(r, host)["lease"] == health.Check("lease", True, "valid for 60.0 s")


async def test_a_broken_loop_is_named_until_it_runs_again(r: Rig) -> None:
    await r.topic("t", 100)
    async with counting(r, {"t": handle}) as host:
        real = host.work.expiry.expire
        times = 0

        async def broken() -> None:
            nonlocal times
            times += 1
            if times == 1:
                raise RuntimeError("a bug")
            await real()

        [task] = host.guard.start({"mine": broken})
        await asyncio.sleep(0.1)
        assert ready(r, host)["loops"] == health.Check("loops", False, "mine: RuntimeError: a bug")
        assert health.is_ok(health.live(App(r, host)))
        await asyncio.sleep(2)
        assert ready(r, host)["loops"].ok
        assert scraped(r, host).value("emq_loop_failures_total", loop="mine") == 1
        task.cancel()


async def test_a_loop_that_ended_for_good_fails_the_liveness(r: Rig) -> None:
    async with counting(r, {"t": handle}) as host:

        async def foreign() -> None:
            raise errors.ForeignTree("not ours")

        [task] = host.guard.start({"mine": foreign})
        await asyncio.wait([task])
        checks = health.live(App(r, host))
        assert not health.is_ok(checks)
        assert "mine: not ours" in health.report(checks)
        with pytest.raises(errors.ForeignTree):
            await task


async def test_a_silent_database_is_told_of_before_its_call_fails(r: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(r.db, "_now_s", lambda: now)
    gate = asyncio.Event()

    async def never(*_: object) -> None:
        await gate.wait()

    monkeypatch.setattr(r.db, "_in_thread", never)
    call = asyncio.create_task(r.db.run(lambda _: None))
    await asyncio.sleep(0)
    assert r.db.silent_s == 0.0
    now = 1003.0
    assert r.db.silent_s == 3.0
    assert r.db.unreachable is None
    assert (health.trouble(r.db) or "").endswith("has not answered a call for 3.0 s")
    gate.set()
    await call
    assert r.db.silent_s == 0.0
    assert health.trouble(r.db) is None


async def test_the_age_of_unsaved_progress_grows_while_the_database_is_away(r: Rig) -> None:
    await r.topic("t", 100)
    async with counting(r, {"t": handle}) as host:
        with mock.patch.object(r.checkpoints, "save", side_effect=errors.DatabaseUnavailable("away")):
            await r.producer.publish("t", b"x")
            await asyncio.sleep(6)
            page = scraped(r, host)
        assert 4 < page.value("emq_checkpoint_unsaved_seconds") < 6
        assert page.value("emq_checkpoint_failures_total") > 10
        await asyncio.sleep(0.6)
        assert scraped(r, host).value("emq_checkpoint_unsaved_seconds") == 0
        await until(lambda: host.work.checkpointer.saved > 0)


def test_an_address_names_host_and_port_and_one_that_is_none_is_refused() -> None:
    for text, host, port in (("127.0.0.1:9464", "127.0.0.1", 9464), (":80", "", 80), ("[::1]:9464", "::1", 9464)):
        found = settings.address(text)
        assert (found.host, found.port, str(found)) == (host, port, text)
    for text in ("9464", "localhost", "localhost:", "a:b", "127.0.0.1:70000", "::1:9464", "[::1]", "a b:1"):
        with pytest.raises(errors.InvalidSettings, match="must be HOST:PORT"):
            settings.load(environ={"EMQ_METRICS": text})
