"""Groups remember the ids of publishes: a repeat stores nothing twice, on every store that can remember."""

from __future__ import annotations

import asyncio

import pytest

from emq.runtime import errors
from emq.storage.lane_store import LaneAdd, LaneClaim, LaneSettle, LaneVerdict
from emq.storage.log_store import REPEATED, Put, Trim
from emq.storage.store import Store
from emq_testing.contract.target import Target, read_all

LONG_MS = 60_000
SHORT_MS = 150


pytestmark = pytest.mark.usefixtures("remembers")


async def put(store: Store, queue: str, *ids: str, for_ms: int = LONG_MS, **more: object) -> list[int]:
    """Each body is its id; returns the offsets."""
    asked = Put(queue, [id_.encode() for id_ in ids], ids=ids, remember_ms=for_ms)._replace(**more)
    (answer,) = await store.log.put([asked])
    if isinstance(answer, errors.EMQError):
        raise answer
    return list(answer)


async def bodies(store: Store, queue: str, count: int) -> list[str]:
    return [body.decode() for _, body in await read_all(store.log, queue, count)]


async def test_a_repeat_is_left_out_and_its_neighbours_are_stored(store: Store, other: Store, target: Target) -> None:
    first = await put(store, target.queue(), "a", "b")
    again = await put(other, target.queue(), "new", "a", "newer", "b")
    assert again == [first[-1] + 1, REPEATED, first[-1] + 2, REPEATED]
    assert await put(other, target.queue(), "a", "b") == [REPEATED, REPEATED]
    assert await bodies(store, target.queue(), 4) == ["a", "b", "new", "newer"]


async def test_an_id_that_stands_twice_in_a_put_or_a_call_is_stored_once(store: Store, target: Target) -> None:
    first, repeated, following = await put(store, target.queue(), "a", "a", "b")
    assert (repeated, following) == (REPEATED, first + 1)
    twice = Put(target.queue(), [b"c"], ids=["c"], remember_ms=LONG_MS)
    one, two = await store.log.put([twice, twice])
    assert not isinstance(one, Exception)
    assert not isinstance(two, Exception)
    assert (list(one), list(two)) == ([following + 1], [REPEATED])
    assert await bodies(store, target.queue(), 3) == ["a", "b", "c"]


async def test_the_group_remembers_over_its_queues_and_other_groups_do_not(store: Store, target: Target) -> None:
    await put(store, target.queue("high"), "a")
    assert await put(store, target.queue("low"), "a") == [REPEATED]
    assert await put(store, target.queue("high", 1), "a") != [REPEATED]


async def test_what_was_consumed_is_remembered(store: Store, target: Target) -> None:
    (offset,) = await put(store, target.queue(), "a")
    await store.log.trim([Trim(target.queue(), offset + 1, None)])
    assert await put(store, target.queue(), "a") == [REPEATED]


async def test_ids_are_forgotten_when_their_time_is_over(store: Store, target: Target) -> None:
    await put(store, target.queue(), "a", for_ms=SHORT_MS)
    await put(store, target.queue(), "b")
    await asyncio.sleep(SHORT_MS / 1000 + 0.05)
    again, repeated = await put(store, target.queue(), "a", "b")
    assert again > 0
    assert repeated == REPEATED
    assert await put(store, target.queue(), "a") == [REPEATED], "the repeat was a publish of its own"


async def test_a_put_without_ids_is_as_it_was(store: Store, target: Target) -> None:
    await put(store, target.queue(), "a")
    (answer,) = await store.log.put([Put(target.queue(), [b"a"])])
    assert not isinstance(answer, Exception)
    assert await bodies(store, target.queue(), 2) == ["a", "a"]


async def test_a_refused_put_is_not_remembered(store: Store, target: Target) -> None:
    queues = [target.queue()]
    with pytest.raises(errors.TopicFull):
        await put(store, target.queue(), "a", "b", max_length=1, siblings=queues)
    assert await put(store, target.queue(), "a", max_length=1, siblings=queues) != [REPEATED]
    assert await put(store, target.queue(), "a", max_length=1, siblings=queues) == [REPEATED], "takes no room"


