"""The relay of an outbox: publishes the rows of committed transactions, then deletes them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import threading
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from emq.app import App
from emq.app.sending import REFUSED
from emq.producer.outcomes import Outcome
from emq.producer.outgoing import Outgoing
from emq.runtime import errors, inputs, plurals
from emq_outbox import engines, turns

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine  # needs greenlet

POLL_S = 1.0
"""Seconds between looks at the table if no commit of the same process wakes the relay."""

PAGE = 500
"""Most rows that are published in one step."""

PAGE_BYTES = 8 << 20
"""Most bytes of payloads and options in one step, beside its last row."""

MAX_PAGE = 10_000
"""Largest page; a statement has room for the ids of so many rows on either database."""

STOP_S = 10.0
"""Most seconds that a stop waits for the step under way."""

log = logging.getLogger(__name__)


class Relay:
    """Goes through the table in passes, page by page, in the order of the rows.

    A page is read, published, and its rows are deleted, or marked with the reason of their refusal (see
    `emq.app.sending.REFUSED`). If a topic takes no message now (its store is away, or it is full), its rows wait for
    the next pass, and so do all later rows of that topic, so that none overtakes another. A pass begins every `poll_s`,
    or when a commit in this process wakes it.

    If the database fails after a page was published (a lock of SQLite, for one), the relay remembers the outcomes and
    does not publish these rows again.

    On PostgreSQL a page is one transaction, which has the turn (see `turns.py`). On SQLite publishing is outside of
    any transaction, because a transaction would hold up all writers.

    Args:
        lock: gives the turn within this process.

    Attributes:
        published: rows published so far.
    """

    def __init__(
        self,
        table: sa.Table,
        lock: threading.Lock,
        app: App,
        engine: sa.Engine | AsyncEngine,
        poll_s: float,
        page: int,
    ) -> None:
        self._table = table
        self._lock = lock
        self._app = app
        self._engine = engine
        self._poll_s = poll_s
        self._page = page
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self._stopping = False
        self._file: str | None = None  # of an SQLite database; "" in memory, None while it is not known
        self._settled: dict[tuple[int, str], Outcome] = {}  # of rows that are published or refused, and still there
        self._troubled: set[str] = set()
        self.published = 0
        if not inputs.is_positive(poll_s):
            raise errors.InvalidSettings(f"poll_s {inputs.shown(poll_s)} must be a number of seconds above 0")
        if not isinstance(page, int) or isinstance(page, bool) or not 1 <= page <= MAX_PAGE:
            raise errors.InvalidSettings(f"page {inputs.shown(page)} must be a number of rows from 1 to {MAX_PAGE}")
        if engine.dialect.name not in ("sqlite", "postgresql"):
            raise errors.InvalidSettings(
                f"an outbox relay reads SQLite or PostgreSQL, not {engine.dialect.name}; keep the outbox in one of them"
            )
        if isinstance(engine.pool, sa.pool.SingletonThreadPool):
            raise errors.InvalidSettings(
                "this engine of SQLite in memory gives each thread a database of its own, so the relay would find no "
                "rows; give a file, or in a test create_engine(..., poolclass=StaticPool)"
            )

    def wake(self) -> None:
        """Begin a pass now; from any thread."""
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._woken.set)

    async def stop(self, task: asyncio.Task[None]) -> None:
        """End after the page under way, so that none of its rows is published again.

        A cancellation waits for that page, too; a second one does not.
        """
        self._stopping = True
        self._woken.set()
        ended = asyncio.ensure_future(asyncio.wait([task], timeout=STOP_S))
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError:
            await ended
            raise
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def run(self) -> None:
        """Make passes until `stop`. A failing database or store is logged once, and asked again."""
        while not self._stopping:
            self._woken.clear()
            try:
                self._say(await self._pass())
            except (errors.EMQError, sa.exc.SQLAlchemyError) as exc:
                self._say({"": f"{type(exc).__name__}: {exc}"})
            except Exception as exc:
                self._say({"": f"{type(exc).__name__}: {exc}"}, exc)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._poll_s):
                    await self._woken.wait()

    async def _pass(self) -> dict[str, str]:
        """Go through the table once; return why rows wait, by topic. Ends at once if another has the turn."""
        after, troubles = 0, dict[str, str]()
        while not self._stopping:
            rows, outcomes = await self._step(after, troubles)
            if not rows:
                break
            after = rows[-1].id
            self.published += sum(isinstance(outcome, str) for outcome in outcomes)
            for row, outcome in zip(rows, outcomes, strict=True):
                if not isinstance(outcome, (str, *REFUSED)):
                    troubles.setdefault(row.topic, f"topic {row.topic!r}: {outcome}")
                    if isinstance(outcome, errors.StoreUnavailable | errors.DatabaseUnavailable):
                        return troubles
        return troubles

    async def _step(self, after: int, full: Collection[str]) -> tuple[Sequence[Any], Sequence[Outcome]]:
        """Publish one page; return its rows and their outcomes.

        Args:
            after: the row before the page.
            full: topics whose rows wait.
        """
        with turns.in_process(self._lock) as has_turn:
            if not has_turn:
                return [], []
            if self._engine.dialect.name == "postgresql":
                # In a stricter isolation the rows would be those from before the turn.
                async with engines.transaction(self._engine, "READ COMMITTED") as run:
                    if not await run(lambda c: turns.in_transaction(c, str(self._table))):
                        return [], []
                    rows = await run(lambda c: self._read(c, after, full))
                    outcomes = await self._send(rows)
                    await run(lambda c: self._settle(c, rows, outcomes))
            else:
                if self._file is None:
                    async with engines.transaction(self._engine) as run:
                        self._file = await run(turns.file_of)
                with turns.by_file(self._file, self._table.name) as has_turn:
                    if not has_turn:
                        return [], []
                    async with engines.transaction(self._engine) as run:
                        rows = await run(lambda c: self._read(c, after, full))
                    outcomes = await self._send(rows)
                    if rows:
                        async with engines.transaction(self._engine) as run:
                            await run(lambda c: self._settle(c, rows, outcomes))
            for row in rows:
                self._settled.pop((row.id, row.message_id), None)
            if not rows and not full:  # the whole table was read: somebody else has deleted the rest
                self._settled.clear()
            return rows, outcomes

    def _read(self, connection: sa.Connection, after: int, full: Collection[str]) -> Sequence[Any]:
        columns = self._table.c
        waiting = columns.error.is_(None) & (columns.id > after)
        if full:
            waiting &= columns.topic.not_in(full)
        sizes = sa.select(columns.id, sa.func.length(columns.payload) + sa.func.length(columns.options)).where(waiting)
        last, size = after, 0
        for id_, length in connection.execute(sizes.order_by(columns.id).limit(self._page)):
            last, size = id_, size + length
            if size >= PAGE_BYTES:
                break
        if last == after:
            return []
        rows = sa.select(self._table).where(waiting, columns.id <= last).order_by(columns.id).limit(self._page)
        return connection.execute(rows).all()

    async def _send(self, rows: Sequence[Any]) -> Sequence[Outcome]:
        outcomes = self._settled  # of rows that an earlier step could not delete
        fresh = [(row.id, row.message_id, _outgoing(row)) for row in rows if (row.id, row.message_id) not in outcomes]
        sent = await self._app.send([m for _, _, m in fresh if isinstance(m, Outgoing)])
        of_sent = iter(sent)
        found = dict(outcomes)
        for id_, message_id, m in fresh:
            found[id_, message_id] = next(of_sent) if isinstance(m, Outgoing) else m
        self._settled = {of: outcome for of, outcome in found.items() if isinstance(outcome, (str, *REFUSED))}
        return [found[row.id, row.message_id] for row in rows]

    def _settle(self, connection: sa.Connection, rows: Sequence[Any], outcomes: Sequence[Outcome]) -> None:
        columns = self._table.c
        done = [row.id for row, outcome in zip(rows, outcomes, strict=True) if isinstance(outcome, str)]
        if done:
            connection.execute(self._table.delete().where(columns.id.in_(done)))
        refused = [(row, o) for row, o in zip(rows, outcomes, strict=True) if isinstance(o, REFUSED)]
        for row, error in refused:
            reason = f"{type(error).__name__}: {_storable(error)}"
            connection.execute(self._table.update().where(columns.id == row.id).values(error=reason))
        if refused:
            (row, error), count = refused[0], len(refused)
            others = f" and {plurals.others(count - 1)}" if count > 1 else ""
            log.warning(
                "outbox %s: refused message %s (%s)%s; the reason is in the column error, and NULL there tries again",
                *(self._table, row.message_id, _storable(error), others),
            )

    def _say(self, troubles: dict[str, str], unexpected: Exception | None = None) -> None:
        """Log a trouble of a topic when it begins, and the end of all troubles.

        Args:
            troubles: by topic; that of the database or the whole store is "".
        """
        fresh = [text for topic, text in troubles.items() if topic not in self._troubled]
        if fresh:
            others = f" (and {plurals.count(len(fresh) - 1, 'other topic')})" if len(fresh) > 1 else ""
            waits = "outbox %s: its rows wait, and are tried every %g s: %s%s"
            log.warning(waits, self._table, self._poll_s, fresh[0], others, exc_info=unexpected)
        if self._troubled and not troubles:
            log.info("outbox %s: its rows are published again", self._table)
        self._troubled = self._troubled | troubles.keys() if troubles else set()


def _storable(error: Exception) -> str:
    """Return an error's text without NULs and lone surrogates, which PostgreSQL and logs do not take."""
    return str(error).replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()


def _outgoing(row: Any) -> Outgoing | errors.InvalidMessage:
    try:
        options = json.loads(row.options)
        if not isinstance(options, dict):
            return errors.InvalidMessage(f"the row's options {inputs.shown(row.options)} are not a JSON object")
        if (merge_key := options.pop("merge_key_base64", None)) is not None:
            options["merge_key"] = base64.b64decode(merge_key)
        return Outgoing(row.topic, row.payload, row.message_id, **options)
    except (TypeError, ValueError, RecursionError) as exc:  # somebody else has written it
        return errors.InvalidMessage(f"the row's options cannot be read: {exc}")
