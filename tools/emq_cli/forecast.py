"""The forecast: runs the real planner on hypothetical hosts and groups."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from emq.allocation import records
from emq.allocation.leader import DEBOUNCE_S
from emq.allocation.plan import drafting, handler_sets
from emq.allocation.plan.drafting import Place, Previous
from emq.allocation.plan.levelling import ENOUGH, SHED
from emq.allocation.plan.loads import shares_of
from emq.allocation.plan.units import NO_UNITS, Units
from emq.allocation.records import Pointer, Record, Running
from emq.runtime import plurals
from emq.topics import budgets, model
from emq.topics.model import Topic

GROUPS = 20_000
"""Default number of groups in a forecast."""

MESSAGE_US = 2.6
"""Microseconds of one core for a message whose handler does nothing, measured with 60,000 queues."""

UTILISATION = 0.6
"""Largest planned share of a core that a host uses; the rest is for bursts, and for groups of hosts that fail."""

WINDOW_S = 1.0
"""Seconds of a window; a new owner starts nothing in the window in which it takes over."""

LEAST_QPS = 0.01

GENERATION = 1_800_000_000
"""First generation of a forecast; real ones are seconds since 1970, so this one gives nodes of the real size."""

Quotas = Mapping[str, float]


class Pause(NamedTuple):
    """Seconds for which no host serves a group that moves, without the time for messages in flight.

    Attributes:
        typical: the average case: the next second begins half a second later.
        most: the worst case: a second has just begun.
    """

    typical: float
    most: float


class Step(NamedTuple):
    """One change of a cluster.

    Attributes:
        what: the change in words.
        hosts: number of hosts after the change.
        loads: load of each host over its fair share, the emptiest host first.
        max_over_mean: the largest of these loads.
        groups_moved: number of groups that got another host.
        least: the fewest groups that had to move; a lower bound where hosts were added.
        plan_s: seconds that this process took to plan.
        pause: the pause of the groups that moved.
        writes, reads: nodes of the coordination tree that all hosts together write and read.
        written_bytes: bytes of the plan's nodes.
    """

    what: str
    hosts: int
    loads: list[float]
    max_over_mean: float
    groups_moved: int
    least: int
    plan_s: float
    pause: Pause
    writes: int
    reads: int
    written_bytes: int

    @property
    def moves_over_minimum(self) -> float:
        """Moved groups over the fewest possible; 1 where no group had to move and none did."""
        return self.groups_moved / self.least if self.least else 1.0 if not self.groups_moved else math.inf


def hosts_for(qps: float, message_us: float = MESSAGE_US, utilisation: float = UTILISATION) -> int:
    """Return the number of host processes for a rate of `qps` messages a second, at least 1.

    Args:
        message_us: microseconds of one core for a message.
        utilisation: largest share of a core that each host may use, above 0, at most 1.
    """
    # Sums of quotas are a few millionths off; the rounding keeps this error from adding a host.
    return max(1, math.ceil(round(qps * message_us / 1e6 / utilisation, 3)))


def skewed(topics: int, qps: float | None, skew: float, seed: int = 1) -> dict[str, float]:
    """Return the quotas of the groups of made-up topics, whose sizes fall by Zipf's law.

    Args:
        topics: number of topics, at least 1.
        qps: rate of all topics together; None for the rate that makes `GROUPS` groups.
        skew: the exponent; 0 makes all topics equal, 1 makes the tenth topic a tenth of the largest.
        seed: another seed gives the topics other names, hence other places on the ring.
    """
    sizes = [rank**-skew for rank in range(1, topics + 1)]
    total = math.fsum(sizes)
    if qps is None:
        qps = _qps_for_groups(sizes)
    random_ = random.Random(seed)
    names = [f"topic-{random_.getrandbits(40):010x}" for _ in sizes]
    return quotas_of(
        Topic(name, max(LEAST_QPS, round(qps * size / total, 6))) for name, size in zip(names, sizes, strict=True)
    )


def _qps_for_groups(sizes: Sequence[float]) -> float:
    """Return, by bisection, the rate that makes about `GROUPS` groups; 1 a second each for `GROUPS` topics or more."""
    if len(sizes) >= GROUPS:
        return float(len(sizes))
    total, low, high = math.fsum(sizes), 0.0, model.DEFAULT_GROUP_QPS * GROUPS
    for _ in range(50):
        middle = (low + high) / 2
        count = sum(max(1, math.ceil(middle * size / total / model.DEFAULT_GROUP_QPS)) for size in sizes)
        low, high = (middle, high) if count <= GROUPS else (low, middle)
    return low


def quotas_of(topics: Iterable[Topic]) -> dict[str, float]:
    """Return the quota of each group of the topics, 0 below a budget; split topics that have no groups yet."""
    split = (topic if topic.groups else model.split(topic) for topic in topics)
    return {group: quota for topic in split for group, quota in budgets.loads(topic, range(topic.groups)).items()}


class Forecast:
    """A hypothetical cluster; each step starts from the plan of the step before.

    Args:
        quotas: group to its quota in starts a second.
        session_timeout_s: seconds after which the cluster gives up a killed host.
        units: topic to its unit, for topics that share a budget.
    """

    def __init__(self, quotas: Quotas, session_timeout_s: float = 10.0, seed: int = 1, units: Units = NO_UNITS) -> None:
        self.quotas = quotas
        self._units = units
        self.weights: dict[str, float] = {}
        self._timeout_s = session_timeout_s
        self._random = random.Random(seed)
        self._previous: Previous | None = None
        self._generation = GENERATION
        self._named = 0

    def start(self, hosts: int) -> Step:
        """Plan for a new cluster of `hosts` hosts."""
        self._name(hosts, 1.0)
        return self._step(f"{plurals.count(hosts, 'host')} start{'s' if hosts == 1 else ''}", 0, lost=False)

    def kill(self, count: int) -> Step:
        """Kill `count` hosts, chosen at random."""
        gone = set(self._random.sample(sorted(self.weights), count))
        before = self._owner()
        for host in gone:
            del self.weights[host]
        least = sum(host in gone for host in before.values())
        return self._step(f"{count:,} of them killed", least, lost=True)

    def add(self, count: int, weight: float = 1.0) -> Step:
        """Let `count` hosts join."""
        before = self._owner()
        new = self._name(count, weight)
        return self._step(f"{count:,} added", self._least_to_add(before, new), lost=False)

    def _name(self, count: int, weight: float) -> list[str]:
        new = [f"host-{self._named + i:04d}-{self._random.getrandbits(20):05x}" for i in range(count)]
        self._named += count
        self.weights |= dict.fromkeys(new, weight)
        return new

    def _owner(self) -> dict[str, str]:
        return {} if self._previous is None else {g: place.host for g, place in self._previous.places.items()}

    def _step(self, what: str, least: int, *, lost: bool) -> Step:
        before, began = self._owner(), time.perf_counter()
        made = handler_sets.plan_for({}, self.quotas, self.weights, before, (), self._units)
        plan_s = time.perf_counter() - began
        moved = sum(before.get(group, host) != host for group, host in made.owner.items())
        traffic = self._publish(drafting.places(made, self.quotas), made.moved)
        loads = sorted(self._loads(made.owner).values())
        return Step(
            what,
            len(self.weights),
            loads,
            made.max_over_mean,
            moved,
            least,
            plan_s,
            self._pause(plan_s, lost),
            *traffic,
        )

    def _loads(self, owner: Mapping[str, str]) -> dict[str, float]:
        shares = shares_of(math.fsum(self.quotas.values()), self.weights, self.weights)
        load = dict.fromkeys(self.weights, 0.0)
        for group, host in owner.items():
            load[host] += self.quotas[group]
        return {host: load[host] / share for host, share in shares.items()}

    def _pause(self, plan_s: float, lost: bool) -> Pause:
        """Return the pause of a move; a live host serves its groups until it hears of the plan, a killed one does not.

        A killed host had renewed its session within the last third of a time-out. So the session ends two thirds of a
        time-out to a whole one after the kill.
        """
        pause = Pause(WINDOW_S / 2, WINDOW_S)
        if not lost:
            return pause
        given_up = DEBOUNCE_S + plan_s
        return Pause(pause.typical + self._timeout_s * 5 / 6 + given_up, pause.most + self._timeout_s + given_up)

    def _publish(self, owner: Mapping[str, str], why: Mapping[str, str]) -> tuple[int, int, int]:
        """Put the plan into force; return the writes, reads and written bytes of `leader` and `member`.

        The leader writes the lists that change, the record and the catalog's version, and deletes the former lists.
        Each host reads the record and its list, if the list changed, and announces that it did. A losing host
        announces again when it let go of its groups. A gaining host reads the announcement of each former owner before
        and after. The leader reads all announcements.
        """
        self._generation += 1
        members = {h: Running(h, "", 0, w, 0.0, generation=self._generation - 1) for h, w in self.weights.items()}
        lists = drafting.draft(self._generation, owner, why, members, self._previous, 0.0)
        before: dict[str, dict[str, records.Entry]] = {}
        for group, place in (self._previous.places if self._previous is not None else {}).items():
            before.setdefault(place.host, {})[group] = place.entry
        changed = {host: entries for host, entries in lists.items() if entries != before.get(host)}
        chunks = {host: records.encode_list(entries) for host, entries in changed.items()}
        pointers = {host: Pointer(host, self._generation, len(chunks.get(host, (b"",)))) for host in lists}
        record = records.encode(Record("online", self._generation, 1, "host", float(self._generation), pointers))
        awaited = {
            (host, former.host)
            for host, entries in changed.items()
            for entry in entries.values()
            if entry.epoch == self._generation
            for former in entry.after
            if former.host != records.EVERYBODY
        }
        losers = len({former for _, former in awaited})
        nodes = [chunk for made in chunks.values() for chunk in made]
        said = len(members) + losers
        writes = len(nodes) + 2 + len(changed.keys() & before.keys()) + said
        reads = len(members) + len(nodes) + 2 * len(awaited) + said
        self._previous = Previous(
            {group: Place(host, entry) for host, entries in lists.items() for group, entry in entries.items()},
            {host: host for host in members},
        )
        return writes, reads, len(record) + sum(map(len, nodes))

    def _least_to_add(self, before: Mapping[str, str], new: Sequence[str]) -> int:
        """Return a lower bound: the fewest groups that fill the new hosts, or that the others must shed, if more."""
        shares = shares_of(math.fsum(self.quotas.values()), self.weights, self.weights)
        fill = fewest_for(self.quotas.values(), ENOUGH * math.fsum(shares[host] for host in new))
        owned: dict[str, list[float]] = {}
        for group, host in before.items():
            owned.setdefault(host, []).append(self.quotas[group])
        shed = sum(fewest_for(mine, math.fsum(mine) - SHED * shares[host]) for host, mine in owned.items())
        return max(fill, shed)


def fewest_for(quotas: Iterable[float], need: float) -> int:
    """Return the fewest quotas that together reach `need`, as their number: the largest ones."""
    count = 0
    for quota in sorted(quotas, reverse=True):
        if need <= 0:
            break
        need -= quota
        count += 1
    return count
