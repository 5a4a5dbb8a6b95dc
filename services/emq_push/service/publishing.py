"""Publishing: accepts messages in a transaction, sends them to the endpoints' topics, and only then returns.

Requests that come during a transaction share the next one, since the cost of a transaction hardly depends on the number
of its messages. Between the transaction and the sending, a row of `emq_push_unsent` names the messages. If the process
ends there, another one finds the row and sends them (`send_left`); if the caller repeats the request, the repeat does.
So accepted messages are sent, at least once.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Sequence

import msgspec
import sqlalchemy as sa

from emq.producer.batcher import Batcher
from emq.producer.outcomes import Outcome, in_doubt
from emq.runtime import errors
from emq.storage.durability import Durability
from emq_clients.push.answers import Receipt
from emq_push.records.accepted import Batch
from emq_push.records.deliveries import CANCELLED
from emq_push.service import incoming
from emq_push.service.accepting import LEASE_US, Accepting, Answer, Sending, Taken
from emq_push.service.incoming import Incoming, Request
from emq_push.service.parts import Parts
from emq_push.service.refusals import IN_PROGRESS, Conflict, Refused, TryAgain

log = logging.getLogger(__name__)

MESSAGE_COST = 1_000
"""Bytes that a message counts besides its own, so that a transaction has at most some thousand messages."""
TRIES = 4
"""Most times that a transaction begins again because another process has written the same rows."""
FORGET_S = 0.05
"""Seconds after which the rows of sent batches are deleted, if no transaction has done so."""
PATIENCE = 20
"""Most times that a request waits for `FORGET_S`, while an earlier one of the same messages is under way."""
LOOK_S = 5.0
"""Seconds between two looks for messages that another process has left unsent."""


class Publishing:
    """Publishes messages of tenants. Belongs to one event loop.

    Args:
        parts: of the service.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._accepting = Accepting(parts)
        self._batcher: Batcher[Request, Sequence[Receipt]] = Batcher(self._call)
        self._sent: set[str] = set()
        self._forgetting: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def publish(
        self,
        tenant: str,
        messages: Sequence[Incoming],
        *,
        key: str = "",
        digest: str = "",
        is_single: bool = False,
        only: str = "",
    ) -> Sequence[Receipt]:
        """Accept messages, all or none; return once they are in the topics of their endpoints.

        Args:
            key: the caller's Idempotency-Key; a repeat of the same request gets the same answer.
            digest: of the request, to tell another request with the same key.
            is_single: the caller gave one message, not a list; for the pointers of errors.
            only: the topic of the only endpoint that gets the messages; empty for those that want them.

        Raises:
            NotFound: there is no such tenant, or not the only endpoint.
            Invalid: a message is wrong, or the key came with another request before.
            Conflict: a message exists with other contents, or an earlier request is still under way.
            TryAgain: messages were accepted, but the store failed; a repeat with the same ids or key sends them.
            DatabaseUnavailable: nothing was accepted, or that is unknown; a repeat with own ids or a key is safe.
        """
        request = Request(tenant, messages, key, digest, only, is_single)
        incoming.check(request, self._parts.now_us())
        size = sum(message.size for message in messages) + MESSAGE_COST * len(messages)
        for _ in range(PATIENCE):
            try:
                return await self._batcher.send(request, Durability.ACCEPTED, size)
            except Conflict as exc:
                if exc.code != IN_PROGRESS:
                    raise
            await asyncio.sleep(FORGET_S)
        return await self._batcher.send(request, Durability.ACCEPTED, size)

    async def _call(self, requests: Sequence[Request], _: Durability) -> Sequence[Sequence[Receipt] | Exception]:
        sent = list(self._sent)
        taken = await self._accept(requests, sent)
        self._sent.difference_update(sent)
        failed: set[tuple[str, str]] = set()
        for sending in taken.sendings:
            failed |= await self._send(sending)
        return [self._outcome(request, answer, failed) for request, answer in zip(requests, taken.answers, strict=True)]

    async def _accept(self, requests: Sequence[Request], sent: Sequence[str]) -> Taken:
        for left in range(TRIES - 1, -1, -1):
            try:
                return await self._parts.write(lambda c: self._accepting.accept(c, requests, sent))
            except sa.exc.IntegrityError:
                if not left:
                    raise
        raise AssertionError("the loop returns or raises")

    def _outcome(self, request: Request, answer: Answer, failed: set[tuple[str, str]]) -> Sequence[Receipt] | Exception:
        if not failed or isinstance(answer, Refused):
            return answer
        if not any((request.tenant, receipt.id) in failed for receipt in answer):
            return answer
        text = "the messages are accepted, but the store failed; repeat the request with the same ids or "
        return TryAgain("not_sent", f"{text}Idempotency-Key, which is safe. Otherwise they are sent later")

    async def _send(self, sending: Sending) -> set[tuple[str, str]]:
        """Send a batch; return those messages that are left to be sent."""
        try:
            outcomes = await self._parts.app.send(sending.outgoing)
        except Exception as exc:
            outcomes = [exc if isinstance(exc, errors.EMQError) else in_doubt(exc)] * len(sending.outgoing)
        failed: set[tuple[str, str]] = set()
        gone: dict[tuple[str, str], list[str]] = {}
        if not all(isinstance(outcome, str) for outcome in outcomes):
            failed, gone = self._failures(sending, outcomes)
        if gone:
            await self._cancel(gone)
        if failed:
            await self._give_up(sending.batch, failed)
        else:
            self._sent.add(sending.batch.id)
            self._forget_soon()
        return failed

    def _failures(
        self, sending: Sending, outcomes: Sequence[Outcome]
    ) -> tuple[set[tuple[str, str]], dict[tuple[str, str], list[str]]]:
        """Return the messages to send again; and, by topic and reason, those whose endpoint does not take them."""
        failed: set[tuple[str, str]] = set()
        gone: dict[tuple[str, str], list[str]] = {}
        for outgoing, place, outcome in zip(sending.outgoing, sending.whose, outcomes, strict=True):
            if isinstance(outcome, str):
                continue
            if incoming.is_permanent(outcome):
                gone.setdefault((outgoing.topic, str(outcome)), []).append(place[1])
            else:
                failed.add(place)
                reason = outcome
        if failed:
            log.warning("%d messages are accepted but not sent: %s", len(failed), reason)
        return failed, gone

    async def _cancel(self, gone: dict[tuple[str, str], list[str]]) -> None:
        rows, now_us = self._accepting.deliveries, self._parts.now_us()

        def cancel(connection: sa.Connection) -> None:
            for (topic, reason), ids in gone.items():
                rows.end(connection, topic, CANCELLED, reason, now_us, ids)

        await self._parts.write(cancel)

    async def _give_up(self, batch: Batch, failed: set[tuple[str, str]]) -> None:
        """Leave unsent messages to the next request or look. If the database fails, too, the lease ends by itself."""
        left: dict[str, list[str]] = {}
        for tenant, message in sorted(failed):
            left.setdefault(tenant, []).append(message)
        try:
            await self._parts.write(
                lambda c: self._accepting.rows.give_up(c, msgspec.structs.replace(batch, messages=left))
            )
        except errors.DatabaseUnavailable as exc:
            log.warning("messages that were not sent wait for %d s: %s", LEASE_US // 1_000_000, exc)

    def _forget_soon(self) -> None:
        if self._forgetting is None:
            self._forgetting = asyncio.get_running_loop().call_later(FORGET_S, self._start_forgetting)

    def _start_forgetting(self) -> None:
        self._forgetting = None
        if self._sent:
            task = asyncio.get_running_loop().create_task(self.forget_sent())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def forget_sent(self) -> None:
        """Delete the rows of sent batches. If that fails, messages that no host has tried are sent again."""
        sent = list(self._sent)
        if not sent:
            return
        try:
            await self._parts.write(lambda c: self._accepting.rows.forget_batches(c, sent))
            self._sent.difference_update(sent)
        except errors.DatabaseUnavailable as exc:
            log.warning("batches that were sent are still noted as unsent: %s", exc)

    async def send_left(self) -> int:
        """Send messages that another process, or a failure, has left unsent; return their number.

        A batch that cannot be read keeps no other from being sent.
        """
        await self.forget_sent()
        now_us, rows = self._parts.now_us(), self._accepting.rows
        count = 0
        for batch in await self._parts.read(lambda c: rows.batches(c, now_us - LEASE_US)):
            try:
                sending = await self._parts.write(functools.partial(self._claim, batch, now_us))
            except errors.EMQError:
                raise
            except Exception:
                log.exception("batch %s of accepted messages cannot be sent", batch.id)
                continue
            if sending is not None:
                await self._send(sending)
                count += len(set(sending.whose))
        return count

    def _claim(self, batch: Batch, now_us: int, connection: sa.Connection) -> Sending | None:
        """Take a batch over; return None if it was sent, or somebody else was quicker."""
        if batch.id in self._sent or not self._accepting.rows.claim(connection, batch, now_us):
            return None
        return self._accepting.sending(connection, msgspec.structs.replace(batch, claimed_us=now_us))

    async def close(self) -> None:
        """Note the sent batches. Safe to repeat."""
        if self._forgetting is not None:
            self._forgetting.cancel()
            self._forgetting = None
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self.forget_sent()
