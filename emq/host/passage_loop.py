"""The passage loop: notes which groups have finished the messages of keys that moved to other groups.

A layout says to which group each key belongs; a topic gets a new layout when its number of groups changes. A group has
passed an earlier layout once no message of that layout is left in it. See `emq.topics.key_layouts`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Collection, Sequence

from emq.groups.context import HostContext
from emq.groups.owned import OwnedGroup, OwnedTopic
from emq.host.ownership import Ownership
from emq.host.unread_layouts import Unread, UnreadLayouts
from emq.runtime import errors
from emq.runtime.slicing import in_slices
from emq.storage.answers import FAILURES, of_each
from emq.storage.log_store import Bounds, Trim
from emq.storage.store import Store
from emq.topics import changing, forgotten_layouts
from emq.topics.catalog import Catalog
from emq.topics.key_layouts import KeyGate
from emq.topics.passages import Passage, PassageStore
from emq.topics.raised_layouts import QUEUES, Old, raise_queues

log = logging.getLogger(__name__)

PASS_S = 0.25
"""Seconds between passes over the topics whose keys move; mostly there are no such topics."""

TRANSIENT = (errors.UnknownTopic, errors.DatabaseUnavailable)
"""Errors that end a step; the next pass tries the step again."""

GROUPS = 5_000
"""Groups up to which passes keep their interval; with more groups, they come less often."""

TOGETHER = 200
"""Groups looked at in one step; then the event loop may run other tasks."""


class PassageLoop:
    """Notes the layouts that the groups of this host have passed, and opens the gates of the topics here.

    A gate holds back messages of a moved key until the key's former group has passed the earlier layout.

    One pass, over the topics of this host that have earlier layouts:

    1. Raise the queues of the groups here (they then refuse earlier layouts), even if another process has done so: a
       store that crashed may have forgotten it. After each broken connection to the store, the host raises the queues
       of its groups once more, if keys have moved while it owned them.
    2. Note the layouts that the groups here have passed, if the store confirms that this host still owns the groups.
       Look ahead in the queues of groups whose buffers are full of held messages (`UnreadLayouts`). An entry that comes
       out of a lane later belongs to the newest layout or is forwarded: this host knows the newest layout, and a later
       owner of the group reads the catalog behind its fence (`Ownership.acquire`).
    3. Read which layouts all groups have passed, on any host, and tell the gates of the topics here.
    4. The owner of a topic's last group removes the layouts that all groups have passed from the topic.

    Before that, a pass looks after topics with messages of a layout that is newer than the catalog's
    (`emq.topics.forgotten_layouts`). Else the hosts would hold those messages back for ever.

    Each step may be repeated. A new owner of a group uses the tails that were noted first.
    """

    def __init__(
        self,
        store: Store,
        passages: PassageStore,
        catalog: Catalog,
        ownership: Ownership,
        context: HostContext,
    ) -> None:
        self._clock = context.clock
        self._events = context.events
        self._store = store
        self._log = store.log
        self._passages = passages
        self._catalog = catalog
        self._ownership = ownership
        self._known: dict[tuple[str, int, int], Passage] = {}
        self._passed: dict[str, dict[int, int]] = {}
        self._doubted: dict[str, OwnedGroup] = {}
        self._unread = UnreadLayouts(store.log)
        self._ahead: dict[str, int] = {}
        self._progress: tuple[dict[str, int], dict[tuple[str, int], tuple[int, int]]] | None = None

    def doubted(self, group: OwnedGroup) -> None:
        """The store may have crashed and forgotten to refuse messages of earlier layouts."""
        if group.layout:
            group.layout = 0
            self._doubted[group.name] = group
            self._ownership.changing.look()

    def ahead(self, topic: str, layout: int) -> None:
        """A message of the topic has a layout that is newer than the topic's, as far as this host knows."""
        self._ahead[topic] = max(layout, self._ahead.get(topic, 0))
        self._ownership.changing.look()

    async def run(self) -> None:
        """Run a pass every quarter of a second while keys move. Ends by cancellation."""
        while True:
            # With many groups, passes come less often, since each pass looks at every group.
            groups = sum(len(owner.groups) for owner in self._ownership.changing.moving())
            await asyncio.sleep(PASS_S * max(1, groups / GROUPS))
            owners = [*self._ownership.changing.moving()]
            if not owners and not self._doubted and not self._ahead:
                self._known, self._passed, self._progress = {}, {}, None
                await self._ownership.changing.until_something_moves()
                continue
            steps = (self._raise, self._note, self._open, self._forget) if owners else (self._raise,)
            for step in (self._catch_up, *steps):
                try:
                    await step(owners)
                except TRANSIENT as exc:
                    log.info("%s; messages of moving keys wait", exc)

    async def _catch_up(self, _: Sequence[OwnedTopic]) -> None:
        for name, layout in list(self._ahead.items()):
            try:
                with contextlib.suppress(errors.UnknownTopic):
                    await forgotten_layouts.catch_up(self._store, self._catalog, name, layout)
            except FAILURES as exc:  # of this topic's part of the store
                log.info("%s; messages of topic %s wait", exc, name)
                continue
            if self._ahead[name] == layout:
                del self._ahead[name]

    async def _open(self, owners: Sequence[OwnedTopic]) -> None:
        names = {owner.topic.name: owner.topic.layout for owner in owners}
        progress = names, await self._passages.progress(names)
        if progress != self._progress:
            self._progress = None
            await self._learn(names)
            self._progress = progress
        for owner in owners:
            of_topic = self._passed.get(owner.topic.name, {})
            if owner.gate is not None and owner.gate.passed != of_topic:
                for group in owner.set_gate(KeyGate(owner.topic, of_topic), self._clock.now_us()):
                    self._events.ready(group)

    async def _learn(self, names: Collection[str]) -> None:
        self._known = await self._passages.load(names)
        self._passed = {}
        async for p in in_slices(self._known.values(), TOGETHER):
            if p.passed:
                of_topic = self._passed.setdefault(p.topic, {})
                of_topic[p.group] = max(of_topic.get(p.group, -1), p.layout)

    async def _raise(self, owners: Sequence[OwnedTopic]) -> None:
        groups = [g async for g in in_slices(_groups(owners), TOGETHER) if not self._is_raised(g)]
        moving = {owner.topic.name for owner in owners}
        groups += [g for g in self._doubted.values() if g.owner.topic.name not in moving]
        groups = [group for group in groups if not group.lost]
        olds: list[Old] = [(group.owner.topic, group.index, group.epoch) for group in groups]
        self._doubted, doubted = {}, self._doubted
        try:
            raised = await raise_queues(self._log, self._passages, olds)
        except BaseException:
            self._doubted = {**doubted, **self._doubted}
            raise
        for group, (topic, _, _) in zip(groups, olds, strict=True):
            if group.name in raised.refused:
                self._events.lost(group)
            elif group.name not in raised.tails:
                self._doubted[group.name] = group
            elif group.name not in self._doubted:  # else the connection broke meanwhile
                group.layout, group.raised = topic.layout, raised.tails[group.name]

    def _is_raised(self, group: OwnedGroup) -> bool:
        topic = group.owner.topic
        is_noted = all((topic.name, group.index, n) in self._known for n in _earlier(group))
        return is_noted and group.layout == topic.layout

    async def _note(self, owners: Sequence[OwnedTopic]) -> None:
        passed: list[tuple[OwnedGroup, Passage]] = []
        unread: list[Unread] = []
        tails = await self._tails_now(owners)
        async for group in in_slices(_groups(owners), TOGETHER):
            if group.lost or not self._is_raised(group):
                continue
            oldest = group.oldest_layout()
            for number in _earlier(group):
                p = self._known.get((group.owner.topic.name, group.index, number))
                if p is None or p.passed:
                    continue
                if oldest <= number:
                    break
                ends = [min(t, tails.get(q.name, t)) for q, t in zip(group.queues, _upto(group, p), strict=True)]
                parts = [Unread(q, end, number) for q, end in zip(group.queues, ends, strict=True) if q.position < end]
                if parts and (group.buffered or not group.held):
                    break  # it reads on: what is unread may have no key, but keeps the group's share of the qps
                if left := [each for each in parts if self._unread.clear_until(each.queue, number) < each.upto]:
                    unread += left
                    break
                passed.append((group, p._replace(passed=True)))
        if passed:
            await (
                self._ownership.work.checkpointer.save()
            )  # a crash must not repeat messages that the groups have passed
            await self._passages.note(await self._still_owned(passed))
        await self._unread.look(unread)

    async def _still_owned(self, passed: Sequence[tuple[OwnedGroup, Passage]]) -> list[Passage]:
        """Return the passages whose groups have no newer owner, as far as the store knows.

        A newer owner may have acquired the group before it saw the change of the catalog, and may run messages of the
        earlier layout. An owner that comes later reads the catalog behind its fence.
        """
        groups = list({group.name: group for group, _ in passed}.values())
        owned = set()
        for start in range(0, len(groups), QUEUES):
            part = groups[start : start + QUEUES]
            trims = [Trim(group.queues[0].name, 0, group.epoch) for group in part]
            for group, answer in zip(part, await of_each(self._log.trim(trims), len(trims)), strict=True):
                if isinstance(answer, errors.NotOwner):
                    self._events.lost(group)
                elif not isinstance(answer, FAILURES) and self._is_raised(group):
                    owned.add(group.name)
        return [p for group, p in passed if group.name in owned and not group.lost]

    async def _tails_now(self, owners: Sequence[OwnedTopic]) -> dict[str, int]:
        """Return the present tails of queues that are not read up to the noted tail.

        A store that came back from a crash may hold less than was noted.
        """
        behind = [
            q.name
            async for group in in_slices(_groups(owners), TOGETHER)
            for number in _earlier(group)
            if (p := self._known.get((group.owner.topic.name, group.index, number))) is not None and not p.passed
            for q, t in zip(group.queues, _upto(group, p), strict=True)
            if q.position < t
        ]
        names, tails = [*dict.fromkeys(behind)], {}
        for start in range(0, len(names), QUEUES):
            part = names[start : start + QUEUES]
            answers = await of_each(self._log.bounds(part), len(part))
            tails.update({q: b.tail for q, b in zip(part, answers, strict=True) if isinstance(b, Bounds)})
            await asyncio.sleep(0)
        return tails

    async def _forget(self, owners: Sequence[OwnedTopic]) -> None:
        for owner in owners:
            topic, gate = owner.topic, owner.gate
            if gate is None or topic.groups - 1 not in owner.groups:
                continue
            past = [
                layout.number
                for layout in topic.earlier
                if all(gate.is_past(group, layout.number) for group in range(layout.groups))
            ]
            if past:
                await self._catalog.change(topic.name, functools.partial(changing.without_layouts, numbers=past))
                await self._passages.forget(topic.name, past)


def _groups(owners: Sequence[OwnedTopic]) -> list[OwnedGroup]:
    return [group for owner in owners for group in owner.groups.values()]


def _earlier(group: OwnedGroup) -> list[int]:
    """Return the numbers of the earlier layouts that the group belonged to, oldest first."""
    return [layout.number for layout in group.owner.topic.earlier if group.index < layout.groups]


def _upto(group: OwnedGroup, passage: Passage) -> Sequence[int]:
    """Return the offsets up to which the queues must be read.

    A store that crashed after the tails were noted may have taken further messages.
    """
    return [max(tails) for tails in zip(passage.tails, group.raised or passage.tails, strict=True)]
