"""Smooth pacing: spreads starts over the second, as a token bucket does."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from emq.quota.bucket import Bucket
from emq.topics import shares
from emq.topics.shares import MICRO
from emq.topics.tokens import USE_S, TokenSource, burst_of

PICO = MICRO * MICRO


class Tokens(Protocol):
    """A supply of tokens; times are microseconds since the epoch."""

    def whole(self, now_us: int) -> int:
        """Return the number of whole tokens now."""

    def take(self, n: int) -> None:
        """Use up `n` of the tokens that `whole` has just returned; a negative number gives tokens back."""

    def next_us(self, now_us: int) -> float:
        """Return the time of the next token. Call this while there is no token."""


class Stock:
    """The tokens of a bucket: in any span of t seconds at most share * t + burst of them. It starts empty."""

    __slots__ = ("_bucket", "_unit")

    def __init__(self, pace: TokenSource, now_us: int) -> None:
        self._unit = pace.share.den * MICRO  # one token is so many of the bucket's, so that these are integers
        most = round(pace.burst * MICRO) * pace.share.den
        self._bucket = Bucket(pace.share.num, most, 0, now_us)

    def whole(self, now_us: int) -> int:
        return self._bucket.fill(now_us) // self._unit

    def take(self, n: int) -> None:
        self._bucket.take(n * self._unit)

    def fill_from(self, other: Stock, now_us: int) -> None:
        """Take over the tokens of another stock, as far as this one can hold them."""
        self._bucket.take(-(other._bucket.fill(now_us) * self._unit // other._unit))

    def next_us(self, now_us: int) -> float:
        bucket = self._bucket
        if bucket.rate == 0:
            return float("inf")
        since_us = max(now_us, bucket.filled_at)  # a new pace may begin later than now
        return float(since_us + -(-max(0, self._unit - bucket.left) // bucket.rate))


class Mint:
    """Tokens that the topic mints one by one at fixed times, in turn for its groups; each is good for a while."""

    __slots__ = ("_lifetime_us", "_members", "_micros", "_next", "_positions", "_since_us")

    def __init__(self, pace: TokenSource, now_us: int) -> None:
        self._micros = pace.share.num
        self._positions, self._members = pace.positions, pace.members
        self._lifetime_us = round(pace.lifetime_s * MICRO)
        self._since_us = now_us
        self._next = 0

    def whole(self, now_us: int) -> int:
        expired = self._minted(max(self._since_us, now_us - self._lifetime_us))
        self._next = max(self._next, expired)
        return max(0, self._minted(now_us) - self._next)

    def take(self, n: int) -> None:
        self._next += n

    def next_us(self, now_us: int) -> float:
        rounds, place = divmod(max(self._next, self._minted(now_us)), len(self._positions))
        k = rounds * self._members + self._positions[place]
        return float(-(-k * PICO // self._micros))

    def _minted(self, until_us: int) -> int:
        """Return how many tokens of these groups were minted from the epoch to `until_us`."""
        rounds, rest = divmod(until_us * self._micros // PICO + 1, self._members)
        return rounds * len(self._positions) + bisect_left(self._positions, rest)


class Pace(NamedTuple):
    """Attributes:
    since_s: the first second in which the pace is in force.
    source: the tokens.
    qps: the topic's.
    """

    since_s: int
    source: TokenSource
    qps: float


Paces = Sequence[Pace]
"""Paces in order of time."""


class SmoothCounter:
    """A counter that grants tokens: over all groups of a topic at most qps * t + burst in *any* span of t seconds.

    A grant may be used for `USE_S` seconds, so a span may hold the starts of so much more.

    The counter starts empty, so that groups gain no burst by moving between hosts. The default burst, 1 + a tenth of
    a second of qps, lets a dispatcher that wakes up to 100 ms late still reach the full rate.

    A change of pace begins at the same second on every host, with an empty supply. The old pace bounds the starts
    before this second, the new pace bounds the starts after it. If the topic's qps falls, a start takes a token of both
    paces until this second, so that the lower qps counts at once.
    """

    __slots__ = ("_coming", "_paces", "_qps", "_since_us", "_tokens", "reserved", "rolled_back")

    def __init__(self, paces: float | Paces, now: float, burst: float | None = None) -> None:
        """Args:
        paces: the paces of a topic's groups on one host; or starts a second, for a topic of one group.
        burst: tokens, only with a number as `paces`; None for the default.
        """
        self._paces: Paces = ()
        self._tokens: Tokens | None = None
        self._qps = 0.0
        self._coming: list[tuple[Pace, Tokens]] = []
        self._since_us = 0  # since then, grants take the tokens that they take now
        self.reserved = 0
        self.rolled_back = 0
        if isinstance(paces, int | float):
            paces = [Pace(0, TokenSource(shares.share_of(paces), burst_of(paces, burst)), paces)]
        self.set_paces(paces, now)

    def reserve(self, n: int, now: float) -> int:
        now_us = int(now * 1e6)
        supplies = self._supplies(now_us)
        granted = min(n, *(tokens.whole(now_us) for tokens in supplies))
        for tokens in supplies:
            tokens.take(granted)
        self.reserved += granted
        return granted

    def available(self, now: float) -> int:
        now_us = int(now * 1e6)
        return min(tokens.whole(now_us) for tokens in self._supplies(now_us))

    def release(self, n: int, at: float) -> None:
        self.rolled_back += n
        at_us = int(at * 1e6)
        if at_us > self._since_us:  # else these tokens were of another pace
            for tokens in self._supplies(at_us):
                tokens.take(-n)

    def valid_until(self, now: float) -> float:
        # Tokens taken now and used later would make that later second fuller than the bucket allows.
        return now + USE_S

    def next_at(self, now: float) -> float:
        now_us = int(now * 1e6)
        at = max(0.0 if tokens.whole(now_us) else tokens.next_us(now_us) / 1e6 for tokens in self._supplies(now_us))
        return min(at, self._coming[0][0].since_s) if self._coming else at

    def set_paces(self, paces: Paces, now: float, *, moved: bool = False) -> None:
        """Follow a change; known paces keep their tokens.

        Args:
            moved: only the groups on this host have changed. The present groups keep as many tokens as they can hold.
        """
        now_us = self._since_us = max(int(now * 1e6), self._since_us)  # the first pace may begin later than now
        known = dict(self._coming)
        first = shares.in_force([pace.since_s for pace in paces], int(now))
        if self._tokens is None or paces[first] not in self._paces:
            made = _tokens(paces[first].source, now_us)
            if moved and isinstance(made, Stock) and isinstance(self._tokens, Stock):
                made.fill_from(self._tokens, now_us)
            self._tokens = made
        self._qps = paces[first].qps
        self._coming = [(pace, known.get(pace) or _tokens(pace.source, now_us)) for pace in paces[first + 1 :]]
        self._paces = paces

    def _supplies(self, now_us: int) -> list[Tokens]:
        while self._coming and self._coming[0][0].since_s * MICRO <= now_us:
            (since_s, source, self._qps), _ = self._coming.pop(0)
            self._since_us = since_s * MICRO
            self._tokens = _begun(source, self._since_us)
        assert self._tokens is not None
        if not self._coming:
            return [self._tokens]
        return [self._tokens, *(tokens for pace, tokens in self._coming if pace.qps < self._qps)]


def _tokens(pace: TokenSource, now_us: int) -> Tokens:
    return Mint(pace, now_us) if pace.lifetime_s else Stock(pace, now_us)


def _begun(pace: TokenSource, since_us: int) -> Tokens:
    """Return the tokens of a pace that begins now on all hosts, without the topic's first token.

    The first token might come at once, but the bound before the change allows no further start.
    """
    if pace.lifetime_s:
        since_us = -(-(since_us * pace.share.num // PICO + 1) * PICO // pace.share.num)
    return _tokens(pace, since_us)
