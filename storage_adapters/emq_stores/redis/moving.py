"""Moves ranges of hash slots between the servers of a list, while hosts and producers use the store.

A range moves as a whole. Each step is safe to lose: whoever begins again finds out how far the last one came.

1. Leave: all servers note, under the next version, that the range leaves its server (the source). The source goes on
   to serve the range, and notes the keys that calls may change. If it is restarted, it refuses the range: it may have
   lost the steps that follow. Therefore its disk has this step before the next one.
2. Copy: write all keys to the target.
3. Freeze: the source refuses the range, and calls wait. Copy the keys that calls may have changed meanwhile. If that
   takes too long, let the source serve the range again for as long, and repeat this step. Then wait until the disk and
   the replica of the target have all keys, if it has these.
4. Hand over: the target notes that it has the range, then the source and all other servers. Callers follow.
5. Delete the keys at the former server.

The source takes step 3, and the target step 4, only if the server has not been restarted since step 1, and nobody else
has changed its record. The script that notes the step compares both (lua/note_step.lua).

If a step before the fourth fails, the range stays with its server. If the process dies, the range may stay frozen;
processes that need it give it back to its server (`ServerList.lift`), and so does the next move. Copies that an
interrupted move leaves are deleted before the next one. Each move changes the version, so a move that begins in between
is noticed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from redis.crc import key_slot

from emq.runtime import errors
from emq_stores.redis.confirmation import Confirm
from emq_stores.redis.keys import LIST_RANGES, SERVERS, uncopied
from emq_stores.redis.scripts import script
from emq_stores.redis.server import SCAN_KEYS
from emq_stores.redis.server_list import Entry, Record, ServerList, changed, entry, range_of
from emq_stores.redis.store import Location, RedisStore
from emq_stores.redis.wakeups import WakeUps

COPIED_KEYS = 1_000
"""Most keys that are copied in one call."""

COPIED_BYTES = 8 << 20
"""Bytes after which a call copies no further key; a single key may have more."""

SLICE_S = 0.5
"""Seconds for which a range is frozen at a time. Copying a single large key may take longer."""

SLICES = 50
"""Number of slices after which a range stays frozen to the end: its keys change faster than they can be copied."""

LEASE_S = 120
"""Seconds for which the source notes keys of a move of which it hears nothing."""

COPY_S = 60.0
"""Seconds added to the deadline of a call that copies keys: a key may have hundreds of megabytes."""


class Moved(NamedTuple):
    """A range that was moved, its former server and its server."""

    number: int
    source: str
    target: str


class ListedStore(RedisStore):
    """A store on a list of servers."""

    def __init__(
        self,
        servers: ServerList,
        location: Location,
        wakeups: WakeUps,
        disconnect: Callable[[], Awaitable[None]],
        *,
        max_queue_qps: float | None = None,
    ) -> None:
        super().__init__(location, wakeups, disconnect, max_queue_qps=max_queue_qps)
        self._servers = servers

    async def spread(self) -> AsyncIterator[Moved]:
        """Move ranges until each server of the URL has the same number of them, and no other server has any.

        Yields each range when it has moved.

        Raises:
            ChangedMeanwhile: somebody else moves ranges at the same time. Let them end, and begin again.
            InvalidSettings: two servers of the URL are the same.
            OutcomeUnknown, StoreFull, StoreUnavailable: a server does not answer or has no room; the range that was on
                its way may be frozen for some seconds. Mend the server, and begin again.
        """
        servers = self._servers
        await servers.refresh()
        addresses = sorted({*servers.seeds, *servers.masters()})
        records = await servers.records()
        await servers.check_new([a for a in addresses if not records.get(a)], addresses)  # raises if a server is down
        for address in addresses:
            await servers.note(address, servers.entries)
        # End all moves before copies are deleted: what was done since a move was interrupted must not come back.
        entries = dict(servers.entries)
        for number in range(LIST_RANGES):
            if not (known := entries[str(number)]).is_settled:
                entries[str(number)] = await servers.lift(number, known)
        for address in addresses:
            for number, keys in (await _keys(servers, address)).items():
                if (known := entries[str(number)]).value != address:
                    await _unlink(servers, address, number, known.value, keys)
        for number, target in enumerate(planned(entries, servers.seeds)):
            if (known := entries[str(number)]).value != target:
                await _Move(servers, addresses, number, known, target).carry_out()
                yield Moved(number, known.value, target)
        await servers.refresh()


def planned(entries: Record, wanted: Sequence[str]) -> list[str]:
    """Return the server that each range should have, such that all of them have as many, with the fewest moves."""
    now = [entries[str(number)].address for number in range(LIST_RANGES)]
    most_first = sorted(set(wanted), key=lambda address: (-now.count(address), address))
    room = {a: LIST_RANGES // len(most_first) + (i < LIST_RANGES % len(most_first)) for i, a in enumerate(most_first)}
    plan: list[str | None] = []
    for address in now:
        stays = room.get(address, 0) > 0
        plan.append(address if stays else None)
        if stays:
            room[address] -= 1
    free = iter([address for address, count in room.items() for _ in range(count)])
    return [address if address is not None else next(free) for address in plan]


class _Move:
    """One range on its way.

    Args:
        addresses: all servers of the list, and those that join it.
        known: the newest entry of the range, which is settled; its server is the source.
    """

    def __init__(self, servers: ServerList, addresses: Sequence[str], number: int, known: Entry, target: str) -> None:
        self._servers = servers
        self._number = number
        self._source, self._target = known.value, target
        self._others = [a for a in addresses if a not in (known.value, target)]
        self._version = known.version
        self._frozen = f"{known.value} {secrets.token_hex(8)} {target}"
        self._leaving = ""
        self._runs: dict[str, str] = {}
        self._copied: set[bytes] = set()

    async def carry_out(self) -> None:
        source, target = self._source, self._target
        self._runs = {address: await self._servers.run_of(address) for address in (source, target)}
        self._leaving = f"{self._frozen} {self._runs[source]}"
        await self._leave()
        try:
            for address in (target, *self._others):
                await self._agree(self._leaving, address)
            await self._copy()
            await self._confirm_copies()
            await self._note(self._frozen, source, self._frozen)
        except BaseException:
            await self._give_back()
            raise
        self._version += 1
        try:
            await self._note(target, target, self._frozen)
        except errors.ChangedMeanwhile:  # after another error, the target may have the range
            await self._give_back()
            raise
        for address in (source, *self._others):
            await self._agree(target, address)
        keys = [*self._copied, uncopied(self._number).encode()]
        await _unlink(self._servers, source, self._number, target, keys)

    async def _give_back(self) -> None:
        self._version += 1
        with contextlib.suppress(errors.EMQError):
            await asyncio.shield(self._agree(self._source, self._source))

    async def _leave(self) -> None:
        confirm = Confirm.NOTHING
        if (await self._servers.ask(self._source, "INFO", "persistence")).get("aof_enabled"):
            confirm = Confirm.FSYNCED
        self._version += 1
        with contextlib.suppress(errors.OutcomeUnknown):  # with appendfsync no; the next step finds out if it was lost
            await self._note(self._leaving, self._source, self._source, LEASE_S * 1000, confirm)

    async def _copy(self) -> None:
        """Copy all keys while the source serves them, then freeze the range and copy what has changed meanwhile."""
        servers, stamp = self._servers, (self._number, self._source)
        keys = (await _keys(servers, self._source)).get(self._number, [])
        for start in range(0, len(keys), SCAN_KEYS):
            await _run(servers, self._source, "touch", keys[start : start + SCAN_KEYS], [], stamp)
        await self._copy_keys(self._leaving, len(keys))
        for slices in itertools.count(1):
            await self._switch(self._leaving, self._frozen)
            if await self._copy_keys(self._frozen, for_s=SLICE_S if slices < SLICES else math.inf):
                return
            await self._switch(self._frozen, self._leaving)
            await self._copy_keys(self._leaving, for_s=SLICE_S)

    async def _switch(self, before: str, value: str) -> None:
        """Freeze the range at source and target, or let the source serve it again."""
        self._version += 1
        for address in (self._source, self._target):
            await self._note(value, address, before)

    async def _copy_keys(self, value: str, most: float = math.inf, for_s: float = math.inf) -> bool:
        """Copy keys that are to be copied, about as many as `most` and for as long as `for_s`; return if none is left.

        Args:
            value: the entry of the range that source and target must have.
        """
        servers, ends, copied = self._servers, time.monotonic() + for_s, 0
        stamp, key = (self._number, value), uncopied(self._number).encode()
        while True:
            taken = await _run(servers, self._source, "dump", [key], [COPIED_KEYS, COPIED_BYTES, LEASE_S * 1000], stamp)
            if taken is None:
                raise changed(self._number)
            left, dumps = taken
            if dumps:
                keys = [key for key, _, _ in dumps]
                args = [word for _, *rest in dumps for word in rest]
                await _run(servers, self._target, "restore", keys, args, stamp)
                self._copied.update(keys)
            copied += len(dumps)
            if not left or copied >= most or time.monotonic() >= ends:
                return not left

    async def _confirm_copies(self) -> None:
        """Wait until disk and replica of the target, if it has these, have a write that comes after all copies."""
        info = await self._servers.ask(self._target, "INFO")
        wanted = [Confirm.FSYNCED] if info.get("aof_enabled") else []
        for confirm in wanted + [Confirm.REPLICATED] * bool(info.get("connected_slaves")):
            await self._note(self._frozen, self._target, self._frozen, 0, confirm)

    async def _agree(self, value: str, address: str) -> None:
        """Let a server note the entry, unless it has a newer one."""
        if await self._servers.note(address, {str(self._number): entry(self._version, value)}) != [value]:
            raise changed(self._number)

    async def _note(
        self, value: str, address: str, before: str, lease_ms: int = 0, confirm: Confirm = Confirm.NOTHING
    ) -> None:
        """Let a server note the entry, if it has the entry `before` and is in the run in which the move met it."""
        number, servers = self._number, self._servers
        args = [number, self._runs[address], before, self._version, value, lease_ms]
        text = script("note_step").text
        noted = await servers.ask(address, "EVAL", text, 2, SERVERS, uncopied(number), *args, confirm=confirm)
        if noted == -1:
            raise errors.ChangedMeanwhile(f"{address} was restarted during a move; begin again")
        if noted != 1:
            raise changed(number)


async def _keys(servers: ServerList, address: str) -> dict[int, list[bytes]]:
    """Return all keys of a server by range."""
    found: dict[int, dict[bytes, None]] = {}
    cursor = 0
    while True:
        cursor, keys = await servers.ask(address, "SCAN", cursor, "COUNT", SCAN_KEYS)
        for key in keys:
            if not key.startswith(SERVERS.encode()):
                found.setdefault(range_of(key_slot(key)), {})[key] = None
        if not int(cursor):
            return {number: list(keys) for number, keys in found.items()}


async def _unlink(servers: ServerList, address: str, number: int, expected: str, keys: Sequence[bytes]) -> None:
    """Delete keys of a range that a server does not serve; `expected` is the server's entry of the range."""
    for start in range(0, len(keys), SCAN_KEYS):
        await _run(servers, address, "unlink", keys[start : start + SCAN_KEYS], [], (number, expected))


async def _run(
    servers: ServerList,
    address: str,
    name: str,
    keys: Sequence[bytes],
    args: Sequence[Any],
    stamp: tuple[int, str],
    confirm: Confirm = Confirm.NOTHING,
) -> Any:
    text = script(name, listed=True).text
    return await servers.ask(address, "EVAL", text, len(keys), *keys, *args, *stamp, longer_s=COPY_S, confirm=confirm)
