"""Pools for the benchmarks: drawn at random, the same for the same seed."""

from __future__ import annotations

import random

from emq_scheduling.model import Limit, Pool, Resource, TaskType
from emq_scheduling.pools import rules

NAME = "bench"

KINDS = ("verification", "alert", "receipt", "reminder", "marketing")
"""The types of `overlapping`, the most urgent first."""

SIZES = (1, 2, 1, 2, 1)
"""Units of each limit that a task of each type costs. A larger task costs more of every limit, as a long text message
does. So how much work the resources can do does not depend on which types they do, and strict priorities need not
cost work: the optimum of a linear program, which knows no priorities, is a fair bound."""

TOKENS = 100.0
"""Tokens for each unit of size."""

DURATION_S = 0.02


def overlapping(resources: int = 50, accounts: int = 10, seed: int = 1) -> Pool:
    """Return resources that take two to four of five types each, nested: provider > account > resource.

    Each resource has a limit a second, and two of five have tokens a minute, too, of which either limit may be the
    tighter one. Some accounts and providers allow less than what is below them together.
    """
    chance = random.Random(seed)
    found: dict[str, Resource] = {}
    below: dict[str, float] = {}
    for number in range(resources):
        per_s = 2 * chance.randint(8, 30)
        limits = [Limit("requests", per_s, "second")]
        if chance.random() < 0.4:
            limits.append(Limit("tokens", round(per_s * 60 * TOKENS * chance.uniform(0.5, 1.2)), "minute"))
        account = f"account-{number % accounts}"
        takes = sorted(chance.sample(KINDS, chance.randint(2, 4)), key=KINDS.index)
        found[f"channel-{number}"] = Resource(
            parent=account, limits=tuple(limits), takes={kind: {} for kind in takes}, weight=float(chance.randint(1, 3))
        )
        below[account] = below.get(account, 0.0) + per_s
    providers: dict[str, float] = {}
    for number in range(accounts):
        account, provider = f"account-{number}", f"provider-{number % 2}"
        allowed = 2 * round(below[account] * chance.uniform(0.6, 1.2) / 2)
        found[account] = Resource(parent=provider, limits=(Limit("requests", allowed, "second"),))
        providers[provider] = providers.get(provider, 0.0) + min(allowed, below[account])
    for provider, possible in providers.items():
        allowed = 2 * round(possible * chance.uniform(0.8, 1.1) / 2)
        found[provider] = Resource(limits=(Limit("requests", allowed, "second"),))
    return checked(found)


def checked(resources: dict[str, Resource]) -> Pool:
    """Return the pool of these resources with the five types."""
    types = {
        kind: TaskType(
            priority=priority, costs={"requests": float(size), "tokens": size * TOKENS}, duration_s=DURATION_S
        )
        for priority, (kind, size) in enumerate(zip(KINDS, SIZES, strict=True))
    }
    pool = Pool(NAME, resources=resources, types=types)
    rules.check(pool)
    return pool
