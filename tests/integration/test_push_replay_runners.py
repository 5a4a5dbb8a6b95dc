"""Replays by several processes on PostgreSQL: one of them carries out each, also when processes die or stand still."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from emq import App
from emq.database.database import IDLE_S
from emq_push.records.replays import Replay, ReplayFilter
from emq_push.service.replay_runner import STEP_S
from emq_push.service.replaying import NewReplay, ReplayService
from support import push_runner_process
from support.push_tenant import Tenant

SCRIPT = Path(push_runner_process.__file__)
LEASE_S = 2.0
RATE_PER_S = 200.0
STEP = int(RATE_PER_S * STEP_S)
N = 800


class Runner:
    """A process that looks for replays.

    Attributes:
        name: of its runner.
    """

    def __init__(self, process: asyncio.subprocess.Process, name: str) -> None:
        self.process = process
        self.name = name

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


@contextlib.asynccontextmanager
async def running(url: str, n: int) -> AsyncIterator[list[Runner]]:
    """Start processes; at the end of the block, kill those that are left."""
    arguments = (sys.executable, str(SCRIPT), url, url, str(LEASE_S))
    processes = [await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE) for _ in range(n)]
    try:
        runners = []
        for process in processes:
            assert process.stdout is not None
            line = await asyncio.wait_for(process.stdout.readline(), 30)
            assert line, "the process ended"
            runners.append(Runner(process, line.decode().strip()))
        yield runners
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
        await asyncio.gather(*(process.wait() for process in processes))


@pytest.fixture
async def tenant(fresh_postgres: str) -> AsyncIterator[tuple[Tenant, str]]:
    url = fresh_postgres
    async with App(store=url, database=url) as app:
        yield await Tenant.make(app), url


async def until(service: ReplayService, tenant: Tenant, id_: str, least: int) -> Replay:
    """Wait until so many deliveries are put back; return the replay as it is then."""
    async with asyncio.timeout(60):
        while (now := await service.get(tenant.id, id_)).body.replayed < least:
            await asyncio.sleep(0.02)
    return now


async def ended(service: ReplayService, tenant: Tenant, id_: str) -> Replay:
    async with asyncio.timeout(60):
        while (now := await service.get(tenant.id, id_)).state != "done":
            await asyncio.sleep(0.05)
    return now


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_process_that_dies_or_stands_still_is_replaced_and_no_dead_letter_is_lost_or_left(
    tenant: tuple[Tenant, str], number: signal.Signals
) -> None:
    t, url = tenant
    ids = await t.add(N)
    service = ReplayService(t.parts)
    made = await service.create(t.id, NewReplay(ReplayFilter(), RATE_PER_S), "me")
    async with running(url, 2) as runners:
        seen = await until(service, t, made.id, STEP)
        assert 0 < seen.body.replayed < N
        [owner] = [runner for runner in runners if runner.name == seen.body.runner]
        owner.send(number)
        if number == signal.SIGSTOP:
            # If it was stopped within a transaction, the server ends the transaction and its locks.
            async with asyncio.timeout(2 * IDLE_S):
                while (now := await service.get(t.id, made.id)).body.runner == owner.name:
                    await asyncio.sleep(0.05)
            assert now.state == "running"
            owner.send(signal.SIGCONT)
        else:
            await asyncio.wait_for(owner.process.wait(), 20)
        done = await ended(service, t, made.id)
    assert done.body.runner in {runner.name for runner in runners} - {owner.name}
    assert await t.lane() == (ids, [])
    assert set((await t.states()).values()) == {"pending"}
    # The step that a kill broke off may have been counted by nobody, or once.
    assert N - (STEP if number == signal.SIGKILL else 0) <= done.body.replayed <= N
    assert done.body.left_out == 0
