"""Replays: each selected delivery is put back once, by one runner, at the replay's rate; a crash loses none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import sqlalchemy as sa

from emq.offsets import deletion
from emq.offsets.sleep import put_to_sleep
from emq.runtime import errors
from emq_push.records import replays, tables
from emq_push.records.replays import Replay, ReplayFilter
from emq_push.service import again, replay_runner
from emq_push.service.refusals import Conflict, Invalid, NotFound
from emq_push.service.replay_runner import Lost, ReplayRunner
from emq_push.service.replaying import MOST_OPEN, NewReplay, ReplayService, shown_state
from support import push_tenant
from support.push_tenant import ONE_SECOND_US, Tenant

FAST = 10_000.0
EVERYTHING = NewReplay(ReplayFilter(), FAST)


tenant = push_tenant.fixture("ep_a", "ep_b")


async def carried_out(runner: ReplayRunner, replay: Replay, steps: int = 1000) -> None:
    """Carry out a replay without its rests."""
    replay = await runner._renewed(replay)
    try:
        for _ in range(steps):
            replay, _ = await runner.step(replay)
    except Lost:
        return
    raise AssertionError(f"the replay did not end within {steps} steps")


async def replayed(tenant: Tenant, wanted: NewReplay = EVERYTHING) -> Replay:
    """Create a replay, and carry it out; return it as it is then."""
    service = ReplayService(tenant.parts)
    made = await service.create(tenant.id, wanted, "me")
    await carried_out(ReplayRunner(tenant.parts), made)
    return await service.get(tenant.id, made.id)


async def test_dead_letters_leave_the_dead_letters_once_and_wait_again(tenant: Tenant) -> None:
    ids = await tenant.add(450)
    await tenant.add(5, "delivered", first=1000)
    now = await replayed(tenant)
    assert now.body.filter.until_us <= now.created_us, "it takes no message that is accepted later"
    assert (now.body.total, now.body.is_total_exact) == (450, True)
    assert await tenant.lane() == (ids, [])
    states = await tenant.states()
    assert [states[id_] for id_ in ids] == ["pending"] * 450
    assert [state for id_, state in states.items() if id_ not in ids] == ["delivered"] * 5
    assert (now.state, now.body.replayed, now.body.left_out) == ("done", 450, 0)


async def test_delivered_messages_are_added_under_their_ids_with_headers_and_priority(tenant: Tenant) -> None:
    await tenant.add(3, "delivered")
    topic = await tenant.app.catalog.get(tenant.topic())
    await replayed(tenant, NewReplay(ReplayFilter(states=("delivered",)), FAST, topic.priorities[-1]))
    found = await tenant.app.store.lanes.waiting(topic.group(0), 0, 10)
    assert [e.id for e in found] == ["m00000", "m00001", "m00002"]
    assert {e.priority for e in found} == {len(topic.priorities) - 1}
    planned = {p.id: p.payload for p in await tenant.app.planned(tenant.topic())}
    assert planned["m00001"] == b'{"n": 1}'


async def test_only_the_selected_deliveries_of_the_tenant_are_replayed(tenant: Tenant) -> None:
    other = await Tenant.make(tenant.app, "t2")
    theirs = await other.add(5)
    rare = await tenant.add(4, event_type="rare.one", first=0)
    await tenant.add(30, event_type="order.paid", first=100)
    await tenant.add(4, event_type="rare.two", first=200, endpoint="ep_b")
    service = ReplayService(tenant.parts)
    chosen = NewReplay(ReplayFilter(endpoint="ep_a", event_types=("rare.*",)), FAST)
    assert await service.count(tenant.id, chosen) == (4, True)
    await replayed(tenant, chosen)
    assert (await tenant.lane())[0] == rare
    assert (await tenant.lane("ep_b"))[0] == []
    assert await other.lane() == ([], theirs)
    with pytest.raises(NotFound):
        await service.create("t2", NewReplay(ReplayFilter(endpoint="ep_b"), FAST), "me")


async def test_a_time_range_ends_before_its_end(tenant: Tenant) -> None:
    await tenant.add(10)
    third, sixth = (await tenant.get("m00003")).created_us, (await tenant.get("m00006")).created_us
    await replayed(tenant, NewReplay(ReplayFilter(since_us=third, until_us=sixth), FAST))
    assert (await tenant.lane())[0] == ["m00003", "m00004", "m00005"]


async def test_a_crash_between_the_note_and_the_store_loses_nothing(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await tenant.add(300)
    service, first, second = ReplayService(tenant.parts), ReplayRunner(tenant.parts), ReplayRunner(tenant.parts)
    made = await service.create(tenant.id, EVERYTHING, "me")
    replay = await first._renewed(made)
    replay, n = await first.step(replay)
    assert n == 200

    async def crash(*_: object) -> None:
        raise SystemError("the process is gone")

    with monkeypatch.context() as patched:
        patched.setattr(again, "put", crash)
        with pytest.raises(SystemError):
            await first.step(replay)
    # The rows wait again, but their letters are dead: the second runner has to put them.
    assert set((await tenant.states()).values()) == {"pending"}
    assert len((await tenant.lane())[1]) == 100
    left = await service.get(tenant.id, made.id)
    assert len(left.body.units) == 100
    await carried_out(second, left)
    assert await tenant.lane() == (ids, [])
    now = await service.get(tenant.id, made.id)
    assert (now.state, now.body.replayed, now.body.left_out) == ("done", 300, 0)


async def test_a_runner_that_lost_its_replay_writes_nothing_more(tenant: Tenant) -> None:
    ids = await tenant.add(300)
    service, first, second = ReplayService(tenant.parts), ReplayRunner(tenant.parts), ReplayRunner(tenant.parts)
    made = await service.create(tenant.id, EVERYTHING, "me")
    stale = await first._renewed(made)
    taken = await second._renewed(stale)
    with pytest.raises(Lost):
        await first.step(stale)
    await first._carry_out(stale)  # which leaves it to the other one
    await carried_out(second, taken)
    now = await service.get(tenant.id, made.id)
    assert (now.body.replayed, now.state) == (300, "done")
    assert await tenant.lane() == (ids, [])


async def test_a_stopped_runner_gives_its_lease_back_and_another_goes_on(tenant: Tenant) -> None:
    ids = await tenant.add(60)
    service, first = ReplayService(tenant.parts), ReplayRunner(tenant.parts)
    made = await service.create(tenant.id, NewReplay(ReplayFilter(), 20.0), "me")
    task = asyncio.create_task(first.run())
    while not (now := await service.get(tenant.id, made.id)).body.replayed:
        await asyncio.sleep(0.01)
    assert now.body.runner == first.name
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    left = await service.get(tenant.id, made.id)
    assert (left.state, left.body.lease_us) == ("running", 0)
    assert 0 < left.body.replayed < 60
    await carried_out(ReplayRunner(tenant.parts), left)
    assert await tenant.lane() == (ids, [])


async def test_a_lease_keeps_others_away_until_it_runs_out(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    await tenant.add(3)
    service, first, second = ReplayService(tenant.parts), ReplayRunner(tenant.parts), ReplayRunner(tenant.parts)
    made = await service.create(tenant.id, EVERYTHING, "me")
    await first._renewed(made)
    await second._look()
    assert not second._tasks
    now_us = tenant.parts.now_us() + round(replay_runner.LEASE_S * 1e6) + ONE_SECOND_US
    monkeypatch.setattr(second._parts, "now_us", lambda: now_us)
    await second._look()
    assert list(second._tasks) == [made.id]
    await asyncio.gather(*second._tasks.values())
    assert (await service.get(tenant.id, made.id)).state == "done"


async def test_pause_resume_and_cancel(tenant: Tenant) -> None:
    await tenant.add(50)
    service, runner = ReplayService(tenant.parts), ReplayRunner(tenant.parts)
    made = await service.create(tenant.id, NewReplay(ReplayFilter(), 20.0), "me")
    replay = await runner._renewed(made)
    replay, n = await runner.step(replay)
    assert n == 10
    assert (await service.pause(tenant.id, made.id, "me")).state == "paused"
    with pytest.raises(Lost):
        await runner.step(replay)
    assert len((await tenant.lane())[0]) == 10
    assert await tenant.parts.read(replays.Replays("online").running_ids) == []
    resumed = await service.resume(tenant.id, made.id, "me")
    replay = await runner._renewed(resumed)
    await runner.step(replay)
    assert len((await tenant.lane())[0]) == 20
    assert (await service.cancel(tenant.id, made.id, "me")).state == "cancelled"
    with pytest.raises(Conflict):
        await service.resume(tenant.id, made.id, "me")
    assert len((await tenant.lane())[1]) == 30


@pytest.mark.parametrize("wanted", ["pause", "cancel"])
async def test_a_wish_in_the_middle_of_a_step_waits_for_its_end(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch, wanted: str
) -> None:
    await tenant.add(50)
    service, runner = ReplayService(tenant.parts), ReplayRunner(tenant.parts)
    made = await service.create(tenant.id, NewReplay(ReplayFilter(), 20.0), "me")
    replay = await runner._renewed(made)
    put = again.put

    async def asked_meanwhile(*arguments: Any) -> Any:
        asked = await getattr(service, wanted)(tenant.id, made.id, "me")
        assert shown_state(asked) == {"pause": "paused", "cancel": "cancelled"}[wanted]
        return await put(*arguments)

    monkeypatch.setattr(again, "put", asked_meanwhile)
    with pytest.raises(Lost):
        await runner.step(replay)
    now = await service.get(tenant.id, made.id)
    assert now.state == {"pause": "paused", "cancel": "cancelled"}[wanted]
    assert (now.body.replayed, now.body.units, now.body.lease_us) == (10, (), 0)
    assert len((await tenant.lane())[0]) == 10


async def test_a_store_that_fails_leaves_the_step_to_be_repeated(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await tenant.add(20)
    service, runner = ReplayService(tenant.parts), ReplayRunner(tenant.parts)
    made = await service.create(tenant.id, EVERYTHING, "me")
    put, failures = again.put, [errors.StoreUnavailable("redis://secret.host away"), errors.StoreFull("full")]
    troubles = []

    async def failing(*arguments: Any) -> Any:
        troubles.append((await service.get(tenant.id, made.id)).body.trouble)
        if failures:
            raise failures.pop()
        return await put(*arguments)

    monkeypatch.setattr(again, "put", failing)
    monkeypatch.setattr(replay_runner, "REST_S", (0.01,))
    await asyncio.wait_for(runner._carry_out(made), 10)
    now = await service.get(tenant.id, made.id)
    assert (now.state, now.body.replayed, now.body.trouble) == ("done", 20, "")
    assert troubles == ["", replay_runner.AWAY, replay_runner.AWAY]
    assert await tenant.lane() == (ids, [])


async def test_what_cannot_be_sent_is_left_out_and_stays_as_it_is(tenant: Tenant) -> None:
    gone = await tenant.add(3, payload=None)
    kept = await tenant.add(3, first=100)
    await tenant.add(2, first=200, endpoint="ep_b")
    await tenant.app.admin.delete(tenant.topic("ep_b"), force=True)
    now = await replayed(tenant)
    assert (now.body.replayed, now.body.left_out) == (3, 5)
    states = await tenant.states()
    assert [states[id_] for id_ in gone] == ["dead"] * 3
    assert (await tenant.lane())[0] == kept


async def test_a_tenant_does_not_take_all_places_of_a_process(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_runner, "MOST_REPLAYS", 3)
    other = await Tenant.make(tenant.app, "t2")
    await tenant.add(3)
    await other.add(3)
    service, runner = ReplayService(tenant.parts), ReplayRunner(tenant.parts)
    slow = [await service.create(tenant.id, NewReplay(ReplayFilter(), 0.01), "me") for _ in range(MOST_OPEN)]
    theirs = await service.create("t2", EVERYTHING, "me")
    task = asyncio.create_task(runner.run())
    try:
        async with asyncio.timeout(10):
            while (await service.get("t2", theirs.id)).state != "done":
                await asyncio.sleep(0.02)
            while theirs.id in runner._tasks:
                await asyncio.sleep(0.02)
        assert len(runner._tasks) == 2
        # As soon as one of the tenant's own ends, the next one begins.
        [first, *_] = runner._tasks
        await service.cancel(tenant.id, first, "me")
        assert {r.id for r in slow} > set(runner._tasks)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_damaged_replay_keeps_no_other_from_running(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_runner, "LOOK_S", 0.05)
    await tenant.add(2, "delivered")
    service, runner = ReplayService(tenant.parts), ReplayRunner(tenant.parts)
    wanted = NewReplay(ReplayFilter(states=("delivered",)), FAST)
    bad, good = [await service.create(tenant.id, wanted, "me") for _ in range(2)]
    damage = sa.update(tables.replays).where(tables.replays.c.id == bad.id).values(body="{")
    await tenant.app.database.run(lambda c: c.execute(damage))
    running = asyncio.create_task(runner.run())
    async with asyncio.timeout(10):
        while (await service.get(tenant.id, good.id)).state != "done":
            await asyncio.sleep(0.01)
    assert not running.done()
    running.cancel()
    await asyncio.wait([running])


async def test_the_rate_is_kept(tenant: Tenant) -> None:
    await tenant.add(40)
    service, runner = ReplayService(tenant.parts), ReplayRunner(tenant.parts)
    made = await service.create(tenant.id, NewReplay(ReplayFilter(), 40.0), "me")
    begun_s = asyncio.get_running_loop().time()
    await asyncio.wait_for(runner._carry_out(made), 10)
    # Two steps of half a second's rate each, and each is followed by its rest.
    assert asyncio.get_running_loop().time() - begun_s >= 0.99
    assert (await service.get(tenant.id, made.id)).body.replayed == 40


async def test_wrong_wishes_are_refused(tenant: Tenant) -> None:
    service = ReplayService(tenant.parts)
    wrong: list[tuple[NewReplay, type[Exception], str]] = [
        (NewReplay(ReplayFilter(), 0.0), Invalid, "rate_per_s"),
        (NewReplay(ReplayFilter(), float("nan")), Invalid, "rate_per_s"),
        (NewReplay(ReplayFilter(states=("pending",)), 1.0), Invalid, "states"),
        (NewReplay(ReplayFilter(states=()), 1.0), Invalid, "states"),
        (NewReplay(ReplayFilter(since_us=5, until_us=5), 1.0), Invalid, "time range"),
        (NewReplay(ReplayFilter(endpoint="ep_x"), 1.0), NotFound, "ep_x"),
        (NewReplay(ReplayFilter(endpoint="ep_a\0"), 1.0), NotFound, "endpoint"),
        (NewReplay(ReplayFilter(endpoint="ep_a"), 1.0, "urgent!"), Invalid, "priority"),
    ]
    for wanted, error, text in wrong:
        with pytest.raises(error, match=text):
            await service.create(tenant.id, wanted, "me")
    made = [await service.create(tenant.id, NewReplay(ReplayFilter(), 1.0), "me") for _ in range(MOST_OPEN)]
    with pytest.raises(Conflict, match="not ended"):
        await service.create(tenant.id, NewReplay(ReplayFilter(), 1.0), "me")
    with pytest.raises(NotFound):
        await service.get("t2", made[0].id)
    with pytest.raises(NotFound):
        await service.pause("t2", made[0].id, "me")
    first = await service.page(tenant.id, 4)
    second = await service.page(tenant.id, 100, first.next)
    assert [r.id for r in (*first.rows, *second.rows)] == [r.id for r in reversed(made)]
    assert second.next == ""


@pytest.mark.parametrize("is_half", [False, True])
async def test_deliveries_to_an_endpoint_that_sleeps_wake_it(tenant: Tenant, is_half: bool) -> None:
    """All was delivered long ago, and its host has put its topic to sleep, or was killed half-way."""
    ids = await tenant.add(3, "delivered")
    app = tenant.app
    await app.admin.update(tenant.topic(), idle_s=3_600.0)
    topic = await app.catalog.get(tenant.topic())
    if is_half:
        assert await deletion.seal_empty(app.store, app.checkpoints, [topic]) == [topic]
    else:
        assert await put_to_sleep(app.store, app.catalog, app.checkpoints, [topic], 0) == {topic.name}
    now = await replayed(tenant, NewReplay(ReplayFilter(states=("delivered",)), FAST))
    assert (now.state, now.body.replayed, now.body.left_out) == ("done", 3, 0)
    assert (await tenant.lane())[0] == ids
    assert (await app.catalog.get(topic.name)).asleep_s == 0
