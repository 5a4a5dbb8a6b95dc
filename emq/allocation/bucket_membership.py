"""A host's membership in groups, where the plan is in buckets; see `emq.topics.buckets`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Set

from emq.allocation.fenced_groups import FENCED_S, FencedGroups
from emq.allocation.grounds import GROUNDS, Grounds
from emq.allocation.membership import Assignment, Membership, PlanInForce
from emq.runtime import errors
from emq.runtime.clock import Clock
from emq.topics.buckets import is_bucket

RETRY_S = 1.0


class BucketMembership:
    """The membership that a host sees: its assignments name groups, also those of the buckets that are its own.

    A group that the catalog has anew in one of these buckets is assigned at once, under the bucket's epoch; no plan
    changes. A bucket that the host loses is released when the last of its groups is.

    States of a group of a bucket, and what causes each:

    *placed*: the catalog has it (`place`).
    *assigned*: placed in a bucket that is assigned to this host.
    *held*: the host was told of it, until `released`, or until a store refused its epoch (`fenced`).
    *draining*: held, but no longer assigned, or under another epoch or in another bucket; the host is told so.

    A deletion raises the epoch of the groups that it takes over, and of no other group in the bucket. So a group whose
    epoch is refused gets an epoch of its own, above all others, for as long as its bucket stays here.
    """

    def __init__(self, of_cluster: Membership, clock: Clock) -> None:
        """Args:
        of_cluster: assigns buckets, and groups that are in no bucket.
        """
        self.host = of_cluster.host
        self.lease = of_cluster.lease
        self._inner = of_cluster
        self._clock = clock
        self._bucket: dict[str, str] = {}  # group to its bucket
        self._placed: dict[str, dict[str, None]] = {}  # bucket to its groups
        self._given: dict[str, int] = {}  # bucket to its epoch, for those assigned now
        self._since: dict[str, int] = {}  # the same buckets, to the second in which the host was told
        self._taken: dict[str, int] = {}  # the same, and those that are not released yet
        self._alone: dict[str, int] = {}  # groups of no bucket that are assigned
        self._assigned: dict[str, int] = {}  # groups of buckets
        self._groups: dict[str, int] = {}  # both, as the host was told
        self._moved: set[str] | None = set()  # groups to tell of; None for all
        self._new: set[str] = set()  # those of them that the host has not been told of
        self._held: dict[str, tuple[str, int]] = {}
        self._holding: dict[str, int] = {}  # bucket to its number of groups held
        self._owed: set[str] = set()
        self._own_epochs: dict[str, tuple[int, int]] = {}  # group to its bucket's epoch and its own
        self._fenced = FencedGroups()
        self._told: dict[str, int] | None = None
        self._era = 0

    @property
    def plan(self) -> PlanInForce | None:
        return self._inner.plan

    @property
    def leads(self) -> bool:
        return self._inner.leads

    def given(self) -> Set[str]:
        """Return the groups that the plan gives to this host, also those that their former owners still hold."""
        given = self._inner.given()
        placed = sum(len(self._placed.get(bucket, ())) for bucket in self._given)
        if len(given) == len(self._alone) + len(self._given) and placed == len(self._assigned):
            return self._groups.keys()  # as nearly always; the others take a look at each group
        alone = {group for group in given if not is_bucket(group)}
        return alone.union(*(self._placed.get(bucket, ()) for bucket in given - alone))

    # -------------------------------------------------------------------------------------------- what the host calls

    async def join(self) -> None:
        await self._inner.join()

    async def offer(self, quotas: Mapping[str, float], catalog: int = 0, grounds: Grounds = GROUNDS) -> None:
        """Tell the cluster the quotas of all buckets, and of all groups of no bucket; see `Membership.offer`."""
        await self._inner.offer(quotas, catalog, grounds)

    def place(self, moved: Mapping[str, str | None]) -> None:
        """Take the buckets of groups that are new in the catalog; None for a group that is gone."""
        for group, bucket in moved.items():
            if (former := self._bucket.pop(group, None)) is not None:
                self._placed[former].pop(group, None)
                if not self._placed[former]:
                    del self._placed[former]
            if bucket is None:
                self._own_epochs.pop(group, None)
                self._fenced.forget(group)
            else:
                self._bucket[group] = bucket
                self._placed.setdefault(bucket, {})[group] = None
            self._look(group)
        if moved:
            self._inner.stream.again()

    async def assignments(self) -> AsyncIterator[Assignment]:
        self._moved = None  # a reader that broke may have missed some
        async for told in self._inner.assignments():
            if told.era != self._era:
                self._forget(told.era)
            if told.groups is not self._told:
                self._take(told.groups)
            await self._renew()
            await self._release(())
            new, self._new = self._new, set()
            now = int(self._clock.now())
            first = {g for g in new if (b := self._bucket[g]) in told.first or self._since.get(b, now) < now}
            first |= told.first & self._alone.keys()
            for group in new:
                self._hold(group)
            changed = self._tell()
            yield told._replace(groups=self._groups, first=frozenset(first), changed=changed)

    async def released(self, groups: Iterable[str]) -> None:
        alone: list[str] = []
        for group in groups:
            held = self._held.get(group)
            if held is None or held == (self._bucket.get(group), self._assigned.get(group)):
                alone.append(group)  # if it came by itself before; the cluster ignores other names
            else:
                self._drop(group)
                if self._look(group):
                    self._inner.stream.again()
        await self._release(alone)

    def fenced(self, group: str, epoch: int, was_held: bool = False) -> bool:
        """Tell that a store refused the group's epoch, of a group that the host consumed (`was_held`) or acquired."""
        bucket = self._bucket.get(group)
        if bucket is None:
            return self._inner.fenced(group, epoch)
        is_told = (held := self._held.get(group)) is not None and held[1] == epoch
        if is_told:
            self._drop(group)
        if self._assigned.get(group) != epoch:  # the group was draining, so the refusal is right
            if is_told and self._look(group):
                self._inner.stream.again()
            return False
        insists = self._inner.fenced(group, epoch, bucket)
        # Most likely, a deletion took the group over. If it is under way, it ends before that time. If the host comes
        # to acquire the group, this is the next topic of the name, which need not wait.
        first_s = FENCED_S if was_held else 0.0
        wait_s = self._fenced.wait(group, epoch, self._clock.now(), first_s)
        if insists or not wait_s:
            asyncio.get_running_loop().call_later(wait_s, self._inner.stream.again)
        else:
            self._fenced.given(group)
        return insists

    async def hand_over(self, timeout_s: float) -> None:
        await self._inner.hand_over(timeout_s)

    async def leave(self) -> None:
        await self._inner.leave()

    # ----------------------------------------------------------------------------------------------------- the states

    def _take(self, groups: dict[str, int]) -> None:
        """Take a new assignment of the cluster."""
        self._told, self._moved = groups, None
        self._alone = {g: e for g, e in groups.items() if not is_bucket(g)}
        given = {g: e for g, e in groups.items() if g not in self._alone} if len(self._alone) < len(groups) else {}
        changed = [b for b in {**self._given, **given} if self._given.get(b) != given.get(b)]
        now = int(self._clock.now())
        self._given = given
        for bucket in changed:
            self._since[bucket] = now
            for group in self._placed.get(bucket, ()):
                self._look(group)
            if bucket not in given:
                del self._since[bucket]
        self._owed |= {b for b, e in self._taken.items() if given.get(b) != e and not self._holding.get(b)}
        self._taken = {b: e for b, e in self._taken.items() if b not in self._owed} | given

    def _tell(self) -> frozenset[str] | None:
        """Bring what the host is told up to date; return the groups that are told anew, None for all.

        In place, since a copy of 60,000 groups at the first publish to each topic would hold up the event loop. The
        host looks at the groups only when it was told.
        """
        moved, self._moved = self._moved, set()
        if moved is None:
            self._groups = self._alone | self._assigned
            return None
        for group in moved:
            if (epoch := self._assigned.get(group, self._alone.get(group))) is not None:
                self._groups[group] = epoch
            else:
                self._groups.pop(group, None)
        return frozenset(moved)

    def _look(self, group: str) -> bool:
        """Find the state of a group again; return whether it is assigned."""
        if self._moved is not None:
            self._moved.add(group)
        bucket, held = self._bucket.get(group, ""), self._held.get(group)
        if (base := self._given.get(bucket)) is not None:
            of, own = self._own_epochs.get(group, (base, base))
            epoch = own if of == base else base
            if held in (None, (bucket, epoch)):  # else the host must let go of it first
                self._assigned[group] = epoch
                if held is None:
                    self._new.add(group)
                return True
        self._assigned.pop(group, None)
        self._new.discard(group)
        return False

    def _hold(self, group: str) -> None:
        bucket = self._bucket[group]
        self._held[group] = bucket, self._assigned[group]
        self._holding[bucket] = self._holding.get(bucket, 0) + 1

    def _drop(self, group: str) -> None:
        bucket, _ = self._held.pop(group)
        self._holding[bucket] -= 1
        if not self._holding[bucket]:
            del self._holding[bucket]
            if self._taken.get(bucket) != self._given.get(bucket):
                self._taken.pop(bucket, None)
                self._owed.add(bucket)

    async def _release(self, alone: Collection[str]) -> None:
        """Tell the cluster of groups of no bucket, and of the buckets of which the host holds no group any more."""
        owed = sorted(self._owed)
        if alone or owed:
            await self._inner.released([*alone, *owed])
            self._owed.difference_update(owed)

    async def _renew(self) -> None:
        """Give epochs of their own to groups whose epochs a store has refused; see `FencedGroups`."""
        due = [g for g, e in self._fenced.due(self._clock.now()) if self._assigned.get(g) == e]
        if not due:
            return
        try:
            epoch = await self._inner.next_epoch()
        except errors.DatabaseUnavailable:
            epoch = None
        # After the end of the lease, other hosts have the groups; such an epoch would take the groups from them.
        if epoch is None or self._clock.now() >= self.lease.until:
            asyncio.get_running_loop().call_later(RETRY_S, self._inner.stream.again)
            return
        for group in due:
            self._fenced.given(group)
            if (bucket := self._bucket.get(group)) is not None and (base := self._given.get(bucket)) is not None:
                self._own_epochs[group] = base, epoch
                self._look(group)

    def _forget(self, era: int) -> None:
        """Forget what the host holds: it belongs to others now, and the host does not release it."""
        self._era, self._told = era, None
        for known in (self._given, self._since, self._taken, self._assigned, self._held, self._holding):
            known.clear()
        self._own_epochs.clear()
        self._new.clear()
        self._owed.clear()
        self._fenced.clear()
