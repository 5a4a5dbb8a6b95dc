"""Spreads a call over storage shards or places of slots, all at once; each request gets an answer of its own.

Requests that one shard cannot serve get the error as their answer; the other shards serve the rest. A call that is
refused because of one damaged key is divided until the requests that need the key are alone. The refused call was not
sent, so the division repeats nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from emq.runtime import errors
from emq_stores.redis.damage import SharedKeyDamaged
from emq_stores.redis.failures import of_several
from emq_stores.redis.keys import Shard, shard_of

T = TypeVar("T")

WEIGHT_BYTES = 8 << 10
"""Bytes of a body that count as one more request, so that a call has some 8 MiB at most."""


def weight_of(body: bytes) -> int:
    """Return the weight that a request with this body has in a call."""
    return 1 + len(body) // WEIGHT_BYTES


def share_of(max_bytes: int, shards: Sequence[Shard], groups: Iterable[str]) -> int:
    """Return the bytes that each shard may return, so that all shards together keep to `max_bytes`; at least 1."""
    asked = 1 if len(shards) == 1 else len({shard_of(group, len(shards)) for group in groups})
    return max(1, max_bytes // max(1, asked))


async def each_shard(
    shards: Sequence[Shard],
    requests: Sequence[Any],
    group: Callable[[Any], str],
    one: Callable[[Shard, Sequence[Any]], Awaitable[list[Any]]],
    chunk: int,
    weight: Callable[[Any], int] | None = None,
) -> list[Any]:
    """Send `requests` to their shards in calls of at most `chunk` weight; return answers in the order of the requests.

    Args:
        weight: None if each request has the weight 1.

    Raises:
        OutcomeUnknown, StoreFull, StoreUnavailable: every request failed with this error.
    """
    answers: list[Any] = [None] * len(requests)
    places: dict[int, Sequence[int]] = {0: range(len(requests))} if len(shards) == 1 and requests else {}
    if len(shards) > 1:
        by_shard: dict[int, list[int]] = {}
        for i, request in enumerate(requests):
            by_shard.setdefault(shard_of(group(request), len(shards)), []).append(i)
        places.update(by_shard)

    def fail(at: Sequence[int], failure: errors.EMQError) -> None:
        for i in at:
            answers[i] = failure

    async def on_shard(index: int) -> None:
        async def send(at: Sequence[int]) -> None:
            found = await one(shards[index], [requests[i] for i in at])
            for i, answer in zip(at, found, strict=True):
                answers[i] = answer

        mine = places[index]
        weights = None if weight is None else [weight(requests[i]) for i in mine]
        for at in _chunks(mine, chunk, weights):
            await _guarded(at, send, fail)

    await _all(on_shard, list(places))
    raise_if_none_was_served(answers)
    return answers


async def each_part(
    parts: Sequence[Sequence[T]],
    one: Callable[[Sequence[T]], Awaitable[None]],
    fail: Callable[[Sequence[T], errors.EMQError], None],
) -> None:
    """Await `one` for every part, all at once; call `fail` with each part that failed, and with its error."""

    async def send(part: Sequence[T]) -> None:
        await _guarded(part, one, fail)

    await _all(send, parts)


def raise_if_none_was_served(answers: Sequence[Any]) -> None:
    """If all requests failed, raise the error that stands for all."""
    if answers and all(isinstance(a, (errors.StoreUnavailable, errors.StoreFull)) for a in answers):
        failure = of_several(answers)
        assert failure is not None
        raise failure


async def _guarded(
    part: Sequence[T],
    one: Callable[[Sequence[T]], Awaitable[None]],
    fail: Callable[[Sequence[T], errors.EMQError], None],
) -> None:
    try:
        await one(part)
    except errors.KeyDamaged as exc:
        if len(part) == 1 or isinstance(exc, SharedKeyDamaged):
            fail(part, exc)
        else:
            middle = len(part) // 2
            await _guarded(part[:middle], one, fail)
            await _guarded(part[middle:], one, fail)
    except errors.EMQError as exc:
        fail(part, exc)


async def _all(send: Callable[[T], Awaitable[None]], parts: Sequence[T]) -> None:
    if len(parts) == 1:
        await send(parts[0])
        return
    for outcome in await asyncio.gather(*map(send, parts), return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


def _chunks(requests: Sequence[T], chunk: int, weights: Sequence[int] | None) -> list[Sequence[T]]:
    if weights is None:
        return [requests[start : start + chunk] for start in range(0, len(requests), chunk)]
    parts: list[Sequence[T]] = []
    part: list[T] = []
    total = 0
    for request, weight in zip(requests, weights, strict=True):
        if part and total + weight > chunk:
            parts.append(part)
            part, total = [], 0
        part.append(request)
        total += weight
    return [*parts, part]
