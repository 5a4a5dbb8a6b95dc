"""JSON lines on their way from a stream into topics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import msgspec

from emq import errors
from emq.model import Topic

if TYPE_CHECKING:
    from emq.app import App

CHUNK_BYTES = 1 << 18
"""Most read at once. What a pipe has is published at once, so that a slow source is followed line by line."""

TOPICS_AT_ONCE = 16
"""Queues of one chunk that are published to at the same time."""


class Line(msgspec.Struct, forbid_unknown_fields=True):
    """One line of input; see `emq publish --help`."""

    payload: msgspec.Raw
    topic: str | None = None
    key: str | None = None
    priority: str | None = None
    headers: dict[str, str] | None = None


class Defaults(NamedTuple):
    """What holds where a line says nothing."""

    topic: str | None = None
    key: str | None = None
    priority: str | None = None
    headers: Mapping[str, str] | None = None


class Item(NamedTuple):
    """A line that was found right."""

    number: int
    topic: str
    payload: bytes
    key: str | None
    priority: str | None
    headers: Mapping[str, str] | None


class BadLine(errors.EMQError):
    """A line, or its publishing, failed; the text names it. Correct the input and go on from there."""


_decoder = msgspec.json.Decoder(Line)


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

    def __init__(self, app: App, defaults: Defaults) -> None:
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
        items: list[Item] = []
        bad: BadLine | None = None
        for line in lines:
            self._number += 1
            if not line.strip():
                continue
            try:
                items.append(await self._checked(self._number, line))
            except msgspec.ValidationError as exc:
                bad = BadLine(f"line {self._number} is not a message: {exc}; see emq publish --help")
            except msgspec.DecodeError as exc:
                bad = BadLine(f"line {self._number} is not valid JSON: {exc}")
            except errors.EMQError as exc:
                bad = BadLine(f"line {self._number}: {exc}")
            if bad is not None:
                break
        if items:
            await self._put(items)
        if bad is not None:
            raise bad

    async def _checked(self, number: int, text: bytes) -> Item:
        line, default = _decoder.decode(text), self._defaults
        name = line.topic if line.topic is not None else default.topic
        if name is None:
            raise errors.InvalidMessage('no topic; give one in the line ("topic": "NAME") or on the command line')
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = await self._app.catalog.get(name)
        priority = line.priority if line.priority is not None else default.priority
        topic.priority_index(priority)
        raw = bytes(line.payload)
        payload = msgspec.json.decode(raw, type=str).encode() if raw.startswith(b'"') else raw
        if len(payload) > topic.options.max_payload:
            raise errors.InvalidMessage(
                f"payload of {len(payload)} bytes; topic {name!r} takes {topic.options.max_payload} (its max_payload)"
            )
        headers = line.headers if line.headers is not None else default.headers
        return Item(number, name, payload, line.key if line.key is not None else default.key, priority, headers)

    async def _put(self, items: Sequence[Item]) -> None:
        # Read once here, or every topic's first message would.
        await self._app.producer.refresh()
        queues: dict[tuple[str, str | None], list[Item]] = {}
        for item in items:
            queues.setdefault((item.topic, item.priority), []).append(item)
        room = asyncio.Semaphore(TOPICS_AT_ONCE)

        async def put(of_queue: list[Item]) -> errors.EMQError | None:
            async with room:
                try:
                    for run in _runs(of_queue):
                        await self._app.publish_many(
                            run[0].topic,
                            [item.payload for item in run],
                            keys=[item.key for item in run],
                            priority=run[0].priority,
                            headers=run[0].headers,
                        )
                except errors.EMQError as exc:
                    return exc
            return None

        failures = [failure for failure in await asyncio.gather(*map(put, queues.values())) if failure is not None]
        if failures:
            raise BadLine(f"lines {items[0].number} to {items[-1].number}: not all are published: {failures[0]}")


def _runs(items: Sequence[Item]) -> Iterator[list[Item]]:
    """Neighbours with the same headers, since one call publishes with one set of headers."""
    run: list[Item] = []
    for item in items:
        if run and item.headers != run[0].headers:
            yield run
            run = []
        run.append(item)
    if run:
        yield run
