"""Forgets groups of topics that are gone; see `emq.storage.store.Store`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from emq.storage.answers import FAILURES, Failure
from emq.storage.store import Ended
from emq_stores.redis.damage import Scripts
from emq_stores.redis.keys import Shard
from emq_stores.redis.slot_store import RedisSorted
from emq_stores.redis.spreading import each_shard

AT_ONCE = 100
"""Most groups in one script call, which then takes about a millisecond."""

QUEUES = 16
"""Queues that count as one more group."""

_OF_LANE = ("waiting", "prepared", "dead", "ranks", "body", "reason", "named", "taken", "taken_ms", "ids")


async def forgotten(
    server: Scripts, shards: Sequence[Shard], of_slots: RedisSorted, ended: Sequence[Ended]
) -> list[Sequence[int] | Failure | None]:
    """Forget slots, and then the queues and lanes of groups whose slots are forgotten, if they have any.

    These are different calls, since a slot is in another hash slot of a cluster. Until the slot is forgotten, the call
    for the lane only writes the mark.
    """
    slots = {place: (each.slot, each.mark) for place, each in enumerate(ended) if each.slot is not None}
    of_slot = dict(zip(slots, await of_slots.forget([*slots.values()]), strict=True))

    async def one(shard: Shard, chunk: Sequence[int]) -> list[Sequence[int] | Failure | None]:
        keys = [shard.head, shard.armed, shard.lane_armed, shard.fence, shard.sealed, shard.layout, shard.woken]
        args: list[Any] = []
        for place in chunk:
            lane, queues, _, mark = ended[place]
            keys += [*map(shard.log, queues), *shard.lane(lane, _OF_LANE)]
            args += (lane, mark, int(of_slot.get(place) in (None, True)), len(queues), *queues)
        answers = await server.run("forget", keys, args)
        return [answer[1:] if answer else None for answer in answers]

    def weight(place: int) -> int:
        return 1 + len(ended[place].queues) // QUEUES

    found = await each_shard(shards, range(len(ended)), lambda place: ended[place].lane, one, AT_ONCE, weight)
    return [failed if isinstance(failed := of_slot.get(place), FAILURES) else it for place, it in enumerate(found)]
