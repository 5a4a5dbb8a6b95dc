"""Moves ranges of hash slots between the servers of a list, while hosts and producers use the store.

A range moves as a whole. Each step is safe to lose: whoever begins again finds out how far the last one came.

1. Freeze: all servers note, under the next version, that the range moves. From then on its server refuses the range,
   and calls to it wait. No earlier move of this range can end any more, since its version is not the newest.
2. Copy: write all keys to the target, and wait until its disk and its replica have them, if it has these.
3. Hand over: all servers note that the target has the range, the target first. Callers follow.
4. Delete the keys at the former server.

If a step before the third fails, the range stays with its server. If the process dies, the range stays frozen until the
next move. Copies that an interrupted move leaves are deleted before the next one; each move changes the version, so a
move that begins in between is noticed.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from redis.crc import key_slot

from emq.runtime import errors
from emq_stores.redis.confirmation import Confirm
from emq_stores.redis.keys import LIST_RANGES, SERVERS
from emq_stores.redis.scripts import script
from emq_stores.redis.server import SCAN_KEYS
from emq_stores.redis.server_list import Entry, Record, ServerList, entry, range_of
from emq_stores.redis.store import Location, RedisStore
from emq_stores.redis.wakeups import WakeUps

COPIED_KEYS = 100
"""Most keys that are copied in one call."""

COPIED_BYTES = 8 << 20
"""Bytes after which a call copies no further key; a single key may have more."""

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
                its way may be frozen. Mend the server, and begin again.
        """
        servers = self._servers
        await servers.refresh()
        addresses = sorted({*servers.seeds, *servers.masters()})
        records = await servers.records()
        await servers.check_new([a for a in addresses if not records.get(a)], addresses)  # raises if a server is down
        doubtful = {  # two moves ended at once, and the handover is newer
            field: entry(known.version + 1, known.value)
            for field, known in servers.entries.items()
            if known.is_settled and any(record.get(field, known) != known for record in records.values())
        }
        servers.entries = {**servers.entries, **doubtful}
        for address in addresses:
            await servers.note(address, servers.entries)
        for address in addresses:
            for number, keys in (await _keys(servers, address)).items():
                if (known := servers.entries[str(number)]).address != address and known.is_settled:
                    await _unlink(servers, address, number, known.value, keys)
        for number, target in enumerate(planned(servers.entries, servers.seeds)):
            known = servers.entries[str(number)]
            if known.value != target:
                await _Move(servers, addresses, number, known, target).carry_out()
                if known.address != target:
                    yield Moved(number, known.address, target)
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
        known: the newest entry of the range; its server is the source.
    """

    def __init__(self, servers: ServerList, addresses: Sequence[str], number: int, known: Entry, target: str) -> None:
        self._servers = servers
        self._number = number
        self._source, self._target = known.address, target
        self._known = known
        self._others = [a for a in addresses if a not in (self._source, target)]
        self._moving = f"{self._source} {secrets.token_hex(8)}"

    async def carry_out(self) -> None:
        source, target, version = self._source, self._target, self._known.version
        may_return = False
        lives = await self._lives()
        try:
            await self._agree(version + 1, self._moving, [source])
            may_return = self._known.is_settled
            await self._agree(version + 1, self._moving, [target, *self._others])
            may_return = True
            keys = [] if source == target else await self._copy()
            await self._agree(version + 1, self._moving, [source])
            if lives != await self._lives():  # one may have forgotten that the range is frozen, or keys that it got
                raise errors.ChangedMeanwhile(f"{source} or {target} was restarted during a move; begin again")
        except BaseException:
            if may_return:
                with contextlib.suppress(errors.EMQError):
                    await asyncio.shield(self._note(version + 2, source, source))
            raise
        await self._agree(version + 2, target, dict.fromkeys([target, source, *self._others]))
        if keys:
            await _unlink(self._servers, source, self._number, target, keys)

    async def _lives(self) -> Sequence[object]:
        """Return what changes when the source or the target is restarted."""
        return [(await self._servers.ask(a, "INFO", "server"))["run_id"] for a in (self._source, self._target)]

    async def _copy(self) -> Sequence[bytes]:
        servers, stamp = self._servers, (self._number, self._moving)
        keys, copied = (await _keys(servers, self._source)).get(self._number, []), 0
        while copied < len(keys):
            some = keys[copied : copied + COPIED_KEYS]
            dumps = await _run(servers, self._source, "dump", some, [COPIED_BYTES], stamp)
            copied += len(dumps)
            there = {key: dump for key, dump in zip(some, dumps, strict=False) if dump[1] is not None}
            args = [word for dump in there.values() for word in dump]
            for confirm in [Confirm.NOTHING] if copied < len(keys) else await self._confirms():
                await _run(servers, self._target, "restore", list(there), args, stamp, confirm)
        return keys

    async def _confirms(self) -> Sequence[Confirm]:
        """Return the confirmations that the target can give: messages may have been published as durable as that."""
        info = await self._servers.ask(self._target, "INFO")
        wanted = [Confirm.FSYNCED] if info.get("aof_enabled") else []
        return wanted + [Confirm.REPLICATED] * bool(info.get("connected_slaves")) or [Confirm.NOTHING]

    async def _agree(self, version: int, value: str, addresses: Sequence[str] | Mapping[str, None]) -> None:
        """Let servers note the entry, one after the other."""
        for address in addresses:
            noted = await self._note(version, value, address)
            if noted != value:
                raise errors.ChangedMeanwhile(
                    f"somebody else moves range {self._number} of the store, too; wait for that, and begin again"
                )

    async def _note(self, version: int, value: str, address: str) -> str:
        [noted] = await self._servers.note(address, {str(self._number): entry(version, value)})
        return noted


async def _keys(servers: ServerList, address: str) -> dict[int, list[bytes]]:
    """Return all keys of a server by range."""
    found: dict[int, dict[bytes, None]] = {}
    cursor = 0
    while True:
        cursor, keys = await servers.ask(address, "SCAN", cursor, "COUNT", SCAN_KEYS)
        for key in keys:
            if key != SERVERS.encode():
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
