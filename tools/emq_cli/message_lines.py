"""JSON lines on their way from a stream into topics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from emq.producer import Outgoing, scores
from emq.producer.checks import check_labels, due_ms_of
from emq.producer.outcomes import first_failure
from emq.runtime import errors
from emq.storage import folds
from emq.topics.model import Kind, Topic
from emq_cli import times

if TYPE_CHECKING:
    from emq.app import App

CHUNK_BYTES = 1 << 18
"""Most bytes of one read. A read takes only what a pipe holds now, so lines of a slow source go out one by one."""


class Told(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What is said of a message: by its line, or by the options of the command for lines that do not say it.

    Attributes:
        delay: a level of the topic, or a span such as 30s.
        at: a time in words, or seconds since the epoch.
    """

    topic: str | None = None
    key: str | None = None
    priority: str | float | None = None
    headers: dict[str, str] | None = None
    delay: str | None = None
    delay_ms: float | None = None
    at: str | float | None = None
    ttl_s: float | None = None
    time_range_ms: int | None = None
    merge_key: str | None = None

    def at_s(self, now_s: float) -> float | None:
        """Return `at` in seconds since the epoch. Raises `InvalidMessage`."""
        if not isinstance(self.at, str):
            return self.at
        try:
            return times.ahead(self.at, now_s)
        except ValueError as exc:
            raise errors.InvalidMessage(f"at {exc}") from None

    def or_else(self, default: Told) -> Told:
        """Return this with the default where this says nothing, of the fields `WHEN` only if it has none of them."""
        said = {name: getattr(self, name) for name in Told.__struct_fields__ if getattr(self, name) is not None}
        left = WHEN if any(name in said for name in WHEN) else ()
        return msgspec.structs.replace(default, **(dict.fromkeys(left) | said))


class MessageLine(Told, kw_only=True):
    """One line of input; see `emq publish --help`."""

    payload: msgspec.Raw


WHEN = ("delay", "delay_ms", "at", "time_range_ms")


class BadLine(errors.EMQError):
    """A line, or its publishing, failed; the text names it. Correct the input and go on from there.

    Args:
        reason: the failure itself.
    """

    def __init__(self, text: str, reason: errors.EMQError) -> None:
        super().__init__(text)
        self.reason = reason


_decoder = msgspec.json.Decoder(MessageLine)


def chunks(stream: BinaryIO) -> Iterator[list[bytes]]:
    """Whole lines, as many at a time as one read brings."""
    read = getattr(stream, "read1", stream.read)
    rest = bytearray()
    while data := read(CHUNK_BYTES):
        *whole, last = data.split(b"\n")
        if whole:
            whole[0] = bytes(rest) + whole[0]
            rest = bytearray(last)
            yield whole
        else:
            rest += last
    if rest:
        yield [bytes(rest)]


class Publisher:
    """Checks lines and publishes them, in order within each queue.

    Attributes:
        published: messages that are in the store.
        topics: names of the topics published to.
    """

    def __init__(self, app: App, defaults: Told) -> None:
        self._app = app
        self._defaults = defaults
        self._topics: dict[str, Topic] = {}
        self._number = 0

    @property
    def published(self) -> int:
        return self._app.producer.published

    @property
    def topics(self) -> Sequence[str]:
        return list(self._topics)

    async def publish(self, lines: Sequence[bytes]) -> None:
        """Publish a chunk of lines; blank ones are skipped.

        Raises:
            BadLine: a line is not right; those before it are published. Or the store refused some.
        """
        messages, numbers = list[Outgoing](), list[int]()
        bad: BadLine | None = None
        for line in lines:
            self._number += 1
            if not line.strip():
                continue
            try:
                messages.append(await self._checked(line))
                numbers.append(self._number)
            except msgspec.ValidationError as exc:
                text = f"line {self._number} is not a message: {exc}; see emq publish --help"
                bad = BadLine(text, errors.InvalidMessage(text))
            except (msgspec.DecodeError, UnicodeDecodeError) as exc:
                text = f"line {self._number} is not valid JSON: {exc}"
                bad = BadLine(text, errors.InvalidMessage(text))
            except errors.EMQError as exc:
                bad = BadLine(f"line {self._number}: {exc}", exc)
            if bad is not None:
                break
        outcomes = await self._app.producer.send(messages)
        if (failure := first_failure(outcomes, errors.EMQError)) is not None:
            bad = BadLine(f"lines {numbers[0]} to {numbers[-1]}: not all are published: {failure}", failure)
        if bad is not None:
            raise bad

    async def _checked(self, text: bytes) -> Outgoing:
        line, default = _decoder.decode(text), self._defaults
        name = line.topic if line.topic is not None else default.topic
        if name is None:
            raise errors.InvalidMessage('no topic; give one in the line ("topic": "NAME") or on the command line')
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = await self._app.producer.topic(name)
        raw = bytes(line.payload)
        payload = msgspec.json.decode(raw, type=str).encode() if raw.startswith(b'"') else raw
        return outgoing(topic, payload, line.or_else(default), self._app.clock.now_us())


def outgoing(topic: Topic, payload: bytes, told: Told, now_us: int) -> Outgoing:
    """Return a message for `topic`, after all checks that need no store.

    Args:
        now_us: the environment's time.

    Raises:
        InvalidMessage: the message is not valid; the text says what would be right.
    """
    if len(payload) > topic.options.max_payload:
        raise errors.InvalidMessage(
            f"payload of {len(payload)} bytes; topic {topic.name!r} takes {topic.options.max_payload} (its max_payload)"
        )
    check_labels(topic, told.key, told.headers)
    delay_ms = told.delay_ms
    if told.delay is not None:
        if delay_ms is not None:
            raise errors.InvalidMessage("give only one of delay, delay_ms and at")
        delay_ms = delay_ms_of(topic, told.delay)
    at = told.at_s(now_us / 1e6)
    due_ms = due_ms_of(topic, delay_ms, None, at, now_us)
    priority = priority_of(topic, told.priority)
    if topic.is_sorted:
        if topic.kind is Kind.FIXED_TIME and due_ms is None:
            raise errors.InvalidMessage(f"topic {topic.name!r} has fixed times; say when, with at or delay")
        by_time = topic.kind is not Kind.PRIORITY
        scores.score_of(topic, priority, due_ms if by_time else None, told.time_range_ms, now_us)
        folds.check(topic.fold, payload)
    else:
        topic.priority_index(priority)
    return Outgoing(
        topic.name,
        payload,
        key=told.key,
        priority=priority,
        headers=told.headers,
        delay_ms=delay_ms,
        at=at,
        ttl_s=told.ttl_s,
        time_range_ms=told.time_range_ms,
        merge_key=told.merge_key,
    )


def priority_of(topic: Topic, priority: str | float | None) -> str | float | None:
    """Return the priority in the form of its topic: a number for kind priority. Raises `InvalidMessage`."""
    return scores.number_of(topic, priority) if topic.kind is Kind.PRIORITY else priority


def delay_ms_of(topic: Topic, delay: str) -> float:
    """Milliseconds of a delay: a level of the topic's, or a span such as 30s. Raises `InvalidMessage` if neither."""
    known = topic.options.delay_levels
    seconds = known[delay] if delay in known else times.span_s(delay)
    if seconds is None:
        raise errors.InvalidMessage(
            f"delay {delay!r} is neither a duration, such as {times.SPANS}, nor a delay level of topic {topic.name!r}, "
            f"which has {', '.join(known) or 'none'}"
        )
    return seconds * 1000
