"""The leader: the one host of the cluster that makes the plan for all hosts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from emq.allocation import published_plan, records
from emq.allocation.bucket_loads import BucketLoads
from emq.allocation.grounds import GROUNDS, Grounds
from emq.allocation.membership import Seat
from emq.allocation.plan import drafting, plan
from emq.allocation.plan.drafting import DROPPED, NO_HOSTS, Previous
from emq.allocation.records import Entry, Order, Pointer, Record, Running
from emq.allocation.tree import protocol
from emq.allocation.watched_records import WatchedRecords
from emq.runtime import errors, pace, plurals
from emq.runtime.troubles import Complaint
from emq.topics.buckets import is_bucket

log = logging.getLogger(__name__)

DEBOUNCE_S = 0.2
"""Seconds that a leader collects changes, so that ten hosts that start together cause one plan."""

OFFER_DEBOUNCE_S = 0.02
"""The same if its catalog has changed and the last plan took less time: a new topic's first message waits for it."""

CATALOG_WAIT_S = 5.0
"""Most seconds that a new leader waits for its catalog to be as new as the last leader's."""

RESIGN_S = 5.0
"""Seconds without the database after which a leader resigns, if another candidate waits that may reach it."""

RETRY_S = 0.5
FOREIGN_S = 10.0

SURE_S = 30.0
"""Seconds after which a leader reads all records again, in case a watch was lost."""

TOGETHER = 100
"""Number of nodes written at a time."""

LARGE = 200_000
MANY_GROUPS = 2_000
"""Least number of groups (`LARGE`: of groups times hosts) for which a thread computes the plan.

The event loop meanwhile starts messages."""

T = TypeVar("T")


class _InForce(NamedTuple):
    """The plan in the tree: its record, the version of the record's node (-1 if there is none), and its lists."""

    record: Record | None
    version: int
    previous: Previous | None


