"""Detects hosts that consume from the same store with another database: they would take each other's groups.

Hosts of one database find each other there. Hosts of different databases share nothing but the store. So the hosts of
each database keep a *sign* in the store: an entry of a special lane, named by the database's identity, that they renew
every few seconds. A host that starts and finds a sign of another database watches the sign. If the sign is renewed,
hosts of that database consume, and the host does not start. If the sign is not renewed, or its process is known to be
gone, the sign is left from a crash, and the host removes it. Only the observer's own clock counts.

A database that came back empty gets another identity. Hosts that knew the former identity remove its signs.

Two hosts that start in the same moment may miss each other; then both warn in their logs as soon as they notice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
import sqlalchemy as sa

from emq.allocation.tree.database import sessions
from emq.database import Database, statements
from emq.database.database import QUICK_S, read_value
from emq.runtime import errors, pace
from emq.storage.lane_store import LaneAdd, LaneSettle, LaneStore, LaneVerdict

log = logging.getLogger(__name__)

LANE = "hosts of this store/0"
"""The lane of the signs. No topic can have it: a topic's name has no spaces."""

LOOK_S = 4.0
"""Seconds between a host's looks. The first host that finds its database's sign unchanged renews the sign."""

GONE_S = 12.0
"""Seconds after which a sign that was not renewed counts as left from a crash."""

ANSWER_S = 3.0
"""Seconds that one look waits for store and database. While these do not answer, hosts ignore signs."""

MOST_SIGNS = 100


class Sign(msgspec.Struct, frozen=True):
    """The content of a sign.

    Attributes:
        database: the database's identity.
        shown: the database's URL.
        host, process: the host and the process that put the sign there.
    """

    database: int
    shown: str = ""
    host: str = ""
    process: str = ""


FORMER = 8
"""Most former identities of the database that a host remembers. A database has another identity after it was lost."""


class _Seen(NamedTuple):
    """Signs by the ids of their entries: of the own database, of other databases, and left from crashes."""

    own: frozenset[str]
    others: dict[str, Sign]
    stale: list[str]


class Neighbours:
    """Keeps the sign of a database, and looks for signs of other databases.

    Args:
        host: this host's name, for others to read.
    """

    def __init__(self, lanes: LaneStore, database: Database, environment: str, host: str) -> None:
        self._lanes = lanes
        self._database = database
        self._environment = str(environment)
        self._host = host
        self._identity = 0
        self._former: deque[int] = deque(maxlen=FORMER)
        self._own: frozenset[str] = frozenset()
        self._mine = ""
        self._others: frozenset[str] = frozenset()
        self._told = ""

    async def arrive(self) -> None:
        """Return once no host of another database consumes from the store; if one has crashed, within `GONE_S`.

        Raises:
            HostConflict: a host of another database consumes; the text names that host and its database.
        """
        first, loop = await self._looked(), asyncio.get_running_loop()
        until_s = loop.time() + GONE_S
        if first is not None and first.others:
            log.info("%s; waiting to see whether it still runs", _who(first.others.values()))
        seen = first
        while seen is not None and seen.others and first is not None and loop.time() < until_s:
            if renewed := [sign for id_, sign in seen.others.items() if id_ not in first.others]:
                raise errors.HostConflict(f"{_who(renewed)}, this one {self._database.shown}; {_REMEDY}")
            await asyncio.sleep(LOOK_S / 2)
            seen = await self._looked()
        if seen is not None:
            await self._put(seen, [*seen.stale, *seen.others])

    async def watch(self) -> None:
        """Keep the sign, and warn in the log when hosts of another database keep theirs. Ends by cancellation."""
        while True:
            await pace.rest(LOOK_S)
            seen = await self._looked()
            if seen is None:
                continue
            renewed = [sign for id_, sign in seen.others.items() if id_ not in self._others]
            self._others = frozenset(seen.others)
            told = _who(renewed)
            if renewed and told != self._told:
                log.warning("%s, this one %s; each takes the other's groups: %s", told, self._database.shown, _REMEDY)
                self._told = told
            await self._put(seen, seen.stale)

    async def depart(self) -> None:
        """Remove the sign that this host has put."""
        if self._mine:
            with contextlib.suppress(errors.EMQError, TimeoutError):
                async with asyncio.timeout(ANSWER_S):
                    await self._lanes.settle([LaneSettle(LANE, self._mine, LaneVerdict.RECALL)])

    # ------------------------------------------------------------------------------------------------------- details

    async def _looked(self) -> _Seen | None:
        """Read all signs. Returns None if the store or the database does not answer."""
        try:
            async with asyncio.timeout(ANSWER_S):
                if not await self._identify():
                    return None
                entries = await self._lanes.waiting(LANE, 0, MOST_SIGNS)
        except (errors.EMQError, TimeoutError):
            return None
        if self._database.away_s:  # other hosts may know a newer identity of this database already: judge no sign
            return _Seen(frozenset(e.id for e in entries if e.id in self._own), {}, [])
        own, others, stale = set(), {}, []
        for entry in entries:
            try:
                sign = msgspec.msgpack.decode(entry.body, type=Sign)
            except msgspec.DecodeError:
                stale.append(entry.id)
                continue
            if sign.database == self._identity:
                own.add(entry.id)
            elif sign.database in self._former or (sign.process and sessions.is_gone(sign.process)):
                stale.append(entry.id)
            else:
                others[entry.id] = sign
        return _Seen(frozenset(own), others, stale)

    async def _identify(self) -> int:
        """Return the permanent identity of the database and environment; the first host draws it. 0 if never read."""
        if self._database.away_s:
            return self._identity
        found = await self._database.run(self._read, read_only=True, deadline_s=QUICK_S)
        identity = found or await self._database.run(self._draw, deadline_s=QUICK_S)
        if self._identity not in (0, identity):
            self._former.append(self._identity)
        self._identity = identity
        return identity

    def _read(self, connection: sa.Connection) -> int:
        return read_value(connection, self._environment, "identity")

    def _draw(self, connection: sa.Connection) -> int:
        values = {"environment": self._environment, "key": "identity", "value": 1 + secrets.randbelow(1 << 62)}
        connection.execute(statements.catalog(connection, "identity_draw"), values)
        return self._read(connection)

    async def _put(self, seen: _Seen, gone: Iterable[str]) -> None:
        """Renew the sign if no host has since the last look, and remove the `gone` and outdated entries."""
        before, self._own = self._own, seen.own
        recalls = list(gone)
        try:
            async with asyncio.timeout(ANSWER_S):
                if seen.own <= before:
                    sign = Sign(self._identity, self._database.shown, self._host, sessions.this_process())
                    made = f"{self._identity:x}~{secrets.token_hex(4)}"
                    await self._lanes.add([LaneAdd(LANE, made, msgspec.msgpack.encode(sign), 0)])
                    self._mine, self._own = made, frozenset([made])
                    recalls += seen.own
                if recalls:
                    await self._lanes.settle([LaneSettle(LANE, id_, LaneVerdict.RECALL) for id_ in recalls])
        except (errors.EMQError, TimeoutError):
            return  # the next look tries again


_REMEDY = "give all hosts of one store the same `database` (EMQ_DATABASE)"


def _who(signs: Iterable[Sign]) -> str:
    names = sorted({f"host {sign.host} on this store has the database {sign.shown}" for sign in signs})
    return names[0] if names else ""
