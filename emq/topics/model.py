"""Topics, their options, and the split of a topic's capacity into groups and queues.

A *group* is the part of a topic that one host consumes; a log topic has one queue for each priority in each group.
"""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Iterable
from typing import Annotated

import msgspec

from emq.runtime import errors, inputs, plurals
from emq.storage.slot_store import Fold, Keep, Slot, SlotKind
from emq.topics.options import TopicOptions as TopicOptions
from emq.topics.options import means
from emq.topics.shares import MICRO as MICRO
from emq.topics.shares import Division

DEFAULT_GROUP_QPS = 50.0
DEFAULT_MAX_QUEUE_QPS = 150.0
"""Operations a second that one queue of RMQ's storage can take; the bound for group_qps if a store names none."""

DEFAULT_PRIORITIES = ("high", "mid", "low")

SORTED_OPTIONS = (
    *("ordering", "precision", "time_range_ms", "retry", "merge", "fold", "fold_lua", "keep", "prepare_timeout_s"),
)
"""The options for sorted kinds only."""

MAX_EARLIER = 64
"""Most earlier layouts from which a topic's keys may be moving at the same time."""
MAX_DELAY_S = 10 * 366 * 86_400.0
"""Ten years, in seconds: a longer delay is more likely a mistake of units."""


class Kind(enum.StrEnum):
    """The order in which a topic keeps its messages. All kinds but LOG are *sorted*: their groups are slots (see
    `emq.storage.slot_store`)."""

    LOG = "log"
    """In the order of publishing, in one queue for each priority."""
    RANGE_MERGE = "range_merge"
    """Due some time after the first publish. Equal messages merge while they wait."""
    PRIORITY = "priority"
    """By a number above 16, highest first. Equal messages merge while they wait; the latest priority counts."""
    FIXED_TIME = "fixed_time"
    """Due at a time of its own. Equal messages merge while they wait; the latest time counts."""


class State(enum.StrEnum):
    """An ACTIVE topic takes and starts messages; a PAUSED one only takes them; a DRAINING one only starts them."""

    ACTIVE = "active"
    PAUSED = "paused"
    DRAINING = "draining"


class Layout(msgspec.Struct, frozen=True, array_like=True):
    """One assignment of a log topic's keys to groups: the key's checksum modulo the number of groups.

    Attributes:
        number: grows with each change of the number of groups, even if the topic was deleted in between.
        groups: the number of groups that producers wrote to.
    """

    number: int
    groups: int


