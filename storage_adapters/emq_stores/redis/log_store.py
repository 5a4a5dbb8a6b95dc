"""Log queues on lists.

A hash keeps the offset of the list's head; an element's offset is this offset plus the element's index. So a put is one
RPUSH for a whole batch, and a read is one LRANGE. On streams, with the offset as entry id, a put took four times and a
read three times as long, since the server makes and parses an entry for each message.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from emq.runtime import errors, plurals
from emq.storage.durability import Durability
from emq.storage.log_store import REPEATED, Batch, Bounds, Put, Read, Trim, messages_lost, new_incarnation, queue_sealed
from emq.storage.marks import Mark
from emq.storage.names import group_of
from emq_stores.redis.damage import Scripts
from emq_stores.redis.keys import Shard, shard_of
from emq_stores.redis.refusals import not_owner
from emq_stores.redis.spreading import WEIGHT_BYTES, each_shard, share_of

PUT_CHUNK = 1_000
"""Most bodies in one script call; a call then takes less than about 2 ms and never holds up the server."""

QUEUE_CHUNK = 1_000
"""Most queues in one script call; Lua's stack ends at about 8,000 values."""

NO_EPOCH = -1
"""Argument of a script that stands for None."""

Refusal = errors.NotOwner | errors.MessagesLost | errors.KeyDamaged

Request = TypeVar("Request", Read, Trim, str)


class RedisLogStore:
    """See `emq.storage.log_store.LogStore`. Atomic per call and shard; the store sends a large call as several."""

    first_offset = 1

    def __init__(self, server: Scripts, shards: Sequence[Shard], instance: str, max_queue_qps: float | None) -> None:
        self.max_queue_qps = max_queue_qps
        self._server = server
        self._shards = shards
        self._instance = instance

    async def put(
        self, puts: Sequence[Put], durability: Durability = Durability.ACCEPTED
    ) -> list[Sequence[int] | errors.EMQError]:
        async def one(shard: Shard, chunk: Sequence[Put]) -> list[Sequence[int] | errors.EMQError]:
            keys = [shard.head, shard.armed, shard.sealed, shard.woken, shard.layout]
            args: list[Any] = [new_incarnation()]
            for put in chunk:
                limit = -1 if put.max_length is None else put.max_length
                layout = -1 if put.layout is None else put.layout
                siblings = () if put.max_length is None else put.siblings
                keys.append(shard.log(put.queue))
                keys.extend(map(shard.log, siblings))
                args += (put.queue, len(put.bodies), limit, int(put.drop_oldest), layout, len(siblings))
                args.append(put.remember_ms if put.ids else 0)
                if put.ids:
                    keys.append(shard.ids(group_of(put.queue)))
                    args += put.ids
                args += put.bodies
            firsts = await self._server.run("put", keys, args, durability)
            return [_put_answer(put, first, shard) for put, first in zip(chunk, firsts, strict=True)]

        def group(put: Put) -> str:
            return group_of(put.queue)

        def weight(put: Put) -> int:
            return 1 + len(put.bodies) + len(put.ids) + sum(map(len, put.bodies)) // WEIGHT_BYTES

        return await each_shard(self._shards, puts, group, one, PUT_CHUNK, weight)

    async def get(self, queue: str, offset: int) -> bytes | None:
        if offset < self.first_offset:
            return None
        shard = self._shards[shard_of(group_of(queue), len(self._shards))]
        body: bytes | None = await self._server.run("get", [shard.head, shard.log(queue)], [queue, offset])
        return body

    async def read(self, reads: Sequence[Read], max_bytes: int = 8 << 20) -> list[Batch | Refusal]:
        share = share_of(max_bytes, self._shards, (group_of(read.queue) for read in reads))

        async def one(shard: Shard, chunk: Sequence[Read]) -> list[Batch | Refusal]:
            keys = [shard.head, shard.armed, shard.fence, shard.woken]
            args: list[Any] = [shard.channel(self._instance), share, int(self._server.followed)]
            for read in chunk:
                keys.append(shard.log(read.queue))
                epoch = NO_EPOCH if read.epoch is None else read.epoch
                args += (read.queue, group_of(read.queue), max(read.start, 1), read.limit, epoch, *_mark(read.mark))
            answers = await self._server.run("read", keys, args, outlives=True)
            return [_read_answer(read, answer, shard) for read, answer in zip(chunk, answers, strict=True)]

        return await self._each_shard(reads, lambda r: r.queue, one)

    async def bounds(self, queues: Sequence[str]) -> list[Bounds | errors.KeyDamaged]:
        async def one(shard: Shard, chunk: Sequence[str]) -> list[Bounds | errors.KeyDamaged]:
            flat = await self._server.run("bounds", [shard.head, *map(shard.log, chunk)], chunk)
            return [
                Bounds(*found) if found[0] > 0 else _damaged(queue, shard)
                for queue, *found in zip(chunk, flat[::3], flat[1::3], flat[2::3], strict=True)
            ]

        return await self._each_shard(queues, lambda q: q, one)

    async def trim(self, trims: Sequence[Trim]) -> list[bool | Refusal]:
        async def one(shard: Shard, chunk: Sequence[Trim]) -> list[bool | Refusal]:
            args: list[Any] = []
            forgetting = [shard.ids(group_of(trim.queue)) for trim in chunk if trim.seal]
            for trim in chunk:
                epoch = NO_EPOCH if trim.epoch is None else trim.epoch
                seal = "-" if trim.seal is None else int(trim.seal)
                args += (trim.queue, group_of(trim.queue), max(trim.upto, 0), epoch, seal, trim.layout or 0)
                args += _mark(trim.mark)
            keys = [
                shard.head,
                shard.fence,
                shard.sealed,
                shard.layout,
                *(shard.log(t.queue) for t in chunk),
                *forgetting,
            ]
            answers = await self._server.run("trim", keys, args)
            return [_trim_answer(t, a, shard) for t, a in zip(chunk, answers, strict=True)]

        return await self._each_shard(trims, lambda t: t.queue, one)

    async def _each_shard(
        self,
        requests: Sequence[Request],
        queue: Callable[[Request], str],
        one: Callable[[Shard, Sequence[Request]], Awaitable[list[Any]]],
    ) -> list[Any]:
        return await each_shard(self._shards, requests, lambda r: group_of(queue(r)), one, QUEUE_CHUNK)


