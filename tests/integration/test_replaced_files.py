"""An SQLite file that is deleted or replaced under a running process: nothing more is acknowledged, and it is said."""

from __future__ import annotations

import asyncio
import logging
import os
import pathlib
import time
from collections.abc import Awaitable, Callable

import pytest

import emq
from emq.database import Database, host_stats
from emq.runtime import errors
from emq.storage.message import Message
from emq_stores.sql.backend import StoreDatabase
from support.waiting import until

Harm = Callable[[pathlib.Path], None]


def delete(file: pathlib.Path) -> None:
    file.unlink()


def delete_all(file: pathlib.Path) -> None:
    for each in file.parent.glob(f"{file.name}*"):
        each.unlink()


def replace(file: pathlib.Path) -> None:
    """As a restore does that moves a copy into place."""
    copy = file.with_suffix(".copy")
    copy.write_bytes(file.read_bytes())
    os.replace(copy, file)


def delete_log(file: pathlib.Path) -> None:
    pathlib.Path(f"{file}-wal").unlink()


HARMS = {"deleted": delete, "deleted-with-its-logs": delete_all, "replaced": replace, "log-deleted": delete_log}
SAID = r"(deleted|replaced).* while this process had it open"


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
async def test_a_producer_refuses_to_publish_into_a_file_that_lost_its_name(harm: Harm, tmp_path: pathlib.Path) -> None:
    async with emq.App(f"sqlite:///{tmp_path}/store.db", database=f"sqlite:///{tmp_path}/catalog.db") as app:
        await app.create_topic("orders", qps=100)
        await app.publish("orders", b"1")
        harm(tmp_path / "store.db")
        for _ in range(3):
            with pytest.raises(errors.StoreUnavailable, match=SAID):
                await app.publish("orders", b"2")
        assert (tmp_path / "store.db").exists() == (harm in (replace, delete_log))  # nobody made a new file


async def test_a_producer_goes_on_when_the_file_is_back(tmp_path: pathlib.Path) -> None:
    async with emq.App(f"sqlite:///{tmp_path}/emq.db") as app:
        await app.create_topic("orders", qps=100)
        await app.publish("orders", b"1")
        os.rename(tmp_path / "emq.db", tmp_path / "aside.db")
        with pytest.raises(errors.StoreUnavailable, match=SAID):
            await app.publish("orders", b"2")
        os.rename(tmp_path / "aside.db", tmp_path / "emq.db")
        await app.publish("orders", b"3")


async def test_a_process_that_changes_its_directory_keeps_its_file(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with emq.App("sqlite:///emq.db") as app:
        await app.create_topic("orders", qps=100)
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        await app.publish("orders", b"1")
        assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("name", ["store.db", "catalog.db"])
@pytest.mark.parametrize("harm", [delete, delete_all, replace], ids=["deleted", "deleted-with-its-logs", "replaced"])
async def test_an_idle_host_says_within_a_second_that_its_file_is_gone(
    harm: Harm, name: str, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with emq.App(f"sqlite:///{tmp_path}/store.db", database=f"sqlite:///{tmp_path}/catalog.db") as app:
        await app.create_topic("orders", qps=100)

        async def handle(_: Message) -> None:
            pass

        app.handlers.bind("orders", handle)
        async with app.running():
            await app.publish("orders", b"1")
            await asyncio.sleep(1)
            with caplog.at_level(logging.WARNING):
                harm(tmp_path / name)
                began = time.monotonic()
                await until(lambda: "while this process had it open" in caplog.text, 5)
            assert time.monotonic() - began < 1.0


@pytest.mark.parametrize(
    ("kind", "doubt"), [(Database, errors.DatabaseUnavailable), (StoreDatabase, errors.OutcomeUnknown)]
)
@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
async def test_a_change_while_which_the_file_went_may_not_have_been_applied(
    harm: Harm, kind: type[Database], doubt: type[Exception], tmp_path: pathlib.Path
) -> None:
    database = await kind.open(f"sqlite:///{tmp_path}/emq.db")
    try:
        assert await database.next_generation("online") == 1
        with pytest.raises(doubt, match=SAID):
            await database.run(lambda c: (c.exec_driver_sql("DELETE FROM emq_meta"), harm(tmp_path / "emq.db"))[1])
        for call in _calls(database):
            with pytest.raises(kind.unavailable, match=f"{SAID}.*nothing was applied"):
                await call()
        assert database.unreachable is not None
    finally:
        await database.close()


def _calls(database: Database) -> list[Callable[[], Awaitable[object]]]:
    return [lambda: database.next_generation("online"), lambda: host_stats.load(database, "online")]
