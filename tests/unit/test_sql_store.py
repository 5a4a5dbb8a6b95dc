"""What the SQL store promises beyond the contract, on SQLite."""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from emq.database import Database
from emq.runtime import errors
from emq.runtime.environment import Environment
from emq.storage.lane_store import LaneAdd, LaneSettle, LaneVerdict
from emq.storage.log_store import Put, Read, Trim
from emq.topics.catalog import Catalog
from emq.topics.model import Topic
from emq_stores.sql import SqlStore, host_lock, hostlock, open_store
from emq_stores.sql.tables import STORE
from support import schemas

QUEUE = "shop/0/high"


async def opened(path: Path, query: str = "") -> SqlStore:
    return await open_store(f"sqlite:///{path}/emq.db{query}", Environment.ONLINE)


async def test_messages_and_fences_survive_a_restart(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    await store.log.put([Put(QUEUE, [b"a", b"b"])])
    await store.log.read([Read(QUEUE, 1, 1, 7)])
    await store.close()
    store = await opened(tmp_path)
    assert await store.log.get(QUEUE, 2) == b"b"
    (stale,) = await store.log.read([Read(QUEUE, 1, 1, 6)])
    assert isinstance(stale, errors.NotOwner)
    await store.close()


async def test_a_store_and_a_catalog_may_share_a_file(tmp_path: Path) -> None:
    store, db = await opened(tmp_path), await Database.open(f"sqlite:///{tmp_path}/emq.db")
    catalog = Catalog(db, "online", store.log.max_queue_qps)
    puts = (store.log.put([Put(QUEUE, [b"a"])]) for _ in range(20))
    await asyncio.gather(*puts, *(catalog.create(Topic(f"t{i}", 1)) for i in range(20)))
    assert (await store.log.bounds([QUEUE]))[0].tail == 21
    assert len(await catalog.list()) == 20
    await store.close()
    await db.close()


async def test_what_an_older_version_noted_as_taken_counts_by_the_time_that_it_noted(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    for id_ in ("a", "b"):
        await store.lanes.add([LaneAdd("shop/0", id_, b"x", 0)])
        await store.lanes.settle([LaneSettle("shop/0", id_, LaneVerdict.RECALL, for_good=True)])
    older = "UPDATE store_entries SET at_ms = 5000, due_ms = 0 WHERE state = 3 RETURNING 1"
    await store._backend.db.run(lambda c: c.exec_driver_sql(older).all())
    adds = [LaneAdd("shop/0", "a", b"x", 0, since_ms=5000), LaneAdd("shop/0", "b", b"x", 0, since_ms=5001)]
    assert await store.lanes.add(adds) == [None, True]
    await store.close()


async def test_a_full_disk_is_answered_and_nothing_of_the_call_is_kept(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    run = store._backend.db.run
    await store.log.put([Put(QUEUE, [b"first"])])
    await run(lambda c: c.exec_driver_sql("PRAGMA max_page_count=40").all())
    refused = await store.log.put([Put(QUEUE, [bytes(100_000)] * 3), Put("other/0/high", [b"x"])])
    assert [type(answer) for answer in refused] == [errors.StoreFull, errors.StoreFull]
    with pytest.raises(errors.StoreFull, match="no room left"):
        await store.lanes.add([LaneAdd("shop/0", "x", bytes(300_000), 0)])
    assert (await store.log.bounds([QUEUE, "other/0/high"]))[0].tail == 2
    assert await store.log.trim([Trim(QUEUE, 2, 1)]) == [False]
    await run(lambda c: c.exec_driver_sql("PRAGMA max_page_count=4000").all())
    assert not isinstance((await store.log.put([Put(QUEUE, [b"second"])]))[0], Exception)
    await store.close()


async def test_the_url_may_name_a_cap_for_one_queue(tmp_path: Path) -> None:
    for query, cap in (("?max_queue_qps=150", 150.0), ("", None)):
        store = await opened(tmp_path, query)
        assert store.log.max_queue_qps == cap
        await store.close()
    for wrong in ("0", "many", "inf"):
        with pytest.raises(errors.InvalidSettings, match=f"max_queue_qps '{wrong}'"):
            await opened(tmp_path, f"?max_queue_qps={wrong}")


async def test_a_file_that_is_no_database_is_a_wrong_setting(tmp_path: Path) -> None:
    (tmp_path / "emq.db").write_text("something else, and long enough to be looked at " * 20)
    with pytest.raises(errors.InvalidSettings, match="not an SQLite database"):
        await opened(tmp_path)


async def test_a_host_in_another_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    held = os.open(tmp_path / "emq.db.host-lock", os.O_RDWR | os.O_CREAT)
    # To the system, another open file is another holder; a second process would look the same.
    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(errors.HostConflict, match=r"emq\.db already; stop that host"):
        store.watch()
    await store.log.put([Put(QUEUE, [b"publishing needs no lock"])])
    os.close(held)
    store.claim_host()
    store.claim_host()
    await store.close()


async def test_hosts_of_one_process_share_the_file_and_the_last_one_frees_it(tmp_path: Path) -> None:
    def is_free() -> bool:
        probe = os.open(tmp_path / "emq.db.host-lock", os.O_RDWR)
        try:
            fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(probe)
        return True

    first, second = host_lock(tmp_path / "emq.db"), host_lock(tmp_path / "emq.db")
    host_lock(tmp_path / "emq.db", Environment.SANDBOX).release()
    first.release()
    first.release()
    assert not is_free()
    second.release()
    assert is_free()
    third = host_lock(tmp_path / "emq.db")
    [copy] = [os.dup(descriptor) for descriptor, _ in hostlock._held.values()]  # as a fork copies the open file
    third.release()
    assert is_free()
    os.close(copy)


def test_a_forked_child_has_no_part_in_the_lock_of_its_parent(tmp_path: Path) -> None:
    lock = host_lock(tmp_path / "emq.db")
    hostlock._forget_in_child()  # which closes the only copy here, where no parent has another one
    lock.release()
    second = host_lock(tmp_path / "emq.db")
    assert [holders for _, holders in hostlock._held.values()] == [1]
    second.release()


async def test_a_cancelled_put_is_whole_or_absent_and_still_wakes(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    await store.log.read([Read(QUEUE, 1, 10, 1)])
    task = asyncio.ensure_future(store.log.put([Put(QUEUE, [b"a", b"b"])]))
    await asyncio.sleep(0)
    task.cancel()
    (bounds,) = await store.log.bounds([QUEUE])
    assert bounds.tail in (1, 3)
    if bounds.tail == 3:
        async with asyncio.timeout(5):
            assert await anext(store.watch()) == [QUEUE]
    await store.close()


async def test_a_commit_of_unknown_outcome_has_everything_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have stored what a reader waits for, and its wake-up is lost."""
    store = await opened(tmp_path)
    await store.log.read([Read(QUEUE, 1, 10, 1)])
    db = store._backend.db
    run = db.run

    async def breaks_behind_its_commit(fn: Any, *, then: object = None, **given: Any) -> None:
        await run(fn, **given)
        raise errors.OutcomeUnknown("the connection broke while committing")

    watcher = store.watch()
    woken = asyncio.ensure_future(anext(watcher))
    await asyncio.sleep(0)
    monkeypatch.setattr(db, "run", breaks_behind_its_commit)
    with pytest.raises(errors.OutcomeUnknown):
        await store.log.put([Put(QUEUE, [b"a"])])
    async with asyncio.timeout(5):
        assert await woken is None
    await store.close()


async def test_the_migrations_lead_to_the_tables(tmp_path: Path) -> None:
    await schemas.check(STORE, tmp_path)