class Topic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A logical queue with a capacity.

    Attributes:
        name: 1 to 128 bytes of UTF-8 without white space, slashes, braces and control characters.
        qps, group_qps, priorities, kind, slots: see `emq.topics.options.described`. A sorted topic has no priorities
            by name, and its groups are its slots.
        state: see `State`.
        active_groups: producers write to groups [0, active_groups).
        groups: hosts consume groups [0, groups); above `active_groups` while retired groups still hold messages.
        options: see `TopicOptions`.
        divisions: how the groups share qps, in order of time, after changes; see `emq.topics.shares`.
        layout: number of the layout that assigns keys to groups now.
        earlier: layouts whose groups may still hold messages of keys that have moved since, oldest first; see
            `emq.topics.key_layouts`.
        expiring: True if a message with a time to live of its own was ever published to the topic.
        shared_s: the first aligned second in which topics that name this one as their budget may start messages; 0
            while no topic has ever named it. See `emq.topics.budgets`.
        family: the family whose settings the topic follows; empty for a topic of no family. See `emq.topics.families`.
        own: the settings of a topic of a family that somebody has set for this topic.
        asleep_s: when the topic fell asleep, in seconds of the environment's time; 0 while it is awake. A topic that
            sleeps holds nothing, is sealed in the store, and is unknown to hosts until a publish wakes it.
    """

    name: str
    qps: Annotated[
        float,
        means("Most starts over all groups; above 0, at most six decimals; below 1 means a longer window.", "per s"),
    ]
    group_qps: Annotated[
        float,
        means(
            "Wanted capacity of one group, the part of a topic that one host owns: at least 1 and at most the capacity "
            "of one physical queue of the store.",
            "per s",
        ),
    ] = DEFAULT_GROUP_QPS
    priorities: Annotated[
        tuple[str, ...], means("Names, highest first; 1 to 16 of them, 1 to 32 bytes each. They never change.")
    ] = DEFAULT_PRIORITIES
    state: State = State.ACTIVE
    active_groups: int = 0
    groups: int = 0
    options: TopicOptions = TopicOptions()
    kind: Annotated[
        Kind,
        means(
            'The order in which the topic keeps its messages: "log" in the order of publishing; "range_merge" merges '
            'equal messages of a time range; "priority" by a number; "fixed_time" each at its time. It never changes.'
        ),
    ] = Kind.LOG
    slots: Annotated[
        int,
        means("For sorted kinds: the number of slots, a power of two; 0: by qps. It never changes.", "slots"),
    ] = 0
    divisions: tuple[Division, ...] = ()
    layout: int = 0
    earlier: tuple[Layout, ...] = ()
    expiring: bool = False
    shared_s: int = 0
    family: str = ""
    own: tuple[str, ...] = ()
    asleep_s: float = 0.0

    @property
    def may_expire(self) -> bool:
        """True if some of the topic's messages may have a time to live, the topic's or their own."""
        return self.expiring or self.options.ttl_s is not None

    @property
    def sleeps(self) -> bool:
        """True if somebody may be about to put the topic to sleep, or has left it half asleep."""
        return bool(self.family) or self.options.idle_s is not None

    @property
    def timeline(self) -> tuple[Division, ...]:
        """The divisions of qps among the groups: the one in force, then those to come. The last one follows from the
        present settings."""
        return self.divisions or (_plain(self.qps, self.group_qps, self.active_groups, self.groups),)

    @property
    def division(self) -> Division:
        """The division of qps once every host knows the topic's settings of now."""
        return self.timeline[-1]

    def divided(self, draining: Iterable[int]) -> Division:
        """Return a division of the topic's qps over its active groups and these retired ones."""
        retired = sorted(g for g in draining if self.active_groups <= g < self.groups)
        return Division(0, self.qps, self.group_qps, self.active_groups, tuple(retired))

    @property
    def counts_attempts(self) -> bool:
        """True if a message is dead after `max_attempts`; the published RMQ counts retries instead."""
        return not self.is_sorted or self.options.retry != "rmq"

    @property
    def is_sorted(self) -> bool:
        return self.kind is not Kind.LOG

    @property
    def dedupe_ms(self) -> int:
        """Milliseconds for which the topic remembers the id of a publish; 0 if it does not."""
        return round(self.options.dedupe_s * 1000)

    @property
    def drops_oldest(self) -> bool:
        """True if a publish beyond `max_length` drops the oldest messages."""
        return self.options.overflow == "drop_oldest" and self.options.max_length is not None

    @property
    def fold(self) -> Fold:
        return Fold(self.options.fold, self.options.fold_lua)

    @property
    def keep(self) -> Keep:
        """The score that counts after a merge. Under aging the highest, so that a repeat keeps the time waited."""
        if self.options.keep is not None:
            return _KEEPS[self.options.keep]
        if self.kind is Kind.RANGE_MERGE:
            return Keep.FIRST
        return Keep.HIGHEST if self.options.priority_policy == "aging" else Keep.LAST

    def slot(self, group: int) -> Slot:
        """The slot of a sorted topic's group."""
        return Slot(f"{self.name}/{group}", SlotKind(self.kind.value), self.options.merge == "key")

    def priority_index(self, priority: str | float | None) -> int:
        """Index of a priority's name; None means the middle one. Raises `InvalidMessage` for an unknown name."""
        if priority is None:
            return len(self.priorities) // 2
        try:
            return self.priorities.index(str(priority))
        except Exception:  # also for an integer of more digits than Python writes, and of the value's own class
            raise errors.InvalidMessage(
                f"topic {self.name!r} has no priority {inputs.shown(priority)}; it has {', '.join(self.priorities)}"
            ) from None

    def queue(self, group: int, priority: int) -> str:
        return f"{self.name}/{group}/{self.priorities[priority]}"

    def group(self, group: int) -> str:
        return f"{self.name}/{group}"

    def queues(self, group: int) -> list[str]:
        return [f"{self.name}/{group}/{p}" for p in self.priorities]

    def all_queues(self) -> list[str]:
        return [f"{self.name}/{group}/{p}" for group in range(self.groups) for p in self.priorities]


