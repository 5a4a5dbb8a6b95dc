"""Polling endpoints, `poll:`: a delivery is placed in the endpoint's log, where the tenant's consumer fetches it.

Nothing connects to anywhere. The endpoint has taken a message once it is in the log; the delivery is over once the
consumer has acknowledged it (`emq_push.service.polling`). The hosts' limits hold for what enters the log.

- 202: placed.
- 503: `MOST` messages wait there. So a consumer that has stopped is a broken endpoint: breaker, retries, dead letters.
- 410: the oldest message has waited for as long as an endpoint may fail. The endpoint is disabled.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
import yarl

from emq.producer.batcher import Batcher
from emq.runtime import durations, errors
from emq.storage.durability import Durability
from emq_push import verdict
from emq_push.destinations import POLL_URL, Around, Destination, Parcel
from emq_push.records import schema
from emq_push.records.poll_log import PollLog
from emq_push.wire import Answer

MOST = 10_000
"""Most messages that wait in the log of an endpoint."""

PLACED = 202
_FULL = 503
_UNKNOWN = 404


class Polling:
    """Places messages in logs: those that come during a transaction share the next one."""

    def __init__(self, around: Around) -> None:
        self._app = around.app
        self._log = PollLog(str(around.app.settings.environment))
        self._batcher: Batcher[Parcel, Answer] = Batcher(self._place)
        self._has_tables = False

    async def deliver(self, parcel: Parcel) -> Answer:
        try:
            return await self._batcher.send(parcel, Durability.ACCEPTED, 0)
        except errors.DatabaseUnavailable as exc:
            raise errors.GiveBack(f"this host: {exc}", pause_s=verdict.OURS_S) from None

    async def close(self) -> None:
        await self._batcher.close()

    async def _place(self, parcels: Sequence[Parcel], _: Durability) -> Sequence[Answer]:
        if not self._has_tables:
            await schema.ensure(self._app.database)
            self._has_tables = True
        by_topic: dict[str, list[Parcel]] = {}
        for parcel in parcels:
            by_topic.setdefault(parcel.topic, []).append(parcel)

        def place(connection: sa.Connection) -> dict[str, Answer]:
            # In one order, since each locks the row of its endpoint.
            return {topic: self._placed(connection, topic, by_topic[topic]) for topic in sorted(by_topic)}

        answers = await self._app.database.run(place)
        return [answers[parcel.topic] for parcel in parcels]

    def _placed(self, connection: sa.Connection, topic: str, parcels: Sequence[Parcel]) -> Answer:
        state, now_us = self._log.state(connection, topic), self._app.clock.now_us()
        if state is None:
            return Answer(_UNKNOWN, None, b"only endpoints of the push service can be polled")
        waits_s = (now_us - state.oldest_us) / 1e6 if state.oldest_us else 0.0
        if waits_s >= parcels[0].disable_after_s:
            text = f"nobody has fetched and acknowledged its messages for {durations.brief(waits_s)}"
            return Answer(verdict.GONE, None, text.encode())
        if state.waiting >= MOST:
            return Answer(_FULL, None, f"{MOST:,} messages wait for a consumer to fetch them".encode())
        self._log.place(connection, topic, [message.id for each in parcels for message in each.messages], now_us)
        return Answer(PLACED, None, b"")


class PollKind:
    """See `emq_push.destinations.Kind`."""

    def check(self, url: yarl.URL) -> None:
        if str(url) != POLL_URL:
            raise ValueError(f"push.url {str(url)[:80]!r}: a polling endpoint has the URL 'poll:' and no more")

    def reached(self, url: yarl.URL) -> Sequence[yarl.URL]:
        return ()

    def open(self, around: Around) -> Destination:
        return Polling(around)


KIND = PollKind()
