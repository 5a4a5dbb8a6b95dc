"""Lanes on sorted sets: an entry waits until its due time; a claim then prepares it, and a verdict settles it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from emq.runtime import errors
from emq.runtime.clock import Clock, SystemClock
from emq.storage import message
from emq.storage.durability import Durability
from emq.storage.lane_store import (
    AHEAD_S,
    MOST_FOUND,
    MOST_TAKEN,
    TAKEN_S,
    Asked,
    DeadEntry,
    EntryState,
    FoundEntry,
    LaneAdd,
    LaneClaim,
    LaneClaimed,
    LaneSettle,
    LaneState,
    WaitingEntry,
    lane_sealed,
)
from emq.storage.slot_store import PAGE_BYTES
from emq_stores.redis import slot_requests
from emq_stores.redis.damage import Scripts
from emq_stores.redis.keys import Shard, shard_of
from emq_stores.redis.log_store import QUEUE_CHUNK
from emq_stores.redis.refusals import not_owner
from emq_stores.redis.spreading import each_shard, share_of, weight_of

_KEYS_OF_ADD = ("waiting", "ranks", "body", "dead", "reason", "taken", "taken_ms", "ids", "named")
_KEYS_OF_CLAIM = ("waiting", "ranks", "prepared", "body")
_KEYS_OF_SETTLE = ("waiting", "ranks", "prepared", "body", "dead", "reason", "taken", "taken_ms", "named")
_KEYS_OF_RECOVER = ("waiting", "ranks", "prepared")


class RedisLanes:
    """See `emq.storage.lane_store.LaneStore`. Atomic per call and shard; the store sends a large call as several."""

    def __init__(self, server: Scripts, shards: Sequence[Shard], instance: str) -> None:
        self._server = server
        self._shards = shards
        self._instance = instance
        self.clock: Clock = SystemClock()

    async def add(
        self, adds: Sequence[LaneAdd], durability: Durability = Durability.ACCEPTED
    ) -> list[bool | errors.NotOwner | errors.QueueSealed | None]:
        async def one(
            shard: Shard, chunk: Sequence[LaneAdd]
        ) -> list[bool | errors.NotOwner | errors.QueueSealed | None]:
            keys = [shard.lane_armed, shard.fence, shard.woken, shard.sealed]
            args: list[Any] = [self.clock.now_us() // 1000]
            for add in chunk:
                keys += shard.lane(add.lane, _KEYS_OF_ADD)
                epoch = -1 if add.epoch is None else add.epoch
                args += (add.lane, add.id, epoch, add.body, add.due_ms, add.priority)
                args += (add.reason or "", int(add.reason is not None), "" if add.since_ms is None else add.since_ms)
                args += (add.remember_ms, add.label)
            # An entry that moves here from a log queue leaves the queue only after this call.
            moved = all(add.epoch is not None for add in chunk)
            answers = await self._server.run("lane_add", keys, args, durability, allow_oom=moved, outlives=moved)
            return [_added(a, n) for a, n in zip(chunk, answers, strict=True)]

        return await self._each(adds, lambda a: a.lane, one, lambda a: weight_of(a.body))

    async def claim(
        self, claims: Sequence[LaneClaim], now_ms: int, max_bytes: int = 8 << 20
    ) -> list[LaneClaimed | errors.NotOwner]:
        share = share_of(max_bytes, self._shards, (claim.lane for claim in claims))

        async def one(shard: Shard, chunk: Sequence[LaneClaim]) -> list[LaneClaimed | errors.NotOwner]:
            keys = [shard.lane_armed, shard.fence, shard.woken]
            args: list[Any] = [now_ms, shard.channel(self._instance), share]
            for claim in chunk:
                keys += shard.lane(claim.lane, _KEYS_OF_CLAIM)
                args += (claim.lane, claim.limit, claim.epoch, " ".join(map(str, claim.rooms)))
            answers = await self._server.run("lane_claim", keys, args)
            return [_claimed(claim, answer) for claim, answer in zip(chunk, answers, strict=True)]

        return await self._each(claims, lambda c: c.lane, one)

    async def settle(self, settles: Sequence[LaneSettle]) -> list[bool | errors.NotOwner]:
        async def one(shard: Shard, chunk: Sequence[LaneSettle]) -> list[bool | errors.NotOwner]:
            keys = [shard.lane_armed, shard.fence, shard.woken, shard.sealed]
            args: list[Any] = [self.clock.now_us() // 1000, TAKEN_S * 1000, MOST_TAKEN, AHEAD_S * 1000]
            for s in chunk:
                keys += shard.lane(s.lane, _KEYS_OF_SETTLE)
                args += (s.lane, s.id, s.verdict.value, -1 if s.epoch is None else s.epoch)
                args += (s.due_ms, s.priority, s.body, s.reason, int(s.for_good))
            answers = await self._server.run("lane_settle", keys, args)
            return [not_owner(s.lane, s.epoch) if a == -1 else a == 1 for s, a in zip(chunk, answers, strict=True)]

        return await self._each(settles, lambda s: s.lane, one, lambda s: weight_of(s.body))

    async def recover(
        self, lanes: Sequence[tuple[str, int]], older_than_ms: int | None = None
    ) -> list[int | errors.NotOwner]:
        async def one(shard: Shard, chunk: Sequence[tuple[str, int]]) -> list[int | errors.NotOwner]:
            keys = [shard.fence]
            args: list[Any] = [-1 if older_than_ms is None else older_than_ms]
            for lane, epoch in chunk:
                keys += shard.lane(lane, _KEYS_OF_RECOVER)
                args += (lane, epoch)
            moved = await self._server.run("lane_recover", keys, args)
            return [not_owner(lane, epoch) if n == -1 else n for (lane, epoch), n in zip(chunk, moved, strict=True)]

        return await self._each(lanes, lambda s: s[0], one)

    async def inspect(self, lanes: Sequence[str]) -> list[LaneState]:
        async def one(shard: Shard, chunk: Sequence[str]) -> list[LaneState]:
            keys = [shard.sealed]
            for lane in chunk:
                keys += shard.lane(lane, ("waiting", "prepared", "dead"))
            states = await self._server.run("lane_inspect", keys, chunk)
            return [
                LaneState(waiting, prepared, dead, None if due < 0 else due, sealed == 1)
                for waiting, prepared, dead, due, sealed in states
            ]

        return await self._each(lanes, lambda s: s, one)

    async def find(self, asked: Sequence[Asked]) -> list[list[FoundEntry]]:
        async def one(shard: Shard, chunk: Sequence[Asked]) -> list[list[FoundEntry]]:
            keys, args = list[str](), list[Any]([MOST_FOUND, message.NONCE_LENGTH])
            for lane, id_, after in chunk:
                keys += shard.lane(lane, ("body", "named", "waiting", "dead"))
                args += (id_, after)
            answers = await self._server.run("lane_find", keys, args)
            return [_found(flat) for flat in answers]

        return await self._each(asked, lambda a: a.lane, one)

    async def dead(
        self, lane: str, after: tuple[int, str] = (0, ""), limit: int = 100, max_bytes: int = PAGE_BYTES
    ) -> list[DeadEntry]:
        shard = self._shards[shard_of(lane, len(self._shards))]
        keys = shard.lane(lane, ("dead", "body", "reason"))
        rows = await self._server.run("lane_dead", keys, [*after, limit, max_bytes])
        return [DeadEntry(lane, _text(id_), body or b"", _text(reason or b""), ms) for id_, body, reason, ms in rows]

    async def waiting(
        self, lane: str, skip: int = 0, limit: int = 100, max_bytes: int = PAGE_BYTES
    ) -> list[WaitingEntry]:
        shard = self._shards[shard_of(lane, len(self._shards))]
        keys = shard.lane(lane, ("waiting", "ranks", "body"))
        flat = await self._server.run("lane_waiting", keys, [skip, skip + limit - 1, max_bytes])
        rows = zip(flat[::4], flat[1::4], flat[2::4], flat[3::4], strict=True)
        return [WaitingEntry(_text(id_), body or b"", _whole(due_ms), priority) for id_, body, due_ms, priority in rows]

    async def _each(
        self,
        requests: Sequence[Any],
        lane: Callable[[Any], str],
        one: Callable[[Shard, Sequence[Any]], Awaitable[list[Any]]],
        weight: Callable[[Any], int] | None = None,
    ) -> list[Any]:
        return await each_shard(self._shards, requests, lane, one, QUEUE_CHUNK, weight)


def _text(text: bytes) -> str:
    """Return text from bytes, also from bytes that another program wrote."""
    return text.decode(errors="replace")


def _found(flat: Sequence[bytes]) -> list[FoundEntry]:
    each = zip(flat[::2], flat[1::2], strict=True)
    return [FoundEntry(_text(uid), EntryState(_text(state))) for uid, state in each]


def _whole(score: bytes) -> int:
    """Return a score as whole milliseconds, at most 2**62; another program may have set a larger one."""
    return min(int(slot_requests.number(score)), 1 << 62)


def _added(add: LaneAdd, answer: int) -> bool | errors.NotOwner | errors.QueueSealed | None:
    if answer == -2:
        return lane_sealed(add.lane)
    if answer == -3:
        return None
    return not_owner(add.lane, add.epoch) if answer == -1 else answer == 1


def _claimed(claim: LaneClaim, answer: Any) -> LaneClaimed | errors.NotOwner:
    if answer == 0:
        return not_owner(claim.lane, claim.epoch)
    due, is_empty, *flat = answer
    # A missing body counts as empty: the host puts the entry aside as unreadable.
    entries = [(_text(id_), body or b"") for id_, body in zip(flat[::2], flat[1::2], strict=True)]
    return LaneClaimed(entries, None if due < 0 else due, is_empty == 1)
