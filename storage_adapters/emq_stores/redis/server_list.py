"""A list of servers that know nothing of each other, as one store: the record of which server has what.

The hash slots are divided into `LIST_RANGES` ranges, and each range is served by one server of the list. Each server
keeps a *record* (the hash `SERVERS`), which names the server of each range. A script call says which range it concerns,
and the server refuses it (lua/listed.lua) if by its own record another server has the range. The refusals are those of
a cluster's nodes, so `ClusterServer` deals with them:

    MOVED        the range is at another server, which the refusal names
    TRYAGAIN     the range is *frozen*: it moves to another server just now, or the server was restarted as it left
    CLUSTERDOWN  the server has lost its record

So it never matters whose idea of the list is old. Each entry of a record has a version. Of two records, the entry with
the higher version is right; whoever reads the records writes it into the others.

The first process that opens the store *founds* the list: it deals out the ranges evenly to the servers of its URL.
After that, the URL only says where to find a record. `emq_stores.redis.moving` moves ranges to other servers. If a
move ends halfway, the processes that meet the frozen range give it back to its server (`_lift_old`).
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from emq.runtime import errors
from emq_stores.redis.confirmation import Confirm
from emq_stores.redis.failures import TRANSPORT, of_several, translated
from emq_stores.redis.keys import HASH_SLOTS, LIST_RANGES, SERVERS
from emq_stores.redis.scripts import script
from emq_stores.redis.server import check_version
from emq_stores.redis.topology import Topology

SLOTS_IN_RANGE = HASH_SLOTS // LIST_RANGES

LIFT_S = 10.0
"""Seconds for which a process sees a range frozen by the same move, and then gives it back to its server."""

_LIST = "list"
"""The field of a record that names the list, so that servers of two lists are not taken for one."""

_SHARDS = "shards of "
"""Before an environment, the field with its number of shards: processes must open the store while a server is down."""


class Entry(NamedTuple):
    """An entry of a record. Of two entries with the same version, the settled one is right.

    Attributes:
        is_settled: False if the range is on its way to another server.
        value: address of the server that has the range. If the range is on its way, also the name of the move, and the
            address of the next server. If the range is not frozen yet, also the run of its server: it serves the range
            until it is restarted.
    """

    version: int
    is_settled: bool
    value: str

    @property
    def address(self) -> str:
        return self.value.partition(" ")[0]

    @property
    def target(self) -> str:
        """The next server; the present one if there is no other."""
        return (self.value.split(" ")[2:3] or [self.address])[0]

    @property
    def run(self) -> str:
        return (self.value.split(" ")[3:4] or [""])[0]


Record = Mapping[str, Entry]
"""The record of one server, by range; empty if it has none."""


def range_of(hash_slot: int) -> int:
    """Return the range to which a hash slot belongs."""
    return hash_slot // SLOTS_IN_RANGE


class ServerList(Topology):
    """See `Topology`. Each seed is a server of the list, or becomes one when ranges are spread over the seeds.

    Attributes:
        entries: what is known of each range, by its number.
    """

    is_list = True
    entries: Record = MappingProxyType({})
    _on_their_way: Mapping[str, tuple[Entry, float]] = MappingProxyType({})
    """Ranges that are on their way, and since when this process knows that."""

    def stamp(self, hash_slot: int, address: str) -> Sequence[Any]:
        return range_of(hash_slot), address

    async def refresh(self) -> None:
        """See `Topology.refresh`. Founds the list if no server has a record, and ends moves that stand still.

        Raises:
            InvalidSettings: the servers belong to different lists, or hold other data.
            StoreUnavailable: no server answers, or the list must be founded and a server does not answer.
        """
        records = await self.records()
        if not any(records.values()):
            await self._found(records)
            records = await self.records()
        lists = {record[_LIST].value: address for address, record in records.items() if record}
        if len(lists) > 1:
            raise errors.InvalidSettings(
                f"the servers {' and '.join(sorted(lists.values()))} belong to different lists of servers; "
                f"correct the URL {self._url}"
            )
        remembered = {field: each for field, each in self.entries.items() if field != _LIST}
        self.entries = settled(newest([*records.values(), remembered]), records.values())
        for number in range(LIST_RANGES):
            first = number * SLOTS_IN_RANGE
            self._served[first : first + SLOTS_IN_RANGE] = [self.entries[str(number)].address] * SLOTS_IN_RANGE
        await self._repair(records)
        await self._lift_old()
        await self._forget_others()

    async def lift(self, number: int, known: Entry) -> Entry:
        """End the move of a range, whoever carries it out; return the entry that gives the range back to its server.

        All servers freeze the range under a newer version first. Then no earlier move can end any more: each server
        refuses its next step, or has taken the range over before.

        Args:
            known: the newest entry of the range.

        Raises:
            ChangedMeanwhile: the range has been handed over, or somebody else moves it.
            OutcomeUnknown, StoreUnavailable: a server of the list does not answer.
        """
        others = {*self.seeds, *self.masters(), *members(self.entries), known.target} - {known.address}
        addresses = [known.address, *sorted(others)]
        frozen = f"{known.address} {secrets.token_hex(8)} {known.address}"
        for back in (entry(known.version + 1, frozen), entry(known.version + 2, known.address)):
            for address in addresses:
                if await self.note(address, {str(number): back}) != [back.value]:
                    raise changed(number)
        return back

    def shards(self, environment: str) -> int | None:
        """Return the number of shards, if the record has it."""
        known = self.entries.get(_SHARDS + environment)
        return None if known is None else int(known.value)

    async def keep_shards(self, environment: str, count: int) -> None:
        """Note the number of shards, on which the processes have agreed, in all records that can be reached."""
        noted = {_SHARDS + environment: entry(1, str(count))}
        self.entries = {**self.entries, **noted}
        outcomes = await asyncio.gather(*(self.note(a, noted) for a in members(self.entries)), return_exceptions=True)
        of_several(outcomes)

    async def records(self) -> dict[str, Record]:
        """Read the records of the seeds, and of all servers that are in a record. Servers that are down are left out.

        Raises:
            StoreUnavailable: no server answers.
        """
        records: dict[str, Record | errors.EMQError] = {}
        asked = {*self.seeds, *self.masters()}
        while asked:
            found = await asyncio.gather(*map(self._record, sorted(asked)))
            records.update(zip(sorted(asked), found, strict=True))
            read = [record for record in records.values() if not isinstance(record, errors.EMQError)]
            asked = members(newest(read)) - records.keys()
        answered = {a: record for a, record in records.items() if not isinstance(record, errors.EMQError)}
        if not answered:
            failure = next(iter(records.values()))
            raise errors.StoreUnavailable(f"none of the servers of {self._url} answers: {failure}")
        return answered

    async def note(self, address: str, entries: Record) -> list[str]:
        """Write entries into the record of a server, unless it has newer ones; return the values that it has now.

        Raises:
            EMQError: the server cannot be reached.
        """
        changes = [word for field, entry in entries.items() for word in (field, entry.version, entry.value)]
        answer = await self.ask(address, "EVAL", script("note_servers").text, 1, SERVERS, *changes)
        return [value.decode() for value in answer]

    async def ask(self, address: str, *words: Any, longer_s: float = 0.0, confirm: Confirm = Confirm.NOTHING) -> Any:
        """Send one command to one server. Errors as for `Scripts.run`."""
        line = self.at(address)
        try:
            if confirm is not Confirm.NOTHING:
                return await line.send(words, confirm)
            return await line.patience.answer(lambda: line.client.execute_command(*words), longer_s)  # type: ignore[no-untyped-call]
        except TRANSPORT as exc:
            raise translated(exc, address) from exc

    async def _record(self, address: str) -> Record | errors.EMQError:
        try:
            found = {
                key.decode(): value.decode() for key, value in (await self.ask(address, "HGETALL", SERVERS)).items()
            }
        except errors.EMQError as exc:
            return exc
        versions = {field: found.pop(f"{field}:version") for field in [*found] if not field.endswith(":version")}
        return {field: entry(int(versions[field]), value) for field, value in found.items()}

    async def _found(self, records: Mapping[str, Record]) -> None:
        if down := [seed for seed in self.seeds if seed not in records]:
            raise errors.StoreUnavailable(
                f"{self._url} is opened for the first time, so all of its servers must answer, and {down[0]} does not"
            )
        await self.check_new(self.seeds, self.seeds)
        seeds = sorted(self.seeds)
        dealt = {str(n): entry(1, seeds[n * len(seeds) // LIST_RANGES]) for n in range(LIST_RANGES)}
        await self.note(seeds[0], {_LIST: entry(1, secrets.token_hex(6)), **dealt})
        decided = await self._record(seeds[0])  # another process may have been quicker
        if isinstance(decided, errors.EMQError):
            raise decided
        await asyncio.gather(*(self.note(seed, decided) for seed in seeds[1:]))

    async def check_new(self, new: Iterable[str], addresses: Iterable[str]) -> None:
        """Raise `InvalidSettings` if a new server has other data, or two addresses lead to one server.

        Raises:
            StoreUnavailable: a server does not answer, or is older than Redis 7.
        """
        known: dict[str, str] = {}
        for address in new:
            # A server that has joined the list meanwhile got its record before its first key.
            if await self.ask(address, "DBSIZE") and not await self.ask(address, "EXISTS", SERVERS):
                raise errors.InvalidSettings(
                    f"{address} holds other data, which would be deleted; give {self._url} an empty server, or another "
                    "database of it"
                )
        for address in addresses:
            info = await self.ask(address, "INFO", "server")
            check_version(info, address)
            run_id = str(info["run_id"])
            if other := known.get(run_id):
                raise errors.InvalidSettings(
                    f"{other} and {address} are one server; leave one out of {self._url}, and name the other as it was "
                    "named when it joined"
                )
            known[run_id] = address

    async def _lift_old(self) -> None:
        """Give ranges back that nobody serves since a move stands still; refused calls lead here, again and again."""
        now, before = time.monotonic(), self._on_their_way
        ranges = {f: e for f, e in self.entries.items() if f.isdigit() and not e.is_settled}
        self._on_their_way = {
            f: before[f] if f in before and before[f][0] == e else (e, now) for f, e in ranges.items()
        }
        for field, (known, since) in self._on_their_way.items():
            if now - since >= LIFT_S:
                with contextlib.suppress(errors.EMQError):  # somebody else was quicker, or a server is down: ask again
                    if not known.run or await self.run_of(known.address) != known.run:
                        await self.lift(int(field), known)

    async def run_of(self, address: str) -> str:
        """Return what changes when a server is restarted. Errors as for `Scripts.run`."""
        return str((await self.ask(address, "INFO", "server"))["run_id"])

    async def _repair(self, records: Mapping[str, Record]) -> None:
        """Write what is known into records that lack it.

        A server that has lost all of its record gets one only if all servers of the list answer: the one that does not
        may know of a newer entry.
        """
        whole = members(self.entries) <= records.keys()
        for address in members(self.entries) & records.keys():
            record = records[address]
            if record or whole:
                old = {f: e for f, e in self.entries.items() if f not in record or record[f].version < e.version}
                if old:
                    await self.note(address, old)


def entry(version: int, value: str) -> Entry:
    return Entry(version, " " not in value, value)


def newest(records: Iterable[Record]) -> dict[str, Entry]:
    """Return the right entry of each field."""
    found: dict[str, Entry] = {}
    for record in records:
        for field, each in record.items():
            found[field] = max(found.get(field, each), each)
    return found


def settled(entries: Record, records: Iterable[Record]) -> dict[str, Entry]:
    """Return entries, those with a higher version that would leave doubt: a record has another one of their version.

    That happens when a range is handed over at the moment when somebody else moves it.
    """
    on_their_way = {
        (field, each.version) for record in records for field, each in record.items() if not each.is_settled
    }
    return {
        field: entry(each.version + 1, each.value)
        if each.is_settled and (field, each.version) in on_their_way
        else each
        for field, each in entries.items()
    }


def members(entries: Record) -> set[str]:
    """Return the addresses of the servers that have ranges, or are about to get one."""
    ranges = [each for field, each in entries.items() if field.isdigit()]
    return {each.address for each in ranges} | {each.target for each in ranges}


def changed(number: int) -> errors.ChangedMeanwhile:
    return errors.ChangedMeanwhile(
        f"somebody else moves range {number} of the store, too, or has given it back because this move stood still; "
        "wait for that, and begin again"
    )
