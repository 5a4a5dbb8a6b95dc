"""Runs replays in the API processes: each replay in exactly one of them.

A runner takes a replay by writing its name and a lease into the replay's row, renews the lease with every step, and
stops when another one has written there (compare-and-set, see `emq_push.records.replays`). A lease that has run out
means that its process is gone or stuck: another runner takes the replay over.

A step has two halves, so that a crash between them loses nothing:

1. In one transaction, mark the next deliveries as waiting, note them in the replay's row, and move its cursor on.
2. Put them into the store (`emq_push.service.again`, safe to repeat). The next step's transaction takes the note back.

The next runner puts the noted deliveries once more. So a crash repeats one step at most: `STEP_S` of the replay's rate.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from emq.runtime import errors
from emq.storage.message import random_name
from emq.topics.model import Topic
from emq_push.records import deliveries, replays
from emq_push.records.accepted import Accepted
from emq_push.records.deliveries import Deliveries, Delivery, Place
from emq_push.records.replays import Body, Replay, Replays
from emq_push.service import again
from emq_push.service.again import Item
from emq_push.service.parts import Parts
from emq_push.service.replaying import selection_of

log = logging.getLogger(__name__)

LOOK_S = 2.0
"""Seconds between two looks for replays without a runner: one statement on a short index."""

LEASE_S = 30.0
"""Seconds after which another runner takes over from one that has written nothing."""

STEP_S = 0.5
"""Seconds of its rate that a step takes at once."""

MOST_AT_ONCE = 200
"""Most deliveries in a step."""

LOOKED_AT = 2_000
"""Most rows that a step looks at in search of the event types; then the step ends with those that it found."""

MOST_REPLAYS = 200
MOST_OF_TENANT = 2
"""Most replays that one process carries out at a time: of all tenants, and of one, so that no tenant takes all places.
The others of a tenant wait for their turn."""

AWAY = "the store or the database does not respond; the replay goes on by itself"
"""The text of such an error for callers; its own text may name servers."""

AT_ONCE = 100
"""Replays whose rows are read at once."""

LEAST_REST_S = 0.05
"""Least seconds between two steps, so that a search for few event types leaves the database to others."""

GIVE_BACK_S = 2.0
"""Most seconds that a runner takes at its end to give a lease back."""

REST_S = (1.0, 2.0, 5.0, 10.0)
"""Seconds that a replay rests after a failure of the store or the database, by the number of failures in a row."""


_TRANSIENT = (errors.StoreUnavailable, errors.StoreFull, errors.OutcomeUnknown, errors.DatabaseUnavailable)


class Batch(NamedTuple):
    """The next deliveries of a replay.

    Attributes:
        rows: the deliveries to put.
        left_out: number of selected deliveries whose payload or endpoint is gone.
        after: place of the last row looked at.
        at_end: True if no rows follow.
    """

    rows: list[Delivery]
    left_out: int
    after: Place | None
    at_end: bool


class Lost(Exception):
    """Another runner has the replay now, or the replay has ended."""


class ReplayRunner:
    """Looks for replays without a runner, and runs them.

    Attributes:
        name: names this runner in the rows.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.name = random_name()
        self._rows = Replays(parts.environment)
        self._deliveries = Deliveries(parts.environment)
        self._messages = Accepted(parts.environment)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._tenants: dict[str, str] = {}
        self._ready = asyncio.Event()

    def wake(self) -> None:
        """Look at once: a replay may go on."""
        self._ready.set()

    async def run(self) -> None:
        """Look and run until cancelled; then give the leases back, so that others need not wait."""
        try:
            while True:
                self._ready.clear()
                try:
                    await self._look()
                except errors.EMQError as exc:
                    log.debug("cannot look for replays: %s", exc)  # the database has logged its own failure
                except Exception:  # those that run go on
                    log.exception("cannot look for replays")
                try:
                    async with asyncio.timeout(LOOK_S):
                        await self._ready.wait()
                except TimeoutError:
                    continue
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _look(self) -> None:
        now_us = self._parts.now_us()
        for replay in await self._free(now_us):
            task = asyncio.create_task(self._carry_out(replay), name=f"emq replay {replay.id}")
            self._tasks[replay.id], self._tenants[replay.id] = task, replay.tenant
            task.add_done_callback(lambda _, id_=replay.id: self._ended(id_))  # type: ignore[misc]

    async def _free(self, now_us: int) -> list[Replay]:
        """Return the replays without a runner for which this process has a place."""
        busy = Counter(self._tenants.values())
        left = MOST_REPLAYS - len(self._tasks)
        ids = [
            id_
            for id_, tenant in await self._parts.read(self._rows.running_ids)
            if id_ not in self._tasks and busy[tenant] < MOST_OF_TENANT
        ]
        found: list[Replay] = []
        for start in range(0, len(ids), AT_ONCE):
            for replay in await self._some(ids[start : start + AT_ONCE]):
                theirs = replay.body.runner != self.name and now_us < replay.body.lease_us
                if len(found) < left and not theirs and busy[replay.tenant] < MOST_OF_TENANT:
                    busy[replay.tenant] += 1
                    found.append(replay)
            if len(found) >= left:
                break
        return found

    async def _some(self, ids: Sequence[str]) -> list[Replay]:
        """Read replays; leave out those that cannot be read, so that the others run."""
        try:
            return list(await self._parts.read(lambda c: self._rows.some(c, ids)))
        except errors.EMQError:
            raise
        except Exception:
            if len(ids) == 1:
                log.exception("replay %s cannot be read", ids[0])
                return []
        half = len(ids) // 2
        return await self._some(ids[:half]) + await self._some(ids[half:])

    def _ended(self, id_: str) -> None:
        del self._tasks[id_], self._tenants[id_]
        self._ready.set()  # another replay of its tenant may have waited

    async def _carry_out(self, seen: Replay) -> None:
        """Run one replay until it ends, rests, or belongs to another runner."""
        replay, failures = seen, 0
        try:
            try:
                replay = await self._renewed(replay)
            except errors.DatabaseUnavailable:
                return  # the next look finds it again
            while True:
                begun_s = asyncio.get_running_loop().time()
                try:
                    replay, n = await self.step(replay)
                    failures, wait_s = 0, max(LEAST_REST_S, n / replay.body.rate_per_s)
                except _TRANSIENT as exc:
                    wait_s = REST_S[min(failures, len(REST_S) - 1)]
                    failures += 1
                    log.warning("replay %s rests for %g s: %s", replay.id, wait_s, exc)
                    replay = await self._troubled(replay)
                replay = await self._rested(replay, begun_s + wait_s)
        except Lost:
            return
        except asyncio.CancelledError:
            await asyncio.shield(self._give_back(replay))
            raise
        except Exception:
            log.exception("replay %s broke; a runner takes it up again in %g s", seen.id, LEASE_S)
            await asyncio.sleep(LEASE_S)

    async def step(self, replay: Replay) -> tuple[Replay, int]:
        """Carry out a step; return the replay as it is now, and the number of deliveries put.

        Raises:
            Lost: there is nothing more to do here.
            StoreUnavailable, StoreFull, OutcomeUnknown, DatabaseUnavailable: read the replay, and repeat the step.
        """
        if replay.body.units:  # of a runner that is gone, or of a step that failed
            replay = await self._put(replay)
        batch = await self._next(replay)
        body = _add(replay.body, left_out=batch.left_out)
        if batch.at_end and not batch.rows:
            await self._write(replay, replay._replace(state=replays.DONE, body=_free(body)))
            raise Lost
        after = None if batch.after is None else tuple(batch.after)
        replay = await self._write(replay, self._mine(replay, msgspec.structs.replace(body, after=after)), batch.rows)
        n = len(replay.body.units)
        return (await self._put(replay) if n else replay), n

    # ------------------------------------------------------------------------------------------------- the next rows

    async def _next(self, replay: Replay) -> Batch:
        """Read on from the replay's cursor."""
        body = replay.body
        most = min(MOST_AT_ONCE, max(1, round(body.rate_per_s * STEP_S)))
        at_a_time = MOST_AT_ONCE if body.filter.event_types else most
        after = None if body.after is None else Place(*body.after)
        found: list[Delivery] = []
        looked, at_end = 0, False
        while len(found) < most and looked < LOOKED_AT and not at_end:
            rows = await self._read(replay, after, at_a_time)
            at_end = len(rows) < at_a_time
            for row in rows:
                if len(found) == most:
                    at_end = False
                    break
                after, looked = row.place, looked + 1
                if deliveries.fits(row.event_type, body.filter.event_types):
                    found.append(row)
        sendable = await self._sendable(replay.tenant, found)
        return Batch(sendable, len(found) - len(sendable), after, at_end)

    async def _read(self, replay: Replay, after: Place | None, limit: int) -> list[Delivery]:
        selection = selection_of(replay.body.filter)
        return await self._parts.read(
            lambda c: self._deliveries.read(c, replay.tenant, selection, after=after, limit=limit, newest_first=False)
        )

    async def _sendable(self, tenant: str, rows: Sequence[Delivery]) -> list[Delivery]:
        """Return the deliveries whose endpoint and payload are still there."""
        if not rows:
            return []
        topics = await self._parts.app.catalog.some({row.topic for row in rows})
        ids = list({row.message for row in rows})
        kept = await self._parts.read(lambda c: self._messages.with_payload(c, tenant, ids))
        return [row for row in rows if row.topic in topics and row.message in kept]

    # -------------------------------------------------------------------------------------------------- into the store

    async def _put(self, replay: Replay) -> Replay:
        """Put the noted deliveries into the store, and take the note back.

        A caller who asked for another state meanwhile gets that state now. Raises `Lost` then.
        """
        by_topic: dict[str, list[str]] = {}
        for unit in replay.body.units:
            by_topic.setdefault(unit.topic, []).append(unit.message)
        topics = await self._parts.app.catalog.some(by_topic)
        replayed = sum([await self._put_of(replay, topics.get(name), ids) for name, ids in by_topic.items()])
        left_out = len(replay.body.units) - replayed
        body = msgspec.structs.replace(_add(replay.body, replayed, left_out), units=(), trouble="", wanted="")
        seen = replay
        while True:
            wanted = seen.body.wanted
            if wanted in ("", replays.RUNNING):
                new = self._mine(seen, body)
            else:
                new = seen._replace(state=wanted, body=_free(body))
            saved = await self._try(seen, new)
            if saved is not None and new.state != replays.RUNNING:
                raise Lost
            if saved is not None:
                return saved
            seen = await self._again(seen)

    async def _put_of(self, replay: Replay, topic: Topic | None, ids: Sequence[str]) -> int:
        """Put deliveries of one endpoint; return how many could be put."""
        if topic is None:
            return 0
        found = await self._parts.read(lambda c: self._messages.find_alone(c, replay.tenant, ids))
        items = [Item(m, m.payload, replay.body.priority or None) for m in found.values() if m.payload is not None]
        try:
            return len(await again.put(self._parts, topic, items))
        except errors.TopicClosed:
            return 0

    # ---------------------------------------------------------------------------------------------------- the row

    def _mine(self, replay: Replay, body: Body) -> Replay:
        """Return the replay with new progress and a new lease of ours."""
        lease_us = self._parts.now_us() + round(LEASE_S * 1e6)
        return replay._replace(body=msgspec.structs.replace(body, runner=self.name, lease_us=lease_us))

    async def _try(self, seen: Replay, new: Replay, waiting: Sequence[Delivery] = ()) -> Replay | None:
        now_us = self._parts.now_us()
        return await self._parts.write(lambda c: self._rows.save(c, seen, new, now_us, waiting))

    async def _write(self, seen: Replay, new: Replay, waiting: Sequence[Delivery] = ()) -> Replay:
        """Write; raise `Lost` if another process has written since the replay was read."""
        saved = await self._try(seen, new, waiting)
        if saved is None:
            raise Lost
        return saved

    async def _again(self, seen: Replay) -> Replay:
        """Read the replay again, after a write was refused. Raises `Lost` unless only a caller's wish is new."""
        now = await self._parts.read(lambda c: self._rows.get(c, seen.tenant, seen.id))
        if now is None or now.state != replays.RUNNING:
            raise Lost
        if msgspec.structs.replace(now.body, wanted=seen.body.wanted) != seen.body:
            raise Lost
        return now

    async def _renewed(self, replay: Replay) -> Replay:
        return await self._write(replay, self._mine(replay, replay.body))

    async def _troubled(self, replay: Replay) -> Replay:
        """Read the replay after a failed step, and note the reason for its readers."""
        while True:
            try:
                now = await self._parts.read(lambda c: self._rows.get(c, replay.tenant, replay.id))
                if now is None or now.state != replays.RUNNING or now.body.runner != self.name:
                    raise Lost
                body = msgspec.structs.replace(now.body, trouble=AWAY)
                saved = await self._try(now, self._mine(now, body))
                if saved is not None:
                    return saved
            except errors.DatabaseUnavailable:
                await asyncio.sleep(REST_S[-1])

    async def _rested(self, replay: Replay, until_s: float) -> Replay:
        """Wait, and keep the lease meanwhile."""
        loop = asyncio.get_running_loop()
        while (left_s := until_s - loop.time()) > 0:
            await asyncio.sleep(min(left_s, LEASE_S / 3))
            if left_s > LEASE_S / 3:
                replay = await self._renewed(replay)
        return replay

    async def _give_back(self, replay: Replay) -> None:
        """End our lease, if the database lets us: another runner then begins at once."""
        try:
            async with asyncio.timeout(GIVE_BACK_S):
                saved = None
                while saved is None:  # a write of ours that was under way may come in between
                    now = await self._parts.read(lambda c: self._rows.get(c, replay.tenant, replay.id))
                    if now is None or now.body.runner != self.name:
                        return
                    saved = await self._try(now, now._replace(body=_free(now.body)))
        except (errors.EMQError, TimeoutError) as exc:
            log.info("replay %s keeps its lease for up to %g s: %s", replay.id, LEASE_S, exc)


def _free(body: Body) -> Body:
    return msgspec.structs.replace(body, lease_us=0)


def _add(body: Body, replayed: int = 0, left_out: int = 0) -> Body:
    return msgspec.structs.replace(body, replayed=body.replayed + replayed, left_out=body.left_out + left_out)