async def test_a_seal_forgets_for_what_is_created_again_begins_anew(store: Store, target: Target) -> None:
    (offset,) = await put(store, target.queue(), "a")
    await store.log.trim([Trim(target.queue(), offset + 1, None, seal=True)])
    with pytest.raises(errors.QueueSealed):
        await put(store, target.queue(), "a")
    await store.log.trim([Trim(target.queue(), offset + 1, None, seal=False)])
    assert await put(store, target.queue(), "a") != [REPEATED]


async def test_an_opened_queue_forgets_nothing(store: Store, target: Target) -> None:
    """A topic's queues are opened at each change of its rate, and when a program makes sure that the topic exists."""
    await put(store, target.queue(), "a")
    await store.log.trim([Trim(target.queue(), 0, None, seal=False)])
    assert await put(store, target.queue(), "a") == [REPEATED]


@pytest.mark.parametrize("drop_oldest", [False, True])
async def test_a_repeat_needs_no_room(store: Store, target: Target, drop_oldest: bool) -> None:
    """The group may hold more than its limit, if the limit was lowered."""
    await put(store, target.queue(), "a", "b", "c")
    limit = {"max_length": 2, "siblings": [target.queue()], "drop_oldest": drop_oldest}
    assert await put(store, target.queue(), "a", "b", **limit) == [REPEATED, REPEATED]
    assert await bodies(store, target.queue(), 3) == ["a", "b", "c"]


async def test_ids_may_be_any_text_and_thousands(store: Store, target: Target) -> None:
    ids = ["", "'; --", "ü€😀", "a\nb", "\x00", "\x01", *(f"id-{i}" for i in range(2_000))]
    assert REPEATED not in await put(store, target.queue(), *ids)
    assert set(await put(store, target.queue(), *ids)) == {REPEATED}


async def test_calls_at_the_same_time_store_an_id_once(store: Store, other: Store, target: Target) -> None:
    ids = [f"id-{i}" for i in range(20)]
    answers = await asyncio.gather(
        *(put(each, target.queue(priority), *ids) for each in (store, other) for priority in ("high", "low") * 3)
    )
    stored = [offset for answer in answers for offset in answer if offset != REPEATED]
    assert len(stored) == len(ids)


async def test_a_delayed_publish_is_remembered_when_its_entry_is_gone(store: Store, target: Target) -> None:
    lane = target.slot()
    add = LaneAdd(lane, "a", b"a", 0, remember_ms=LONG_MS)
    assert list(await store.lanes.add([add, add])) == [True, False]
    await store.lanes.claim([LaneClaim(lane, 10, 1)], 1)
    await store.lanes.settle([LaneSettle(lane, "a", LaneVerdict.ACK, 1)])
    assert list(await store.lanes.add([add])) == [False]
    assert await put(store, target.queue(), "a") == [REPEATED], "now without a delay"
    assert list(await store.lanes.add([add._replace(remember_ms=0)])) == [True], "a host's own add is no repeat"


async def test_a_message_that_was_put_is_not_added_again_with_a_delay(store: Store, target: Target) -> None:
    await put(store, target.queue(), "a")
    assert list(await store.lanes.add([LaneAdd(target.slot(), "a", b"a", 0, remember_ms=LONG_MS)])) == [False]


async def test_a_put_without_room_tells_what_is_remembered_and_changes_nothing(store: Store, target: Target) -> None:
    await put(store, target.queue(), "a")
    no_room = {"max_length": 0, "siblings": [target.queue()]}
    assert await put(store, target.queue(), "a", **no_room) == [REPEATED]
    with pytest.raises(errors.TopicFull):
        await put(store, target.queue(), "b", **no_room)
    assert await bodies(store, target.queue(), 1) == ["a"]
    assert await put(store, target.queue(), "b") != [REPEATED]
