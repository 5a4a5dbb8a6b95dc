"""Replays: deliveries of the past that are sent again, at a rate of their own.

A replay is a row. Some API process carries it out (`emq_push.service.replay_runner`); callers create, watch, pause,
resume and cancel it here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec
import sqlalchemy as sa

from emq_push.records import deliveries, endpoints, replays
from emq_push.records.cursors import Page
from emq_push.records.deliveries import Count, Deliveries, Selection
from emq_push.records.replays import Body, Replay, ReplayFilter, Replays
from emq_push.service.parts import Parts
from emq_push.service.refusals import Conflict, Invalid, NotFound

MOST_OPEN = 10
"""Most replays of a tenant that have not ended."""

MAX_RATE_PER_S = 10_000.0
MIN_RATE_PER_S = 0.001

REPLAYABLE = (deliveries.DEAD, deliveries.DELIVERED, deliveries.CANCELLED)

_TRIES = 20


class NewReplay(NamedTuple):
    """What a caller asks for.

    Attributes:
        rate_per_s: most deliveries put back in a second.
        priority: name of the priority at which they wait; empty for their own.
    """

    filter: ReplayFilter
    rate_per_s: float
    priority: str = ""


class ReplayService:
    """Create, show, pause, resume and cancel replays.

    Attributes:
        on_ready: called when a replay may go on, so that a runner of this process looks at once.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._rows = Replays(parts.environment)
        self._deliveries = Deliveries(parts.environment)
        self.on_ready: Callable[[], None] = lambda: None

    async def count(self, tenant: str, wanted: NewReplay) -> Count:
        """Return how many deliveries a replay would take now. Raises as `create`."""
        await self._check(tenant, wanted)
        limited = _until(wanted.filter, self._parts.now_us())
        return await self._parts.read(
            lambda c: self._deliveries.count(c, tenant, selection_of(limited), limited.event_types)
        )

    async def create(self, tenant: str, wanted: NewReplay, actor: str) -> Replay:
        """Create a replay; it begins within seconds. It takes deliveries of messages accepted until now.

        Raises:
            Invalid: the rate or the filter is out of range.
            NotFound: the tenant has no such endpoint.
            Conflict: the tenant has `MOST_OPEN` replays that have not ended.
        """
        counted = await self.count(tenant, wanted)
        now_us = self._parts.now_us()
        limited = _until(wanted.filter, now_us)
        body = Body(limited, wanted.rate_per_s, wanted.priority, counted.n, counted.exact)
        made = Replay(self._parts.new_id("rpl"), tenant, replays.RUNNING, body, now_us, now_us)

        def add(connection: sa.Connection) -> None:
            if self._rows.open_of(connection, tenant) >= MOST_OPEN:
                text = f"{MOST_OPEN} replays have not ended yet; wait for one of them, or cancel it"
                raise Conflict("too_many_replays", text)
            self._rows.add(connection, made)
            changes = {"filter": msgspec.to_builtins(limited), "rate_per_s": wanted.rate_per_s}
            self._parts.audit(connection, actor, "replay.created", made.id, tenant=tenant, changes=changes)

        await self._parts.write(add)
        self.on_ready()
        return made

    async def get(self, tenant: str, id_: str) -> Replay:
        """Return a replay. Raises `NotFound`."""
        return await self._parts.read(lambda c: self._existing(c, tenant, id_))

    async def page(self, tenant: str, limit: int, cursor: str = "") -> Page[Replay]:
        """Return the tenant's replays, the newest first. Raises `InvalidCursor`."""
        return await self._parts.read(lambda c: self._rows.page(c, tenant, limit, cursor))

    async def pause(self, tenant: str, id_: str, actor: str) -> Replay:
        """Let a replay rest; what it has put back so far is sent. Raises `NotFound`, `Conflict`."""
        return await self._ask(tenant, id_, replays.PAUSED, actor)

    async def resume(self, tenant: str, id_: str, actor: str) -> Replay:
        """Let a paused replay go on where it was. Raises `NotFound`, `Conflict`."""
        resumed = await self._ask(tenant, id_, replays.RUNNING, actor)
        self.on_ready()
        return resumed

    async def cancel(self, tenant: str, id_: str, actor: str) -> Replay:
        """End a replay; what it has put back so far is sent. Raises `NotFound`, `Conflict`."""
        return await self._ask(tenant, id_, replays.CANCELLED, actor)

    # ------------------------------------------------------------------------------------------------------- details

    async def _ask(self, tenant: str, id_: str, state: str, actor: str) -> Replay:
        """Bring a replay into a state. A runner that is at work does so after the step that it is in."""

        def ask(connection: sa.Connection) -> Replay | None:
            seen = self._existing(connection, tenant, id_)
            if seen.state not in replays.OPEN:
                raise Conflict("ended", f"the replay has ended: it is {seen.state}")
            if shown_state(seen) == state:
                return seen
            now_us = self._parts.now_us()
            if seen.body.units:
                # These may not be in the store yet, so that a runner has to come to the end of its step first.
                new = seen._replace(state=replays.RUNNING, body=msgspec.structs.replace(seen.body, wanted=state))
            else:
                body = msgspec.structs.replace(seen.body, wanted="", lease_us=0)
                new = seen._replace(state=state, body=body)
            saved = self._rows.save(connection, seen, new, now_us)
            if saved is not None:
                action = {replays.PAUSED: "paused", replays.CANCELLED: "cancelled", replays.RUNNING: "resumed"}[state]
                self._parts.audit(connection, actor, f"replay.{action}", id_, tenant=tenant)
            return saved

        for _ in range(_TRIES):
            if (saved := await self._parts.write(ask)) is not None:
                return saved
        raise Conflict("changed", "the replay changes all the time; try again")

    def _existing(self, connection: sa.Connection, tenant: str, id_: str) -> Replay:
        found = None if "\0" in id_ else self._rows.get(connection, tenant, id_)
        if found is None:
            raise NotFound("unknown_replay", f"there is no replay {id_[:80]!r}")
        return found

    async def _check(self, tenant: str, wanted: NewReplay) -> None:
        if not MIN_RATE_PER_S <= wanted.rate_per_s <= MAX_RATE_PER_S:
            text = f"rate_per_s {wanted.rate_per_s:g} must be from {MIN_RATE_PER_S:g} to {MAX_RATE_PER_S:g}"
            raise Invalid("invalid_request", text, "/rate_per_s")
        chosen = wanted.filter
        if not chosen.states or set(chosen.states) - set(REPLAYABLE):
            text = f"states must be some of {', '.join(REPLAYABLE)}: a delivery under way cannot be replayed"
            raise Invalid("invalid_request", text, "/states")
        if chosen.since_us >= chosen.until_us:
            raise Invalid("invalid_request", "the time range is empty: its end must be after its begin", "/created_lt")
        if chosen.endpoint:
            await self._parts.check_endpoint(tenant, chosen.endpoint)
            topic = (await self._parts.topics({endpoints.topic_of(tenant, chosen.endpoint)})).values()
            names = next((t.priorities for t in topic), ())
            if wanted.priority and wanted.priority not in names:
                text = f"priority {wanted.priority[:80]!r} is not one of the endpoint's: {', '.join(names)}"
                raise Invalid("invalid_priority", text, "/priority")


def shown_state(replay: Replay) -> str:
    """Return the state in which a replay is shown: the one that was asked for, once somebody has asked."""
    return replay.body.wanted or replay.state


def selection_of(wanted: ReplayFilter) -> Selection:
    """Return the part of a replay's filter that an index serves."""
    return Selection(wanted.endpoint, tuple(dict.fromkeys(wanted.states)), wanted.since_us, wanted.until_us)


def _until(wanted: ReplayFilter, now_us: int) -> ReplayFilter:
    return msgspec.structs.replace(wanted, until_us=min(wanted.until_us, now_us))
