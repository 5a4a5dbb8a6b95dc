"""Limits by tenant and by key on real hosts: they hold through a kill, and what stands aside holds up nobody."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections import defaultdict
from pathlib import Path

import msgspec

import emq
from emq_scheduling import KeyLimit, Limit, Pool, Resource, Run, Scheduling, Submission, Task, TaskType
from emq_scheduling.records.snapshot import Snapshot
from emq_scheduling.records.verifying import verify
from emq_scheduling.submission import Receipt
from emq_scheduling.tasks import Carried, headers_of
from support.waiting import until

HOST = Path(__file__).parents[2] / "support" / "pool_host_process.py"
TOOK_S = 0.5
MOST = 50
LIMITS = {
    "each": KeyLimit("tenant", 2, "in_flight", amounts={"large": 4}),
    "rate": KeyLimit(("account", "model"), MOST, "minute"),
}
POOL = Pool(
    "jobs",
    resources={"worker": Resource(limits=(Limit("slots", 40, "in_flight"),), takes={"job": {}})},
    types={"job": TaskType(duration_s=TOOK_S, backoff_s=(0.2,))},
    limits=LIMITS,
)


async def started(url: str, name: str, receipts: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, str(HOST), url, name, str(receipts), str(TOOK_S))


def starts_of(receipts: Path) -> list[tuple[float, str]]:
    """Return when each call of the performer began, and the task."""
    lines = [line.split() for line in receipts.read_text().splitlines()] if receipts.exists() else []
    return sorted((float(at), task) for at, what, _, task in lines if what == "begins")


async def test_limits_of_keys_hold_through_a_kill_of_their_host(tmp_path: Path) -> None:
    url, receipts = f"sqlite:///{tmp_path}/emq.db", tmp_path / "receipts"
    app = emq.App(url)
    scheduling = Scheduling(app)
    async with app:
        await scheduling.pools.put(POOL)
        tasks = [
            Submission("job", b"", tenant, id=f"{tenant}.{number}", keys={"account": tenant, "model": "m"})
            for tenant in ("small", "large", "other")
            for number in range(70)
        ]
        assert all(isinstance(each, Receipt) for each in await scheduling.submit_many("jobs", tasks))
        first = await started(url, "first", receipts)
        try:
            await until(lambda: len(starts_of(receipts)) >= 25, timeout_s=40)
            first.kill()
            await first.wait()
            killed_at = time.time()
            second = await started(url, "second", receipts)
            try:
                await until(lambda: sum(at > killed_at for at, _ in starts_of(receipts)) >= 30, timeout_s=60)

                async def all_are_full() -> Snapshot | None:
                    found = await scheduling.snapshot("jobs")
                    return found if found is not None and found.limits["rate"].held == 3 else None

                full = await until(all_are_full, timeout_s=60, step_s=0.2)
                assert full.limits["rate"].keys == 3
                assert full.state.held["job"] >= 3 * 10
                assert full.limits["each"].waits or full.limits["rate"].waits["large,m"] is not None
                waits_s = full.limits["rate"].waits["small,m"]
                assert waits_s is not None
                assert 10 < waits_s <= 120, "its minute is used up"
                late = Submission("job", b"", "late", id="late.0", keys={"account": "late", "model": "m"})
                [receipt] = await scheduling.submit_many("jobs", [late])
                assert isinstance(receipt, Receipt)
                assert receipt.wait_s is not None
                assert receipt.wait_s < 0.1, "the tasks whose keys have no room are not before it"
                asked = time.time()
                await until(lambda: any(task == "late.0" for _, task in starts_of(receipts)), timeout_s=20)
                began = next(at for at, task in starts_of(receipts) if task == "late.0")
                assert began - asked < 3.0
                await asyncio.sleep(1.5)  # so that all ends are recorded
            finally:
                second.send_signal(signal.SIGTERM)
                await second.wait()
        finally:
            if first.returncode is None:
                first.kill()
                await first.wait()
        proof = await verify(app.database, "online", "jobs")
    assert proof.over_s == 0, [msgspec.structs.asdict(each) for each in proof.limits if each.over_s]
    told = {each.resource: each for each in proof.limits}
    assert (told["each by tenant"].peak, told["each by tenant"].amount) in ((2, 2), (4, 4))
    assert told["rate by account, model"].peak >= MOST / 2
    by_tenant: dict[str, list[float]] = defaultdict(list)
    for at, task in starts_of(receipts):
        by_tenant[task.partition(".")[0]].append(at)
    for tenant, times in by_tenant.items():
        for at in times:
            assert sum(at - 60 < each <= at for each in times) <= MOST, tenant


async def test_a_message_with_fields_that_no_submit_takes_stops_no_other_task(tmp_path: Path) -> None:
    """A key with the mark between the values of keys, or with NUL, would let each later save of use fail."""
    app = emq.App(f"sqlite:///{tmp_path}/emq.db")
    scheduling, done = Scheduling(app), list[str]()

    @scheduling.performer("jobs")
    async def perform(task: Task, run: Run) -> None:
        done.append(task.id)

    async with app, app.running():
        await scheduling.pools.put(POOL)
        keys = {"account": "a", "model": "m"}
        await scheduling.submit("jobs", "job", b"", tenant="t", id="first", keys=keys)
        bad = [headers_of(Carried(keys={**keys, "account": value})) for value in ("a\x1fb", "a\0b", "b" * 5_000)]
        bad.append(headers_of(Carried(keys=keys, costs={"rate": -50.0})))
        ids = [await app.publish("jobs.job.t", b"", headers=headers) for headers in bad]
        await until(lambda: "first" in done, timeout_s=20)
        await scheduling.submit("jobs", "job", b"", tenant="t", id="good", keys={"account": "c", "model": "m"})
        await until(lambda: "good" in done, timeout_s=20)
        assert sorted([letter.id async for letter in app.dead_letters("jobs.job.t")]) == sorted(ids)
    assert done == ["first", "good"]
