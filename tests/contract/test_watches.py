"""Notes of what somebody looks at, in both databases: hosts see them until their time is over, in one environment."""

from __future__ import annotations

import asyncio

from emq.database import Database, host_stats, watches


async def seen_at(db: Database, now_ms: int, environment: str = "online") -> frozenset[str]:
    """What a host learns when it saves its snapshot."""
    return await host_stats.save(db, environment, "h1", "{}", now_ms)


async def test_a_note_holds_until_its_time_in_its_environment_alone(db: Database) -> None:
    for name in ("shop", "sh%p", "sh_p", "a:b"):
        await watches.note(db, "online", [name], 1_000, 15_000)
    assert await seen_at(db, 2_000) == {"shop", "sh%p", "sh_p", "a:b"}
    assert await seen_at(db, 2_000, "sandbox") == frozenset()
    assert await seen_at(db, 16_001) == frozenset()
    await watches.note(db, "online", ["shop"], 16_001, 15_000)
    assert await seen_at(db, 16_001) == {"shop"}


async def test_many_workers_note_the_same_name_at_once_and_the_latest_time_counts(db: Database) -> None:
    await asyncio.gather(*(watches.note(db, "online", ["shop"], now_ms, 15_000) for now_ms in range(1_000, 9_000, 500)))
    assert await seen_at(db, 20_000) == {"shop"}


async def test_notes_leave_the_other_numbers_of_the_environment_alone(db: Database) -> None:
    first = await db.next_generation("online")
    await watches.note(db, "online", ["shop"], 1_000, 1_000)
    await watches.note(db, "online", ["other"], 900_000, 1_000)  # drops what is over
    assert await db.next_generation("online") == first + 1
