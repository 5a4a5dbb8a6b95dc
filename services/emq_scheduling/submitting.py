"""Submits tasks: checks that a resource can do the task in time, and puts it into its topic.

A submit binds a task to no resource; see `emq_scheduling.hosting.scheduler`. It only predicts the wait: from the latest
snapshot of the pool's owner, plus the tasks that this process has submitted since.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from emq.producer.batcher import Batcher
from emq.producer.outgoing import Outgoing
from emq.runtime import errors
from emq.runtime.inputs import shown
from emq.storage.durability import Durability
from emq_scheduling import fallbacks, given, refusals, topics
from emq_scheduling.fallbacks import Tries
from emq_scheduling.forecast.key_waits import KeyWaits
from emq_scheduling.forecast.pacing import Unseen
from emq_scheduling.forecast.prediction import wait_if_raised
from emq_scheduling.limits import calendars
from emq_scheduling.model import Costs, Pool, TaskType
from emq_scheduling.pools import keyed
from emq_scheduling.pools.catalog import PoolCatalog, Stored
from emq_scheduling.pools.ceilings import Ceilings
from emq_scheduling.records.snapshot import LOOK_AHEAD_S, Snapshot
from emq_scheduling.records.snapshots import Snapshots
from emq_scheduling.submission import Receipt, Submission
from emq_scheduling.tasks import Carried, headers_of, topic_of

if TYPE_CHECKING:
    from emq.app import App

REFRESH_S = 1.0
"""Seconds until a known pool is read again, in the background."""

ADDED_S = 0.1
"""Seconds after which it is read again before a task without a resource is refused."""

OLD_S = 5.0
"""Seconds after which a submit waits for the reading: a program may submit once an hour."""

MOST_GOOD = 10_000
"""Most types with tenants of which a process remembers that they are good names; then it forgets all."""

MOST_REPLY_TOPICS = 10_000
"""Most topics for results that a process remembers; then it forgets all."""


class Submitter:
    """Submits tasks to one pool.

    Raises, in `known` and `submit`:
        UnknownPool: there is no such pool.
    """

    def __init__(self, app: App, name: str, catalog: PoolCatalog, snapshots: Snapshots) -> None:
        self.name = name
        self._app = app
        self._catalog = catalog
        self._snapshots = snapshots
        self._stored: Stored | None = None
        self._snapshot: Snapshot | None = None
        self._read_at = -math.inf
        self._reading: asyncio.Task[None] | None = None
        self._is_ensured = False  # whether the families of the pool and its types are known to exist
        self._good: set[tuple[str, str]] = set()  # types and tenants that were found to be good names
        self._unseen = Unseen()
        self._key_waits = KeyWaits()
        self._reasons: dict[str, str] = {}  # why no resource takes a type
        self._ceilings = Ceilings(Pool(name))
        self._limits: set[str] = set()
        self._raised: dict[tuple[str, float], float] = {}  # predicted waits of tasks with deadlines of their own
        self._reply_topics: set[str] = set()  # those that are known to exist
        self._together: Batcher[Submission, Receipt] = Batcher(lambda some, _: self.submit(some))

    async def submit_one(self, submission: Submission) -> Receipt:
        """Submit a task in one call with others that are submitted at the same time. Raises also what refuses it."""
        return await self._together.send(submission, Durability.ACCEPTED, 0)  # `App.send` looks at the bytes

    async def submit(self, submissions: Sequence[Submission]) -> list[Receipt | errors.EMQError]:
        """Submit tasks; return the receipt or the error of each, in order."""
        pool = await self._with_types(await self.known(), submissions)
        await self._look_for_replies(submissions)
        outcomes: list[Receipt | errors.EMQError | None] = []
        outgoing: list[Outgoing] = []
        now = self._app.clock.now()
        for each in submissions:
            try:
                tries = None
                if each.tries is not None or each.patience_s is not None:
                    given.check_texts(each.type, each.tenant)
                    tries = fallbacks.check(pool, each.type, each.tries, each.patience_s)
                wait_s = self._admit(pool, each, now) if tries is None else self._admit_one_of(pool, each, tries, now)
                outgoing.append(self._outgoing(pool, each, now, tries))
                if tries is None or self._unseen.is_able(each.type):
                    self._unseen.add(each.type, each.costs)
                    self._key_waits.add(each, each.costs)
            except (errors.TaskRefused, errors.InvalidMessage, errors.InvalidPool) as exc:
                outcomes.append(exc)
            else:
                outcomes.append(Receipt("", wait_s))
        sent = iter(await self._sent(pool, outgoing))
        found: list[Receipt | errors.EMQError] = []
        for outcome in outcomes:
            if isinstance(outcome, Receipt):
                got = next(sent)
                found.append(Receipt(got, outcome.wait_s) if isinstance(got, str) else got)
            else:
                assert outcome is not None
                found.append(outcome)
        return found

    async def known(self) -> Pool:
        """Return the pool as this process knows it; read it again in the background if that is old."""
        now = time.monotonic()
        if self._stored is None:
            await self._read()
        elif now > self._read_at + REFRESH_S:
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._read_again(), name="emq scheduling refresh")
            if now > self._read_at + OLD_S:
                await asyncio.shield(self._reading)
        if self._stored is None:  # it was deleted meanwhile
            await self._read()
        assert self._stored is not None
        return self._stored.pool

    async def _with_types(self, pool: Pool, submissions: Sequence[Submission]) -> Pool:
        """Return the pool; if it has no resource for some type, read it again first: one may just have come."""
        if time.monotonic() < self._read_at + ADDED_S or all(
            not isinstance(each.type, str) or self._unseen.is_able(each.type) for each in submissions
        ):
            return pool
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_again(), name="emq scheduling refresh")
        await asyncio.shield(self._reading)
        return await self.known()

    async def close(self) -> None:
        """Wait for tasks that are being submitted; end reading in the background."""
        await self._together.close()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _read_again(self) -> None:
        try:
            await self._read()
        except errors.UnknownPool:
            self._stored = None
        except errors.EMQError:
            pass  # go on with the known pool
        finally:
            self._read_at = time.monotonic()  # after any other error, too, the next read comes later

    async def _read(self) -> None:
        if self._stored is None or await self._catalog.version(self.name) != self._stored.version:
            stored = await self._catalog.get(self.name)
            self._unseen.follow(stored.pool)
            self._key_waits.follow(stored.pool)
            self._is_ensured = False
            self._reasons = {}
            self._ceilings = Ceilings(stored.pool)
            self._limits = set(stored.pool.units())
            self._stored = stored
        snapshot = await self._snapshots.load(self.name)
        if snapshot is not None and snapshot.is_stale(self._app.clock.now()):
            snapshot = None
        is_new = snapshot is None or self._snapshot is None or snapshot.at != self._snapshot.at
        self._unseen.look({} if snapshot is None else snapshot.state.costs, is_new=is_new)
        self._key_waits.look(snapshot, is_new=is_new)
        self._snapshot = snapshot
        self._raised.clear()
        self._read_at = time.monotonic()

    # ---------------------------------------------------------------------------------------------------- one task

    def _admit_one_of(self, pool: Pool, each: Submission, tries: Tries, now: float) -> float | None:
        """Return the predicted wait of a task with fallbacks: the least of all; raise if none of them takes it.

        Nobody knows whether a performer will send it on. So one is reached once the task has waited for its patience at
        all before it that may start it, and never without a patience.
        """
        own = pool.types[each.type].longest_wait_s if each.deadline_s is None else each.deadline_s
        within_s, patience_s = (
            math.inf if own is None else own,
            math.inf if tries.patience_s is None else tries.patience_s,
        )
        waits, refusal, reached_s = list[float | None](), None, 0.0
        for kind in tries.types:
            try:
                wait_s = self._admit(pool, msgspec.structs.replace(each, type=kind), now, within_s - reached_s)
            except errors.TaskRefused as exc:
                wait_s, refusal = exc.wait_s if exc.code == "deadline" else math.inf, refusal or exc
            else:
                waits.append(None if wait_s is None else reached_s + wait_s)
            if wait_s is None or not math.isinf(wait_s):
                reached_s += patience_s
        if not waits:
            assert refusal is not None, "each one was refused"
            raise refusal
        return None if None in waits else min(each for each in waits if each is not None)

    def _admit(self, pool: Pool, each: Submission, now: float, within_s: float | None = None) -> float | None:
        """Return the predicted wait; raise `TaskRefused` if the pool does not take the task.

        Args:
            within_s: its deadline instead of its own or its type's; infinity for none.
        """
        if not (isinstance(each.type, str) and isinstance(each.tenant, str) and (each.type, each.tenant) in self._good):
            given.check_texts(each.type, each.tenant)
            if len(self._good) >= MOST_GOOD:
                self._good.clear()
            self._good.add((each.type, each.tenant))
        kind = pool.types.get(each.type)
        if kind is None:
            raise refusals.unknown_type(pool, each.type)
        if each.deadline_s is not None:
            given.check_deadline(each.deadline_s, each.type)
        if each.id is not None:
            given.check_ids((each.id,))
        if each.keys is not None or pool.limits:
            self._check_keys(pool, each)
        costs = None if each.costs is None else given.check_costs(each.costs, self._limits)
        if not (self._unseen.is_able(each.type) or (costs is not None and pool.able(each.type))):
            raise self._no_resource(pool, each.type)
        if costs is not None:
            self._check_costs(each, costs)
        if each.zone:
            given.check_zone(each.zone)
        wait_s = self._predicted(each.type)
        opens_s = 0.0
        if kind.hours:
            opens_s = _opens_s(kind, each.zone or pool.zone, now)
            if wait_s is not None and each.zone and each.zone != pool.zone:
                wait_s = _in_zone(wait_s, _opens_s(kind, pool.zone, now), opens_s)
            if kind.ttl_s is not None and opens_s > kind.ttl_s:
                raise refusals.too_short_lived(self.name, each.type, opens_s, kind.ttl_s)
        key_s = 0.0 if wait_s is None else self._key_waits.seconds(each, costs)
        wait_s = None if wait_s is None else max(wait_s, key_s)
        allowed_s = kind.longest_wait_s if each.deadline_s is None else each.deadline_s
        allowed_s = allowed_s if within_s is None else within_s
        if allowed_s is not None:
            latest_s = allowed_s - self._duration(kind, each.type)
            if wait_s is not None and wait_s > latest_s >= opens_s and kind.near_priority is not None:
                wait_s = min(wait_s, max(key_s, opens_s + self._if_raised(pool, each.type, allowed_s - opens_s)))
            least_s = opens_s if wait_s is None else max(wait_s, opens_s)
            if least_s > latest_s:
                raise refusals.too_late(self.name, each.type, least_s, self._duration(kind, each.type), allowed_s)
        return wait_s

    def _if_raised(self, pool: Pool, task_type: str, allowed_s: float) -> float:
        """Return the predicted wait of a task whose deadline will raise it; infinity if too many wait before it."""
        snapshot = self._snapshot
        if snapshot is None or pool.types[task_type].longest_wait_s == allowed_s:
            return math.inf  # the prediction of the pool's host knows the deadline of the type
        waiting = snapshot.state.waiting.get(task_type, 0) + self._unseen.count(task_type)
        if waiting >= topics.TENANT_WINDOW:
            return math.inf  # only the first tasks of a topic are raised
        steps = 10.0 ** (math.floor(math.log10(allowed_s)) - 1) if allowed_s > 0 else 1.0
        allowed_s = math.floor(allowed_s / steps) * steps  # with two digits, so that few forecasts serve many tasks
        found = self._raised.get((task_type, allowed_s))
        if found is None:
            now = self._app.clock.now()
            found = self._raised[task_type, allowed_s] = wait_if_raised(pool, snapshot.state, now, task_type, allowed_s)
        return found + self._unseen.seconds(task_type)

    def _predicted(self, task_type: str) -> float | None:
        """Return the predicted wait of a task that has the pool's zone; None while no host schedules the pool."""
        snapshot = self._snapshot
        view = None if snapshot is None else snapshot.types.get(task_type)
        if view is None:
            return None
        base = math.inf if view.predicted_wait_s is None else view.predicted_wait_s
        behind_s = self._unseen.seconds(task_type)
        return 0.0 if base == 0.0 and behind_s <= 1.0 else base + behind_s

    def _duration(self, kind: TaskType, name: str) -> float:
        snapshot = self._snapshot
        measured = None if snapshot is None else snapshot.state.durations.get(name)
        return kind.duration_s if measured is None else measured

    def _no_resource(self, pool: Pool, task_type: str) -> errors.TaskRefused:
        text = self._reasons.get(task_type)
        if text is None:
            able = pool.able(task_type)
            why = f"of {', '.join(able[:4])} the limits are 0" if able else "no resource takes it"
            text = self._reasons[task_type] = (
                f"task type {task_type!r} of pool {self.name!r}: {why}; add it to `takes` of a resource, or raise a "
                "limit"
            )
        return errors.TaskRefused(text, code="no_able_resource")

    def _check_keys(self, pool: Pool, each: Submission) -> None:
        """Refuse a task without a key that a limit needs."""
        if lacks := keyed.missing(pool, each.type, given.check_keys({} if each.keys is None else each.keys)):
            raise refusals.lacks_key(self.name, *lacks)

    def _check_costs(self, each: Submission, costs: Costs) -> None:
        """Refuse a task that costs more than every able resource, or the limit of its key, ever allows."""
        if (over := self._ceilings.above(each.type, costs, each.tenant, each.keys)) is not None:
            raise refusals.above_limit(self.name, each.type, over)

    def _outgoing(self, pool: Pool, each: Submission, now: float, tries: Tries | None) -> Outgoing:
        carried: dict[str, str] | None = None
        if (
            each.deadline_s is not None
            or each.zone
            or each.costs is not None
            or each.keep
            or each.reply_to
            or each.keys
            or tries is not None
        ):
            if each.reply_to:
                given.check_reply_to(each.reply_to)
                if each.reply_to not in self._reply_topics:
                    raise errors.InvalidMessage(f"reply_to: there is no topic {shown(each.reply_to)}; create it first")
            deadline = None if each.deadline_s is None else now + each.deadline_s
            carried = headers_of(
                Carried(
                    *(deadline, each.zone or None, each.costs, bool(each.keep), each.reply_to or None),
                    each.keys or None,
                    tries,
                )
            )
        at = None
        kind = pool.types[each.type]
        if kind.hours:
            kinds = [kind] if tries is None else [pool.types[name] for name in tries.types]
            allowed = min(calendars.allowed_at(every.hours, each.zone or pool.zone, now) for every in kinds)
            at = allowed if allowed > now else None
        topic = topic_of(self.name, each.type, each.tenant)
        return Outgoing(topic, each.payload, each.id, key=each.key, headers=carried, at=at)

    async def _look_for_replies(self, submissions: Sequence[Submission]) -> None:
        """Learn which of the topics for results exist; `_outgoing` refuses wrong names."""
        wanted = set[str]()
        for each in submissions:
            if each.reply_to and isinstance(each.reply_to, str) and each.reply_to not in self._reply_topics:
                with contextlib.suppress(errors.InvalidMessage):
                    given.check_reply_to(each.reply_to)
                    wanted.add(each.reply_to)
        if wanted:
            if len(self._reply_topics) > MOST_REPLY_TOPICS:
                self._reply_topics.clear()
            with contextlib.suppress(errors.DatabaseUnavailable):
                wanted &= (await self._app.catalog.some(wanted)).keys()
            self._reply_topics |= wanted  # while the database is away, all are taken to exist

    async def _sent(self, pool: Pool, outgoing: Sequence[Outgoing]) -> list[str | errors.EMQError]:
        """Send tasks; send those whose topics are gone once more: somebody has created the pool again."""
        await self._ensure(pool)
        sent = list(await self._app.send(outgoing))
        if again := [i for i, outcome in enumerate(sent) if isinstance(outcome, errors.UnknownTopic)]:
            await self._read_anew()
            await self._ensure(pool)
            for i, outcome in zip(again, await self._app.send([outgoing[i] for i in again]), strict=True):
                sent[i] = outcome
        return sent

    async def _read_anew(self) -> None:
        """Read the pool even if it was read lately. Raises `UnknownPool` if it was deleted."""
        self._stored = None
        await self._read()

    async def _ensure(self, pool: Pool) -> None:
        """Create the topics and families of the pool unless they are known to exist; tasks make those of tenants."""
        if not self._is_ensured:
            if not await self._catalog.version(self.name):  # else topics of a deleted pool would be created
                await self._read_anew()
            pool = pool if self._stored is None else self._stored.pool
            await topics.ensure(self._app, pool, {kind: self._unseen.gain(kind) for kind in pool.types})
            self._is_ensured = True


def _opens_s(kind: TaskType, zone: str, now: float) -> float:
    """Return in how many seconds the hours of a type begin in a zone; 0 if they hold."""
    return calendars.allowed_at(kind.hours, zone, now) - now


def _in_zone(wait_s: float, pool_opens_s: float, opens_s: float) -> float:
    """Return the predicted wait of a task with a zone of its own: until its hours begin, and then for its turn.

    Args:
        wait_s: of a task with the pool's zone, infinity beyond `LOOK_AHEAD_S`.
        pool_opens_s, opens_s: seconds until the hours of the type begin in the pool's zone, and in the task's.
    """
    if math.isinf(wait_s):
        return opens_s if pool_opens_s >= LOOK_AHEAD_S else wait_s  # nobody knows how long it would wait for its turn
    return opens_s + max(0.0, wait_s - pool_opens_s)