def _damaged(queue: str, shard: Shard) -> errors.KeyDamaged:
    return errors.KeyDamaged(
        f"queue {queue!r}: the field of that name in the hash {shard.head!r} is not an offset; write the offset of the "
        "first element of the queue's list there (1 if nothing was ever dropped), and EMQ goes on by itself; nothing "
        "was applied"
    )


def _put_answer(put: Put, answer: int | list[int], shard: Shard) -> Sequence[int] | errors.EMQError:
    first, repeated = (answer[0], answer[1:]) if isinstance(answer, list) else (answer, [])
    if first == -3:
        return _damaged(put.queue, shard)
    if first <= -4:
        return queue_sealed(put.queue, -4 - first)
    if first == -2:
        return errors.TopicFull(
            f"queue {put.queue}: {plurals.count(len(put.bodies), 'more message')} would exceed its group's share of "
            "max_length, "
            f"{put.max_length}; wait for its consumers or raise the limit"
        )
    if not repeated:
        return range(first, first + len(put.bodies))
    left_out, following = set(repeated), itertools.count(first)
    return [REPEATED if place in left_out else next(following) for place in range(1, len(put.bodies) + 1)]


def _read_answer(read: Read, answer: Any, shard: Shard) -> Batch | Refusal:
    if isinstance(answer, int):
        if answer > 0:
            return Batch((), (), answer, True)
        if answer == 0:
            return not_owner(group_of(read.queue), read.epoch)
        return messages_lost(read.queue, read.mark.offset if read.mark else read.start, -1 - answer)
    if isinstance(answer, bytes):
        return _damaged(read.queue, shard)
    following, exhausted, first, bodies = answer
    return Batch(range(first, first + len(bodies)), bodies, following, exhausted == 1)


def _trim_answer(trim: Trim, answer: int, shard: Shard) -> bool | Refusal:
    if answer == 2:
        return _damaged(trim.queue, shard)
    if answer == -1:
        return not_owner(group_of(trim.queue), trim.epoch)
    if answer < -1:
        return messages_lost(trim.queue, trim.mark.offset if trim.mark else trim.upto, -1 - answer)
    return answer == 1


def _mark(mark: Mark | None) -> tuple[int | str, str]:
    return ("", "") if mark is None else mark
