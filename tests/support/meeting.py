"""Hosts without a cluster on one store and one database, and their starts by topic and second."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import emq
from emq.storage.message import Message


class Starts:
    """Every start, of all hosts of a test."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.hosts: Counter[str] = Counter()
        self._seconds: Counter[tuple[str, int]] = Counter()

    def note(self, host: str, message: Message) -> None:
        self.ids.append(message.id)
        self.hosts[host] += 1
        self._seconds[message.topic, message.started_us // 1_000_000] += 1

    def on(self, host: str) -> Callable[[Message], Awaitable[None]]:
        async def handle(message: Message) -> None:
            self.note(host, message)

        return handle

    @property
    def most_in_a_second(self) -> int:
        """Return the most starts of one topic in a second."""
        return max(self._seconds.values(), default=0)


class Meeting:
    """Apps on one store and one database, each with a handler for everything unless told otherwise."""

    def __init__(self, store: str, database: str) -> None:
        self.store = store
        self.database = database
        self.starts = Starts()
        self.prefix = f"t{uuid.uuid4().hex[:8]}"

    def app(self, name: str, pattern: str | None = None, **options: object) -> emq.App:
        """Return an app that is not entered yet. `pattern` is that of its handler; "" for none."""
        app = emq.App(self.store, database=self.database, options=emq.Settings(**options))  # type: ignore[arg-type]
        if pattern != "":
            app.handler(pattern or f"{self.prefix}.*")(self.starts.on(name))
        return app

    def topics(self, count: int) -> list[str]:
        return [f"{self.prefix}.{i}" for i in range(count)]


def on_redis(url: str, directory: Path) -> Meeting:
    """Return a meeting on a Redis that tests share, with a database file of its own."""
    return Meeting(url, f"sqlite:///{directory}/catalog.db")


def on_postgres(fresh: str) -> Meeting:
    """Return a meeting with store and database in a new PostgreSQL database."""
    return Meeting(fresh, fresh)
