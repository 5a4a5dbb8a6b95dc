"""The passage loop: finds out which groups have nothing left of keys that have moved; see `emq.topics.key_layouts`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

from emq import errors
from emq.groups.owned import OwnedGroup, OwnedTopic
from emq.loops.slicing import in_slices
from emq.storage.answers import FAILURES, of_each
from emq.storage.store import Bounds, LogStore, Trim
from emq.topics.catalog import Catalog
from emq.topics.key_layouts import KeyGate
from emq.topics.model import Topic
from emq.topics.passages import Passage, PassageStore

log = logging.getLogger(__name__)

PASS_S = 0.25
"""How often topics whose keys move are looked at; only those, and mostly there are none."""

TRANSIENT = (errors.UnknownTopic, errors.DatabaseUnavailable)
"""What ends a step, which is tried again in the next pass."""

GROUPS = 5_000
"""So many groups can be looked at in each pass; of more there are fewer passes."""

TOGETHER = 200
"""Groups that are looked at before the event loop serves everybody else."""

QUEUES = 1_000
"""Most queues that one call raises."""

Old = tuple[Topic, int, int | None]
"""A topic as it is now, one of its groups, and the epoch of the group's owner; None for administration."""


async def raise_queues(log_store: LogStore, passages: PassageStore, groups: Sequence[Old]) -> set[str]:
    """Have the queues of groups refuse what is routed by earlier layouts, and note what they hold of these.

    Returns:
        Names of those that were refused, because they have a newer owner.

    A group of which the store does not answer is left for the next call.

    Raises:
        DatabaseUnavailable: some were raised; repeat the call.
    """
    refused: set[str] = set()
    at = 0
    while at < len(groups):
        part = groups[at : at + max(1, QUEUES // max(1, len(groups[at][0].priorities)))]
        at += len(part)
        trims = [Trim(q, 0, epoch, layout=t.layout) for t, group, epoch in part for q in t.queues(group)]
        answers = iter(await of_each(log_store.trim(trims), len(trims)))
        raised: list[tuple[Topic, int]] = []
        for topic, group, _ in part:
            of_group = [next(answers) for _ in topic.priorities]
            if any(isinstance(answer, errors.NotOwner) for answer in of_group):
                refused.add(topic.group(group))
            elif not any(isinstance(answer, FAILURES) for answer in of_group):
                raised.append((topic, group))
        await passages.note(await _tails(log_store, raised))
    return refused


async def _tails(log_store: LogStore, raised: Sequence[tuple[Topic, int]]) -> list[Passage]:
    queues = [q for topic, group in raised for q in topic.queues(group)]
    bounds = iter(await of_each(log_store.bounds(queues), len(queues)) if queues else ())
    await asyncio.sleep(0)
    found = []
    for topic, group in raised:
        of_group = [next(bounds) for _ in topic.priorities]
        tails = [b.tail for b in of_group if isinstance(b, Bounds)]
        if len(tails) == len(of_group):
            earlier = (layout for layout in topic.earlier if group < layout.groups)
            found += [Passage(topic.name, group, layout.number, tails) for layout in earlier]
    return found


class PassageLoop:
    """Notes which groups of this host have passed which layout, and opens the gates of the topics here.

    One pass, over the topics of this host that have earlier layouts:

    1. Read how far all groups have come, on whatever host, and let the gates of the topics here know.
    2. Raise the queues of the groups here of which that is not noted yet.
    3. Note what the groups here have passed, if the store says that they are still this host's. What comes out of a
       lane later belongs to the newest layout or is forwarded, since this host knows that layout, and since whoever
       acquires the group later reads the catalog behind its fence (`Ownership.acquire`).
    4. The owner of a topic's last group drops the layouts that all groups have passed from the topic.

    Each step may be repeated. A new owner of a group goes on with the tails that were noted first.
    """

    def __init__(
        self,
        log_store: LogStore,
        passages: PassageStore,
        catalog: Catalog,
        moving: Callable[[], Iterable[OwnedTopic]],
        something_moves: asyncio.Event,
        *,
        save: Callable[[], Awaitable[None]],
        on_ready: Callable[[OwnedGroup], None],
        on_lost: Callable[[OwnedGroup], None],
        interval_s: float = PASS_S,
    ) -> None:
        """Args:
        moving: topics with a group here and with earlier layouts.
        something_moves: set while any topic has earlier layouts.
        save: checkpoints what is finished.
        on_ready: called with a group in which messages may start that the gate held back.
        on_lost: called when the store says that the group has a newer owner.
        """
        self._log = log_store
        self._passages = passages
        self._catalog = catalog
        self._moving = moving
        self._something_moves = something_moves
        self._save = save
        self._on_ready = on_ready
        self._on_lost = on_lost
        self._interval_s = interval_s
        self._known: dict[tuple[str, int, int], Passage] = {}
        self._passed: dict[str, dict[int, int]] = {}
        self._progress: tuple[dict[str, int], dict[tuple[str, int], tuple[int, int]]] | None = None

    async def run(self) -> None:
        """Look every quarter of a second while something moves. Ends by cancellation."""
        while True:
            # Larger ones less often, since each pass looks at each of their groups.
            groups = sum(len(owner.groups) for owner in self._moving())
            await asyncio.sleep(self._interval_s * max(1, groups / GROUPS))
            if not (owners := [*self._moving()]):
                self._known, self._passed, self._progress = {}, {}, None
                await self._something_moves.wait()
                continue
            for step in (self._open, self._raise, self._note, self._forget):
                try:
                    await step(owners)
                except TRANSIENT as exc:
                    log.info("%s; messages of keys that move wait", exc)

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
                for group in owner.set_gate(KeyGate(owner.topic, of_topic)):
                    self._on_ready(group)

    async def _learn(self, names: Collection[str]) -> None:
        self._known = await self._passages.load(names)
        self._passed = {}
        async for p in in_slices(self._known.values(), TOGETHER):
            if p.passed:
                of_topic = self._passed.setdefault(p.topic, {})
                of_topic[p.group] = max(of_topic.get(p.group, -1), p.layout)

    async def _raise(self, owners: Sequence[OwnedTopic]) -> None:
        groups = [g async for g in in_slices(_groups(owners), TOGETHER) if not g.lost and not self._is_noted(g)]
        olds: list[Old] = [(group.owner.topic, group.index, group.epoch) for group in groups]
        refused = await raise_queues(self._log, self._passages, olds)
        for group in groups:
            if group.name in refused:
                self._on_lost(group)

    def _is_noted(self, group: OwnedGroup) -> bool:
        topic = group.owner.topic
        return all((topic.name, group.index, n) in self._known for n in _earlier(group))

    async def _note(self, owners: Sequence[OwnedTopic]) -> None:
        passed: list[tuple[OwnedGroup, Passage]] = []
        tails = await self._tails_now(owners)
        async for group in in_slices(_groups(owners), TOGETHER):
            if group.lost:
                continue
            oldest = group.oldest_layout()
            for number in _earlier(group):
                p = self._known.get((group.owner.topic.name, group.index, number))
                if p is None or p.passed:
                    continue
                if oldest <= number or any(
                    q.position < min(t, tails.get(q.name, t)) for q, t in zip(group.queues, p.tails, strict=True)
                ):
                    break
                passed.append((group, p._replace(passed=True)))
        if passed:
            await self._save()  # a crash must not repeat what the groups have passed
            await self._passages.note(await self._still_owned(passed))

    async def _still_owned(self, passed: Sequence[tuple[OwnedGroup, Passage]]) -> list[Passage]:
        """Those whose groups have no newer owner, as far as the store says.

        A newer one that the store knows may not have seen the change of the catalog when it acquired the group, and may
        run messages of the earlier layout. One that comes after this looks at the catalog after its fence.
        """
        groups = list({group.name: group for group, _ in passed}.values())
        owned = set()
        for start in range(0, len(groups), QUEUES):
            part = groups[start : start + QUEUES]
            trims = [Trim(group.queues[0].name, 0, group.epoch) for group in part]
            for group, answer in zip(part, await of_each(self._log.trim(trims), len(trims)), strict=True):
                if isinstance(answer, errors.NotOwner):
                    self._on_lost(group)
                elif not isinstance(answer, FAILURES):
                    owned.add(group.name)
        return [p for group, p in passed if group.name in owned and not group.lost]

    async def _tails_now(self, owners: Sequence[OwnedTopic]) -> dict[str, int]:
        """Of the queues that are not read up to what was noted: a store that came back from a crash holds less."""
        behind = [
            q.name
            async for group in in_slices(_groups(owners), TOGETHER)
            for number in _earlier(group)
            if (p := self._known.get((group.owner.topic.name, group.index, number))) is not None and not p.passed
            for q, t in zip(group.queues, p.tails, strict=True)
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
                await self._catalog.forget_layouts(topic.name, past)
                await self._passages.forget(topic.name, past)


def _groups(owners: Sequence[OwnedTopic]) -> list[OwnedGroup]:
    return [group for owner in owners for group in owner.groups.values()]


def _earlier(group: OwnedGroup) -> list[int]:
    """Numbers of the earlier layouts that the group belonged to, oldest first."""
    return [layout.number for layout in group.owner.topic.earlier if group.index < layout.groups]
