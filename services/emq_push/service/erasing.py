"""Erases messages: their payloads in the store and the database, and then their rows.

To forget a person, `erase_key` deletes at once the payloads in the database, in lanes and among dead letters. A message
in a queue cannot be taken out; it may fail, and then waits in a lane or becomes a dead letter. So its row is marked,
and `Upkeep` keeps calling `go_on`, which takes back such messages, and deletes the message, its deliveries and its
attempts once none of its deliveries waits.

Old payloads go in the same way, first from the dead letters, then from the database.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from emq.observe import planned
from emq.storage.answers import served
from emq.storage.lane_store import EntryState, LaneSettle, LaneVerdict
from emq_push.records import rows
from emq_push.records.deliveries import CANCELLED, DEAD, PENDING, Deliveries
from emq_push.records.messages import Messages, Place
from emq_push.records.poll_log import PollLog
from emq_push.records.rows import IDS_AT_ONCE
from emq_push.service.parts import Parts
from emq_push.service.tenancy import Tenancy

ERASED = "the payload was erased"
"""The reason of deliveries that are cancelled because their payload was erased."""

ByTopic = Mapping[str, Sequence[str]]
"""Ids of messages by topic."""


class Erasing:
    """Erase messages of a key, and old payloads."""

    def __init__(self, parts: Parts, tenants: Tenancy) -> None:
        self._parts = parts
        self._tenants = tenants
        self._rows = Messages(parts.environment)
        self._deliveries = Deliveries(parts.environment)
        self._log = PollLog(parts.environment)

    async def erase_key(self, tenant: str, key: str, actor: str) -> int:
        """Erase all messages with a key; return how many payloads there were. Safe to repeat.

        Delayed deliveries and retries are taken back and cancelled, and dead letters deleted. A message that waits in a
        queue for its first attempt cannot be taken out: it is delivered or fails, and then gone.

        Raises:
            NotFound: there is no such tenant.
        """
        await self._tenants.get(tenant)
        count, last = 0, ""
        while ids := await self._parts.read(functools.partial(self._of_key, tenant, key, last)):
            by_topic = await self._parts.read(functools.partial(self._rows.by_topic, tenant=tenant, ids=ids))
            recalled = await self._recalled(by_topic)
            await self._purge_dead(tenant, ids)
            count += await self._parts.write(functools.partial(self._erase, tenant, ids, recalled))
            last = ids[-1]
        changes = {"payloads": count}
        await self._parts.write(
            lambda c: self._parts.audit(c, actor, "messages.erased", "key", tenant=tenant, changes=changes)
        )
        return count

    async def go_on(self, after: Place, limit: int) -> Place | None:
        """Go on with messages that are being erased.

        Args:
            after: where the last call has ended.
            limit: at most `IDS_AT_ONCE`.

        Returns:
            Where to begin the next call; None at the end.
        """
        found = await self._parts.read(lambda c: self._rows.erasing(c, after, limit))
        by_tenant: dict[str, list[str]] = {}
        for tenant, id_ in found:
            by_tenant.setdefault(tenant, []).append(id_)
        for tenant, ids in by_tenant.items():
            read = functools.partial(self._rows.by_topic, tenant=tenant, ids=ids, state=PENDING)
            recalled = await self._recalled(await self._parts.read(read))
            await self._parts.write(functools.partial(self._cancel, recalled))
            waiting = await self._parts.read(functools.partial(self._rows.waiting, tenant=tenant, ids=ids))
            # One that dies from now on has its dead letter purged before it is deleted, in the next call.
            settled = [id_ for id_ in ids if id_ not in waiting]
            await self._purge_dead(tenant, settled)
            await self._parts.write(functools.partial(self._rows.delete_settled, tenant=tenant, ids=settled))
        return found[-1] if len(found) == limit else None

    async def erase_old(self, tenant: str, before_us: int, limit: int) -> int:
        """Erase some payloads of messages that were made before a time and no longer wait; return how many."""
        ids = await self._parts.read(lambda c: self._rows.older(c, tenant, before_us, limit))
        for some in rows.chunks(ids):
            await self._purge_dead(tenant, some)
            await self._parts.write(functools.partial(self._rows.erase_settled, tenant=tenant, ids=some))
        return len(ids)

    # ------------------------------------------------------------------------------------------------------- details

    def _of_key(self, tenant: str, key: str, after: str, connection: sa.Connection) -> Sequence[str]:
        return self._rows.of_key(connection, tenant, key, after, IDS_AT_ONCE)

    def _erase(self, tenant: str, ids: Sequence[str], recalled: ByTopic, connection: sa.Connection) -> int:
        self._cancel(recalled, connection)
        self._rows.mark_erasing(connection, tenant, ids)
        return self._rows.erase(connection, tenant, ids)

    def _cancel(self, recalled: ByTopic, connection: sa.Connection) -> None:
        for topic, messages in recalled.items():
            self._deliveries.end(connection, topic, CANCELLED, ERASED, self._parts.now_us(), messages)

    async def _recalled(self, by_topic: ByTopic) -> ByTopic:
        """Take messages back from the lanes and logs of topics that exist; return those that were there."""
        topics = await self._parts.topics(by_topic)

        def drop(connection: sa.Connection) -> dict[str, set[str]]:
            return {name: self._log.drop(connection, name, by_topic[name]) for name in topics}

        dropped = await self._parts.write(drop)
        recall = self._parts.app.admin.recall
        return {name: sorted(dropped[name] | set(await recall(name, by_topic[name]))) for name in topics}

    async def _purge_dead(self, tenant: str, ids: Sequence[str]) -> None:
        """Throw away the dead letters of messages, if there are any."""
        by_topic = await self._parts.read(lambda c: self._rows.by_topic(c, tenant, ids, DEAD))
        topics = await self._parts.topics(by_topic)
        lanes = self._parts.app.store.lanes
        for name, topic in topics.items():
            async for letters in planned.named(lanes, topic, by_topic[name], EntryState.DEAD):
                purges = [LaneSettle(topic.group(e.group), e.uid, LaneVerdict.PURGE, for_good=True) for e in letters]
                served(await lanes.settle(purges))
