"""Connections to PostgreSQL that give up a silent server. Import this only if psycopg is installed.

A server that hangs keeps its connections open and says nothing. No setting of the server or of TCP notices this, since
the kernel goes on acknowledging. So the client watches the clock in the one method that waits.

A server that works, and only waits for a lock, does not notice that a client has gone: the statement would keep its
connection, and each repeat would add another. So the client first asks the server to cancel the statement, and closes
the connection only if that is not answered either. `_SETTINGS` end the statements and transactions of a client that
died.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator
from typing import Any

import psycopg
import sqlalchemy as sa
import sqlalchemy.event

from emq.database.deadline import Deadline

CONNECT_TIMEOUT_S = 3
"""Most seconds for a server to accept a connection, within the deadline of the call."""

CANCEL_S = 0.5
"""Most seconds for the server to take the request to cancel a statement, and then to end the statement."""

LOCK_MS = 9_000
"""Most milliseconds that a statement waits for a lock: less than the deadline of most calls, so that the error names
the lock, and the connection stays."""

STATEMENT_MS = 12_000
"""Most milliseconds of a statement: a little more than the deadline of all but the longest calls."""

_SETTINGS = {
    "lock_timeout": LOCK_MS,
    "statement_timeout": STATEMENT_MS,
}

_IDLE = "idle_in_transaction_session_timeout"

_CHECK_MS = 1_000
"""Milliseconds between the server's looks, during a statement, whether the client is still there. PostgreSQL can do
this from version 14 on, and not on every system."""


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
            return super().wait(_until(gen, self.deadline, self._cancel), *args, **options)
        except _Silent:
            self.pgconn.finish()  # so that a late answer is not taken for that of a later call
            raise

    def _cancel(self) -> bool:
        """Ask the server to cancel the statement under way; return False if there is none."""
        is_under_way = self.pgconn.transaction_status == psycopg.pq.TransactionStatus.ACTIVE
        if not is_under_way or not psycopg.capabilities.has_cancel_safe():  # older libraries may wait without end
            return False
        try:
            self.cancel_safe(timeout=CANCEL_S)  # on a connection of its own, which a silent server does not answer
        except psycopg.Error:
            return False
        return True


def guard(engine: sa.Engine, deadline: Deadline, idle_s: float) -> None:
    """Make the connections of `engine` keep to `deadline`.

    Args:
        idle_s: most seconds that a process which was stopped in the middle of a transaction holds its locks.
    """

    def connect(_dialect: Any, _record: Any, args: Any, options: dict[str, Any]) -> Connection:
        options["connect_timeout"] = max(1, math.ceil(min(CONNECT_TIMEOUT_S, deadline.left_s())))
        connection = Connection.connect(*args, **options)
        connection.deadline = deadline
        settings = _SETTINGS | {_IDLE: math.ceil(idle_s * 1000)}
        set_all = ", ".join(f"set_config('{name}', '{value}', false)" for name, value in settings.items())
        connection.execute(f"SELECT {set_all}")
        connection.commit()
        with contextlib.suppress(psycopg.Error):  # the server, or its system, cannot do this
            connection.execute(f"SET client_connection_check_interval TO {_CHECK_MS}")
        if connection.info.transaction_status is psycopg.pq.TransactionStatus.INERROR:
            connection.rollback()
        else:
            connection.commit()
        return connection

    sqlalchemy.event.listen(engine, "do_connect", connect)


def last_longer(connection: sa.Connection, timeout_s: float) -> None:
    """Let this transaction take as long as its call."""
    for name in (*_SETTINGS, _IDLE):
        connection.exec_driver_sql(f"SET LOCAL {name} TO {math.ceil(timeout_s * 1000)}")


def _until(gen: Generator[Any, Any, Any], deadline: Deadline, cancel: Callable[[], bool]) -> Generator[Any, Any, Any]:
    """As `gen`, which psycopg resumes ten times a second while nothing comes.

    Once the deadline has passed, cancel the statement; raise if the server does not answer that either.
    """
    until = 0.0
    try:
        wanted = next(gen)
        while True:
            came = yield wanted
            if not came and deadline.left_s() <= until:
                if not until and cancel():
                    until = deadline.left_s() - CANCEL_S
                else:
                    gen.close()
                    raise _Silent("the server is silent: it gave no answer in time")
            wanted = gen.send(came)
    except StopIteration as end:
        return end.value
