"""Calls of the core's, spread over storage shards or over the places of slots, at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from emq import errors
from storage_adapters.redis.failures import of_several
from storage_adapters.redis.keys import Shard, shard_of

T = TypeVar("T")


async def each_shard(
    shards: Sequence[Shard],
    requests: Sequence[Any],
    group: Callable[[Any], str],
    one: Callable[[Shard, Sequence[Any]], Awaitable[list[Any]]],
    chunk: int,
    weight: Callable[[Any], int] = lambda _: 1,
    failures_as_answers: bool = False,
) -> list[Any]:
    """Send `requests` to their shards in calls of at most `chunk` weight; answers in the order of the requests.

    Args:
        failures_as_answers: where some shards fail and others do not, those requests are answered with the error that
            went to the ones that failed. Otherwise the whole call fails.

    Raises:
        OutcomeUnknown: a part of it may have been done, or was done.
        StoreFull, StoreUnavailable: nothing was done.
    """
    if len(shards) == 1:
        return [a for part in _chunks(requests, chunk, weight) for a in await one(shards[0], part)]
    places: dict[int, list[int]] = {}
    for i, request in enumerate(requests):
        places.setdefault(shard_of(group(request), len(shards)), []).append(i)

    async def shard(index: int, at: list[int]) -> list[Any]:
        found: list[Any] = []
        for part in _chunks([requests[i] for i in at], chunk, weight):
            try:
                found += await one(shards[index], part)
            except errors.EMQError as exc:
                if not failures_as_answers:
                    raise
                found += [exc] * len(part)
        return found

    outcomes = await asyncio.gather(*(shard(index, at) for index, at in places.items()), return_exceptions=True)
    if failure := of_several(outcomes):
        raise failure
    answers: list[Any] = [None] * len(requests)
    for at, found in zip(places.values(), outcomes, strict=True):
        assert isinstance(found, list)
        for i, answer in zip(at, found, strict=True):
            answers[i] = answer
    if failures_as_answers:
        _raise_if_nothing_was_done(answers)
    return answers


async def each_part(parts: Sequence[T], one: Callable[[T], Awaitable[None]]) -> None:
    """Await `one` for every part, all at once; errors as for `each_shard`."""
    if len(parts) == 1:
        await one(parts[0])
        return
    if failure := of_several(await asyncio.gather(*map(one, parts), return_exceptions=True)):
        raise failure


def _raise_if_nothing_was_done(answers: Sequence[Any]) -> None:
    if answers and all(isinstance(a, (errors.StoreUnavailable, errors.StoreFull)) for a in answers):
        failure = of_several(answers)
        assert failure is not None
        raise failure


def _chunks(requests: Sequence[Any], chunk: int, weight: Callable[[Any], int]) -> list[Sequence[Any]]:
    if sum(map(weight, requests)) <= chunk:
        return [requests] if requests else []
    parts: list[Sequence[Any]] = []
    part: list[Any] = []
    total = 0
    for request in requests:
        if part and total + weight(request) > chunk:
            parts.append(part)
            part, total = [], 0
        part.append(request)
        total += weight(request)
    return [*parts, part]
