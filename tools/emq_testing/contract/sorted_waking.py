"""What arms a slot, and what then wakes the instance that claimed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import pytest

from emq.storage.lane_store import LaneAdd, LaneClaim
from emq.storage.slot_store import Entry, Keep, SlotAdd, SlotClaim, SlotClaimed, SlotKind, SlotVerdict
from emq.storage.store import Store
from emq_testing.contract.fixtures import CANARY, Quiet
from emq_testing.contract.slot_user import NOW, PRIORITIES, SECOND, STORES, SlotUser, nth
from emq_testing.contract.target import Target, Watcher

pytestmark = STORES


class Armed(NamedTuple):
    """A slot that is armed for the 100th, with "x" in prepare, the 500th, "late", waiting, and "dead" dead."""

    user: SlotUser
    x: Entry

    @classmethod
    async def make(cls, user: SlotUser, twin: float | None = None) -> Armed:
        """`twin`: which place the waiting twin of "x" has; None for no twin."""
        at = user.slot.kind
        await user.fill(b"dead", b"x", b"y")
        (dead,) = (await user.claim(limit=1)).entries
        assert await user.die(dead)
        (x,) = (await user.claim(limit=1, now_ms=NOW + SECOND)).entries
        if twin is not None:
            assert await user.add(b"x", nth(at, twin), body=b"newer")
        assert await user.add(b"armed", nth(at, 100))
        assert await user.add(b"late", nth(at, 500))
        claimed = await user.claim(limit=1)
        assert ([entry.member for entry in claimed.entries], claimed.next_score) == ([b"y"], nth(at, 100))
        return cls(user, x)

    def at(self, n: float) -> float:
        return nth(self.user.slot.kind, n)


EARLIER: dict[str, Callable[[Armed], Awaitable[object]]] = {
    "an add": lambda a: a.user.add(b"new", a.at(99)),
    "a merge": lambda a: a.user.add(b"late", a.at(50)),
    "a merge of the armed one": lambda a: a.user.add(b"armed", a.at(99)),
    "a retry": lambda a: a.user.retry(a.x, a.at(50)),
    "a replay": lambda a: a.user.settle(SlotVerdict.REPLAY, b"dead", score=a.at(50)),
}
LATER: dict[str, Callable[[Armed], Awaitable[object]]] = {
    "an add": lambda a: a.user.add(b"new", a.at(101)),
    "an add to the same score": lambda a: a.user.add(b"new", a.at(100)),
    "a merge": lambda a: a.user.add(b"late", a.at(150)),
    "a merge that keeps the first": lambda a: a.user.add(b"late", a.at(50), keep=Keep.FIRST),
    "a retry": lambda a: a.user.retry(a.x, a.at(150)),
    "a replay": lambda a: a.user.settle(SlotVerdict.REPLAY, b"dead", score=a.at(150)),
    "an end": lambda a: a.user.ack(a.x),
    "a death": lambda a: a.user.die(a.x),
    "a recall": lambda a: a.user.settle(SlotVerdict.RECALL, b"armed"),
    "a purge": lambda a: a.user.settle(SlotVerdict.PURGE, b"dead"),
    "a verdict under another token": lambda a: a.user.retry(a.x._replace(token=a.x.token + 1), a.at(50)),
    "a refused add": lambda a: a.user.sorted.add([SlotAdd(a.user.slot, b"n", a.at(5), Keep.LAST, max_length=1)]),
    "a look at its sizes": lambda a: a.user.state(),
    "a look at what waits": lambda a: a.user.waiting(),
    "a look at the dead": lambda a: a.user.dead(),
    "nothing to recover": lambda a: a.user.recover(),
}
ANYTHING: dict[str, Callable[[SlotUser, Entry], Awaitable[object]]] = {
    "an add": lambda user, x: user.add(b"new", nth(user.slot.kind, 900)),
    "a retry": lambda user, x: user.retry(x, 0),
    "recovery": lambda user, x: user.succeed(),
}


async def test_what_comes_before_wakes(user: SlotUser, watcher: Watcher) -> None:
    for group, (what, happens) in enumerate(EARLIER.items()):
        slot = user.beside(group)
        armed = await Armed.make(slot)
        assert addresses(watcher) == [], what
        await happens(armed)
        await watcher.until(lambda slot=slot: slot.slot.address in watcher.woken, f"waking by {what}")  # type: ignore[misc]
        assert addresses(watcher) == [slot.slot.address], what
        watcher.forget()


def addresses(watcher: Watcher) -> list[str]:
    """The slots that were woken; the canary may still be on its way."""
    return [name for name in watcher.woken if name.endswith("/")]


async def test_what_does_not_come_before_wakes_nobody(user: SlotUser, quiet: Quiet) -> None:
    for group, happens in enumerate(LATER.values()):
        await happens(await Armed.make(user.beside(group)))
    armed = await Armed.make(user.beside(len(LATER)), twin=150)
    assert await armed.user.ack(armed.x)
    await quiet()


async def test_a_slot_armed_with_nothing_wakes_for_anything(user: SlotUser, watcher: Watcher) -> None:
    for group, (what, happens) in enumerate(ANYTHING.items()):
        slot = user.beside(group)
        await slot.fill(b"x")
        claimed = await slot.claim()
        assert claimed.next_score is None
        await happens(slot, claimed.entries[0])
        await watcher.until(lambda slot=slot: slot.slot.address in watcher.woken, f"waking by {what}")  # type: ignore[misc]
    await user.beside(50).buried(b"x")
    await user.beside(50).claims()
    await user.beside(50).settle(SlotVerdict.REPLAY, b"x", score=1)
    await watcher.wakes(user.beside(50).slot.address)


async def test_what_is_recovered_wakes_where_it_comes_before(user: SlotUser, watcher: Watcher, quiet: Quiet) -> None:
    armed = await Armed.make(user)
    assert await user.recover(older_than_ms=NOW + SECOND, held=[b"x"]) == 1
    if user.slot.kind is SlotKind.PRIORITY:
        await quiet()  # retries come last
    else:
        await watcher.wakes(user.slot.address)
    assert await user.ack(armed.x)


@pytest.mark.parametrize("how", ["ack", "dead", "retry", "recover", "recover to the dead"])
async def test_a_duplicate_wakes_once_its_twin_is_settled(user: SlotUser, watcher: Watcher, how: str) -> None:
    if how == "recover to the dead":
        await user.fill(b"x")
        assert await user.retry((await user.claims(b"x"))[0], 1)
        (entry,) = await user.claims(b"x", now_ms=NOW + SECOND)
        await user.add(b"x", nth(user.slot.kind, 50))
        # What may not run yet is nothing to wait for.
        assert await user.claim() == SlotClaimed([], None)
        assert entry.left == 0
    else:
        entry = (await Armed.make(user, twin=50)).x
    watcher.forget()
    if how == "ack":
        assert await user.ack(entry)
    elif how == "dead":
        assert await user.die(entry)
    elif how == "retry":
        assert await user.retry(entry, nth(user.slot.kind, 150))
    else:
        assert await user.recover(older_than_ms=NOW + 2 * SECOND, held=[b"y"]) == 1
    await watcher.wakes(user.slot.address)
    assert (await user.claim(limit=1, now_ms=NOW + 2 * SECOND)).entries[0].member == b"x"


async def test_a_slot_wakes_once_until_it_is_armed_again(user: SlotUser, watcher: Watcher, quiet: Quiet) -> None:
    await user.claims()
    await user.fill(b"a")
    await watcher.wakes(user.slot.address)
    watcher.forget()
    await user.fill(b"b", b"c")
    await user.add(b"c", nth(user.slot.kind, 0))
    await quiet()
    await user.claim()
    await user.fill(b"d")
    await watcher.wakes(user.slot.address)


async def test_a_slot_that_nobody_claimed_wakes_nobody(user: SlotUser, quiet: Quiet) -> None:
    await user.fill(b"a")
    await user.state()
    await user.waiting()
    await user.dead()
    await user.recover()
    await user.fill(b"b", b"c")
    await quiet()


async def test_a_claim_and_an_add_that_race_leave_no_message_unseen(
    store: Store, other: Store, user: SlotUser, watcher: Watcher
) -> None:
    for group in range(10):
        slot = user.beside(group).slot
        claim = store.sorted.claim([SlotClaim(slot, 5, 1, NOW)], NOW)
        add = other.sorted.add([SlotAdd(slot, b"x", nth(slot.kind, 0), Keep.LAST)])
        done = await asyncio.gather(*((claim, add) if group % 2 else (add, claim)))
        claimed = next(answer for (answer,) in done if isinstance(answer, SlotClaimed))
        if not claimed.entries:
            await watcher.wakes(slot.address)


@PRIORITIES
async def test_one_call_arms_and_wakes_many_slots(store: Store, user: SlotUser, watcher: Watcher, quiet: Quiet) -> None:
    slots = [user.beside(group).slot for group in range(300)]
    await store.sorted.claim([SlotClaim(slot, 5, 1, NOW) for slot in slots], NOW)
    await store.sorted.add([SlotAdd(slot, b"x", 100, Keep.LAST) for slot in slots[:200]])
    addresses = [slot.address for slot in slots[:200]]
    await watcher.wakes(*addresses)
    assert sorted(watcher.woken) == sorted(addresses)
    watcher.forget()
    await quiet()


async def test_a_slot_and_the_lane_of_its_name_wake_by_names_of_their_own(
    store: Store, target: Target, user: SlotUser, watcher: Watcher
) -> None:
    def woken() -> list[str]:
        return [name for name in watcher.woken if name != target.queue("high", CANARY)]  # it may have been put twice

    lane = user.slot.name
    await store.lanes.claim([LaneClaim(lane, 1, 1)], NOW)
    await user.claims()
    await store.lanes.add([LaneAdd(lane, "x", b"", NOW)])
    await watcher.wakes(lane)
    assert woken() == [lane]
    await user.fill(b"x")
    await watcher.wakes(user.slot.address)
    assert woken() == [lane, lane + "/"]
