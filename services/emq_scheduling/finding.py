"""Finds the state of a task, also of one that waits, which has no record until it starts.

Two looks at the store find such a task, in the topics where it may wait, at a bounded cost:

- Groups remember the ids that were submitted in the last 10 minutes (`emq_scheduling.topics.DEDUPE_S`), however many
  tasks wait. So a task without a record, whose id its group remembers, waits. One call asks all groups.
- An older task is searched for in the lanes, where tasks wait for the hours of their type, and in the queues, from the
  front. The search ends after `READS` reads.

It misses an older task that waits behind more than that, or that its host has taken out of a lane. A task that has run
for less than a second may be shown as waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from emq.groups.offset_tracker import OffsetTracker
from emq.offsets.checkpoints import Checkpoint
from emq.runtime import errors
from emq.runtime.inputs import shown
from emq.storage import message
from emq.storage.answers import FAILURES, served
from emq.storage.log_store import REPEATED, Put, Read
from emq.storage.message import Message
from emq.trail import events
from emq_scheduling.pools import values
from emq_scheduling.pools.catalog import PoolCatalog
from emq_scheduling.records.records import Records, TaskStatus
from emq_scheduling.tasks import topic_of, tries_of
from emq_scheduling.topics import root_name

if TYPE_CHECKING:
    from emq.app import App
    from emq.topics.model import Topic

MOST_TOPICS = 100
"""Most topics to look at for one task. Each tenant has one for each of its types."""

PAGE = 1_000
PAGE_BYTES = 1 << 20
READS = 10
"""Most tasks and bytes of one read of the queues, and most reads of one search: it ends after `PAGE * READS` tasks."""

LANE_BYTES = 1 << 18
LANE_READS = 100
"""The same for lanes, which are read one by one, at most `PAGE` tasks at a time."""


class Candidates(NamedTuple):
    """Topics in which a task may wait.

    Attributes:
        all: False if there are more of them than `MOST_TOPICS`.
    """

    topics: Sequence[Topic]
    all: bool


class Waits(msgspec.Struct, frozen=True):
    """Where a task waits.

    Attributes:
        ahead: tasks before it in its queue; None in a lane.
        due_ms: in a lane, when it goes on, in milliseconds since the epoch; None in a queue.
        tries: its fallbacks; none for a task without.
        at: the place of the first of them that it has not tried for good.
    """

    topic: str
    ahead: int | None = None
    due_ms: int | None = None
    tries: tuple[str, ...] = ()
    at: int = 0


async def status(app: App, pool: str, task: str, task_type: str = "", tenant: str = "") -> TaskStatus:
    """Return the status of a task.

    Args:
        task_type, tenant: those of its submit, if the caller knows; empty for any. With both, the search looks at one
            topic, however many tenants the pool has.

    Raises:
        UnknownPool: nothing is recorded of the task, and there is no such pool.
        UnknownTask: nothing is recorded of the task, and it does not wait where the search has looked.
        InvalidPool: no type or tenant can have this name.
    """
    if task_type:
        values.check_name("type", task_type)
    if tenant:
        values.check_tenant(tenant)
    records = Records(app.database, app.settings.environment)
    found = await records.find(pool, task, task_type, tenant)
    if found is not None and found.state != "unknown":
        return found
    where = await candidates(app, pool, task_type, tenant)
    if await is_remembered(app, where.topics, task) or await look(app, where.topics, task) is not None:
        return TaskStatus(task, "waiting", (), found is not None)
    if found is not None:
        return found
    more = "" if where.all else f". The pool has over {MOST_TOPICS} topics: give its type and its tenant"
    raise errors.UnknownTask(
        f"nothing is recorded of task {shown(task)} in pool {shown(pool)}, and it was not found to wait: it was never "
        f"submitted, its records were too old to keep, or it waits behind many others{more}"
    )


async def candidates(app: App, pool: str, task_type: str = "", tenant: str = "") -> Candidates:
    """Return the topics in which a task may wait.

    If the pool has many tenants and the caller names none, these are only the topics without a tenant.

    Raises:
        UnknownPool: the type is not given, and there is no such pool.
    """
    kinds = [task_type]
    if not task_type:
        stored = await PoolCatalog(app.database, app.settings.environment).get(pool)
        kinds = list(stored.pool.types)
    names = [topic_of(pool, kind, tenant) for kind in kinds]
    is_all = len(names) <= MOST_TOPICS
    if not tenant:
        below = await app.catalog.beginning(f"{pool}.{task_type}." if task_type else f"{pool}.", MOST_TOPICS + 1)
        is_all = is_all and len(below) <= MOST_TOPICS
        names = list(dict.fromkeys([*names, *below])) if is_all else names
    found = await app.catalog.some(names[:MOST_TOPICS] if not is_all else names)
    return Candidates([each for each in found.values() if each.options.budget == root_name(pool)], is_all)


async def is_remembered(app: App, among: Sequence[Topic], task: str) -> bool:
    """Return whether a task was submitted to one of these topics in the last `emq_scheduling.topics.DEDUPE_S`.

    Each group is sent a put that cannot be stored, since it has no room: the group refuses the put, unless it remembers
    the id, because a repeat takes no room. Nothing is stored either way.
    """
    places = [(topic, group) for topic in among if topic.options.dedupe_s for group in range(topic.groups)]
    puts = [
        Put(
            topic.queue(group, 0),
            (b"",),
            max_length=0,
            siblings=topic.queues(group),
            ids=(task,),
            remember_ms=topic.dedupe_ms,
        )
        for topic, group in places
    ]
    try:
        answers = await app.store.log.put(puts) if puts else ()
    except FAILURES:
        return False
    return any(not isinstance(answer, errors.EMQError) and REPEATED in answer for answer in answers)


async def look(app: App, among: Sequence[Topic], task: str) -> Waits | None:
    """Search for a task in the queues and lanes of topics; None if it is not among those that are read."""
    return await _in_queues(app, among, task) or await _in_lanes(app, among, task)


async def _in_queues(app: App, among: Sequence[Topic], task: str) -> Waits | None:
    """Read the queues as an observer, all of them in one call, until enough tasks were read."""
    log, mark = app.store.log, task.encode()
    topic_of_queue = {queue: topic.name for topic in among for queue in topic.all_queues()}
    queues = list(topic_of_queue)
    if not queues:
        return None
    saved = await app.checkpoints.load(queues)
    starts: dict[str, int] = {}
    ends: dict[str, int] = {}
    for queue, bounds in zip(queues, served(await log.bounds(queues)), strict=True):
        checkpoint = saved.get(queue)
        start = bounds.head if checkpoint is None else max(bounds.head, checkpoint.watermark)
        if start < bounds.tail:
            starts[queue], ends[queue] = start, bounds.tail
    nexts = dict(starts)
    for _ in range(READS if nexts else 0):
        limit = max(1, PAGE // len(nexts))
        reads = [Read(queue, start, limit, None) for queue, start in nexts.items()]
        for read, batch in zip(reads, await log.read(reads, PAGE_BYTES), strict=True):
            if isinstance(batch, errors.EMQError):
                raise batch
            for offset, body in zip(batch.offsets, batch.bodies, strict=True):
                if mark in body and (found := _of(body, task)) and not _is_finished(saved.get(read.queue), offset):
                    topic, ahead = topic_of_queue[read.queue], offset - starts[read.queue]
                    return _with_tries(Waits(topic, ahead=ahead), found)
            nexts[read.queue] = batch.next
        nexts = {queue: start for queue, start in nexts.items() if start < ends[queue]}
        if not nexts:
            break
    return None


async def _in_lanes(app: App, among: Sequence[Topic], task: str) -> Waits | None:
    """Read the lanes one after the other, each by due time."""
    lanes, left = app.store.lanes, LANE_READS
    topic_of_lane = {topic.group(group): topic.name for topic in among for group in range(topic.groups)}
    states = served(await lanes.inspect(list(topic_of_lane))) if topic_of_lane else ()
    for (lane, topic), state in zip(topic_of_lane.items(), states, strict=True):
        skip = 0
        while skip < state.waiting and left and (page := await lanes.waiting(lane, skip, PAGE, LANE_BYTES)):
            for entry in page:
                if events.is_named(entry.id, task):
                    return _with_tries(Waits(topic, due_ms=entry.due_ms), _of(entry.body, task))
            skip, left = skip + len(page), left - 1
    return None


def _with_tries(found: Waits, of: Message | None) -> Waits:
    tries = None if of is None else tries_of(of)
    return found if tries is None else msgspec.structs.replace(found, tries=tries.entries, at=tries.at)


def _of(body: bytes, task: str) -> Message | None:
    """Return the message of a task; None if the body is another one's."""
    try:
        found = message.decode(body)
    except message.UNREADABLE:
        return None
    return found if found.id == task else None


def _is_finished(checkpoint: Checkpoint | None, offset: int) -> bool:
    return checkpoint is not None and OffsetTracker(checkpoint.watermark, checkpoint.finished).is_finished(offset)
