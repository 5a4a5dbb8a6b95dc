"""What a call that is sent in parts answers when a part fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from emq.runtime import errors
from emq.storage.slot_store import Slot, SlotKind, SlotSettle, SlotVerdict
from emq_stores.redis.keys import Shard
from emq_stores.redis.slot_store import MEMBERS, RedisSorted
from emq_stores.redis.spreading import each_shard

REFUSED = errors.StoreUnavailable("no")


class Server:
    """Takes so many parts, then refuses."""

    def __init__(self, good: int) -> None:
        self.good = good

    async def take(self, shard: Shard, part: Sequence[int]) -> list[int]:
        if self.good == 0:
            raise REFUSED
        self.good -= 1
        return list(part)


@pytest.mark.parametrize("shards", [1, 3])
async def test_what_every_request_failed_with_is_raised(shards: int) -> None:
    all_shards = [Shard("online", i) for i in range(shards)]
    with pytest.raises(errors.StoreUnavailable) as told:
        await each_shard(all_shards, range(30), lambda n: "t/0", Server(0).take, 10)
    assert type(told.value) is errors.StoreUnavailable


@pytest.mark.parametrize("shards", [1, 3])
async def test_each_request_is_answered_for_itself(shards: int) -> None:
    all_shards = [Shard("online", i) for i in range(shards)]
    answers = await each_shard(all_shards, range(30), lambda n: "t/0", Server(1).take, 10)
    assert answers == [*range(10), *[REFUSED] * 20]


async def test_a_call_refused_for_one_damaged_key_is_divided_until_its_requests_are_alone() -> None:
    sent: list[list[int]] = []

    async def take(shard: Shard, part: Sequence[int]) -> list[int]:
        if 13 in part:
            raise errors.KeyDamaged("13")
        sent.append(list(part))
        return list(part)

    answers = await each_shard([Shard("online", 0)], range(30), lambda n: "t/0", take, 100)
    assert [n for n, answer in enumerate(answers) if isinstance(answer, errors.KeyDamaged)] == [13]
    assert sorted(n for part in sent for n in part) == [n for n in range(30) if n != 13], "something was sent twice"
    assert len(sent) <= 6


class Scripts:
    """Answers so many script calls, then refuses."""

    followed = False

    def __init__(self, good: int) -> None:
        self.good = good

    async def run(self, name: str, keys: Sequence[str], args: Any, *_: Any, **__: Any) -> Any:
        if self.good == 0:
            raise REFUSED
        self.good -= 1
        return [1] * (len(keys) // 5)

    async def command(self, *call: Any) -> Any:
        raise NotImplementedError


async def test_verdicts_of_which_some_cannot_be_carried_out_are_answered_for_themselves() -> None:
    slot = Slot("t/0", SlotKind.FIXED_TIME)
    settles = [SlotSettle(slot, b"%d" % i, SlotVerdict.ACK, 1_000) for i in range(2 * MEMBERS)]
    answers = await RedisSorted(Scripts(1), "online", "here").settle(settles)
    assert answers[MEMBERS:] == [REFUSED] * MEMBERS
    assert not any(isinstance(answer, errors.EMQError) for answer in answers[:MEMBERS])
    with pytest.raises(errors.StoreUnavailable):
        await RedisSorted(Scripts(0), "online", "here").settle(settles)
