"""What is refused at submit, in one clear line for each wrong value, and what `submit` knows of a pool."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

import emq
from emq.runtime import errors
from emq_scheduling import submitting, topics
from emq_scheduling.forecast import pacing
from emq_scheduling.hosting.attempts import Run
from emq_scheduling.model import Calendar, Hours, KeyLimit, Limit, Pool, Resource, TaskType
from emq_scheduling.records.snapshot import KeyLimitView, PoolState, Snapshot, TypeCost, TypeView
from emq_scheduling.records.snapshots import Snapshots
from emq_scheduling.scheduling import Scheduling
from emq_scheduling.submission import Receipt, Submission
from emq_scheduling.submitting import REFRESH_S
from emq_scheduling.tasks import Task
from support.waiting import until

NAN, INF, HUGE = float("nan"), float("inf"), 10**400


@pytest.fixture
async def scheduling(tmp_path: Path) -> AsyncIterator[Scheduling]:
    app = emq.App(f"sqlite:///{tmp_path}/emq.db")
    made = Scheduling(app)
    by_day = Calendar(hours=(Hours("08:00", "20:00", amounts={"calls": 500.0}),))
    pool = Pool(
        "p",
        resources={
            "r": Resource(limits=(Limit("tokens", 100, "minute"),), takes={"t": {}, "h": {}}),
            "by day": Resource(limits=(Limit("calls", 0, "second"),), takes={"d": {}}, calendar="day"),
        },
        types={"t": TaskType(), "h": TaskType(hours=(Hours("09:00", "10:00"),)), "d": TaskType()},
        calendars={"day": by_day},
    )
    async with app:
        await made.pools.put(pool)
        yield made


WRONG: list[dict[str, object]] = [
    *({"deadline_s": value} for value in (NAN, INF, HUGE, True, "5", [1])),
    *({"costs": {"tokens": value}} for value in (NAN, INF, -1, HUGE, True, "5", None)),
    *({"costs": value} for value in ([], "abc", 5, {"nope": 1}, {1: 2}, {"": 1})),
    *({"tenant": value} for value in (5, None, ["a"], "a/b", "\ud800", "x" * 47)),
    *({"zone": value} for value in ("No/Where", "../../etc/passwd", 5, "\0", "Europe", "x" * 10_000)),
    *({"reply_to": value} for value in (5, "a b", "\0", "x" * 1_000, "nowhere")),
    *({"keys": value} for value in (5, ["a"], {1: "a"}, {"a": 1}, {"": "a"}, {"a": ""}, {"a": "x" * 101})),
    *({"keys": value} for value in ({"tenant": "a"}, {"a": "\x1f"}, {f"k{number}": "v" for number in range(11)})),
    *({"id": value} for value in (5, "", "\0", "\ud800", "x" * 1_000)),
    *({"type": value} for value in (5, None, ["t"])),
]


@pytest.mark.parametrize("kind", ["t", "h"])
async def test_a_wrong_value_is_refused_in_one_line_and_keeps_no_other_task_out(
    scheduling: Scheduling, kind: str
) -> None:
    for wrong in WRONG:
        given = Submission(**{"type": kind, "payload": b"", **wrong})  # type: ignore[arg-type]
        outcomes = await scheduling.submit_many("p", [Submission("t", b""), given, Submission("t", b"")])
        assert [type(outcome) for outcome in outcomes[::2]] == [Receipt, Receipt], wrong
        assert isinstance(outcomes[1], errors.InvalidMessage | errors.InvalidPool), wrong
        text = str(outcomes[1])
        assert 10 < len(text) < 300, wrong
        assert "\n" not in text, wrong


@pytest.mark.parametrize("deadline_s", [0, -1, -1e9])
async def test_a_deadline_that_is_over_is_refused(scheduling: Scheduling, deadline_s: float) -> None:
    with pytest.raises(errors.TaskRefused, match="cannot be met") as caught:
        await scheduling.submit("p", "t", b"", deadline_s=deadline_s)
    assert caught.value.code == "deadline"


@pytest.mark.parametrize("name", [5, None, ["p"], "\ud800", "", "a b"])
async def test_the_name_of_a_pool_is_checked(scheduling: Scheduling, name: str) -> None:
    with pytest.raises(errors.InvalidPool):
        await scheduling.submit(name, "t", b"")


@pytest.mark.parametrize("task_id", [5, None, "", "\ud800", "\0"])
async def test_ids_that_no_task_has_are_refused(scheduling: Scheduling, task_id: str) -> None:
    with pytest.raises(errors.InvalidMessage, match="task id"):
        await scheduling.cancel("p", task_id)
    with pytest.raises(errors.InvalidMessage, match="task id"):
        await scheduling.status("p", task_id)


async def test_a_resource_that_works_only_in_the_hours_of_its_calendar_takes_tasks(scheduling: Scheduling) -> None:
    assert (await scheduling.submit("p", "d", b"")).id


async def test_a_pool_that_could_not_be_read_again_is_read_again_later_and_whole(
    scheduling: Scheduling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that nobody expects, between a changed pool and what follows from it, comes once in `REFRESH_S`."""
    submitter, asked = scheduling._submitter("p"), 0
    pool = await submitter.known()

    def broken(pool: Pool, kind: str) -> pacing.Pace:
        nonlocal asked
        asked += 1
        raise RuntimeError("planted")

    await scheduling.pools.put(msgspec.structs.replace(pool, types={**pool.types, "new": TaskType()}))
    monkeypatch.setattr(pacing, "Pace", broken)
    for _ in range(3):
        submitter._read_at -= REFRESH_S if not asked else 0.0
        await submitter.known()
        await asyncio.wait([submitter._reading])
    assert asked == 1
    monkeypatch.undo()
    await submitter._read()
    assert "new" in submitter._unseen._paces