class Leader:
    """Stands for election; while elected, makes a plan at every change of members, groups, weights or orders.

    Election: candidates are ephemeral nodes with numbers. The lowest number leads; each other candidate watches the one
    before it (the election recipe of ZooKeeper's documentation). Two leaders at a time do no harm: a plan comes into
    force by one write, which fails for a leader that has not seen the last plan. A leader that cannot reach the
    database for `RESIGN_S` seconds cannot plan, and lets the next candidate lead.

    The leader computes the full plan each time, from the members, the groups and the plan in force. Every host would
    compute the same plan.
    """

    def __init__(
        self,
        seat: Seat,
        *,
        debounce_first: bool = True,
        database_away_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """
        Args:
            database_away_s: returns the seconds since the database last answered this host; 0.0 while it answers.
            debounce_first: collect changes also before the first plan, for hosts that start together; False for a host
                that most likely starts alone and should not wait for others.
        """
        self._tree = seat.tree
        self._environment = seat.environment
        self._paths = records.Paths(seat.environment)
        self._host = seat.host
        self._next_generation = seat.next_generation
        self._database_away_s = database_away_s
        self._clock = seat.clock
        self._changed = asyncio.Event()
        self._candidate = ""
        self._quotas: Mapping[str, float] | None = None
        self._grounds = GROUNDS
        self._loads = BucketLoads()
        self._offers = 0
        self._catalog = 0
        self._behind_since: float | None = None
        self._unable_since: float | None = None
        self._leading_since = 0.0
        self._sure_at = 0.0
        self._in_force: _InForce | None = None
        self._done: object = None
        self._watched = WatchedRecords(seat.tree, self._changed.set)
        self._swept = False
        self._complaint = Complaint(log)
        self._debounce_first = debounce_first
        self.leading = False
        self.plans = 0

    def offer(self, quotas: Mapping[str, float], catalog: int, grounds: Grounds = GROUNDS) -> None:
        """Take the groups of version `catalog` of the catalog for the next plan; see `Membership.offer`."""
        self._quotas, self._catalog, self._grounds = quotas, catalog, grounds
        self._offers += 1
        self._changed.set()

    def session_changed(self, state: protocol.SessionState) -> None:
        if state is protocol.SessionState.LOST:
            self._candidate, self.leading = "", False
        self._watched.forget()
        self._changed.set()

    async def lead(self) -> None:
        """Stand for election, and plan while elected. Ends by cancellation."""
        loop = asyncio.get_running_loop()
        offers, round_s = 0, 0.0
        while True:
            self._changed.clear()
            if self._quotas is not None:  # every candidate looks, so that the next leader knows, and moves nothing
                self._loads.look_now_and_then(self._grounds.awake, loop.time())
            try:
                self.leading = await self._elected()
                if self.leading:
                    offers, began_s = self._offers, loop.time()
                    await self._round()
                    round_s = loop.time() - began_s
                    self._complaint.over()
                    self._unable_since = None
                # A leader checks every few seconds whether it can still plan; the others check whether the one before
                # them is still there, in case a watch was lost.
                await pace.wait(self._changed, RESIGN_S)
                is_pressing = self._offers > offers and round_s < OFFER_DEBOUNCE_S
                await asyncio.sleep(self._debounce_s(is_pressing))
            except (errors.ClusterUnavailable, errors.DatabaseUnavailable) as exc:
                self._in_force = None
                if isinstance(exc, errors.DatabaseUnavailable) and self._unable_since is None:
                    self._unable_since = self._clock.now()
                self._complaint.say(f"{exc}; the plan stays as it is")
                await asyncio.sleep(RETRY_S)
            except (protocol.Conflict, protocol.NodeMissing, protocol.NodeExists):
                self._in_force = None  # somebody else has planned
                await asyncio.sleep(RETRY_S)
            except plan.BrokenPlan:
                log.exception("a plan broke its own rules; the plan in force stays")
                await asyncio.sleep(FOREIGN_S)
            except (errors.ForeignTree, protocol.NodeTooLarge) as exc:
                self._in_force = None
                self._complaint.say(f"{exc}; nothing is planned")
                await asyncio.sleep(FOREIGN_S)

    def _debounce_s(self, is_pressing: bool) -> float:
        if not self.leading or not (self.plans or self._debounce_first):
            return 0
        return OFFER_DEBOUNCE_S if self.plans and is_pressing else DEBOUNCE_S

    # ------------------------------------------------------------------------------------------------------ election

    async def _elected(self) -> bool:
        if not self._tree.session:
            return False
        # The leader watches the candidates, so that its checks cost no query. If all did, each change would wake all.
        names = await self._tree.children(self._paths.leader, self._changed.set if self.leading else None)
        if self._candidate not in names:
            await self._stand(names)
            names = await self._tree.children(self._paths.leader)
        if self._candidate not in names:
            raise errors.ClusterUnavailable("the candidate node of this host is gone already")
        place = names.index(self._candidate)
        if place == 0:
            if len(names) > 1 and self.leading and self._is_unable():
                await self._resign()
                return False
            if not self.leading:
                log.info("host %s leads the cluster", self._host)
                self._in_force, self._done, self._swept, self._unable_since = None, None, False, None
                self._leading_since = self._clock.now()
            return True
        if await self._tree.read(f"{self._paths.leader}/{names[place - 1]}", self._changed.set) is None:
            self._changed.set()
        return False

    def _is_unable(self) -> bool:
        """Return whether the database has been away for so long that another host should lead.

        Such a leader hears of no change of the catalog, so its plans need not fail.
        """
        now = self._clock.now()
        if self._unable_since is not None and now > self._unable_since + RESIGN_S:
            return True
        return self._database_away_s() > RESIGN_S and now > self._leading_since + RESIGN_S

    async def _resign(self) -> None:
        """Delete this host's candidate; the host stands again, behind the others."""
        log.info("host %s cannot reach the database and lets another lead", self._host)
        candidate, self._candidate, self._unable_since = self._candidate, "", None
        self._changed.set()
        await self._tree.delete(f"{self._paths.leader}/{candidate}")

    async def _stand(self, names: list[str]) -> None:
        for name in names:  # a call whose reply was lost may have made our candidate already
            node = await self._tree.read(f"{self._paths.leader}/{name}")
            if node is not None and node.session == self._tree.session:
                self._candidate = name
                return
        path = await self._tree.create(f"{self._paths.leader}/n-", self._host.encode(), ephemeral=True, sequence=True)
        self._candidate = path.rpartition("/")[2]

    # ------------------------------------------------------------------------------------------------------ planning

    async def _round(self) -> None:
        """Make the plan that members, groups and orders ask for, unless that plan is in force already."""
        if (now := self._clock.now()) > self._sure_at + SURE_S:
            self._watched.forget()  # in case a watch was lost
            self._sure_at = now
        members = await self._watched.below(self._paths.running, Running)
        orders = await self._watched.below(self._paths.operator, Order)
        quotas, catalog = self._quotas, self._catalog
        weights = drafting.shares(members, orders)
        fenced = {h: m.fenced for h, m in members.items() if m.fenced}
        serves = {h: m.serves for h, m in members.items()}
        if quotas is None or not members:
            return
        loop = asyncio.get_running_loop()
        loads = self._loads.wanted(loop.time())
        asked = (weights, {h: m.incarnation for h, m in members.items()}, fenced, serves, self._offers, catalog, loads)
        if asked == self._done:
            return
        if self._in_force is None:
            self._in_force = await self._read()
        record, _, previous = self._in_force
        if record is not None and self._is_behind(record):
            return
        self._done = None  # until the plan is known to be in force
        former = 0 if previous is None else len(previous.places) + len(previous.dropped)
        groups = max(len(quotas), former)  # a deletion of thousands is no small change
        is_large = groups >= MANY_GROUPS or groups * len(weights) >= LARGE
        loaded = self._loads.added_to(quotas)
        began_s = loop.time()
        made, owner, differs = await _beside(
            is_large, drafting.planned, loaded, self._grounds.units, weights, members, previous
        )
        self._loads.planned(began_s, loop.time())
        if differs or record is None or record.catalog != catalog:
            await self._publish(owner, made, members, catalog, is_large)
        self._done = asked

    def _is_behind(self, record: Record) -> bool:
        """Return whether to wait, because the catalog here is older than the catalog of the plan in force."""
        if self._catalog >= record.catalog:
            self._behind_since = None
            return False
        now = self._clock.now()
        if self._behind_since is None:
            self._behind_since = now
            asyncio.get_running_loop().call_later(CATALOG_WAIT_S, self._changed.set)
        if now - self._behind_since < CATALOG_WAIT_S:
            return True
        log.warning(
            "the catalog is at version %d, the plan was made of %d; going by the catalog", self._catalog, record.catalog
        )
        return False

    async def _publish(
        self, owner: Mapping[str, str], made: plan.Plan, members: Mapping[str, Running], catalog: int, is_large: bool
    ) -> None:
        """Write the lists that change, then the record that names them; the record puts the plan into force."""
        assert self._in_force is not None
        old, version, _ = self._in_force
        least = max(self._clock.now_us(), 0 if old is None else old.generation + 1)
        generation = await self._next_generation(least)
        now = self._clock.now()
        drafted = await _beside(is_large, self._drafted, generation, owner, made, members, self._in_force, now)
        lists, pointers, written = drafted
        for start in range(0, len(written), TOGETHER):
            await asyncio.gather(*(self._tree.create(*node) for node in written[start : start + TOGETHER]))
        record = Record(self._environment, generation, catalog, self._host, now, pointers, made.max_over_mean)
        data = records.encode(record)
        if version < 0:
            # The record's node may be there, empty, as the lists' parent.
            node = await self._tree.read(self._paths.serverlist)
            if node is not None and node.data:
                raise protocol.Conflict("another plan came into force")
            if node is None:
                await self._tree.create(self._paths.serverlist)
            version = 0
        version = await self._tree.write(self._paths.serverlist, data, version)
        self.plans += 1
        in_force, new = await _beside(is_large, _in_force, record, version, lists, members)
        self._in_force = in_force
        in_buckets = sum(map(is_bucket, owner))
        groups, hosts = plurals.count(len(owner) - in_buckets, "group"), plurals.count(len(members), "host")
        also = f" and {plurals.count(in_buckets, 'bucket')}" if in_buckets else ""
        log.info("plan %d: %s%s on %s, %d with a new epoch", generation, groups, also, hosts, new)
        await self._after(record, old if self._swept else None, catalog)
        self._swept = True

    def _drafted(
        self,
        generation: int,
        owner: Mapping[str, str],
        made: plan.Plan,
        members: Mapping[str, Running],
        in_force: _InForce,
        now: float,
    ) -> tuple[dict[str, dict[str, Entry]], dict[str, Pointer], list[tuple[str, bytes]]]:
        """Return the new plan's lists by host, a pointer to each list, and the nodes to write for changed lists."""
        old, _, previous = in_force
        lists = drafting.draft(generation, owner, made.moved, members, previous, now)
        standing = drafting.by_host(previous)
        pointers: dict[str, Pointer] = {}
        written: list[tuple[str, bytes]] = []
        for host, entries in lists.items():
            incarnation = members[host].incarnation if host in members else ""
            pointer = old.lists.get(host) if old is not None else None
            if pointer is not None and pointer.incarnation == incarnation and entries == standing.get(host, {}):
                pointers[host] = pointer
                continue
            chunks = records.encode_list(entries)
            written += [(self._paths.list(host, generation, n), chunk) for n, chunk in enumerate(chunks)]
            pointers[host] = Pointer(incarnation, generation, len(chunks))
        return lists, pointers, written

    async def _after(self, record: Record, old: Record | None, catalog: int) -> None:
        """Write the catalog's version, and delete the lists that no plan names any more.

        A new leader once looks at the lists of all hosts, for nodes that a former leader wrote before it died.
        """
        version = str(catalog).encode()
        if await self._tree.read(self._paths.catalog) is None:
            await self._tree.create(self._paths.catalog, version)
        else:
            await self._tree.write(self._paths.catalog, version, -1)
        for host in await self._tree.children(self._paths.serverlist):
            if host not in record.lists:
                await self._tree.delete(self._paths.lists(host))
            if host not in record.lists or (old is not None and old.lists.get(host) == record.lists[host]):
                continue
            for name in await self._tree.children(self._paths.lists(host)):
                text = name.partition("-")[0]
                generation = int(text) if text.isdecimal() else record.generation  # foreign nodes stay
                # A newer leader is writing the lists of a later generation.
                if generation < record.generation and generation != record.lists[host].generation:
                    await self._tree.delete(f"{self._paths.lists(host)}/{name}")

    # ------------------------------------------------------------------------------------------------------- reading

    async def _read(self) -> _InForce:
        node = await self._tree.read(self._paths.serverlist)
        record = published_plan.record_of(node, self._paths, self._environment)
        if node is None or record is None:
            return _InForce(None, -1, None)
        hosts = list(record.lists)
        lists = await asyncio.gather(
            *(published_plan.read_list(self._tree, self._paths, host, record.lists[host]) for host in hosts)
        )
        found: dict[str, Mapping[str, Entry]] = {}
        for host, entries in zip(hosts, lists, strict=True):
            if entries is None:
                again = await self._tree.read(self._paths.serverlist)
                if again is not None and again.version == node.version:
                    raise published_plan.gone(self._paths, host)
                raise protocol.Conflict("another plan came into force")
            found[host] = entries
        incarnations = {h: p.incarnation for h, p in record.lists.items() if h not in NO_HOSTS}
        return _InForce(record, node.version, drafting.previous(found, incarnations))


async def _beside(is_large: bool, compute: Callable[..., T], *arguments: object) -> T:
    """Call `compute` and return its result; use a thread if `is_large`."""
    return await asyncio.to_thread(compute, *arguments) if is_large else compute(*arguments)


def _in_force(
    record: Record, version: int, lists: Mapping[str, Mapping[str, Entry]], members: Mapping[str, Running]
) -> tuple[_InForce, int]:
    """Return the plan in the tree now, and the number of groups that got a new epoch."""
    incarnations = {host: member.incarnation for host, member in members.items()}
    new = sum(e.epoch == record.generation for h, entries in lists.items() if h != DROPPED for e in entries.values())
    return _InForce(record, version, drafting.previous(lists, incarnations)), new
