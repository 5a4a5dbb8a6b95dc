"""The transaction that accepts messages: writes the messages of many requests, and returns those to send."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec
import sqlalchemy as sa

from emq.producer.outgoing import Outgoing
from emq_clients.push.answers import Receipt
from emq_push.records.accepted import Accepted, Batch, Message, MessageRow, Repeat, Rest, headers_of
from emq_push.records.deliveries import Deliveries, NewDelivery
from emq_push.records.endpoints import Endpoint, endpoint_of
from emq_push.service.incoming import PLAIN, Incoming, Request
from emq_push.service.parts import Parts
from emq_push.service.plans import Plan, Plans
from emq_push.service.refusals import IN_PROGRESS, Conflict, Invalid, Refused, unknown_endpoint
from emq_push.service.tenancy import unknown

LEASE_US = 15_000_000
"""Microseconds after which another process may send the messages of a process that has crashed or is stuck."""

Answer: TypeAlias = Sequence[Receipt] | Refused

_place = operator.itemgetter(0, 1)
_encode = msgspec.json.Encoder().encode
_receipts = msgspec.json.Decoder(list[Receipt]).decode
_PLAIN = _encode(PLAIN).decode()


class Sending(NamedTuple):
    """A batch to send.

    Attributes:
        whose: tenant and message of each of `outgoing`.
    """

    batch: Batch
    outgoing: list[Outgoing]
    whose: list[tuple[str, str]]

    def add(self, tenant: str, outgoing: Outgoing) -> None:
        self.outgoing.append(outgoing)
        self.whose.append((tenant, outgoing.id or ""))


class Taken(NamedTuple):
    """The messages that a transaction has accepted.

    Attributes:
        answers: one for each request.
        sendings: the new messages, then batches of earlier requests that nobody has sent.
    """

    answers: list[Answer]
    sendings: list[Sending]


class Accepting:
    """Accepts messages. Its methods run on threads of the database, each within a transaction."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.rows = Accepted(parts.environment)
        self.deliveries = Deliveries(parts.environment)
        self.plans = Plans(parts.environment)

    def accept(self, connection: sa.Connection, requests: Sequence[Request], sent: Sequence[str]) -> Taken:
        """Accept or refuse each request.

        Args:
            sent: ids of batches that were sent, to be forgotten now.

        Raises:
            IntegrityError: another process has accepted one of the messages or keys meanwhile; begin again.
        """
        return _Transaction(self, connection, sent).run(requests)

    def sending(self, connection: sa.Connection, batch: Batch) -> Sending:
        """Return the rest of a batch: pending deliveries that no host has tried."""
        sending = Sending(batch, [], [])
        plans = self.plans.of(connection, batch.messages)
        for tenant, ids in batch.messages.items():
            if tenant not in plans:
                continue
            priorities = plans[tenant].matcher.priorities
            for message in self.rows.find_untried(connection, tenant, ids).values():
                if message.payload is None:
                    continue
                headers = message.headers
                for topic in message.topics:
                    if topic in priorities:
                        out = _outgoing(topic, priorities[topic], message.id, message.payload, headers, message.rest)
                        sending.add(tenant, out)
        return sending


