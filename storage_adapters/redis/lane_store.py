"""Retry slots on sorted sets (kind fixed_time), consumed in two phases."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from emq import errors
from emq.clock import Clock, SystemClock
from emq.storage.store import (
    PAGE_BYTES,
    Add,
    Claim,
    Claimed,
    DeadLetter,
    Durability,
    LaneState,
    Settle,
    WaitingEntry,
    lane_sealed,
)
from storage_adapters.redis import slot_requests
from storage_adapters.redis.keys import Shard, shard_of
from storage_adapters.redis.log_store import QUEUE_CHUNK
from storage_adapters.redis.refusals import not_owner
from storage_adapters.redis.server import Scripts
from storage_adapters.redis.spreading import each_shard, share_of, weight_of


class RedisLanes:
    """See `emq.storage.store.LaneStore`. Atomic per call and shard; a large call is sent as several."""

    def __init__(self, server: Scripts, shards: Sequence[Shard], instance: str) -> None:
        self._server = server
        self._shards = shards
        self._instance = instance
        self.clock: Clock = SystemClock()

    async def add(
        self, adds: Sequence[Add], durability: Durability = Durability.ACCEPTED
    ) -> list[bool | errors.NotOwner | errors.QueueSealed]:
        async def one(shard: Shard, chunk: Sequence[Add]) -> list[bool | errors.NotOwner | errors.QueueSealed]:
            keys = [shard.slot_armed, shard.fence, shard.woken, shard.sealed]
            args: list[Any] = [self.clock.now_us() // 1000]
            for add in chunk:
                keys += (shard.waiting(add.slot), shard.ranks(add.slot), shard.body(add.slot))
                keys += (shard.dead(add.slot), shard.reason(add.slot))
                epoch = -1 if add.epoch is None else add.epoch
                args += (add.slot, add.id, epoch, add.body, add.due_ms, add.priority)
                args += (add.reason or "", int(add.reason is not None))
            # What moves here from a log queue was in the store before, and is dropped there once it is here.
            moved = all(add.epoch is not None for add in chunk)
            answers = await self._server.run("lane_add", keys, args, durability, allow_oom=moved, outlives=moved)
            return [_added(a, n) for a, n in zip(chunk, answers, strict=True)]

        return await self._each(adds, lambda a: a.slot, one, lambda a: weight_of(a.body))

    async def claim(
        self, claims: Sequence[Claim], now_ms: int, max_bytes: int = 8 << 20
    ) -> list[Claimed | errors.NotOwner]:
        share = share_of(max_bytes, self._shards, [claim.slot for claim in claims])

        async def one(shard: Shard, chunk: Sequence[Claim]) -> list[Claimed | errors.NotOwner]:
            keys = [shard.slot_armed, shard.fence, shard.woken]
            args: list[Any] = [now_ms, shard.channel(self._instance), share]
            for claim in chunk:
                keys += (shard.waiting(claim.slot), shard.ranks(claim.slot))
                keys += (shard.prepared(claim.slot), shard.body(claim.slot))
                args += (claim.slot, claim.limit, claim.epoch, " ".join(map(str, claim.rooms)))
            answers = await self._server.run("lane_claim", keys, args)
            return [_claimed(claim, answer) for claim, answer in zip(chunk, answers, strict=True)]

        return await self._each(claims, lambda c: c.slot, one)

    async def settle(self, settles: Sequence[Settle]) -> list[bool | errors.NotOwner]:
        async def one(shard: Shard, chunk: Sequence[Settle]) -> list[bool | errors.NotOwner]:
            keys = [shard.slot_armed, shard.fence, shard.woken, shard.sealed]
            args: list[Any] = [self.clock.now_us() // 1000]
            for s in chunk:
                keys += (shard.waiting(s.slot), shard.ranks(s.slot), shard.prepared(s.slot))
                keys += (shard.body(s.slot), shard.dead(s.slot), shard.reason(s.slot))
                args += (s.slot, s.id, s.verdict.value, -1 if s.epoch is None else s.epoch)
                args += (s.due_ms, s.priority, s.body, s.reason)
            answers = await self._server.run("lane_settle", keys, args)
            return [not_owner(s.slot, s.epoch) if a == -1 else a == 1 for s, a in zip(chunk, answers, strict=True)]

        return await self._each(settles, lambda s: s.slot, one, lambda s: weight_of(s.body))

    async def recover(self, slots: Sequence[tuple[str, int]], older_than_ms: int | None = None) -> list[int]:
        async def one(shard: Shard, chunk: Sequence[tuple[str, int]]) -> list[int]:
            keys = [key for s, _ in chunk for key in (shard.waiting(s), shard.ranks(s), shard.prepared(s))]
            args = [-1 if older_than_ms is None else older_than_ms, *(epoch for _, epoch in chunk)]
            moved: list[int] = await self._server.run("lane_recover", keys, args)
            return moved

        return await self._each(slots, lambda s: s[0], one)

    async def inspect(self, slots: Sequence[str]) -> list[LaneState]:
        async def one(shard: Shard, chunk: Sequence[str]) -> list[LaneState]:
            keys = [key for slot in chunk for key in (shard.waiting(slot), shard.prepared(slot), shard.dead(slot))]
            flat = await self._server.run("lane_inspect", keys, ())
            return [
                LaneState(waiting, prepared, dead, None if due < 0 else due)
                for waiting, prepared, dead, due in zip(flat[::4], flat[1::4], flat[2::4], flat[3::4], strict=True)
            ]

        return await self._each(slots, lambda s: s, one)

    async def dead(
        self, slot: str, after: tuple[int, str] = (0, ""), limit: int = 100, max_bytes: int = PAGE_BYTES
    ) -> list[DeadLetter]:
        shard = self._shards[shard_of(slot, len(self._shards))]
        keys = [shard.dead(slot), shard.body(slot), shard.reason(slot)]
        rows = await self._server.run("lane_dead", keys, [*after, limit, max_bytes])
        return [DeadLetter(slot, _text(id_), body or b"", _text(reason or b""), ms) for id_, body, reason, ms in rows]

    async def waiting(
        self, slot: str, skip: int = 0, limit: int = 100, max_bytes: int = PAGE_BYTES
    ) -> list[WaitingEntry]:
        shard = self._shards[shard_of(slot, len(self._shards))]
        keys = [shard.waiting(slot), shard.ranks(slot), shard.body(slot)]
        flat = await self._server.run("lane_waiting", keys, [skip, skip + limit - 1, max_bytes])
        rows = zip(flat[::4], flat[1::4], flat[2::4], flat[3::4], strict=True)
        return [WaitingEntry(_text(id_), body or b"", _whole(due_ms), priority) for id_, body, due_ms, priority in rows]

    async def _each(
        self,
        requests: Sequence[Any],
        slot: Callable[[Any], str],
        one: Callable[[Shard, Sequence[Any]], Awaitable[list[Any]]],
        weight: Callable[[Any], int] = lambda _: 1,
    ) -> list[Any]:
        return await each_shard(self._shards, requests, slot, one, QUEUE_CHUNK, weight)


def _text(text: bytes) -> str:
    """Also of what another program wrote."""
    return text.decode(errors="replace")


def _whole(score: bytes) -> int:
    """Milliseconds; a time that another program set far beyond all of EMQ's counts as the last that is of use."""
    return min(int(slot_requests.number(score)), 1 << 62)


def _added(add: Add, answer: int) -> bool | errors.NotOwner | errors.QueueSealed:
    if answer == -2:
        return lane_sealed(add.slot)
    return not_owner(add.slot, add.epoch) if answer == -1 else answer == 1


def _claimed(claim: Claim, answer: Any) -> Claimed | errors.NotOwner:
    if answer == 0:
        return not_owner(claim.slot, claim.epoch)
    due, *flat = answer
    # A body that is gone is an empty one: the entry is put aside as one that cannot be read.
    entries = [(_text(id_), body or b"") for id_, body in zip(flat[::2], flat[1::2], strict=True)]
    return Claimed(entries, None if due < 0 else due)
