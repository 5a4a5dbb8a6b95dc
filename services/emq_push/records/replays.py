"""The replays: one row each, which names the filter, the progress, and the runner that carries the replay out.

Every write names the time of the last change that the writer has seen (compare-and-set). So two runners, or a runner
and a caller who pauses the replay, never overwrite each other: the later one reads again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
import sqlalchemy as sa

from emq_push.records import cursors, deliveries, rows, tables
from emq_push.records.cursors import Page
from emq_push.records.deliveries import Deliveries, Delivery

RUNNING: Final = "running"
PAUSED: Final = "paused"
CANCELLED: Final = "cancelled"
DONE: Final = "done"

OPEN: Final = (RUNNING, PAUSED)

_t = tables.replays


class ReplayFilter(msgspec.Struct, frozen=True, omit_defaults=True):
    """The deliveries that a replay takes; all given conditions hold.

    Attributes:
        endpoint: its id; empty for all endpoints of the tenant.
        states: dead, delivered or cancelled.
        event_types: event types; a trailing `*` stands for any ending. Empty for all.
        since_us, until_us: the message was accepted in [since_us, until_us), microseconds since the epoch.
    """

    endpoint: str = ""
    states: tuple[str, ...] = (deliveries.DEAD,)
    event_types: tuple[str, ...] = ()
    since_us: int = 0
    until_us: int = 1 << 62


class Unit(msgspec.Struct, frozen=True, array_like=True):
    """One delivery that a runner is about to send again."""

    topic: str
    message: str


class Body(msgspec.Struct, frozen=True, omit_defaults=True):
    """The row's JSON.

    Attributes:
        rate_per_s: most deliveries put back in a second.
        priority: name of the priority at which they wait; empty for their own.
        total, is_total_exact: number of selected deliveries at the start.
        replayed: deliveries put back so far.
        left_out: deliveries that could not be put back, such as those whose payload was erased.
        after: the place of the last delivery looked at: (created_us, topic, message); empty at the start.
        units: deliveries marked as waiting again, which may not be in the store yet.
        wanted: the state that a caller has asked for while a runner was at work; empty for none.
        runner: the process that carries the replay out; empty for none.
        lease_us: until then no other runner takes it over.
        trouble: why it does not go on; empty if it does.
    """

    filter: ReplayFilter
    rate_per_s: float
    priority: str = ""
    total: int = 0
    is_total_exact: bool = True
    replayed: int = 0
    left_out: int = 0
    after: tuple[int, str, str] | None = None
    units: tuple[Unit, ...] = ()
    wanted: str = ""
    runner: str = ""
    lease_us: int = 0
    trouble: str = ""


class Replay(NamedTuple):
    """A replay, as its row has it.

    States: *running*; *paused*, from which it can run again; *cancelled* and *done*, which are final.
    """

    id: str
    tenant: str
    state: str
    body: Body
    created_us: int
    changed_us: int


class Replays(rows.Rows):
    """The replays."""

    table = _t

    def __init__(self, environment: str) -> None:
        super().__init__(environment)
        self._deliveries = Deliveries(environment)

    def add(self, connection: sa.Connection, replay: Replay) -> None:
        values = {"environment": self._environment, "created_us": replay.created_us, **_values(replay)}
        connection.execute(sa.insert(_t).values(id=replay.id, tenant=replay.tenant, **values))

    def open_of(self, connection: sa.Connection, tenant: str) -> int:
        """Return the number of the tenant's replays that have not ended."""
        where = (self._mine, _t.c.tenant == tenant, _t.c.state.in_(OPEN))
        return int(connection.execute(sa.select(sa.func.count()).select_from(_t).where(*where)).scalar_one())

    def get(self, connection: sa.Connection, tenant: str, id_: str) -> Replay | None:
        """Return one replay of the tenant; None if the tenant has none of that id."""
        query = sa.select(_t).where(self._mine, _t.c.id == id_, _t.c.tenant == tenant)
        return next(iter(self._select(connection, query)), None)

    def page(self, connection: sa.Connection, tenant: str, limit: int, cursor: str = "") -> Page[Replay]:
        """Return the tenant's replays, the newest first. Raises `InvalidCursor`."""
        query, key = sa.select(_t).where(self._mine, _t.c.tenant == tenant), [_t.c.created_us, _t.c.id]
        of = f"replays {tenant}"
        return cursors.read(connection, query, key, _replay, limit, cursor, newest_first=True, of=of)

    def running_ids(self, connection: sa.Connection, limit: int = 5_000) -> list[tuple[str, str]]:
        """Return id and tenant of replays of all tenants that are to go on, the one that rested longest first."""
        query = sa.select(_t.c.id, _t.c.tenant).where(self._mine, _t.c.state == RUNNING)
        return [(row.id, row.tenant) for row in connection.execute(query.order_by(_t.c.changed_us).limit(limit))]

    def some(self, connection: sa.Connection, ids: Sequence[str]) -> list[Replay]:
        """Return those of the replays that are to go on, the one that rested longest first."""
        where = (self._mine, _t.c.id.in_(ids), _t.c.state == RUNNING)
        return self._select(connection, sa.select(_t).where(*where).order_by(_t.c.changed_us))

    def save(
        self, connection: sa.Connection, seen: Replay, new: Replay, now_us: int, waiting: Sequence[Delivery] = ()
    ) -> Replay | None:
        """Write a change of a replay, unless somebody has changed the replay since `seen` was read.

        Args:
            seen: the replay as it was read.
            new: the replay as it is to be.
            now_us: microseconds since the epoch.
            waiting: deliveries that wait again from now on: they become `new.body.units`. Those that have changed since
                they were read stay as they are, and count as left out.

        Returns:
            The replay as it is now; None if it was changed meanwhile, and nothing was written.
        """
        changed_us = max(now_us, seen.changed_us + 1)
        # Take the row first: of two writers the later one waits here, and then changes no delivery.
        mine = (self._mine, _t.c.id == seen.id, _t.c.changed_us == seen.changed_us)
        if not connection.execute(sa.update(_t).where(*mine).values(changed_us=changed_us)).rowcount:
            return None
        body = new.body
        if waiting:
            taken = self._deliveries.wait_again(connection, waiting)
            units, left_out = tuple(Unit(row.topic, row.message) for row in taken), len(waiting) - len(taken)
            body = msgspec.structs.replace(body, units=units, left_out=body.left_out + left_out)
        saved = new._replace(body=body, changed_us=changed_us)
        connection.execute(sa.update(_t).where(self._mine, _t.c.id == seen.id).values(**_values(saved)))
        return saved

    def _select(self, connection: sa.Connection, query: sa.Select[Any]) -> list[Replay]:
        return [_replay(row) for row in connection.execute(query)]


_decode = msgspec.json.Decoder(Body).decode


def _replay(row: sa.Row[tuple[object, ...]]) -> Replay:
    return Replay(row.id, row.tenant, row.state, _decode(row.body), row.created_us, row.changed_us)


def _values(replay: Replay) -> dict[str, object]:
    body = msgspec.json.encode(replay.body).decode()
    return {"state": replay.state, "body": body, "changed_us": replay.changed_us}
