"""Epochs are given out once, also where the database comes back without its last second."""

from __future__ import annotations

from pathlib import Path

from emq.app import App
from emq.runtime.clock import SystemClock
from support.members import cluster_of
from support.virtual import virtual
from support.waiting import until

BEGIN_US = 1_700_000_000_100_000
"""Early in a second."""


async def test_an_epoch_that_the_database_lost_is_not_given_out_again_within_its_second(tmp_path: Path) -> None:
    """A store accepts equal epochs: who got the first one would own the group beside whoever gets the second."""
    file = tmp_path / "emq.db"
    passed_us = 0
    async with App("memory:", database=f"sqlite:///{file}") as app:
        app.clock = SystemClock(lambda: (BEGIN_US + passed_us) * 1000, lambda: passed_us * 1000)
        kept = await app._next_epoch()
        lost = [await app._next_epoch() for _ in range(3)]
        await app.database.run(
            lambda c: c.exec_driver_sql(f"UPDATE emq_meta SET value = {kept} WHERE key = 'generation'")
        )
        passed_us = 400_000
        again = [await app._next_epoch() for _ in range(3)]
    assert kept < min(lost)
    assert max(lost) < min(again)


@virtual
async def test_a_leader_takes_the_epoch_of_a_plan_from_the_time_of_day_to_the_microsecond() -> None:
    async with cluster_of("a", "b") as cluster:
        asked: list[tuple[int, int]] = []
        next_generation = cluster.next_generation

        async def noting(least: int) -> int:
            asked.append((least, cluster.clock.now_us()))
            return await next_generation(least)

        for member in cluster.members.values():
            member.membership._leader._next_generation = noting
        async with cluster.member("c"):
            await cluster.settled()
        await until(lambda: len(asked) >= 2)
    assert all(least == now_us for least, now_us in asked)