# -------------------------------------------------------------------------------------- while a host schedules the pool


def pool_of(**types: TaskType) -> Pool:
    """Return a pool with a resource that takes these types, 20 tasks a second."""
    resource = Resource(limits=(Limit("requests", 20, "second"),), takes={name: {} for name in types})
    return Pool("p", types=types, resources={"r": resource})


def hours_from_now(first: int, last: int) -> Hours:
    hour = datetime.datetime.now(datetime.UTC).hour
    return Hours(f"{(hour + first) % 24:02}:00", f"{(hour + last) % 24:02}:00")


HOSTED = pool_of(quick=TaskType(longest_wait_s=3, duration_s=0.05), office=TaskType(hours=(Hours("08:00", "18:00"),)))


@pytest.fixture
async def hosted(tmp_path: Path) -> AsyncIterator[Scheduling]:
    """An app with a pool that its host schedules."""
    app = emq.App(f"sqlite:///{tmp_path}/emq.db")
    made = Scheduling(app)

    @made.performer("p")
    async def perform(task: Task, run: Run) -> None:
        await asyncio.sleep(0.01)

    async with app:
        await made.pools.put(HOSTED)
        async with app.running():
            yield made


async def test_a_batch_counts_its_own_tasks(hosted: Scheduling) -> None:
    await until(lambda: hosted.snapshot("p"))
    outcomes = await hosted.submit_many("p", [Submission("quick", b"x") for _ in range(300)])
    kinds = Counter(type(outcome) for outcome in outcomes)
    assert 40 <= kinds[Receipt] <= 80  # what 20 a second start in 3 s
    assert kinds[errors.TaskRefused] == 300 - kinds[Receipt]
    accepted = [outcome for outcome in outcomes if isinstance(outcome, Receipt)]
    ended = await hosted.result("p", accepted[-1].id)
    assert ended.attempts[-1].wait_s < 4.0


async def test_a_submit_after_a_pause_knows_the_pool_of_now(
    hosted: Scheduling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submitting, "REFRESH_S", 0.05)
    monkeypatch.setattr(submitting, "OLD_S", 0.05)
    await hosted.submit("p", "quick", b"x")
    await hosted.pools.put(msgspec.structs.replace(HOSTED, types={**HOSTED.types, "new": TaskType()}))
    await asyncio.sleep(0.1)
    with pytest.raises(errors.TaskRefused, match="no resource takes it"):
        await hosted.submit("p", "new", b"x")
    await hosted.pools.delete("p")
    await asyncio.sleep(0.1)
    with pytest.raises(errors.UnknownPool):
        await hosted.submit("p", "quick", b"x")


async def test_a_type_that_was_just_added_is_known(hosted: Scheduling) -> None:
    await hosted.submit("p", "quick", b"x")
    await asyncio.sleep(submitting.ADDED_S)
    await hosted.pools.put(pool_of(**HOSTED.types, new=TaskType()))
    receipt = await hosted.submit("p", "new", b"x")
    assert (await hosted.result("p", receipt.id)).state == "done"


