"""Batched delivery: messages of one endpoint that share a request."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from emq.calls import content_types
from emq.runtime.clock import Clock
from emq.storage.message import Message
from emq_push.endpoint import Batch, Endpoint
from emq_push.verdict import Outcome

MOST_BYTES = 1 << 19
"""Bytes at which a batch is sent. A larger payload goes alone."""

Send = Callable[[Endpoint, Sequence[Message]], Coroutine[Any, Any, Outcome]]


class _Batch:
    """Attributes:
    most: messages that it may have.
    """

    __slots__ = ("endpoint", "messages", "most", "size", "task", "timer", "waiting")

    def __init__(self, endpoint: Endpoint) -> None:
        assert endpoint.batch is not None
        self.endpoint = endpoint
        self.most = endpoint.batch.most
        self.messages: dict[int, Message] = {}
        self.waiting: dict[int, asyncio.Future[Outcome]] = {}
        self.size = 0
        self.timer: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[Outcome] | None = None


class Batches:
    """Collects messages until a batch is full, or its first message has waited long enough, and sends them together.

    The messages of a batch have one outcome: the endpoint takes all of them, or all are tried again, each on its own
    schedule. An endpoint that refuses one payload refuses its batch. So each attempt halves the next batch of a
    message, and its last attempt is alone, also if it is the last because the message expires before the next one: no
    message dies because of another's payload. Two messages of one key are never in one batch, since the host starts
    the second when the first is done.

    Args:
        send: sends messages in one request.
        clock: that of the messages' expiry.
    """

    def __init__(self, send: Send, clock: Clock) -> None:
        self._send = send
        self._clock = clock
        self._open: dict[str, _Batch] = {}
        self._sent: set[asyncio.Task[Outcome]] = set()

    async def join(self, endpoint: Endpoint, message: Message) -> Outcome:
        """Send a message with others; return the outcome of the request.

        Cancelling takes out a message that still waits.
        """
        assert endpoint.batch is not None
        most = most_of(endpoint, message, self._clock.now_us())
        batch = self._open.get(endpoint.topic)
        if batch is not None and (
            batch.endpoint is not endpoint
            or batch.size + len(message.payload) > MOST_BYTES
            or len(batch.messages) >= most
        ):
            self._close_batch(batch)
            batch = None
        if batch is None:
            batch = self._open[endpoint.topic] = _Batch(endpoint)
            loop = asyncio.get_running_loop()
            batch.timer = loop.call_later(endpoint.batch.wait_s, self._close_batch, batch)
        batch.most = min(batch.most, most)
        place = id(message)
        batch.messages[place] = message
        batch.size += len(message.payload)
        future = batch.waiting[place] = asyncio.get_running_loop().create_future()
        if len(batch.messages) >= batch.most:
            self._close_batch(batch)
        try:
            outcome: Outcome = await future
            return outcome
        finally:
            if batch.waiting.pop(place, None) is not None and batch.task is None:
                del batch.messages[place]
            if not batch.waiting and batch.task is not None:
                batch.task.cancel()  # nobody waits for it any more

    async def close(self) -> None:
        """End requests under way."""
        for batch in list(self._open.values()):
            self._close_batch(batch)
        tasks = list(self._sent)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _close_batch(self, batch: _Batch) -> None:
        """Send a batch: no message joins it any more."""
        if batch.timer is not None:
            batch.timer.cancel()
        if self._open.get(batch.endpoint.topic) is batch:
            del self._open[batch.endpoint.topic]
        if batch.messages:
            sending = self._send(batch.endpoint, list(batch.messages.values()))
            batch.task = asyncio.get_running_loop().create_task(sending, name="emq batch")
            self._sent.add(batch.task)
            batch.task.add_done_callback(functools.partial(self._ended, batch))

    def _ended(self, batch: _Batch, task: asyncio.Task[Outcome]) -> None:
        """Tell the outcome; also of a request that was cancelled before it began."""
        self._sent.discard(task)
        failure = None if task.cancelled() else task.exception()
        for future in batch.waiting.values():
            if future.done():
                continue
            if task.cancelled():
                future.cancel()
            elif failure is not None:
                future.set_exception(failure)
            else:
                future.set_result(task.result())


def most_of(endpoint: Endpoint, message: Message, now_us: int) -> int:
    """Return the most messages of a batch with this one: half as many after each failed attempt, 1 for its last one."""
    assert endpoint.batch is not None
    if endpoint.schedule.is_last(message.attempt) or _expires_first(endpoint, endpoint.batch, message, now_us):
        return 1
    return max(1, endpoint.batch.most >> min(message.attempt - 1, 30))


def _expires_first(endpoint: Endpoint, batch: Batch, message: Message, now_us: int) -> bool:
    """Return True if a message expires before it is tried again, should this attempt fail."""
    if not message.expires_us or not endpoint.schedule.decides:  # as RMQ retries, its time to live begins again
        return False
    wait_s = batch.wait_s + endpoint.schedule.longest_s(message.attempt)
    return message.expires_us <= now_us + wait_s * 1e6


def fits(endpoint: Endpoint, message: Message) -> bool:
    """Return True if a message may share a request: its payload is JSON, and of the endpoint's content type."""
    own = content_types.given(message.headers)
    if len(message.payload) > MOST_BYTES or (own is not None and own != endpoint.content_type):
        return False
    try:
        _check(message.payload)
        message.payload.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False  # not JSON, or nested more deeply than the interpreter lets it be checked
    return True


def body_of(endpoint: Endpoint, messages: Sequence[Message]) -> bytes:
    """Return the body of a batch: a JSON array of payloads, or one payload a line."""
    assert endpoint.batch is not None
    if endpoint.batch.format == "json":
        return b"[" + b",".join([m.payload for m in messages]) + b"]"
    return b"".join([_line(m.payload) + b"\n" for m in messages])


def _line(payload: bytes) -> bytes:
    return payload if b"\n" not in payload else msgspec.json.format(payload, indent=-1)


_check = msgspec.json.Decoder(msgspec.Raw).decode
