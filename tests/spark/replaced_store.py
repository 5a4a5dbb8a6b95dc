"""Stores that come back empty, or as they were before."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import redis
from emq_data import Data

import emq_servers as servers


class Replaced:
    """A store, and a way to bring it back empty or as it was, under a catalog that stays.

    Attributes:
        lose: empties the store.
        keep: makes a copy of the store, and returns a function that restores the copy.
    """

    def __init__(self, data: Data, lose: Callable[[], None], keep: Callable[[], Callable[[], None]]) -> None:
        self.data = data
        self.lose = lose
        self.keep = keep


def on_sqlite(directory: Path) -> Iterator[Replaced]:
    file = directory / "store.db"

    def lose() -> None:
        for each in directory.glob("store.db*"):
            each.unlink()

    def keep() -> Callable[[], None]:
        shutil.copy(file, directory / "kept")

        def restore() -> None:
            lose()
            shutil.copy(directory / "kept", file)

        return restore

    yield Replaced(Data(f"sqlite:///{file}", f"sqlite:///{directory}/catalog.db"), lose, keep)


def on_redis(directory: Path) -> Iterator[Replaced]:
    with servers.start_redis() as server, redis.Redis.from_url(server.url) as client:

        def keep() -> Callable[[], None]:
            dumps = {key: client.dump(key) for key in client.scan_iter()}

            def restore() -> None:
                client.flushall()
                for key, dump in dumps.items():
                    client.restore(key, 0, dump)

            return restore

        yield Replaced(Data(server.url, f"sqlite:///{directory}/catalog.db"), lambda: client.flushall(), keep)
