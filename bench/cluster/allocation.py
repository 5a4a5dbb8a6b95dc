"""Plans for many hosts: the time to plan, the evenness of the load, and the moves when hosts come and go.

`moves_over_minimum` counts groups, `quota_over_minimum` their quotas. The minimum for a host that leaves is the groups
that it had. The minimum for a host that joins is a lower bound, the larger of two numbers: the largest groups of all
that together make 95 % of its fair share, and the largest groups that the other hosts must shed to be within 1.10 of
their fair shares. The bound ignores floors: it may take more from a host than the host can spare.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from bench.support.figures import Benchmark, Figure
from bench.support.stage import Stage, Stopwatch
from emq.allocation.plan.levelling import ENOUGH, SHED
from emq.allocation.plan.plan import Plan, plan
from emq.runtime import plurals
from emq_cli.forecast import fewest_for

GROUP_QPS = 50
LEAST_QPS = 0.5
ALWAYS = ("max_over_mean", "replaced_max_over_mean", "moves_if_nothing_changed")
"""Figures that are the worst of all seeds; others are the median."""

T = TypeVar("T")
Owners = Mapping[str, str]
Quotas = Mapping[str, float]


class Cost(NamedTuple):
    """The moved groups, as their number and the sum of their quotas."""

    groups: float
    quota: float

    def over(self, minimum: Cost) -> Cost:
        """Return the ratio to the minimum; 1 if there is nothing to move."""
        return Cost(*(mine / least if least else 1.0 for mine, least in zip(self, minimum, strict=True)))


def skewed_quotas(groups: int, zipf: float, seed: int) -> dict[str, float]:
    """Return the quotas of groups of tenants whose qps fall by Zipf's law, the last one to 0.5.

    Each tenant is split evenly. Bisection finds the top tenant's qps for which the tenants down to 0.5 have this many
    groups.
    """
    low, high = LEAST_QPS, float(GROUP_QPS * groups)
    for _ in range(50):
        top = (low + high) / 2
        low, high = (top, high) if _groups(top, zipf, groups) < groups else (low, top)
    random_ = random.Random(seed)
    found: dict[str, float] = {}
    for tenant, qps in sorted((f"t{random_.getrandbits(40):010x}", qps) for qps in _sizes(high, zipf, groups)):
        count = _split(qps)
        found.update({f"{tenant}/{i}": qps / count for i in range(count)})
    return dict(list(found.items())[:groups])


def _sizes(top: float, zipf: float, most: int) -> Iterable[float]:
    for rank in range(1, most + 1):
        if (qps := top / rank**zipf) < LEAST_QPS:
            return
        yield round(qps, 6)


def _groups(top: float, zipf: float, most: int) -> int:
    return sum(_split(qps) for qps in _sizes(top, zipf, most))


def _split(qps: float) -> int:
    return max(1, math.ceil(qps / GROUP_QPS))


def moved(before: Owners, after: Owners, quotas: Quotas) -> Cost:
    groups = [group for group, host in after.items() if before[group] != host]
    return Cost(len(groups), sum(quotas[group] for group in groups))


def least_to_leave(host: str, before: Owners, quotas: Quotas) -> Cost:
    groups = [group for group, owner in before.items() if owner == host]
    return Cost(len(groups), sum(quotas[group] for group in groups))


def least_to_join(before: Owners, quotas: Quotas, hosts: int) -> Cost:
    """Return a lower bound for a host that joins `hosts` others, all of equal weight."""
    share = sum(quotas.values()) / (hosts + 1)
    fill = fewest_for(quotas.values(), ENOUGH * share)
    owned: dict[str, list[float]] = {}
    for group, host in before.items():
        owned.setdefault(host, []).append(quotas[group])
    shed = sum(fewest_for(mine, sum(mine) - SHED * share) for mine in owned.values())
    excess = sum(max(0.0, sum(mine) - SHED * share) for mine in owned.values())
    return Cost(max(fill, shed), max(ENOUGH * share, excess))


def leave(owner: Owners, hosts: list[str], gone: str, quotas: Quotas) -> tuple[Plan, Cost]:
    """Return the plan without the host, and the cost over the minimum."""
    made = plan(quotas, dict.fromkeys((host for host in hosts if host != gone), 1.0), owner)
    return made, moved(owner, made.owner, quotas).over(least_to_leave(gone, owner, quotas))


def join(owner: Owners, hosts: list[str], new: str, quotas: Quotas) -> tuple[Plan, Cost]:
    """Return the plan with the host added, and the cost over the minimum."""
    made = plan(quotas, dict.fromkeys([*hosts, new], 1.0), owner)
    return made, moved(owner, made.owner, quotas).over(least_to_join(owner, quotas, len(hosts)))


def replaced(owner: Owners, hosts: list[str], quotas: Quotas, times: int, random_: random.Random) -> dict[str, float]:
    """Let one host after the other leave and a new one join; return the figures."""
    hosts, evenness, costs = list(hosts), list[float](), list[Cost]()
    for i in range(times):
        gone = random_.choice(hosts)
        made, cost = leave(owner, hosts, gone, quotas)
        hosts.remove(gone)
        again, more = join(made.owner, hosts, f"new-{i}", quotas)
        hosts.append(f"new-{i}")
        owner = again.owner
        evenness += [made.max_over_mean, again.max_over_mean]
        costs += [cost, more]
    return {
        "replaced_max_over_mean": max(evenness, default=1.0),
        "replaced_moves_over_minimum": statistics.fmean(c.groups for c in costs) if costs else 1.0,
        "replaced_quota_over_minimum": statistics.fmean(c.quota for c in costs) if costs else 1.0,
    }


def timed(make: Callable[[], T]) -> tuple[T, float]:
    watch = Stopwatch()
    return make(), watch.wall_s


def measure(groups: int, hosts: int, zipf: float, replace: int, seed: int) -> dict[str, float]:
    """Return the figures of one seed."""
    quotas = skewed_quotas(groups, zipf, seed)
    names = [f"host-{seed}-{i}" for i in range(hosts)]
    weights = dict.fromkeys(names, 1.0)
    random_ = random.Random(seed)
    made, fresh_s = timed(lambda: plan(quotas, weights))
    same, again_s = timed(lambda: plan(quotas, weights, made.owner))
    gone = random_.choice(names)
    (left, leaving), leave_s = timed(lambda: leave(made.owner, names, gone, quotas))
    (joined, joining), join_s = timed(lambda: join(made.owner, names, "new", quotas))
    return {
        "plan_s": max(fresh_s, again_s),
        "fresh_plan_s": fresh_s,
        "next_plan_s": again_s,
        "leave_s": leave_s,  # includes the count of the moves, a few hundredths of a second
        "join_s": join_s,
        "moves_if_nothing_changed": len(same.moved),
        "max_over_mean": max(p.max_over_mean for p in (made, left, joined)),
        "moves_over_minimum": max(leaving.groups, joining.groups),
        "leave_moves_over_minimum": leaving.groups,
        "join_moves_over_minimum": joining.groups,
        "quota_over_minimum": max(leaving.quota, joining.quota),
        **replaced(made.owner, names, quotas, replace, random_),
    }


async def run(stage: Stage, *, groups: int, hosts: int, zipf: float, replace: int, seeds: int) -> dict[str, Any]:
    found: list[dict[str, float]] = []
    for seed in range(1, seeds + 1):
        stage.say(
            f"seed {seed} of {seeds}: {plurals.count(groups, 'group')} on {plurals.count(hosts, 'host')}, {replace} "
            "of them replaced"
        )
        found.append(measure(groups, hosts, zipf, replace, seed))
    values: dict[str, Any] = {}
    for name in found[0]:
        ordered = sorted(one[name] for one in found)
        values[name] = ordered[-1] if name in ALWAYS else statistics.median(ordered)
        if ordered[-1] > ordered[0]:
            values[f"{name}_spread"] = ordered[-1] - ordered[0]
    return values


BENCHMARK = Benchmark(
    run,
    options=(
        ("groups", 20_000, "groups, of at most 50 a second"),
        ("hosts", 1_000, "hosts, at least 2"),
        ("zipf", 1.5, "exponent of the tenants' sizes; the smaller, the more groups are small"),
        ("replace", 100, "hosts replaced one by one"),
        ("seeds", 3, "seeds to run; the figures are the median, the spread is the largest less the smallest"),
    ),
    figures=(
        Figure("plan_s", "<", 1.0),
        Figure("max_over_mean", "<=", 1.10),
        Figure("moves_over_minimum", "<=", 1.2),
        Figure("replaced_max_over_mean", "<=", 1.10),
        Figure("replaced_moves_over_minimum", "<=", 1.2),
        Figure("moves_if_nothing_changed", "==", 0),
    ),
    stores=("memory",),
)