async def test_a_deadline_is_held_against_the_hours_of_the_recipients_zone(hosted: Scheduling) -> None:
    here, there = hours_from_now(-2, 3), hours_from_now(10, 15)  # now in UTC, at night on the other side
    types = {"here": TaskType(hours=(here,), duration_s=0.05), "there": TaskType(hours=(there,), duration_s=0.05)}
    await hosted.pools.put(pool_of(**types))
    while (seen := await hosted.snapshot("p")) is None or "there" not in seen.types:
        await asyncio.sleep(0.05)
    for kind, zone, other in (("here", "UTC", "Etc/GMT-12"), ("there", "Etc/GMT-12", "UTC")):
        receipt = await hosted.submit("p", kind, b"x", zone=zone, deadline_s=60)
        assert (receipt.wait_s or 0.0) < 5
        assert (await hosted.result("p", receipt.id)).state == "done"
        with pytest.raises(errors.TaskRefused, match=r"would start in about [\d.]+ h and take"):
            await hosted.submit("p", kind, b"x", zone=other, deadline_s=60)
        waits = await hosted.submit("p", kind, b"x", zone=other)
        assert waits.wait_s is not None
        assert waits.wait_s > 3600


async def test_a_task_that_expires_before_its_hours_begin_is_refused(hosted: Scheduling) -> None:
    hours = (hours_from_now(10, 15),)
    types = {"brief": TaskType(hours=hours, ttl_s=3600), "patient": TaskType(hours=hours, ttl_s=86_400)}
    await hosted.pools.put(pool_of(**types))
    await hosted.submit("p", "patient", b"x")
    with pytest.raises(
        errors.TaskRefused, match=r"hours begin in [\d.]+ h, and a task submitted now expires in 60 min"
    ):
        await hosted.submit("p", "brief", b"x")


async def test_a_task_that_its_deadline_will_raise_is_not_refused_for_what_waits_before_it(
    hosted: Scheduling,
) -> None:
    types = {
        "flood": TaskType(priority=2, duration_s=0.05),
        "raised": TaskType(priority=5, near_priority=0, duration_s=0.05),
        "plain": TaskType(priority=5, duration_s=0.05),
    }
    await hosted.pools.put(pool_of(**types))
    await hosted.submit_many("p", [Submission("flood", b"x") for _ in range(2000)])
    while (seen := await hosted.snapshot("p")) is None or seen.state.waiting.get("flood", 0) < 1500:
        await asyncio.sleep(0.05)
    plain = Submission("plain", b"x", deadline_s=6)
    while not isinstance((await hosted.submit_many("p", [plain]))[0], errors.TaskRefused):
        await asyncio.sleep(0.2)  # until this process has read what the host tells
    receipt = await hosted.submit("p", "raised", b"x", deadline_s=6)
    assert receipt.wait_s is not None
    assert receipt.wait_s < 6
    ended = await hosted.result("p", receipt.id)
    assert ended.attempts[-1].wait_s < 6


@pytest.mark.parametrize(("says", "cost", "real_s"), [(1.0, 10.0, 39.9), (10.0, 1.0, 3.99)])
async def test_receipts_and_refusals_count_the_costs_that_tasks_bring(
    scheduling: Scheduling, says: float, cost: float, real_s: float
) -> None:
    resource = Resource(limits=(Limit("tokens", 100, "second"),), takes={"t": {}})
    await scheduling.pools.put(Pool("p", resources={"r": resource}, types={"t": TaskType(costs={"tokens": says})}))
    app = scheduling._app
    told = Snapshot("p", 1, "h", PoolState(app.clock.now()), types={"t": TypeView(predicted_wait_s=0.0)})
    await Snapshots(app.database, app.settings.environment).save(told)
    *_, last = await scheduling.submit_many("p", [Submission("t", b"x", costs={"tokens": cost})] * 400)
    assert isinstance(last, Receipt)
    assert last.wait_s == pytest.approx(real_s, rel=0.1)
    [within_10_s] = await scheduling.submit_many("p", [Submission("t", b"x", costs={"tokens": cost}, deadline_s=10)])
    assert isinstance(within_10_s, Receipt if real_s < 9 else errors.TaskRefused)


