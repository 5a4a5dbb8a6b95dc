"""Budgets: one counter for all topics that share the qps of a topic, and the parts that these topics get of it.

**The cap.** A budget has a window counter of its topic's whole qps. A start counts in the counter of its group and in
every budget above its topic: in all of them or in none. A budget's counter belongs to its root's first group (`guard`):
it grants only while this host owns that group, and a new owner has new counters, which grant nothing in their first
second. A group has one owner at a time, and an old owner's last second is over before a new owner's second one begins.
So in each second at most one host starts messages of the unit. A group on another host than the root's first group
waits. The plan only brings the groups of a unit together; no start depends on it.

**The parts.** Deficit round robin (Shreedhar and Varghese 1995) with fractional credits, dealt out once a second. The
members of a budget are the topics that name it, and its own messages. At the first start of a second, the budget looks
at the members that asked for a start in this or the last second. A member is *hungry* if the budget has refused it
since the last look. Any other member keeps room for about twice its starts of the last second, at most its part by
weight. The hungry members get the rest by their weights. A member's part is added to its credit. It may use the whole
starts of its credit in this second (`due`); starts left by rounding go to the largest fractions. Each start is taken
from the credit, and a fraction is carried over. So while all have a backlog, each member is always within about one
start of its part.

A start that nobody is entitled to is *spare*: the first to ask gets it. While members are hungry, the budget looks
again every `LOOK_AGAIN_S` seconds (less often with many members). It gives them the spare starts, and those that other
members have not used. During the second it keeps less and less for such members, and nothing from `KEEP_S` on, except
the starts that a member would make at its pace of this second. So a backlog uses a second in full, a message of a quiet
topic seldom waits for the next second, and a topic with an even pace, such as a throttled one, loses nothing to a
flood.
"""

from __future__ import annotations

import math
from typing import Protocol

from emq.quota.counter import WindowCounter
from emq.topics.model import Topic
from emq.topics.shares import ShareTimeline, Step, share_of

LOOK_AGAIN_S = 0.05
"""Seconds between looks at the members' starts, while one of them is refused more."""

KEEP_S = 0.8
"""Part of a second after which a budget keeps no starts for members that may come."""

LOOK_PER_MEMBER_S = 1e-4
"""Seconds between looks for each active member, so that looks visit at most 10,000 members a second."""


class Guard(Protocol):
    """The first group of a unit's root, while this host owns it."""

    @property
    def stopping(self) -> bool:
        """True once the group is let go of."""


class Member:
    """A topic in a budget that starts messages there: one that names the budget, or the budget's topic itself.

    Attributes:
        name: the topic's name.
        weight: its share, relative to those of the other members.
        credit: starts that the member may still make, over all seconds; below 0 if it got more by rounding.
        due: starts that it may still make in this second.
        used: starts made in this second.
        used_before: starts made in the second before.
        asked: the second in which it asked last.
        refused_at: time of the last refusal, in seconds since the epoch.
    """

    __slots__ = ("asked", "credit", "due", "name", "refused_at", "used", "used_before", "weight")

    def __init__(self, name: str, weight: float) -> None:
        self.name = name
        self.weight = weight
        self.credit = 0.0
        self.due = self.used = self.used_before = 0
        self.asked = -1
        self.refused_at = -math.inf


