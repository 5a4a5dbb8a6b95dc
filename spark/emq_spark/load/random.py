"""Repeatable chance: every property of a message is a hash of seed, tenant, and number of the message.

So any task makes the same message, at any time and in any order, and a second attempt makes the same messages again.
The hash is SplitMix64 (Steele, Lea, Flood 2014).
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any
"""A numpy array."""

PHASE, PRIORITY, KEY, SIZE, PAYLOAD, REPEAT, REPEATED, DELAY, DELAY_S, NUMBER = range(10)
"""Properties that are drawn, each independently of the others."""

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def tenant_seed(seed: int, tenant: int) -> int:
    """Return the seed of one tenant."""
    return _scalar(_scalar(seed) ^ (tenant + 1))


def uniform(tenants: Array, what: int, numbers: Array) -> Array:
    """Return a number from 0 to below 1 for each message.

    Args:
        tenants: the seed of each message's tenant, see `tenant_seed`.
        what: the property to draw, one of the constants above.
        numbers: the number of each message, counted for each tenant from 0.
    """
    salt = np.uint64((what + 1) * 0xD1B54A32D192ED03 & _MASK)
    mixed = _mix(tenants + salt + numbers.astype(np.uint64) * np.uint64(_GOLDEN))
    return (mixed >> np.uint64(11)) * 2.0**-53


def skewed(u: Array, count: int, zipf: float) -> Array:
    """Return whole numbers below `count`; the higher `zipf`, the more frequent are low ones (inverse of x**-zipf)."""
    if zipf == 0:
        drawn = u * count
    elif abs(zipf - 1) < 1e-9:
        drawn = (count + 1.0) ** u - 1
    else:
        end = (count + 1.0) ** (1 - zipf)
        drawn = (1 + u * (end - 1)) ** (1 / (1 - zipf)) - 1
    return np.minimum(drawn.astype(np.int64), count - 1)


def _mix(x: Array) -> Array:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _scalar(x: int) -> int:
    x = (x + _GOLDEN) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