@functools.lru_cache(maxsize=64)
def _plain(qps: float, group_qps: float, active: int, groups: int) -> Division:
    """The division over all groups. Cached, since callers ask a shrunk topic once for each of thousands of groups."""
    return Division(0, qps, group_qps, active, tuple(range(active, groups)))


def called(name: object) -> str:
    """Return a topic or a family as errors name it; a family's settings pass through the checks of topics."""
    return f"{'family' if str(name).endswith('*') else 'topic'} {name!r}"


_KEEPS = {"first": Keep.FIRST, "last": Keep.LAST, "earliest": Keep.LOWEST, "latest": Keep.HIGHEST}


def split(topic: Topic) -> Topic:
    """Return the topic with the number of groups that its qps needs: ceil(qps / group_qps).

    If the number falls, hosts go on consuming the retired groups (`groups`) until `retire` drops them. If the number
    changes, the topic gets a new layout for its keys. A sorted topic gets the next power of two, which never changes.
    The catalog, which knows the time, sets `divisions`.

    Raises:
        InvalidTopic: the number of groups has changed `MAX_EARLIER` times, and hosts have not yet worked off the
            messages of these layouts.
    """
    topic = msgspec.structs.replace(topic, divisions=())
    active = math.ceil(topic.qps / topic.group_qps)
    if topic.is_sorted:
        slots = topic.slots or 1 << (active - 1).bit_length()
        return msgspec.structs.replace(topic, slots=slots, active_groups=slots, groups=slots)
    if topic.active_groups not in (0, active):
        if len(topic.earlier) >= MAX_EARLIER:
            raise errors.InvalidTopic(
                f"topic {topic.name!r}: its keys still move from {len(topic.earlier)} earlier numbers of groups; "
                f"keep its {plurals.count(topic.active_groups, 'group')} until its hosts have delivered the messages "
                "of these"
            )
        earlier = (*topic.earlier, Layout(topic.layout, topic.active_groups))
        topic = msgspec.structs.replace(topic, layout=topic.layout + 1, earlier=earlier)
    return msgspec.structs.replace(topic, active_groups=active, groups=max(active, topic.groups))


def settings_of(topic: Topic) -> Topic:
    """Return the topic with only its settings, without the fields that EMQ derives."""
    derived = {"active_groups": 0, "groups": 0, "divisions": (), "layout": 0, "earlier": ()}
    return msgspec.structs.replace(topic, **derived, expiring=False, shared_s=0, family="", own=(), asleep_s=0.0)


def quotas(topic: Topic) -> list[float]:
    """Starts a second for each of the topic's `groups`; they add up to its qps exactly."""
    division = topic.division
    return [division.quota(group) for group in range(topic.groups)]


def quota_of(topic: Topic, group: int) -> float:
    """Starts a second for one group, rounded to millionths; 0 for a retired group that is empty. See
    `emq.topics.shares`.

    Groups get whole numbers, as even as possible; the first groups get one more if the division leaves a rest, and
    the next group gets a fraction. If whole numbers are impossible (fewer starts than groups, or they would exceed a
    fractional `group_qps`), all groups get the same.
    """
    return topic.division.quota(group)
