"""The protocol of a store as a whole, and the rules for all of its calls.

A store has three parts:

    LogStore      the queues of log topics
    LaneStore     each group's lane: messages with a due time (retries, delays), and dead letters
    SortedStore   the slots of sorted topics, see `emq.storage.slot_store`

A call takes many entries (one for each queue, lane or member) and makes one round trip for all of them. It returns one
answer for each entry, in the order of the entries. If the store refuses an entry, its answer is an `EMQError` instance,
so that one full, sealed or lost queue does not fail its neighbours.

A store may lie on several servers. If a server is out of reach, silent or full, each of its entries gets an error, an
instance of `Failure`. The store serves the other entries, after at most a few seconds of waiting for that server:

    StoreUnavailable   nothing of the entry was applied
    KeyDamaged         nothing of the entry was applied, because one key of the store is damaged; the text names the key
                       and the remedy
    OutcomeUnknown     the entry may have been applied: the connection broke, or a deadline passed, after it was sent
    StoreFull          nothing of the entry was applied for lack of room

A call raises such an error only if the error holds for all of its entries. `emq.storage.answers` reads the answers.

Queues are named `<topic>/<group>/<priority>`, groups and their lanes `<topic>/<group>`. An adapter is the code that
implements a store. An adapter instance serves one environment and keeps its keys apart from those of the other.
`emq.storage.opening` finds an adapter by the scheme of the URL, through the entry-point group `emq.stores`. The
adapters of this project are in `storage_adapters/`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol

from emq.storage.lane_store import LaneStore
from emq.storage.log_store import LogStore
from emq.storage.slot_store import Slot, SortedStore


class Holding(NamedTuple):
    """Names of queues, lanes and slots (both by the names of their groups) that hold messages; some may be empty."""

    queues: Sequence[str]
    lanes: Sequence[str]
    slots: Sequence[str]


class Ended(NamedTuple):
    """A group of a topic that is gone, and all that a store may still know of the group.

    Attributes:
        lane: the name of the group and of its lane.
        queues: the names of its queues.
        slot: of a sorted topic; else None.
        mark: a number of the caller alone, from -2^48 to -2.
    """

    lane: str
    queues: Sequence[str]
    slot: Slot | None
    mark: int


class Store(Protocol):
    """The three parts of a store over one connection pool, and their wake-ups. An adapter's factory returns it.

    A store may have a method `follow(clock)`, which `open_store` calls once. The store then stamps dead letters and
    failed attempts by that clock, which keeps the environment's time. Otherwise it stamps them by the machine's clock.

    A store may have a method `async tell(topics)`, which lets `watch` of every instance yield these names of topics, if
    it hears them. Otherwise hosts hear of new topics at their next look at the catalog.

    A store may have a method `async unarmed(names, now_ms) -> Sequence[str]`. Of these queues and lanes, it returns
    those that are not armed for this instance, and lanes with an entry due; it may return others, too. Hosts ask about
    all that they own, again and again, and look at those. Without this method, they look at all.

    A store may have a method `async holding() -> Holding`, which looks at all that it has. Otherwise EMQ cannot find
    messages of topics that the catalog does not know.

    A store may have a method `async forget(ended) -> Sequence[Sequence[int] | Failure | None]`, which takes two calls
    to drop all that the store knows of the groups `ended`. It leaves a group as it is if a queue, the lane or the slot
    holds something or is open. The first call writes the caller's mark in place of the group's epoch, which keeps
    nobody out; a read, claim or recovery of an owner replaces the mark. The second call drops the group if the mark is
    still there. Then the queues are unused ones: open, and with offsets that begin again. The answer for each group is
    where its queues ended, None if the group stays. Without this method, a store keeps some hundred bytes of each name
    that ever had a topic.

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
        """Yield the names of queues, lanes and slots that have something new for this instance.

        `read` and `claim` *arm* a queue, lane or slot: they ask the store to wake this instance at the next change. The
        store then wakes the instance that armed. It yields:

        - the names of armed queues that received messages,
        - the names of armed lanes that received an entry with an earlier due time,
        - the addresses of armed slots that received a member that is earlier or more urgent,
        - the names of topics that somebody told,
        - None, if wake-ups may have been lost: look at everything you own.

        A store instance has at most one watcher.
        """

    async def close(self) -> None:
        """Release the connections and end the watcher. Safe to repeat."""
