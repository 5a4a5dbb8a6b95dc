"""One relay at a time: with two relays of one table, messages of one key could overtake each other."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import threading
from collections.abc import Iterator

import sqlalchemy as sa


@contextlib.contextmanager
def in_process(lock: threading.Lock) -> Iterator[bool]:
    """Yield whether no other relay of this process has its turn; if so, this one has it for the length of the block."""
    has_turn = lock.acquire(blocking=False)
    try:
        yield has_turn
    finally:
        if has_turn:
            lock.release()


@contextlib.contextmanager
def by_file(database: str, table: str) -> Iterator[bool]:
    """Yield as `in_process` does, for the processes that share an SQLite file: by a lock on a file beside it.

    The lock goes with the process that holds it. A transaction of SQLite would keep all writers of the file waiting
    while the relay publishes.

    Args:
        database: path of the SQLite file; "" for a database in memory, which no other process has.
    """
    if not database:
        yield True
        return
    with open(f"{database}-{table}-relay", "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        try:
            yield True
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # a process that was forked meanwhile has a copy of the open file


def file_of(connection: sa.Connection) -> str:
    """Return the path of the SQLite file that a connection uses, whatever its URL says; "" if it is in memory."""
    return next(file for _, name, file in connection.exec_driver_sql("PRAGMA database_list") if name == "main") or ""


def in_transaction(connection: sa.Connection, table: str) -> bool:
    """Return whether this transaction of PostgreSQL has the turn, which it then keeps to its end."""
    number = int.from_bytes(hashlib.sha256(f"emq outbox {table}".encode()).digest()[:8], signed=True)
    return bool(connection.scalar(sa.select(sa.func.pg_try_advisory_xact_lock(number))))
