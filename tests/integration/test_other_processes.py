"""What a second process sees of the first, leaves behind, or makes the same."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from emq.allocation.tree.database import sessions
from emq.runtime.environment import Environment
from emq.storage.log_store import Read
from emq_stores.sql import open_store

QUEUE = "shop/0/high"


def test_a_process_that_has_ended_is_known_to_be_gone_and_no_other() -> None:
    mine = sessions.this_process()
    code = "from emq.allocation.tree.database import sessions; print(sessions.this_process())"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert sessions.is_gone(other)
    assert not sessions.is_gone(mine)
    assert not sessions.is_gone("")
    assert not sessions.is_gone(f"another-machine/{other}")
    assert sessions.is_gone(mine + "0"), "the same process id, begun at another time"


def test_a_new_plan_does_not_depend_on_the_process_that_makes_it() -> None:
    code = (
        "from emq.allocation.plan.plan import plan\n"
        "made = plan({f't/{i}': 1.0 + i % 7 for i in range(300)}, {f'h{i}': 1.0 for i in range(9)})\n"
        "print(sorted(made.owner.items()))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def test_a_function_that_never_returns_does_not_keep_the_process_from_ending() -> None:
    program = """
import asyncio, threading
from emq.quota.places.threads import Threads
async def main():
    asyncio.create_task(Threads(1, "t").run("t", threading.Event().wait, None))
    await asyncio.sleep(0.1)
asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", program], timeout=60, check=True)


async def test_a_put_from_another_process_wakes_the_watcher(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/emq.db"
    store = await open_store(url, Environment.ONLINE)
    await store.log.read([Read(QUEUE, 1, 10, 1)])
    watcher = store.watch()
    woken = asyncio.ensure_future(anext(watcher))
    script = f"""
import asyncio
from emq.runtime.environment import Environment
from emq.storage.log_store import Put
from emq_stores.sql import open_store

async def main():
    store = await open_store("{url}", Environment.ONLINE)
    await store.log.put([Put("{QUEUE}", [b"a"])])
    await store.close()

asyncio.run(main())
"""
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", script], check=True, timeout=20)
    async with asyncio.timeout(5):
        assert await woken == [QUEUE]
    await store.close()
    with pytest.raises(StopAsyncIteration):
        await anext(watcher)
