"""A real SQLite file as the keeper of a simulation's data.

All of the adapter and its statements are real, each instance with a connection of its own to the file. In place of the
adapter's threads, each transaction runs where it is asked for and blocks until it is committed, so that no virtual time
passes in between and no lock is ever waited for. What wakes hosts is real, too: each looks for wake-ups whenever the
file was written to, every 20 ms of virtual time. Only how it sees that is not: by the number of commits, since the
times of the log beside the file are the machine's.

The clock of SQLite is the machine's. Two statements look at it: one stamps wake-ups that are left for a host, the other
forgets, when a store is opened, those that nobody has taken for ten minutes. In a simulation, which takes seconds, none
is forgotten. All others go by the times that hosts give them, which are virtual; when to look for wake-ups that nobody
announced is virtual, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import tempfile
import types
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast
from unittest import mock

import sqlalchemy as sa

from emq.runtime.clock import Clock
from emq.runtime.environment import Environment
from emq.storage.durability import Durability
from emq.storage.store import Store
from emq_stores.sql.backend import StoreDatabase
from emq_stores.sql.store import open_store
from emq_testing.database import InlineDatabase
from support.simulation.keepers import Contents, Keep, at_once
from support.simulation.member import ENVIRONMENT

T = TypeVar("T")


@contextlib.contextmanager
def keeping() -> Iterator[Keep]:
    """See `keepers.keeping`."""
    with (
        tempfile.TemporaryDirectory(prefix="emq-simulation-") as directory,
        mock.patch("emq_stores.sql.store.StoreDatabase", _BlockingDatabase),
        mock.patch("emq_stores.sql.listen._written", lambda file: (_commits[file.removesuffix("-wal")], 0)),
        mock.patch("emq_stores.sql.listen.time", _VIRTUAL),
        mock.patch("emq_stores.sql.damage.time", _VIRTUAL),
    ):
        numbers = itertools.count(1)
        yield Keep("sqlite", lambda clock: SqliteKeeper(Path(directory) / f"{next(numbers)}.db", clock))


class SqliteKeeper:
    """See `Keeper`.

    Args:
        file: its own, which is not there yet.
    """

    def __init__(self, file: Path, clock: Clock) -> None:
        self._file = file
        self._clock = clock
        self._opened: list[Store] = []
        self.store = self.open()

    def open(self) -> Store:
        store = at_once(open_store(f"sqlite:///{self._file}", Environment(ENVIRONMENT)))
        store.follow(self._clock)
        self._opened.append(store)
        return store

    def head_of(self, queue: str) -> int:
        [bounds] = at_once(cast(Any, self.store.log.bounds([queue])))
        return int(bounds.head)

    def snapshot(self) -> object:
        raise NotImplementedError(_STAYS)

    def restore(self, snapshot: object | None) -> None:
        raise NotImplementedError(_STAYS)

    def contents(self) -> Contents:
        raise NotImplementedError(_STAYS)

    def close(self) -> None:
        for store in self._opened:
            at_once(store.close())


_STAYS = "a file keeps what it was given; see LEFT_OUT"

_commits: Counter[str] = Counter()
"""By file, of all connections."""

_VIRTUAL = types.SimpleNamespace(monotonic=lambda: asyncio.get_running_loop().time())


class _BlockingDatabase(InlineDatabase, StoreDatabase):
    """Works in the caller's thread, and has none that copies its log to the file."""

    def __init__(self, url: str, *of_servers: float) -> None:
        super().__init__(url, *of_servers)
        self._copier = None

    def _transact(
        self,
        fn: Callable[[sa.Connection], T],
        read_only: bool,
        durability: Durability | None,
        long_s: float | None = None,
    ) -> T:
        result = super()._transact(fn, read_only, durability, long_s)
        if not read_only:
            _commits[str(self.url.database)] += 1
        return result
