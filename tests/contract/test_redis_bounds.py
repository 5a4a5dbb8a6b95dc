"""Redis serves one call at a time, so that a large claim is sent as several, each of which is short."""

from __future__ import annotations

from typing import Any, cast

import pytest
from target import Target

from emq.storage.slot_store import Keep, SlotAdd, SlotClaim, SlotClaimed, SlotKind
from emq.storage.store import Store
from emq_stores.redis import slot_store as slots
from emq_stores.redis.slot_store import RedisSorted

NOW = 1_700_000_000_000


@pytest.mark.parametrize("target", ["redis"], indirect=True)
async def test_a_call_brings_no_more_than_its_bound_and_the_next_ones_bring_the_rest(
    store: Store, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = target.sorted_slot(SlotKind.PRIORITY)
    members = [b"%d" % i for i in range(25)]
    await store.sorted.add([SlotAdd(slot, member, 100.0, Keep.LAST) for member in members])
    server = cast(RedisSorted, store.sorted)._server
    run, brought = server.run, []

    async def counted(name: str, *args: Any, **kwargs: Any) -> Any:
        replies = await run(name, *args, **kwargs)
        brought.append((name, [len(page) // 2 for _, page, *_ in replies]))
        return replies

    monkeypatch.setattr(slots, "MEMBERS", 10)
    monkeypatch.setattr(server, "run", counted)
    [claimed] = await store.sorted.claim([SlotClaim(slot, len(members), 1, NOW)], NOW)
    assert isinstance(claimed, SlotClaimed)
    assert sorted(entry.member for entry in claimed.entries) == sorted(members)
    assert brought == [("slot_claim", [10]), ("slot_claim", [10]), ("slot_claim", [5])]