class Budget:
    """The counter of one budget on this host, and its members. Times are seconds since the epoch.

    Attributes:
        name: the budget's topic.
        parent: the budget above; None for a root.
        member: this budget as a member of its parent; `own` stands for the messages of its own topic.
        guard: the first group of a root; None while this host does not own that group.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.parent: Budget | None = None
        self.member = Member(name, 1.0)
        self.own = Member(name, 1.0)
        self.guard: Guard | None = None
        self._counter: WindowCounter | None = None
        self._course: ShareTimeline = ()
        self._members: dict[str, Member] = {}
        self._active: dict[Member, None] = {}  # asked in this or the last second
        self._began = -1
        self._second = 0
        self._spare = 0
        self._is_scarce = False
        self._looked = 0.0

    # ------------------------------------------------------------------------------------------------ what hosts call

    def follow(self, topic: Topic, parent: Budget | None, now: float) -> None:
        """Follow the topic: its qps, and its weight in the budget above. A lower qps counts at once."""
        course = [
            Step(division.since_s, share_of(division.qps, division.origin_s), division.qps)
            for division in topic.timeline
        ]
        if self._counter is None:
            self._counter = WindowCounter(course, now)
        elif course != self._course:
            self._counter.set_quota(course, now)
        self._course = course
        self.parent = parent
        if parent is not None:
            self.member = parent.member_of(topic)

    def member_of(self, topic: Topic) -> Member:
        """Return the member of a topic that names this budget, with the topic's present weight."""
        member = self._members.get(topic.name)
        if member is None:
            member = self._members[topic.name] = Member(topic.name, topic.options.share)
        member.weight = topic.options.share
        return member

    def forget(self, name: str) -> None:
        """Forget a topic that was deleted."""
        member = self._members.pop(name, None)
        if member is not None:
            self._active.pop(member, None)

    @property
    def has_members(self) -> bool:
        """True if topics that name this budget are known."""
        return bool(self._members)

    def end(self) -> None:
        """Start nothing more: the budget's topic was deleted."""
        self.guard = self.parent = self._counter = None
        self._course = ()

    def begin(self, guard: Guard, now: float) -> None:
        """This host has acquired the first group of the root: count from now on, and start nothing in this second."""
        self.guard = guard
        self._began = self._second = int(now)
        if self._course:
            self._counter = WindowCounter(self._course, now)

    # --------------------------------------------------------------------------------------------------------- starts

    def room(self, member: Member, n: int, now: float) -> int:
        """Return how many of `n` starts (1 or more) the member may make now; note a refusal."""
        self._ready(member, now)
        left = self._left(now)
        above = self.parent
        if left < n and above is not None and (own := self._own_left(now)) > left:
            above.room(self.member, min(n, own), now)  # it may give more, and learns that this budget wants more
            left = self._left(now)
        room = min(member.due + self._spare, left)
        if room < n:
            member.refused_at = now
            if room < left and now >= self._looked + self._pause():
                self._deal(now)
                room = min(member.due + self._spare, left)
        return min(n, max(0, room))

    def available(self, member: Member, now: float) -> int:
        """Return how many starts `room` would allow now; note only a new second."""
        self._ready(None, now)
        return max(0, min(member.due + self._spare, self._left(now)))

    def take(self, member: Member, n: int, now: float) -> None:
        """Count `n` starts that `room` has just allowed, in this budget and in those above."""
        at: Budget | None = self
        while at is not None:
            if at._counter is not None:
                at._counter.reserve(n, now)
            of_due = min(n, member.due)
            member.due -= of_due
            member.credit -= of_due
            member.used += n
            at._spare -= n - of_due
            member, at = at.member, at.parent

    def give_back(self, member: Member, n: int, since: float) -> None:
        """Take back `n` starts that were counted at the time `since` and not made."""
        at: Budget | None = self
        while at is not None:
            if at._counter is not None:
                at._counter.release(n, since)
            if int(since) == at._second:
                member.used -= n
                if at._is_scarce:
                    member.due += n
                    member.credit += n
                else:
                    at._spare += n
            member, at = at.member, at.parent

    def note_waiting(self, member: Member, now: float) -> None:
        """Note a topic whose own counter is new and allows nothing, if its budgets have just begun to count here.

        So all topics that wait share the next second by weight; otherwise the first to ask would get all its starts.
        """
        at: Budget | None = self
        while at is not None:
            if at.parent is None and at._began != int(now):
                return
            at = at.parent
        at = self
        while at is not None:
            member.asked = int(now)
            member.refused_at = now
            at._active[member] = None
            member, at = at.member, at.parent

    def next_at(self, member: Member, now: float) -> float:
        """Return when the member may make a start; call this while `room` is 0. Infinity means never."""
        if self.room(member, 1, now):
            return now
        if self._counter is None or self._is_closed():
            return float(int(now) + 1)
        if self._own_left(now) <= 0:
            return self._counter.next_at(now)
        above = self.parent
        if above is not None and not above.available(self.member, now):
            return above.next_at(self.member, now)
        return min(self._looked + self._pause(), float(int(now) + 1))

    # -------------------------------------------------------------------------------------------------------- details

    def _is_closed(self) -> bool:
        return self.parent is None and (self.guard is None or self.guard.stopping)

    def _own_left(self, now: float) -> int:
        """Return the starts that the budget's own counter still allows in this second."""
        return 0 if self._counter is None or self._is_closed() else self._counter.available(now)

    def _left(self, now: float) -> int:
        """Return the starts that this budget and those above still allow in this second, after `_ready`."""
        left, above = self._own_left(now), self.parent
        if left and above is not None:
            left = min(left, self.member.due + above._spare, above._left(now))
        return max(0, left)

    def _ready(self, member: Member | None, now: float) -> None:
        """Note that the member asks; if the second is new, deal its starts out, first those of the budgets above."""
        above = self.parent
        if above is not None:
            above._ready(self.member if member is not None else None, now)
        second = int(now)
        if member is not None and member.asked != second:
            member.asked = second
            self._active[member] = None
        if second > self._second and self._own_left(now) > 0:
            self._begin_second(second, now)

    def _begin_second(self, second: int, now: float) -> None:
        """Begin a second in which the budget allows starts; with a qps below 1, the last one may be long ago."""
        before, self._second = self._second, second
        for gone in [member for member in self._active if member.asked < before]:
            del self._active[gone]
            gone.credit, gone.due, gone.used = 0.0, 0, 0
        for member in self._active:
            member.used_before = member.used if before == second - 1 else 0
            member.used = member.due = 0
        self._deal(now, since=before)

    def _pause(self) -> float:
        return LOOK_AGAIN_S + len(self._active) * LOOK_PER_MEMBER_S

    def _deal(self, now: float, since: float | None = None) -> None:
        """Deal the starts that are left in this second out to the active members.

        Args:
            now: the time.
            since: when a second begins, the last one; else None. Within a second, a member that was refused before the
                last look may be parked until the next second, and would not use its starts.
        """
        at_start = since is not None
        since, left, self._looked = self._looked if since is None else since, self._left(now), now
        hungry = {member: None for member in self._active if member.refused_at >= since}
        weights = math.fsum([member.weight for member in self._active])
        kept = 0
        for member in self._active:
            if member in hungry:
                continue
            if at_start:
                member.due = min(int(left * member.weight / weights), 2 * member.used_before + 1)
                member.credit = float(member.due)
            else:
                member.due = min(member.due, max(_at_its_pace(member, now), _fading(member, now)))
            kept += member.due
        self._is_scarce = bool(hungry)
        self._spare = max(0, left - kept)
        if hungry:
            self._spare -= _share_out(list(hungry), self._spare)


