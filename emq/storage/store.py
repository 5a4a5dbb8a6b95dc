"""The protocols a store implements, and the plain records that pass through two of them.

`LogStore` holds the queues, `LaneStore` each group's lane (retries, delays, dead letters), `SortedStore` (see
`emq.storage.slot_store`) the slots of sorted topics.

Every call is batched over queues (one round trip for many) and is answered per queue, in the order asked, so that
one full, sealed or lost queue does not fail its neighbours: a refused entry's answer is the `EMQError` instance.

A store may lie on several servers. Where a server is out of reach, silent or full, the answer of each of its entries is
the error, an instance of `Failure`; the other entries are served, and do not wait for it beyond a deadline of seconds:

    StoreUnavailable   nothing of the entry was applied
    KeyDamaged         the same, because of what one key of the store holds; the text names key and remedy
    OutcomeUnknown     the entry may have been applied: the connection broke, or a deadline passed, after it was sent
    StoreFull          nothing of the entry was applied for lack of room

A call raises such an error only where it holds for all of its entries. See `emq.storage.answers` for reading the
answers.

Queues are named `<topic>/<group>/<priority>`, groups and their lanes `<topic>/<group>`; an adapter instance serves
one environment and keeps its keys apart from the other's. Adapters are found by the scheme of their URL through the
entry-point group `emq.stores`; see `storage_adapters` for those of this project; `emq.storage.opening` does the lookup.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from emq.storage.lane_store import LaneStore
from emq.storage.log_store import LogStore
from emq.storage.slot_store import SortedStore


class Store(Protocol):
    """What an adapter's factory returns for a URL: all its stores over one connection pool, and their wake-ups.

    A store may have a method `follow(clock)`, which is called once after it was opened. The store then stamps dead
    letters and failed attempts by that clock, which keeps the environment's time; else by the machine's.

    Attributes:
        shared: True if several host processes may use the store at once.
    """

    @property
    def log(self) -> LogStore: ...

    @property
    def lanes(self) -> LaneStore: ...

    @property
    def sorted(self) -> SortedStore: ...

    @property
    def shared(self) -> bool: ...

    def watch(self) -> AsyncIterator[Sequence[str] | None]:
        """Yield names of armed queues that received messages, of armed lanes with an earlier due time, and addresses of
        armed slots with something earlier or more urgent.

        None means "wake-ups may have been lost, look at everything you own". At most one watcher for each store
        instance; arming by `read` and `claim` directs the wake-up to the instance that armed.
        """

    async def close(self) -> None:
        """Release connections; a watcher ends. Safe to repeat."""
