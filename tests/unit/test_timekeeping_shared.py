"""Hosts that go by one database keep their environment's time from going back, whatever becomes of it."""

from __future__ import annotations

import asyncio
from typing import Self

import pytest
import sqlalchemy as sa

from emq.database import tables
from emq.database.environment_time import EnvironmentTime
from emq.runtime.clock import SystemClock
from emq.runtime.lease import Lease
from emq.runtime.timekeeping import INTERVAL_S, SLEW, Timekeeper
from support.doubles import InlineDatabase
from support.virtual import virtual

pytestmark = virtual

T = 1_700_000_000
HOUR_S = 3600.0


class Wall(InlineDatabase):
    """A database whose clock can be set."""

    wall_us = T * 10**6

    def clock_us(self, connection: object) -> int:
        return self.wall_us


async def test_a_database_whose_clock_is_set_back_gives_no_time_twice_not_even_after_a_restart_of_all_hosts() -> None:
    db = await Wall.open("sqlite://")
    try:
        times = [(await EnvironmentTime(db, "online", machine=0).ask(lambda: 0, True)).time_us]
        for jump_s in (6, -HOUR_S, 10, 30, HOUR_S, -2 * HOUR_S, 100):
            db.wall_us += int(jump_s * 1e6)
            times.append((await EnvironmentTime(db, "online", machine=0).ask(lambda: 0, True)).time_us)
        assert times == sorted(times)
        assert times[-1] - times[-2] == pytest.approx(99e6)
        # Whoever only asks sees the same time, and another environment has one of its own.
        assert (await EnvironmentTime(db, "online", machine=0).ask(lambda: 0, False)).time_us == times[-1]
        assert (await EnvironmentTime(db, "sandbox", machine=0).ask(lambda: 0, False)).time_us == db.wall_us
    finally:
        await db.close()


async def test_seconds_that_hosts_counted_after_the_last_note_are_not_given_again_when_the_clock_is_set_back() -> None:
    db = await Wall.open("sqlite://")
    try:
        await EnvironmentTime(db, "online", machine=0).ask(lambda: 0, True)
        db.wall_us += 4_900_000  # too soon for the next note
        counted_us = (await EnvironmentTime(db, "online", machine=0).ask(lambda: 0, True)).time_us + int(
            INTERVAL_S * 1e6
        )
        for back_s in (10, HOUR_S):
            db.wall_us -= back_s * 10**6
            counted_again_us = (await EnvironmentTime(db, "online", machine=0).ask(lambda: 0, True)).time_us
            assert counted_again_us > counted_us
            assert (await EnvironmentTime(db, "online", machine=0).ask(lambda: 0, False)).time_us == counted_again_us
            counted_us = counted_again_us
    finally:
        await db.close()


class Shared:
    """Hosts on one database whose clock is set back; virtual time passes on all machines alike."""

    @classmethod
    async def after_a_while(cls, machine: int = 1) -> tuple[Self, SystemClock, asyncio.Task[None]]:
        """With a first host that has kept the time for a while, and its task that goes on keeping it."""
        shared = cls(await Wall.open("sqlite://"))
        kept, keeper = shared.host(machine)
        await keeper.begin()
        keeping = asyncio.create_task(keeper.keep())
        await asyncio.sleep(24.7)
        return shared, kept, keeping

    def __init__(self, db: Wall) -> None:
        self.db = db
        self.loop = asyncio.get_running_loop()
        self.base_us = T * 10**6

    def pass_on(self) -> None:
        self.db.wall_us = self.base_us + round(self.loop.time() * 1e6)

    def set_back(self, by_s: float) -> None:
        self.base_us -= round(by_s * 1e6)
        self.pass_on()

    async def noted(self) -> dict[str, int]:
        """The note of the time, by key."""
        rows = await self.db.run(lambda c: c.execute(sa.select(tables.meta.c.key, tables.meta.c.value)).all())
        return {key: value for key, value in rows if key.startswith("time_")}

    async def lose(self, kept: dict[str, int]) -> None:
        """Come back with this note, or none."""

        def replace(connection: sa.Connection) -> None:
            connection.execute(tables.meta.delete())
            for key, value in kept.items():
                row = {"environment": "online", "key": key, "value": value}
                connection.execute(tables.meta.insert().values(row))

        await self.db.run(replace)

    def host(self, machine: int) -> tuple[SystemClock, Timekeeper]:
        def passed_ns() -> int:
            self.pass_on()
            return round((self.loop.time() + 1_000 * machine) * 1e9)

        def wall_ns() -> int:
            return round((T + self.loop.time()) * 1e9)

        kept = SystemClock(wall_ns, passed_ns)
        reference = EnvironmentTime(self.db, "online", machine=machine)
        keeper = Timekeeper(kept, reference.ask, wall_ns=wall_ns)
        keeper.bind(Lease())
        return kept, keeper


