from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from emq.database import Database, tables
from support.waiting import until


async def test_a_close_that_is_cancelled_ends_the_threads_of_the_database_all_the_same(tmp_path: Path) -> None:
    database = await Database.open(f"sqlite:///{tmp_path}/emq.db")
    await database.run(lambda c: c.execute(tables.meta.delete()).rowcount)
    assert database._copier is not None
    copying = database._copier._thread
    assert copying is not None
    assert copying.is_alive()
    slow = asyncio.create_task(database.run(lambda c: time.sleep(0.3)))
    await asyncio.sleep(0.05)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await database.close()
    await slow
    await until(lambda: not copying.is_alive(), 5)
