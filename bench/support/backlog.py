"""Fills queues with messages before a run."""

from __future__ import annotations

from emq.runtime.environment import Environment
from emq.storage import message, opening
from emq.storage.log_store import Put
from emq.topics.model import Topic

PAYLOAD = b"x" * 100
PUT_MESSAGES = 1_000
NUMBER_BYTES = 8


async def fill(
    url: str, topics: list[Topic], per_queue: int, only: list[int] | None = None, *, numbered: bool = False
) -> int:
    """Put `per_queue` messages of 100 bytes into each queue of the topics; return the number of messages.

    Args:
        only: indices of the priorities to fill; None for all.
        numbered: put a number into each payload (`number_of`), from 0 on, queue by queue in the order of `queues_of`.
    """
    store = await opening.open_store(url, Environment.ONLINE)
    ids = message.IdSource()
    puts: list[Put] = []
    waiting = total = 0
    for queue in queues_of(topics, only):
        for start in range(0, per_queue, PUT_MESSAGES):
            n = min(PUT_MESSAGES, per_queue - start)
            first = total + waiting
            payloads = [_numbered(first + i) for i in range(n)] if numbered else [PAYLOAD] * n
            puts.append(Put(queue, [message.encode(ids.next(), payload, None, 1, None) for payload in payloads]))
            waiting += n
            if waiting >= PUT_MESSAGES:
                await store.log.put(puts)
                total += waiting
                puts, waiting = [], 0
    if puts:
        await store.log.put(puts)
    await store.close()
    return total + waiting


def number_of(payload: bytes) -> int:
    """Return the number of a message that `fill` has numbered."""
    return int.from_bytes(payload[:NUMBER_BYTES], "big")


def _numbered(number: int) -> bytes:
    return number.to_bytes(NUMBER_BYTES, "big") + PAYLOAD[NUMBER_BYTES:]


def queues_of(topics: list[Topic], only: list[int] | None = None) -> list[str]:
    return [
        topic.queue(group, priority)
        for topic in topics
        for group in range(topic.groups)
        for priority in (range(len(topic.priorities)) if only is None else only)
    ]