@pytest.mark.parametrize("back_s", [0.3, 2.0, 4.5, 6.0])
async def test_hosts_that_run_keep_the_time_from_going_back_when_the_clock_is_set_back_by_less_than_the_notes_age(
    back_s: float,
) -> None:
    shared, first, keeping = await Shared.after_a_while()
    before_us = first.now_us()
    shared.set_back(back_s)
    await asyncio.sleep(INTERVAL_S + 0.6)
    # A host that comes from elsewhere and one that was here all the time count the same seconds, and none again.
    second, newcomer = shared.host(2)
    await newcomer.begin()
    assert second.now_us() > before_us + (INTERVAL_S + 0.5) * 1e6
    assert abs(second.now_us() - first.now_us()) < 0.1e6 or back_s > 5
    keeping.cancel()
    await shared.db.close()


@pytest.mark.parametrize("back_s", [0.3, 1.0, 2.0])
async def test_a_host_that_counted_on_says_so_where_nobody_knows_what_passed_since_the_note(back_s: float) -> None:
    shared, first, keeping = await Shared.after_a_while(machine=0)
    shared.set_back(back_s)
    before_us = first.now_us()
    await asyncio.sleep(INTERVAL_S + 0.6)
    second, newcomer = shared.host(0)
    await newcomer.begin()
    passed_us = (INTERVAL_S + 0.5) * 1e6
    assert first.now_us() > before_us + passed_us, "it did not stand still"
    assert second.now_us() > before_us + passed_us, "it counts no second that the other has counted"
    keeping.cancel()
    await shared.db.close()


@pytest.mark.parametrize("back_s", [0.3, 2.0, 4.5, 6.0])
async def test_a_host_that_is_killed_and_started_again_counts_no_second_twice_when_the_clock_is_set_back_meanwhile(
    back_s: float,
) -> None:
    shared, killed, keeping = await Shared.after_a_while()
    keeping.cancel()
    counted_us = killed.now_us()
    shared.set_back(back_s)
    again, newcomer = shared.host(1)
    await newcomer.begin()
    assert counted_us - 10_000 <= again.now_us() < counted_us + 0.5e6
    await shared.db.close()


async def test_the_time_still_returns_to_the_reference_when_a_host_has_kept_it_from_going_back() -> None:
    shared, kept, keeping = await Shared.after_a_while()
    shared.set_back(2.0)
    await asyncio.sleep(10)
    assert kept.now_us() - shared.db.wall_us > 1.8e6
    await asyncio.sleep(2.0 / SLEW)
    assert abs(kept.now_us() - shared.db.wall_us) < 0.05e6
    keeping.cancel()
    await shared.db.close()


@pytest.mark.parametrize("back_s", [20.0, HOUR_S])
@pytest.mark.parametrize("first_to_ask", ["a host that counted", "a host that starts"])
@pytest.mark.parametrize("comes_back", ["empty", "as it was a minute before"])
async def test_hosts_bring_the_time_back_to_a_database_that_has_lost_that_its_clock_was_set_back(
    back_s: float, first_to_ask: str, comes_back: str
) -> None:
    shared, first, keeping = await Shared.after_a_while()
    kept = await shared.noted()
    await asyncio.sleep(60)
    shared.set_back(back_s)
    await asyncio.sleep(60)
    before_us = first.now_us()
    await shared.lose({} if comes_back == "empty" else kept)
    if first_to_ask == "a host that starts":
        _, early = shared.host(2)
        await early.begin()
    await asyncio.sleep(INTERVAL_S + 0.6)
    last, newcomer = shared.host(3)
    await newcomer.begin()
    passed_us = (INTERVAL_S + 0.5) * 1e6
    assert first.now_us() > before_us + passed_us, "it did not stand still"
    assert last.now_us() > before_us + passed_us, "it counts no second that the other has counted"
    assert abs(last.now_us() - first.now_us()) < 0.1e6
    keeping.cancel()
    await shared.db.close()
