"""The fixtures of the suite; who tries a store adds the fixture `target`, which returns a `Target`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from emq.storage import identity
from emq.storage.lane_store import LaneSettle, LaneVerdict
from emq.storage.slot_store import SlotKind
from emq.storage.store import Store
from emq_testing.contract.slot_user import VARIANT_NAMES, VARIANTS, SlotUser
from emq_testing.contract.target import Can, Needs, Target, Watcher, settle_down, watching

CANARY = 999
"""The group of the queue by which a watcher knows that it hears."""

Quiet = Callable[[], Awaitable[None]]


@pytest_asyncio.fixture
async def opened(target: Target) -> AsyncIterator[Target]:
    """The target, whose stores are closed after the test."""
    try:
        yield target
    finally:
        await target.close()


@pytest_asyncio.fixture
async def store(opened: Target) -> Store:
    return await opened.open()


@pytest_asyncio.fixture
async def other(opened: Target, store: Store) -> Store:
    """A second instance on the same data."""
    if Can.MANY_INSTANCES not in opened.can:
        pytest.skip(f"{opened.name} takes one instance only")
    return await opened.open()


@pytest.fixture
def needs(target: Target) -> Needs:
    """Skip where the store's docstring says that it cannot do this."""

    def check(what: Can) -> None:
        if what not in target.can:
            pytest.skip(f"{target.name} does not promise: {what.value}")

    return check


@pytest.fixture(params=VARIANTS, ids=VARIANT_NAMES)
def variant(request: pytest.FixtureRequest) -> tuple[SlotKind, bool]:
    """A slot's kind, and whether its bodies are apart; each of both, and the models try them all."""
    kind, apart = request.param
    return kind, apart


@pytest.fixture
def user(store: Store, target: Target, variant: tuple[SlotKind, bool]) -> SlotUser:
    """The user of one slot of that variant."""
    return SlotUser(store, target.sorted_slot(*variant))


@pytest.fixture
def sealed(needs: Needs) -> None:
    """Skip where seals hold for one instance only: there no topic sleeps."""
    needs(Can.SHARE_CONTROL)


@pytest.fixture
def remembers(needs: Needs) -> None:
    """Skip where the store refuses ids, which another test checks."""
    needs(Can.REMEMBER)


@pytest.fixture
def own_slots(needs: Needs) -> None:
    needs(Can.SLOTS)


@pytest.fixture
def in_order(needs: Needs) -> None:
    needs(Can.SLOTS)
    needs(Can.IN_ORDER)


@pytest_asyncio.fixture
async def no_identity(store: Store) -> None:
    """Servers of the tests serve many stores; each test begins with one that no host has opened."""
    await store.lanes.settle([LaneSettle(lane, "identity", LaneVerdict.RECALL) for lane in identity.LANES])


@pytest_asyncio.fixture
async def watcher(store: Store, target: Target) -> AsyncIterator[Watcher]:
    async with watching(store, target.queue("high", CANARY)) as watcher:
        yield watcher


@pytest.fixture
def quiet(store: Store, target: Target, watcher: Watcher) -> Quiet:
    """Insists that nothing has woken, and that nothing is on its way."""

    async def check() -> None:
        await settle_down(store, watcher, target.queue("high", CANARY))
        assert watcher.woken == []

    return check