async def test_receipts_and_refusals_know_how_long_keys_wait_for_room(scheduling: Scheduling) -> None:
    limits = {"calls": KeyLimit("tenant", 10, "minute")}
    pool = Pool("p", resources={"r": Resource(takes={"t": {}})}, types={"t": TaskType()}, limits=limits)
    await scheduling.pools.put(pool)
    app = scheduling._app
    view, state = KeyLimitView(waits={"full": 59.0}), PoolState(app.clock.now())
    told = Snapshot("p", 1, "h", state, types={"t": TypeView(predicted_wait_s=0.0)}, limits={"calls": view})
    await Snapshots(app.database, app.settings.environment).save(told)
    assert (await scheduling.submit("p", "t", b"", tenant="full")).wait_s == 59.0
    assert (await scheduling.submit("p", "t", b"", tenant="other")).wait_s == 0.0
    with pytest.raises(errors.TaskRefused, match="deadline"):
        await scheduling.submit("p", "t", b"", tenant="full", deadline_s=30)
    await scheduling.submit("p", "t", b"", tenant="other", deadline_s=30)
    *_, last = await scheduling.submit_many("p", [Submission("t", b"", "fresh")] * 11)
    assert isinstance(last, Receipt)
    assert last.wait_s == 60.0


async def test_topics_let_tasks_through_as_fast_as_their_own_costs_allow(hosted: Scheduling) -> None:
    resource = Resource(limits=(Limit("tokens", 5_000, "second"),), takes={"t": {}})
    await hosted.pools.put(Pool("p", resources={"r": resource}, types={"t": TaskType(costs={"tokens": 100})}))
    catalog = hosted._app.catalog
    cheap = [Submission("t", b"x", tenant="acme", costs={"tokens": 5})] * 100

    async def topics_follow() -> bool:
        await hosted.submit_many("p", cheap)
        await asyncio.sleep(0.2)
        found = await catalog.some(["p.t", "p.t.acme"])
        return {name: topic.qps for name, topic in found.items()} == {"p.t": 1600.0, "p.t.acme": 1000.0}

    assert await topics_follow() is False, "50 tasks a second, by what the type says"
    await until(topics_follow)
    await hosted.submit("p", "t", b"x", tenant="new")
    assert (await catalog.get("p.t.new")).qps == topics.GROUP_QPS, "no fast tenant"


@pytest.mark.parametrize(("version", "is_kept"), [(1, True), (2, False)])
async def test_a_host_begins_with_the_costs_that_the_former_one_knew_of_this_version_of_the_pool(
    scheduling: Scheduling, version: int, is_kept: bool
) -> None:
    @scheduling.performer("p")
    async def perform(task: Task, run: Run) -> None:
        pass

    app = scheduling._app
    state = PoolState(app.clock.now() - 1, costs={"t": {"tokens": TypeCost(used=3.0)}})
    await Snapshots(app.database, app.settings.environment).save(Snapshot("p", version, "former", state))
    async with app.running():

        async def told() -> Snapshot | None:
            found = await scheduling.snapshot("p")
            return found if found is not None and found.host != "former" else None

        await until(told)
        now = await told()
        assert now is not None
        assert ("t" in now.state.costs) == is_kept


async def test_a_task_needs_the_keys_of_the_limits_that_count_it(scheduling: Scheduling) -> None:
    limits = {
        "rate": KeyLimit(
            ("account", "tenant"), 5, "minute", units="tokens", amounts={"a7,": 9, "off,": 0}, types=("t",)
        )
    }
    await scheduling.pools.change("p", lambda found: msgspec.structs.replace(found, limits=limits))
    await asyncio.sleep(REFRESH_S + 0.1)
    await scheduling.submit("p", "h", b"")
    with contextlib.suppress(errors.EMQError):
        await scheduling.submit("p", "t", b"")  # reads the changed pool
    await asyncio.sleep(0.5)
    with pytest.raises(
        errors.InvalidMessage, match="limit 'rate' of pool 'p' counts by 'account', which the task lacks"
    ):
        await scheduling.submit("p", "t", b"")
    await scheduling.submit("p", "t", b"", keys={"account": "a7", "model": "not asked for"})
    await scheduling.submit("p", "t", b"", keys={"account": "a7"}, costs={"tokens": 9})
    await scheduling.submit("p", "t", b"", keys={"account": "off"}, costs={"tokens": 90})
    with pytest.raises(errors.TaskRefused, match="costs tokens=6 are above 5, the most that limit 'rate' allows") as no:
        await scheduling.submit("p", "t", b"", keys={"account": "a8"}, costs={"tokens": 6})
    assert no.value.code == "cost_above_limit"
