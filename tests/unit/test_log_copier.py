"""The copier of SQLite's log copies seldom while little is written, so that an idle process seldom wakes for it."""

from __future__ import annotations

import pathlib
import sqlite3
import threading
from collections.abc import Iterator

import pytest

from emq.database.logcopier import COPY_EVERY_S, FEW, SELDOM_S, LogCopier
from emq.database.same_file import SameFile


class Rests(threading.Event):
    """Stands for the event that ends the copier; during each rest but the last, some pages are written."""

    def __init__(self, pages: Iterator[int], database: sqlite3.Connection) -> None:
        super().__init__()
        self.pages, self.database = pages, database
        self.rests: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.rests.append(timeout)
        if (pages := next(self.pages, None)) is None:
            return True
        self.database.executemany("INSERT INTO t VALUES (?)", [(b"x" * 4_000,) for _ in range(pages)])
        self.database.commit()
        return False


@pytest.fixture
def database(tmp_path: pathlib.Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / "x.db")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA wal_autocheckpoint=0")
    connection.execute("CREATE TABLE t (body BLOB)")
    yield connection
    connection.close()


def test_the_log_is_copied_seldom_after_few_pages_and_often_after_many(
    database: sqlite3.Connection, tmp_path: pathlib.Path
) -> None:
    copier = LogCopier(SameFile(str(tmp_path / "x.db")))
    copier._closed = rests = Rests(iter([1, 2 * FEW, 1]), database)
    copier._written.is_set = lambda: True  # type: ignore[method-assign]
    copier._written.wait = lambda timeout=None: True  # type: ignore[method-assign]
    copier._run()
    assert rests.rests == [COPY_EVERY_S, SELDOM_S, COPY_EVERY_S, SELDOM_S]
