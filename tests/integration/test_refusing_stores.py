"""Stores that refuse, or do not end, what their clients ask for: publishers hear it, and nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import psycopg
import pytest
import redis

import emq_servers as servers
from support.cluster import Note
from support.ledger import Ledger
from support.loops import on_both_loops
from support.sorted_load import Load
from support.waiting import until

FAULT_S = 6.0

Switch = Callable[[bool], None]
"""Turns the fault on and off."""

Faulty = Iterator[tuple[str, Switch]]
"""The URL of a store, and the switch of its fault."""

INSERTED = ("store_messages", "store_entries", "store_members")
"""Tables of a store in SQL that get a row for each message."""


@contextlib.contextmanager
def valkey_read_only(directory: Path) -> Faulty:
    """A failover made it a replica, and its clients are still connected."""
    with servers.start_redis(appendonly=True) as server, redis.Redis.from_url(server.url) as admin:
        yield server.url, lambda on: admin.replicaof(*(("127.0.0.1", "1") if on else ("NO", "ONE")))


@contextlib.contextmanager
def _postgres(on: str, off: str, *prepare: str) -> Faulty:
    with servers.start_postgres() as server, psycopg.connect(server.url, autocommit=True) as admin:
        is_ready = False

        def switch(to: bool) -> None:
            nonlocal is_ready
            for statement in (*(() if is_ready else prepare), on if to else off, "SELECT pg_reload_conf()"):
                admin.execute(statement.encode())
            is_ready = True

        yield server.url, switch


def postgres_read_only(directory: Path) -> AbstractContextManager[tuple[str, Switch]]:
    setting = "ALTER SYSTEM SET default_transaction_read_only"
    return _postgres(f"{setting} = on", f"{setting} = off")


def _at_inserts(does: str) -> AbstractContextManager[tuple[str, Switch]]:
    """A function that runs at each insert of a message; a change of its body waits for no lock on the tables."""
    function = "CREATE OR REPLACE FUNCTION fault() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {} RETURN NEW; END $$"
    triggers = (f"CREATE TRIGGER t BEFORE INSERT ON {t} FOR EACH ROW EXECUTE FUNCTION fault()" for t in INSERTED)
    return _postgres(function.format(does), function.format(""), function.format(""), *triggers)


def postgres_full(directory: Path) -> AbstractContextManager[tuple[str, Switch]]:
    return _at_inserts("RAISE 'could not extend file: no space left on device' USING ERRCODE = '53100';")


def postgres_too_slow(directory: Path) -> AbstractContextManager[tuple[str, Switch]]:
    """Statements run into their time-out."""
    return _at_inserts("PERFORM pg_sleep(60);")


@contextlib.contextmanager
def sqlite_full(directory: Path) -> Faulty:
    full = "CREATE TRIGGER full_{0} BEFORE INSERT ON {0} BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"

    def switch(on: bool) -> None:
        with contextlib.closing(sqlite3.connect(directory / "store.db", timeout=20)) as admin:
            for table in INSERTED:
                admin.execute(full.format(table) if on else f"DROP TRIGGER full_{table}")

    yield f"sqlite:///{directory}/store.db", switch


@contextlib.contextmanager
def sqlite_locked(directory: Path) -> Faulty:
    """Another process holds the lock of those who write."""
    with contextlib.ExitStack() as held:

        def switch(on: bool) -> None:
            if on:
                path = directory / "store.db"
                admin = sqlite3.connect(path, isolation_level=None, timeout=20, check_same_thread=False)
                held.callback(admin.close)
                admin.execute("BEGIN IMMEDIATE")
            else:
                held.close()

        yield f"sqlite:///{directory}/store.db", switch


FAULTS: dict[str, Callable[[Path], AbstractContextManager[tuple[str, Switch]]]] = {
    f.__name__: f
    for f in (valkey_read_only, postgres_read_only, postgres_full, postgres_too_slow, sqlite_full, sqlite_locked)
}


@pytest.fixture(params=FAULTS)
def faulty(request: pytest.FixtureRequest, tmp_path: Path) -> Faulty:
    server = {"valkey": "redis_server", "postgres": "postgres_server"}.get(request.param.partition("_")[0])
    if server:
        request.getfixturevalue(server)  # skips or fails where there is none
    with FAULTS[request.param](tmp_path) as made:
        yield made


@on_both_loops
async def test_what_a_store_refuses_is_told_and_all_that_was_published_is_delivered(
    faulty: tuple[str, Switch], tmp_path: Path, record_property: Note
) -> None:
    url, switch = faulty
    ledger = Ledger(url, f"sqlite:///{tmp_path}/catalog.db", record_property)
    async with ledger.host():
        await ledger.more(200)
        await asyncio.to_thread(switch, True)
        await asyncio.sleep(FAULT_S)
        await until(lambda: ledger.unknown | ledger.refused)
        await asyncio.to_thread(switch, False)
        await ledger.more(200)
    ledger.judge()


@on_both_loops
async def test_members_of_slots_outlive_a_store_that_refuses_them(faulty: tuple[str, Switch], tmp_path: Path) -> None:
    url, switch = faulty
    load = Load(url, tmp_path)
    async with load.running():
        await load.more(20)
        await asyncio.to_thread(switch, True)
        await asyncio.sleep(FAULT_S)
        await until(lambda: load.unknown | load.refused)
        await asyncio.to_thread(switch, False)
        await load.more(20)
