"""Keeps the use of a pool's limits in the database, while this host owns the pool."""

from __future__ import annotations

import asyncio
import itertools
import logging
import uuid
from collections.abc import Callable, Sequence

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from emq.database.database import ANSWER_S, QUICK_S
from emq.runtime import errors
from emq.runtime.clock import Clock
from emq_scheduling.database import schema, tables
from emq_scheduling.limits.accounts import Accounts
from emq_scheduling.limits.usage import KEYS_AT_ONCE, SavedUse, Usage

log = logging.getLogger(__name__)

SAVE_S = 1.0
"""Seconds between saves."""

SHORT_S = 0.05
"""Seconds between looks whether a task waits for a save."""

_OWNER = ""
"""The name of a resource that none has; its row names the owner."""

_usage = tables.usage
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(SavedUse).decode


class UsageTable(schema.Tables):
    """The saved use of pools' limits."""

    async def claim(self, pool: str, owner: str) -> dict[str, SavedUse]:
        """Let only this owner save from now on; return the last saved use, by resource."""

        def claim(connection: sa.Connection) -> dict[str, SavedUse]:
            self._write(connection, pool, {_OWNER: owner})  # waits for a save that is under way
            query = sa.select(_usage.c.resource, _usage.c.body).where(*self._of(pool), _usage.c.resource != _OWNER)
            return {row.resource: _decode(row.body) for row in connection.execute(query)}

        return await self.run(claim, deadline_s=ANSWER_S)

    async def save(
        self, pool: str, owner: str, number: int, uses: dict[str, SavedUse], gone: Sequence[str] = ()
    ) -> bool:
        """Save the use of accounts; return False, and save nothing, if another owner has claimed the pool.

        Args:
            number: of the owner's saves, from 1. One that comes late, after one with a higher number, changes nothing.
            gone: names of accounts to delete.
        """

        def save(connection: sa.Connection) -> bool:
            mine = (*self._of(pool), _usage.c.resource == _OWNER, _usage.c.body == owner, _usage.c.number < number)
            if connection.execute(sa.update(_usage).where(*mine).values(number=number)).rowcount != 1:
                return False
            self._write(connection, pool, {name: _encode(use).decode() for name, use in uses.items()})
            if gone:
                dead = sa.delete(_usage).where(*self._of(pool), _usage.c.resource == sa.bindparam("gone"))
                connection.execute(dead, [{"gone": name} for name in gone])
            return True

        return await self.run(save, deadline_s=QUICK_S)

    async def drop(self, pool: str) -> None:
        """Forget the use of a pool. Safe to repeat."""
        await self.run(lambda c: c.execute(sa.delete(_usage).where(*self._of(pool))), deadline_s=QUICK_S)

    def _of(self, pool: str) -> tuple[sa.ColumnElement[bool], ...]:
        return (_usage.c.environment == self._environment, _usage.c.pool == pool)

    def _write(self, connection: sa.Connection, pool: str, bodies: dict[str, str]) -> None:
        insert = (postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert)(_usage)
        keys = ["environment", "pool", "resource"]
        update = insert.on_conflict_do_update(index_elements=keys, set_={"body": insert.excluded.body, "number": 0})
        own = {"environment": self._environment, "pool": pool, "number": 0}
        if bodies:
            connection.execute(update, [{**own, "resource": name, "body": body} for name, body in bodies.items()])


class UsageKeeper:
    """Saves the use of one pool's limits, for one owner.

    States: begun by `begin`; then `run` saves until it is cancelled; `end` saves the last time. Once another owner has
    claimed the pool, nothing more is saved, and only the reserve may still start here.

    Args:
        accounts: made with `saves=True`.
        on_saved: called after each save: tasks may have room then.
    """

    def __init__(
        self,
        table: UsageTable,
        pool: str,
        accounts: Accounts,
        clock: Clock,
        on_saved: Callable[[], None] = lambda: None,
    ) -> None:
        self._table = table
        self._pool = pool
        self._usage = Usage(accounts)
        self._clock = clock
        self._on_saved = on_saved
        self._owner = uuid.uuid4().hex
        self._number = 0
        self._is_owner = True
        self._running: asyncio.Task[None] | None = None

    @property
    def is_lost(self) -> bool:
        """Whether nothing is saved any more, so that starts wait for ever: make another keeper, of new accounts.

        Another owner has claimed the pool, or the saved use is gone.
        """
        return not self._is_owner

    async def begin(self) -> None:
        """Charge the former owner's use, and make the first reserves.

        Raises:
            DatabaseUnavailable: nothing may start; make another keeper, and try again.
        """
        self._usage.restore(await self._table.claim(self._pool, self._owner), self._clock.now())
        while await self._save():
            pass

    def start(self) -> None:
        """Begin to `run` in a task, which `end` ends."""
        self._running = asyncio.create_task(self.run(), name=f"emq use of pool {self._pool}")

    async def run(self) -> None:
        """Save once a second, or as soon as a task waits for it. Ends by cancellation, or when the pool was claimed."""
        last, has_more = self._clock.now(), False
        while self._is_owner:
            await asyncio.sleep(SHORT_S)
            now = self._clock.now()
            if last <= now < last + SAVE_S and not has_more and not self._usage.is_short():
                continue
            last = now
            try:
                has_more = await self._save()
            except errors.DatabaseUnavailable as exc:
                log.warning("pool %r: its use was not saved (%s); starts wait when their reserve ends", self._pool, exc)
                await asyncio.sleep(SAVE_S)
            except Exception:
                log.exception("pool %r: its use was not saved; starts wait when their reserve ends", self._pool)
                await asyncio.sleep(SAVE_S)

    async def end(self) -> None:
        """Save without reserves, so that the next owner loses nothing. Call it when nothing starts any more."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
        try:
            uses = iter(self._usage.final(self._clock.now()).items())
            while self._is_owner and (some := dict(itertools.islice(uses, KEYS_AT_ONCE))):
                self._is_owner = await self._written(some)
        except errors.DatabaseUnavailable as exc:
            log.debug("pool %r: its reserves count as used: %s", self._pool, exc)

    async def _save(self) -> bool:
        """Save the accounts that are due; return whether more are."""
        now = self._clock.now()
        plan, gone = self._usage.plan(now), self._usage.gone(now)
        if not plan and not gone:
            return False
        is_saved = False
        try:
            is_saved = self._is_owner = await self._written(plan, gone)
        finally:
            if is_saved:
                self._usage.saved(plan)
                self._usage.deleted(gone)
                self._on_saved()
            else:
                self._usage.doubtful(plan)
        return self._usage.has_more and self._is_owner

    async def _written(self, uses: dict[str, SavedUse], gone: Sequence[str] = ()) -> bool:
        self._number += 1
        return await self._table.save(self._pool, self._owner, self._number, uses, gone)
