"""Calls of the core's, spread over storage shards or over the places of slots, at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from emq import errors
from storage_adapters.redis.failures import of_several, partly
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

    async def in_chunks(shard: Shard, whole: Sequence[Any]) -> list[Any]:
        found: list[Any] = []
        for part in _chunks(whole, chunk, weight):
            try:
                found += await one(shard, part)
            except errors.EMQError as exc:
                if failures_as_answers:
                    found += [exc] * len(part)
                elif found:
                    raise partly(exc) from exc
                else:
                    raise
        return found

    if len(shards) == 1:
        answers = await in_chunks(shards[0], requests)
        if failures_as_answers:
            _raise_if_nothing_was_done(answers)
        return answers
    places: dict[int, list[int]] = {}
    for i, request in enumerate(requests):
        places.setdefault(shard_of(group(request), len(shards)), []).append(i)
    sent = [in_chunks(shards[index], [requests[i] for i in at]) for index, at in places.items()]
    outcomes = await asyncio.gather(*sent, return_exceptions=True)
    if failure := of_several(outcomes):
        raise failure
    answers = [None] * len(requests)
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