class _Transaction:
    """One transaction. Requests are taken one after another, and each sees those before it."""

    def __init__(self, accepting: Accepting, connection: sa.Connection, sent: Sequence[str]) -> None:
        self._accepting, self._rows, self._connection = accepting, accepting.rows, connection
        parts = accepting.parts
        self._now_us, self._new_id = parts.now_us(), parts.new_ids("msg")
        self._sent = set(sent)
        self._messages: list[MessageRow] = []
        self._deliveries: list[NewDelivery] = []
        self._known: dict[tuple[str, str], Message] = {}
        self._fresh: set[tuple[str, str]] = set()
        self._repeats: dict[tuple[str, str], Repeat] = {}
        self._new_repeats: dict[tuple[str, str], Repeat] = {}
        self._has_own_ids = False
        self._unsent: Sequence[Batch] | None = None
        self._again: dict[str, Batch] = {}
        self._new = Sending(Batch(parts.new_id("bat"), self._now_us, {}), [], [])

    def run(self, requests: Sequence[Request]) -> Taken:
        connection = self._connection
        plans = self._accepting.plans.of(connection, {request.tenant for request in requests})
        keys = [(request.tenant, request.key) for request in requests if request.key]
        self._repeats = self._rows.repeats(connection, keys) if keys else {}
        self._read_known(requests)
        answers: list[Answer] = []
        for request in requests:
            try:
                answers.append(self._take(request, plans.get(request.tenant)))
            except Refused as exc:
                answers.append(exc)
        if self._has_own_ids:
            self._messages.sort(key=_place)  # so that two processes with the same ids wait for each other in one order
        self._rows.add_messages(connection, self._messages)
        self._accepting.deliveries.add(connection, self._deliveries)
        self._rows.add_repeats(connection, self._new_repeats, self._now_us)
        self._rows.forget_batches(connection, list(self._sent))
        sendings = [self._accepting.sending(connection, batch) for batch in self._again.values()]
        if self._new.outgoing:
            self._rows.add_batch(connection, self._new.batch)
            sendings.append(self._new)
        return Taken(answers, sendings)

    def _read_known(self, requests: Sequence[Request]) -> None:
        """Read those messages that exist already, among those with ids of the callers' own."""
        wanted: dict[str, list[str]] = {}
        for request in requests:
            own = [message.id for message in request.messages if message.id is not None]
            if own:
                wanted.setdefault(request.tenant, []).extend(own)
        self._has_own_ids = bool(wanted)
        for tenant, ids in wanted.items():
            for id_, message in self._rows.find(self._connection, tenant, ids).items():
                self._known[tenant, id_] = message

    def _take(self, request: Request, plan: Plan | None) -> Sequence[Receipt]:
        if plan is None:
            raise unknown(request.tenant)
        if request.only and request.only not in plan.matcher.by_topic:
            raise unknown_endpoint(endpoint_of(request.only))
        place = request.tenant, request.key
        if request.key and (repeat := self._repeats.get(place)) is not None:
            if repeat.digest != request.digest:
                text = "this Idempotency-Key came with another request before; give each request a key of its own"
                raise Invalid("idempotency_key_reused", text)
            receipts = _receipts(repeat.answer)
            self._send_again(request.tenant, [receipt.id for receipt in receipts], place in self._new_repeats)
            return receipts
        existing = self._existing(request)
        if not request.only:
            new = ((request.at(n), each) for n, each in enumerate(request.messages) if n not in existing)
            self._accepting.parts.catalogue.check(self._connection, new, self._now_us)
        self._send_again(request.tenant, [message.id for message in existing.values()], False)
        receipts = [
            _receipt(existing[number]) if number in existing else self._add(request, message, plan)
            for number, message in enumerate(request.messages)
        ]
        if request.key:
            repeat = Repeat(request.digest, _encode(receipts).decode())
            self._repeats[place] = self._new_repeats[place] = repeat
        return receipts

    def _existing(self, request: Request) -> dict[int, Message]:
        """Return those messages of a request that exist already, by their number.

        Raises:
            Conflict: one of them is another message of the same id.
        """
        found: dict[int, Message] = {}
        if not self._known:
            return found
        for number, message in enumerate(request.messages):
            if message.id is None or (known := self._known.get((request.tenant, message.id))) is None:
                continue
            if not _is_same(message, known):
                text = f"message {message.id!r} exists with other contents; give another id"
                raise Conflict("message_exists", text, f"{request.at(number)}/id")
            found[number] = known
        return found

    def _send_again(self, tenant: str, ids: Sequence[str], is_new: bool) -> None:
        """Send messages of an earlier request, if they were not sent.

        Raises:
            Conflict: somebody is about to send them.
        """
        if not ids or is_new or (tenant, ids[0]) in self._fresh:
            return
        if self._unsent is None:
            self._unsent = [b for b in self._rows.batches(self._connection) if b.id not in self._sent]
        wanted = set(ids)
        for batch in self._unsent:
            if batch.id in self._again or wanted.isdisjoint(batch.messages.get(tenant, ())):
                continue
            is_taken = self._now_us - batch.claimed_us < LEASE_US
            if is_taken or not self._rows.claim(self._connection, batch, self._now_us):
                text = "an earlier request with these messages is still under way; repeat this one in a second"
                raise Conflict(IN_PROGRESS, text)
            self._again[batch.id] = msgspec.structs.replace(batch, claimed_us=self._now_us)

    def _add(self, request: Request, message: Incoming, plan: Plan) -> Receipt:
        tenant, now_us, id_ = request.tenant, self._now_us, message.id or self._new_id(self._now_us)
        payload, due_us = bytes(message.payload), message.due_us(now_us)
        rest = message.rest(due_us)
        body = _PLAIN if rest == PLAIN else _encode(rest).decode()
        expires_us = now_us + plan.tenant.settings.log_retention_s * 1_000_000
        self._messages.append((tenant, id_, message.event_type, message.key, now_us, expires_us, payload, body))
        if request.only:
            endpoints: Sequence[Endpoint] = [plan.matcher.by_topic[request.only]]
        else:
            endpoints = plan.matcher.endpoints_of(message.event_type, payload, message.channels or ())
        topics, headers = [], headers_of(message.event_type, message.headers)
        for endpoint in endpoints:
            topic = endpoint.topic
            topics.append(topic)
            self._deliveries.append((topic, id_, tenant, now_us, due_us))
            self._new.add(tenant, _outgoing(topic, endpoint.settings.priorities, id_, payload, headers, rest))
        if topics:
            self._new.batch.messages.setdefault(tenant, []).append(id_)
        made = Message(tenant, id_, message.event_type, now_us, expires_us, payload, rest, tuple(topics))
        self._fresh.add((tenant, id_))
        if message.id is not None:
            self._known[tenant, id_] = made
        return _receipt(made)


def _outgoing(
    topic: str, priorities: Sequence[str], id_: str, payload: bytes, headers: Mapping[str, str], rest: Rest
) -> Outgoing:
    priority = rest.priority if rest.priority in priorities else None
    at = rest.due_us / 1e6 if rest.due_us else None
    return Outgoing(topic, payload, id_, rest.key, priority, headers, at=at, ttl_s=rest.ttl_s)


def _is_same(message: Incoming, known: Message) -> bool:
    """Return whether a message equals one that was accepted before, apart from its time, which counts from the request.

    An erased payload equals any other.
    """
    is_payload = known.payload is None or known.payload == bytes(message.payload)
    return is_payload and message.event_type == known.event_type and message.rest(known.rest.due_us) == known.rest


def _receipt(message: Message) -> Receipt:
    return Receipt(message.id, [f"{endpoint_of(topic)}:{message.id}" for topic in message.topics])
