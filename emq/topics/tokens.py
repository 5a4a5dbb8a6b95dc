"""Tokens: the starts of a topic with smooth pacing, dealt out to its groups by their shares (`emq.topics.shares`)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from emq.topics.shares import MICRO, NOTHING, Division, Share, share_of

USE_S = 0.001
"""Seconds for which a smooth topic's granted start may be used."""

LEAST_LIFETIME_S = 0.01
"""Shortest lifetime in seconds of a token that is minted at a fixed time, since no host can wake exactly then."""

BUCKET_SLACK_S = 0.05
"""Seconds by which a group with a bucket of its own may wake late without losing a start."""


class TokenSource(NamedTuple):
    """The way in which some groups of a smooth topic get their tokens. The bursts of all groups add up to the topic's.

    A *bucket* holds up to `burst` tokens and fills at the groups' share. If the topic's burst is too small to be split
    into buckets of a token or more for each group, tokens are *minted*: the topic's token k at the time k / qps, for
    the group at position k modulo n, valid for `lifetime_s`. Starts in t seconds then use tokens that were minted in
    t + lifetime_s seconds: at most qps * t + 1 + qps * lifetime_s of them over all groups.

    Attributes:
        share: the groups' share for a bucket; the topic's share if tokens are minted.
        burst: tokens that the bucket holds; 0 if tokens are minted.
        lifetime_s, positions, members: for minted tokens only: the positions of the groups, ascending, and n. A group
            with a larger share than others has several positions.
    """

    share: Share
    burst: float
    lifetime_s: float = 0.0
    positions: tuple[int, ...] = (0,)
    members: int = 1


def burst_of(qps: float, burst: float | None) -> float:
    """Tokens that may pile up over all groups of a smooth topic: as set, else 1 plus a tenth of a second of qps."""
    return 1 + qps / 10 if burst is None else burst


def smooth_burst(division: Division, burst: float | None) -> float:
    """Return `burst_of`, or more with many groups: the number to which tokens of the shortest lifetime may pile up."""
    topic = burst_of(division.qps, burst)
    if division.members <= 1 or _has_buckets(division, topic):
        return topic
    return max(topic, 1 + division.qps * LEAST_LIFETIME_S)


def pace(division: Division, groups: Iterable[int], burst: float | None) -> TokenSource:
    """Return the source of tokens of some groups together."""
    topic = burst_of(division.qps, burst)
    positions = tuple(sorted(p for group in groups if (p := division.position(group)) is not None))
    n = division.members
    if division.uneven:
        turns = _turns(division.uneven)
        mine = frozenset(positions)
        positions, n = tuple(i for i, position in enumerate(turns) if position in mine), len(turns)
    if not positions:
        return TokenSource(NOTHING, 0.0)
    if n == 1 or _has_buckets(division, topic):  # the same on all hosts, or a move would add a token of the other kind
        part = division.part(groups)
        share = part if isinstance(part, Share) else Share(part.num * len(positions), MICRO * n, 0)
        return TokenSource(share, topic * float(share) / division.qps)
    lifetime_s = max((topic - 1) / division.qps, LEAST_LIFETIME_S)
    return TokenSource(share_of(division.qps), 0.0, lifetime_s, positions, n)


def _turns(uneven: Sequence[int]) -> list[int]:
    """Return the positions of groups with uneven shares, in the order in which the topic's tokens go to them in turn.

    A group of 50 whole starts a second beside one of 10 has five turns for each turn of the other.
    """
    starts = [max(1, micros // MICRO) for micros in uneven]
    unit = math.gcd(*starts)
    return [i for turn in range(0, max(starts), unit) for i, n in enumerate(starts) if n > turn]


def _has_buckets(division: Division, burst: float) -> bool:
    if division.uneven:
        return False  # a small share would hold no whole token
    n = division.members
    least = math.floor(division.qps / n) if division.deals_whole else division.qps / n
    return burst * least / division.qps >= 1 + BUCKET_SLACK_S * math.ceil(division.qps / n)
