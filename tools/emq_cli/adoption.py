"""Adopts or deletes orphans: messages in the store that the catalog does not know."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import msgspec

from emq.observe.admin import Admin
from emq.offsets import orphans
from emq.offsets.orphans import Orphan
from emq.runtime import errors, plurals
from emq.storage.slot_store import SlotKind
from emq.topics import rules
from emq.topics.model import State, Topic


async def find(admin: Admin) -> list[Orphan]:
    """Return the messages in the store that the catalog does not know; see `emq.offsets.orphans`."""
    return await orphans.find(admin.store, {topic.name: topic for topic in await admin.catalog.list()})


async def adopt(
    admin: Admin, name: str, qps: float, priorities: Sequence[str] = (), kind: SlotKind | None = None
) -> Topic:
    """Create the topic of orphaned messages, so that hosts consume them.

    If both queues and slots hold messages of that name, the topic gets those of the slots if `kind` is given, else
    those of the queues.

    Raises:
        UnknownTopic: the store holds no orphaned messages of this topic.
        TopicExists: the catalog has a topic of that name; the text says what to do.
        InvalidTopic: the arguments do not fit the messages; see `orphans.topic_of`. Or the qps does not fit the groups
            of the messages; the text has the range.
    """
    found = await _orphans_of(admin, name)
    orphan = next((each for each in found if each.is_sorted is (kind is not None)), found[0])
    least, most = orphan.groups, orphan.groups * rules.most_group_qps(admin.store.log.max_queue_qps)
    if not orphan.is_sorted and not least <= qps <= most:
        raise errors.InvalidTopic(
            f"topic {name!r}: the {plurals.count(orphan.groups, 'group')} of its messages can make {least} to "
            f"{most:g} starts a second, not {qps:g}; adopt it with a qps between these, and change it afterwards"
        )
    [topic] = await admin.create([orphans.topic_of(orphan, qps, priorities, kind)])
    return topic


async def purge(admin: Admin, name: str) -> int:
    """Delete orphaned messages, dead letters included; return how many there were. Errors as for `adopt`."""
    found = await _orphans_of(admin, name)
    for orphan in found:
        topic = orphans.topic_of(orphan, float(orphan.groups), orphan.priorities, SlotKind.PRIORITY)
        await admin.create([msgspec.structs.replace(topic, state=State.PAUSED)])  # so that no host starts anything
        with contextlib.suppress(errors.UnknownTopic):  # somebody else purges them at the same time
            await admin.delete(name, force=True)
    return sum(orphan.messages for orphan in found)


async def _orphans_of(admin: Admin, name: str) -> list[Orphan]:
    found = [each for each in await find(admin) if each.topic == name]
    if not found:
        raise errors.UnknownTopic(f"the store holds no messages of topic {name!r} that the catalog does not know")
    if found[0].is_known:
        more, groups = all(each.is_beyond for each in found), max(each.groups for each in found)
        raise errors.TopicExists(
            f"topic {name!r} has fewer groups than its messages, which need {groups}; raise its qps to more "
            f"than {groups - 1} times its group_qps, and lower it again: its surplus groups are worked off"
            if more
            else f"topic {name!r} exists with another kind or other priorities than the messages; delete this topic, "
            "which keeps the messages, then adopt or purge them"
        )
    return found
