"""What a call that is sent in parts answers when a part fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from emq import errors
from emq.slots import Settle, Slot, SlotKind, Verdict
from storage_adapters.redis.keys import Shard
from storage_adapters.redis.sorted import MEMBERS, RedisSorted
from storage_adapters.redis.spreading import each_shard

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
@pytest.mark.parametrize(("good", "failure"), [(0, errors.StoreUnavailable), (1, errors.OutcomeUnknown)])
async def test_who_was_told_that_nothing_was_done_may_rely_on_it(
    shards: int, good: int, failure: type[Exception]
) -> None:
    all_shards = [Shard("online", i) for i in range(shards)]
    with pytest.raises(errors.StoreUnavailable) as told:
        await each_shard(all_shards, range(30), lambda n: "t/0", Server(good).take, 10)
    assert type(told.value) is failure


async def test_on_one_shard_too_each_request_is_answered_for_itself() -> None:
    answers = await each_shard(
        [Shard("online", 0)], range(30), lambda n: "t/0", Server(1).take, 10, failures_as_answers=True
    )
    assert answers == [*range(10), *[REFUSED] * 20]


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


@pytest.mark.parametrize(("good", "failure"), [(0, errors.StoreUnavailable), (1, errors.OutcomeUnknown)])
async def test_verdicts_of_which_some_were_carried_out_are_in_doubt(good: int, failure: type[Exception]) -> None:
    store = RedisSorted(Scripts(good), "online", "here")
    slot = Slot("t/0", SlotKind.FIXED_TIME)
    with pytest.raises(errors.StoreUnavailable) as told:
        await store.settle([Settle(slot, b"%d" % i, Verdict.ACK, 1_000) for i in range(2 * MEMBERS)])
    assert type(told.value) is failure
