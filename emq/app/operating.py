"""What an app does for operators: topics and families, dead letters, what is planned."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import Any, Unpack

from emq.app.hosting import HostingApp
from emq.observe import dead_letters
from emq.observe import planned as book
from emq.observe.dead_letters import EVERY, Letter, Selection
from emq.runtime import extending
from emq.runtime.inputs import is_pattern
from emq.topics import asking, rules
from emq.topics.model import Kind, State, Topic
from emq.topics.option_types import KindName, OptionArguments, StateName

log = logging.getLogger(__name__)


class OperatingApp(HostingApp):
    """An app with its topics, and what is in them."""

    operator = "app"
    """Who changes topics through this app, as audit logs name it."""

    async def create_topic(
        self,
        name: str,
        qps: float,
        *,
        kind: Kind | KindName = Kind.LOG,
        slots: int = 0,
        group_qps: float | None = None,
        priorities: Sequence[str] | None = None,
        exist_ok: bool = False,
        update: bool = False,
        **options: Unpack[OptionArguments],
    ) -> Topic:
        """Create a topic; `options` are the fields of `TopicOptions`.

        Below a family, the topic has the settings given here as its own, and all others from the family.

        Args:
            qps: most starts a second, over all groups and priorities of the topic.
            kind: "log", or one of the sorted kinds "range_merge", "priority", "fixed_time"; see
                `emq.topics.model.Kind`.
            slots: number of slots of a sorted topic, a power of two; 0 for as many as its qps needs.
            exist_ok: if a topic of that name exists, leave the topic as it is instead of raising `TopicExists`; a
                warning in the log names the given settings that it does not have.
            update: if a topic of that name exists, give it the given settings, as `update_topic` does.

        Raises:
            InvalidTopic: a value is unknown or out of range, or cannot be updated; the text says what would be right.
            TopicExists: the topic exists with other settings; choose `exist_ok` or `update`.
        """
        given: dict[str, Any] = {"qps": qps, "kind": kind, "slots": slots, **options}
        given |= {} if group_qps is None else {"group_qps": group_qps}
        given |= {} if priorities is None else {"priorities": priorities}
        asked = asking.topic_of(name, given)
        rules.validate_plain(name)
        [topic] = await self.admin.create([asked], exist_ok=exist_ok or update)
        different = asking.differences(asked, topic, asked.own if topic.family else given)
        if different and update:
            return await self.update_topic(name, **{key: asking.value(asked, key) for key in different})
        if different:
            log.warning(
                "topic %r exists and keeps its settings, which are not as asked (%s); change them with "
                "create_topic(..., update=True) or update_topic",
                name,
                ", ".join(different.values()),
            )
        return topic

    async def update_topic(
        self,
        name: str,
        *,
        qps: float | None = None,
        group_qps: float | None = None,
        state: State | StateName | None = None,
        **options: Unpack[OptionArguments],
    ) -> Topic:
        """Change settings of a topic while it is in use; hosts and producers follow within seconds.

        Args:
            qps, group_qps, state: None to keep the value.
            options: the fields of `TopicOptions` to change; the others keep their values.

        Returns:
            The topic as it is now.

        Raises:
            UnknownTopic: there is no such topic.
            InvalidTopic: a setting is unknown, may not change, or is out of range; nothing was changed.
        """
        given = {"qps": qps, "group_qps": group_qps, "state": state}
        changes = {**{k: v for k, v in given.items() if v is not None}, **options}
        topic = await self.catalog.get(name)
        notes = [await extension.noted(self, topic, changes) for extension in extending.extensions()]
        return await self.admin.update(name, also=lambda c: [note(c) for note in notes if note], **changes)

    async def pause(self, name: str) -> None:
        """Start no message of a topic, or of all topics of a family, until `resume`. Publishes go on.

        Args:
            name: a topic's name, or a family's, such as `orders.*`.

        Raises:
            UnknownTopic: there is no topic or family of this name.
        """
        await self._set_state(name, State.PAUSED)

    async def resume(self, name: str) -> None:
        """Undo `pause` and `drain`, with the same arguments and errors."""
        await self._set_state(name, State.ACTIVE)

    async def drain(self, name: str) -> None:
        """Refuse publishes (`TopicClosed`), and deliver what is there. Arguments and errors as for `pause`.

        In a family, a topic that was paused by itself stays as it is.
        """
        await self._set_state(name, State.DRAINING)

    async def _set_state(self, name: str, state: State) -> None:
        if is_pattern(name):
            await self.families.set(name, {"state": state})
        else:
            await self.update_topic(name, state=state)

    async def delete(self, name: str, *, force: bool = False) -> int:
        """Delete a topic, or a family with its topics; return how many messages went with it.

        Args:
            name: as for `pause`.
            force: delete a topic that holds messages, or a family that has topics.

        Raises:
            UnknownTopic: there is no topic or family of this name.
            StillConsumed: it holds messages, or has topics, and `force` is not set.
            StillNamed: other topics name it as their budget; delete those first.
        """
        if is_pattern(name):
            return (await self.families.delete(name, force=force))[1]
        return await self.admin.delete(name, force=force)

    async def lag(self, name: str) -> int:
        """Return how many messages of a topic, or of all topics of a family, are not done; without dead letters.

        Arguments and errors are as for `pause`.
        """
        if is_pattern(name):
            await self.families.get(name)
            return await self.admin.held(await self.families.topics(name))
        return await self.admin.held([await self.catalog.get(name)])

    async def planned(self, pattern: str = "*", *, skip: int = 0, limit: int = 100) -> list[book.Planned]:
        """Return a page of the delayed messages and schedules in topics that match `pattern`, by due time.

        A page ends at `limit` entries, or with the entry that brings its payloads to 64 MiB. An empty page means the
        end; a short page does not.
        """
        topics = await self.catalog.list(pattern)
        entries = book.find(self.store.lanes, topics, skip=skip, limit=limit, max_bytes=book.LISTED_BYTES)
        return [entry async for entry in entries]

    async def recall(self, topic: str, *ids: str, uids: Collection[str] = ()) -> set[str]:
        """Recall entries that no host has claimed yet: delayed messages, schedules, waiting messages of sorted topics.

        Args:
            topic: the topic's name.
            ids: ids of messages; an id recalls all messages that have it.
            uids: identities of messages (`message.uid`); each recalls one message.

        Returns:
            The ids and identities that were recalled; the other messages have started, or are about to start.
        """
        return await self.admin.recall(topic, ids, uids)

    async def dead_letters(self, topic: str, selection: Selection = EVERY) -> AsyncIterator[Letter]:
        """Yield the selected dead letters of the topic, read in pages; see `emq.observe.dead_letters.find`."""
        dead_letters.check_selection(selection)
        async for letter in dead_letters.find(self.store, await self.catalog.get(topic), selection):
            yield letter

    async def replay_dead_letters(
        self,
        pattern: str,
        selection: Selection = EVERY,
        *,
        rate_per_s: float | None = None,
        priority: float | None = None,
        on_replayed: Callable[[int], None] = lambda _: None,
    ) -> int:
        """Put dead letters back into their topics, as first attempts at their own priority; return how many.

        Safe to interrupt and to repeat: each letter is at all times either a dead letter or waiting, never both.

        Args:
            pattern: a topic's name, or a shell pattern over names.
            selection: the letters, such as `emq.Selection(reason="timeout")`; left out, all of them.
            rate_per_s: most letters put back in a second; None for no limit of its own. They also count against their
                topic's quota.
            priority: for topics of kind priority: the new priority, above 16; None for the lowest.
            on_replayed: called with the number so far.

        Raises:
            UnknownTopic: there is no topic of this name.
            InvalidMessage: an argument is out of range, or does not go with a topic; nothing was put back.
        """
        dead_letters.check_selection(selection)
        dead_letters.check_rate(rate_per_s)
        topics = await self.catalog.matching(pattern)
        for topic in topics:
            dead_letters.check_priority(topic, priority)
        count = 0
        for topic in topics:
            before = count
            count += await dead_letters.replay(
                self.store,
                topic,
                selection,
                rate_per_s=rate_per_s,
                priority=priority,
                on_replayed=lambda n, before=before: on_replayed(before + n),  # type: ignore[misc]
                trail=self.trail,
                clock=self.clock,
            )
        return count

    async def purge_dead_letters(self, pattern: str, selection: Selection = EVERY) -> int:
        """Throw dead letters away for good; return how many. Arguments and errors are as for `replay_dead_letters`."""
        dead_letters.check_selection(selection)
        topics = await self.catalog.matching(pattern)
        return sum([await dead_letters.purge(self.store, topic, selection) for topic in topics])
