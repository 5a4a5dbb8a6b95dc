"""Shares: the starts that each group of a topic brings to its host in each second, so that hosts share no counter.

The groups of a topic on one host draw from one counter, which has the sum of their shares (`emq.quota.topic_counter`).

**The rule.** A share is three integers, `num`, `den` and `phase`. In the aligned second s (since the epoch) it allows

    floor((num * (s + 1) + phase) / den) - floor((num * s + phase) / den)

starts: a running total that is dealt out second by second. If every group can have whole starts, `num` is the group's
own quota and all phases are 0; only one group has a fraction. If whole starts are impossible (qps 10 over 64
slots), all n groups have the same num / den = qps / n, and the group at position i has the phase i / n.

**Why the groups' sum keeps the topic's cap in every second.** With x = qps * s, group i's running total is
floor((x + i) / n). Hermite's identity says that the sum of floor(x / n + i / n) over i = 0 ... n - 1 is floor(x). So
the groups' running totals add up to floor(qps * s), and their starts in second s to
floor(qps * (s + 1)) - floor(qps * s): exactly the starts of the topic as a whole. With whole starts the sum is the
whole part of qps plus the fraction of one group, which gives the same number. Each group's own starts in a second are
its quota rounded down or up, and over any run of seconds they are within one start of its quota. Unequal quotas, with
their cumulative sums as phases, would add up as well. But a group could then get a negative number, or nothing for
ever; hence equal shares.

**Why the sum keeps the cap after a change.** A *division* lists the groups that share, and the second from which on. A
change of the catalog adds a division that begins `LEARN_S` seconds later; by then every host has read it. Until then a
host uses the old one, or, if the new one has a lower qps, the lower allowance of both. So in each second all hosts
together start at most the allowance of the division in force. A host that cannot read the catalog for longer than
`LEARN_S` goes on with the divisions that it knows. The sum may then reach that of each group's largest share.

**Why the sum keeps the cap when a name is used again.** A topic may be deleted and another one of that name created at
once. Until `LEARN_S` seconds after the deletion, some hosts may still start messages of the former topic, by its
divisions. So the first division of the new topic begins after that; until then the new topic has a division without
members, which allows nothing. In each second all hosts together start the allowance of the former topic or that of the
new one, never both.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

MICRO = 1_000_000
"""Quotas are kept in millionths of a start a second, so that sums are exact."""

LEARN_S = 2
"""Seconds that hosts have to read a change of the catalog before it counts: four looks at the usual interval."""


class Share(NamedTuple):
    """The starts of one group, or of a whole topic; see above for the rule. num / den is in starts a second."""

    num: int
    den: int
    phase: int

    def allowance(self, second: int) -> int:
        """Starts allowed in an aligned second: 50 for a share of 50; 2 and 3 in turn for 2.5; 0 and 1 for 0.5."""
        before = self.num * second + self.phase
        return (before + self.num) // self.den - before // self.den

    def next_second(self, second: int) -> int | None:
        """The first second from `second` on that allows a start; None if there is no such second."""
        if self.num == 0:
            return None
        if self.num >= self.den:
            return second
        target = (self.num * second + self.phase) // self.den + 1
        return -(-(target * self.den - self.phase) // self.num) - 1

    @property
    def is_whole(self) -> bool:
        """True if the share allows the same number of starts in each second."""
        return self.num % self.den == 0

    @property
    def ceiling(self) -> int:
        """Most starts in any second."""
        return -(-self.num // self.den)

    def __float__(self) -> float:
        return self.num / self.den


class Turns(NamedTuple):
    """The starts of several groups together, of a topic whose starts go to its groups in turn.

    Their running total is the sum of floor((x + i) / n) over their positions i, where x is the topic's running total.

    Attributes:
        num, phase: the share of the topic as a whole, in millionths.
        members: number of groups of the topic.
        positions: those of the groups counted here, ascending.
    """

    num: int
    phase: int
    members: int
    positions: tuple[int, ...]

    def allowance(self, second: int) -> int:
        """Starts allowed in an aligned second."""
        return self._before(second + 1) - self._before(second)

    def next_second(self, second: int) -> int | None:
        """The first second from `second` on that allows a start; None if there is no such second."""
        if not self.num or not self.positions:
            return None
        turn = self._turn(second)  # the topic's start of this number goes to the position -1 - turn, modulo n
        turn += min((-1 - turn - position) % self.members for position in self.positions)
        return max(second, -(-((turn + 1) * MICRO - self.phase) // self.num) - 1)

    def _turn(self, second: int) -> int:
        return (self.num * second + self.phase) // MICRO

    def _before(self, second: int) -> int:
        rounds, rest = divmod(self._turn(second), self.members)
        whole = len(self.positions)
        return (rounds + 1) * whole - bisect_left(self.positions, self.members - rest)

    def __float__(self) -> float:
        return self.num / MICRO * len(self.positions) / self.members


NOTHING = Share(0, 1, 0)

Part = Share | Turns
"""The starts of some groups of a division together."""


def share_of(quota: float, origin_s: int = 0) -> Share:
    """The share of a single group, or of a topic as a whole.

    Args:
        origin_s: a second in which a start falls due if the quota is below 1; 0 for none.
    """
    num = round(quota * MICRO)
    return Share(num, MICRO, (MICRO - 1 - num * origin_s) % MICRO if origin_s else 0)


class Division(msgspec.Struct, frozen=True, array_like=True):
    """The groups that share a topic's capacity, and the time from which on.

    Attributes:
        since_s: the first aligned second in which the division is in force; 0 for the beginning of time.
        qps, group_qps: as the topic's.
        active: groups [0, active) share the capacity.
        draining: retired groups that share it, too, because they still hold messages; ascending.
        origin_s: with a qps below 1, the second in which the topic may make its first start; 0: the seconds with a
            start follow from the epoch.
        uneven: the groups' shares in millionths of a start a second, if they are not even; see `emq.topics.changing`.
    """

    since_s: int
    qps: float
    group_qps: float
    active: int
    draining: tuple[int, ...] = ()
    uneven: tuple[int, ...] = ()
    origin_s: int = 0

    @property
    def total(self) -> Share:
        """The share of all groups together."""
        return share_of(self.qps, self.origin_s)

    @property
    def members(self) -> int:
        """The number of groups that share."""
        return self.active + len(self.draining)

    @property
    def deals_whole(self) -> bool:
        """True if every group gets whole starts a second; one group gets the fraction as well."""
        n, total = self.members, round(self.qps * MICRO)
        return bool(self.uneven) or (0 < n * MICRO <= total and -(-total // (n * MICRO)) <= self.group_qps)

    def position(self, group: int) -> int | None:
        """The group's place among those that share; None if it has no share."""
        if group < self.active:
            return group
        i = bisect_left(self.draining, group)
        return self.active + i if i < len(self.draining) and self.draining[i] == group else None

    def share(self, group: int) -> Share:
        """The group's share."""
        position = self.position(group)
        if position is None:
            return NOTHING
        if not self.deals_whole:
            total = self.total
            return Share(total.num, self.members * MICRO, position * MICRO + total.phase)
        return Share(self.micros_of(group), MICRO, 0)

    def part(self, groups: Iterable[int]) -> Part:
        """Return the share of several groups together: in every second, the sum of their shares."""
        # A host may have 20,000 groups of a topic, so no step here is taken for each of them.
        ascending = sorted(groups)
        retired = bisect_left(ascending, self.active)
        positions = ascending[:retired]
        positions += [p for group in ascending[retired:] if (p := self.position(group)) is not None]
        if len(positions) == self.members:
            return self.total
        if self.deals_whole:
            return Share(self._sum_of_micros(positions), MICRO, 0)
        return Turns(self.total.num, self.total.phase, self.members, tuple(positions))

    def _sum_of_micros(self, positions: Sequence[int]) -> int:
        """The sum of `micros_of` over ascending positions."""
        if self.uneven:
            return sum([self.uneven[position] for position in positions])
        base, extra, fraction = self._even()
        more = bisect_left(positions, extra)
        has_fraction = more < len(positions) and positions[more] == extra
        return (base * len(positions) + more) * MICRO + (fraction if has_fraction else 0)

    def _even(self) -> tuple[int, int, int]:
        """Whole starts of each group, how many first groups have one more, and the millionths of the next group beside.

        So with the same groups, a higher qps lowers no share.
        """
        total = round(self.qps * MICRO)
        base, extra = divmod(total // MICRO, self.members)
        return base, extra, total % MICRO

    def micros_of(self, group: int) -> int:
        """The group's share in millionths of a start a second, rounded so that the shares add up to qps exactly."""
        position = self.position(group)
        if position is None:
            return 0
        if self.uneven:
            return self.uneven[position]
        if self.deals_whole:
            base, extra, fraction = self._even()
            return (base + (position < extra)) * MICRO + (fraction if position == extra else 0)
        base, extra = divmod(round(self.qps * MICRO), self.members)
        return base + (position < extra)

    def quota(self, group: int) -> float:
        """The group's share in starts a second; see `micros_of`."""
        return self.micros_of(group) / MICRO

    def ceilings(self) -> Callable[[int], int]:
        """Return a function that gives a group's share in starts a second, rounded up, in less time than `quota`."""
        if self.uneven or not self.members:
            return lambda group: math.ceil(self.quota(group))
        active, position = self.active, self.position
        if self.deals_whole:
            low, more, fraction = self._even()
            high, last = low + 1, more if fraction else -1
        else:
            micros, more = divmod(round(self.qps * MICRO), self.members)
            high, low, last = -(-(micros + 1) // MICRO), -(-micros // MICRO), -1

        def ceiling(group: int) -> int:
            at = group if group < active else position(group)
            if at is None:
                return 0
            return (high if at < more else low) + (at == last)

        return ceiling

    def same_shares(self, other: Division) -> bool:
        """Return True if both give the same shares, whenever they begin."""
        return msgspec.structs.replace(self, since_s=0) == msgspec.structs.replace(other, since_s=0)


class Step(NamedTuple):
    """The starts of some groups of a topic from a second on.

    Attributes:
        since_s: the first aligned second in which `part` is in force.
        part: the starts of these groups.
        qps: the topic's.
    """

    since_s: int
    part: Part
    qps: float


ShareTimeline = Sequence[Step]
"""Steps in order of time. The last one is the newest that is known."""


def of_groups(divisions: Sequence[Division], groups: Sequence[int]) -> ShareTimeline:
    """Return the starts of some groups of a topic together, in order of time."""
    return [Step(division.since_s, division.part(groups), division.qps) for division in divisions]


def in_force(since_s: Sequence[int], second: int) -> int:
    """Index of the step in force in a second, by the first seconds of all; before the first begins, index 0."""
    i = len(since_s) - 1
    while i > 0 and since_s[i] > second:
        i -= 1
    return i


def allowance(course: ShareTimeline, second: int) -> int:
    """Starts allowed in a second: the fewest of the step in force and of coming steps with a lower qps.

    A step with a higher qps counts only once it has begun, since it may have more groups, some with smaller parts.
    """
    if len(course) == 1:
        return course[0].part.allowance(second)
    now, *coming = course[in_force([step.since_s for step in course], second) :]
    return min([step.part.allowance(second) for step in (now, *coming) if step is now or step.qps < now.qps])


def successors(divisions: Sequence[Division], new: Division, now_s: float) -> tuple[Division, ...]:
    """Return the divisions after a change at `now_s` to `new`, with the `since_s` of `new` set.

    Past divisions are left out, and so are those that would begin with the new one or later, since every host knows of
    the new one by then. So few divisions are to come, and the last one begins soon, however often a topic is changed.
    """
    kept = divisions[in_force([d.since_s for d in divisions], math.floor(now_s)) :]
    since_s = learned_s(now_s)
    kept = (kept[0], *(d for d in kept[1:] if d.since_s < since_s))
    last = kept[-1]
    new = msgspec.structs.replace(new, origin_s=last.origin_s if new.qps < 1 else 0)
    if last.same_shares(new):
        return kept
    since_s = max(since_s, last.since_s + 1)  # the first one may begin later, if time was set back
    begun = msgspec.structs.replace(new, since_s=since_s)
    return (*kept, begun if last.qps < 1 else first_due(begun, since_s))


def first_due(division: Division, second: int) -> Division:
    """Return the division, with its first start due in a second if the qps is below 1.

    Else a new topic with a small qps might wait a hundred seconds for its first start.
    """
    return msgspec.structs.replace(division, origin_s=second) if division.qps < 1 else division


def learned_s(changed_s: float) -> int:
    """Return the first aligned second in which every host knows of a change of the catalog at `changed_s`."""
    return math.floor(changed_s) + 1 + LEARN_S


def beginning(new: Division, since_s: int, now_s: float) -> tuple[Division, ...]:
    """Return the divisions of a topic that is created at `now_s` and must start nothing before the second `since_s`.

    Returns an empty tuple if that second has come.
    """
    if now_s >= since_s:
        return ()
    nobody = Division(0, 0.0, new.group_qps, 0)
    return (nobody, first_due(msgspec.structs.replace(new, since_s=since_s), since_s))
