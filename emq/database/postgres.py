"""Connections to PostgreSQL that give up a server that has fallen silent. Import it only where psycopg is installed.

A server that hangs keeps its connections open and says nothing. No setting of the server or of TCP notices this, since
the kernel goes on acknowledging. So the client looks at the clock while it waits, in the one method that waits.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any

import psycopg
import sqlalchemy as sa
import sqlalchemy.event

from emq.database.deadline import Deadline

CONNECT_TIMEOUT_S = 3
"""Most seconds for a server to accept a connection, within the deadline of the call."""

IDLE_IN_TRANSACTION_MS = 30_000
"""Most milliseconds that a process which was stopped in the middle of a transaction holds its locks."""


class _Silent(psycopg.OperationalError):
    """The server gave no answer before the deadline."""


class Connection(psycopg.Connection[Any]):
    """A connection that waits for the server at most until the deadline of its thread's call, and is closed then.

    Attributes:
        deadline: None until the connection is made.
    """

    deadline: Deadline | None = None

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **options: Any) -> Any:
        """See `psycopg.Connection.wait`, through which each statement, commit and roll back goes."""
        if self.deadline is None:
            return super().wait(gen, *args, **options)
        try:
            return super().wait(_until(gen, self.deadline), *args, **options)
        except _Silent:
            self.pgconn.finish()  # so that a late answer is not taken for the answer to a later question
            raise


def guard(engine: sa.Engine, deadline: Deadline) -> None:
    """Make the connections of `engine` keep to `deadline`."""

    def connect(_dialect: Any, _record: Any, args: Any, options: dict[str, Any]) -> Connection:
        options["connect_timeout"] = max(1, math.ceil(min(CONNECT_TIMEOUT_S, deadline.left_s())))
        connection = Connection.connect(*args, **options)
        connection.deadline = deadline
        connection.execute(f"SET idle_in_transaction_session_timeout TO {IDLE_IN_TRANSACTION_MS}")
        connection.commit()
        return connection

    sqlalchemy.event.listen(engine, "do_connect", connect)


def _until(gen: Generator[Any, Any, Any], deadline: Deadline) -> Generator[Any, Any, Any]:
    """As `gen`, which psycopg resumes ten times a second while nothing comes; raise once the deadline has passed."""
    try:
        wanted = next(gen)
        while True:
            came = yield wanted
            if not came and deadline.left_s() <= 0:
                gen.close()
                raise _Silent("the server is silent: it gave no answer in time")
            wanted = gen.send(came)
    except StopIteration as end:
        return end.value