def _fading(member: Member, now: float) -> int:
    """Return the starts to keep for a member that may come: fewer and fewer, none from `KEEP_S` on."""
    return max(0, math.ceil(member.due * (1 - now % 1.0 / KEEP_S)))


def _at_its_pace(member: Member, now: float) -> int:
    """Return the starts that a member makes in the rest of this second if it keeps its pace.

    A throttled topic has an even pace, and cannot make up later for starts that others took. The budget keeps one start
    less than the pace, so that a topic that stops leaves few starts unused.
    """
    passed = now % 1.0
    return math.floor(member.used * (1.0 - passed) / passed) - 1 if passed else 0


def _share_out(hungry: list[Member], starts: int) -> int:
    """Add `starts` to the credits of members by weight, and set what each may start; return the starts given away."""
    weights = math.fsum([member.weight for member in hungry])
    more = (starts - math.fsum([member.credit for member in hungry])) / weights
    for member in hungry:
        # A member whose messages find no room in flight saves up at most one second's part.
        most = 1.0 + max(1.0, starts * member.weight / weights)
        member.credit = min(most, member.credit + more * member.weight)
        member.due = max(0, math.floor(member.credit))
    given = sum([member.due for member in hungry])
    if given < starts:
        fractions = sorted((m for m in hungry if m.credit > 0), key=lambda m: m.due - m.credit)
        for member in fractions[: starts - given]:
            member.due += 1
            given += 1
    return min(given, starts)
