"""Learns how long endpoints keep idle connections, if they do not say so.

An endpoint may close a connection just when the next request is sent. That request fails, and counts as an attempt,
since the endpoint may have read it. One such failure shows how long connections of an endpoint's address may be used,
so that the same failure does not come again and again.
"""

from __future__ import annotations

from emq_push.turns import Place

KNOWN_S = 600.0
"""Seconds for which a failure is remembered; then the connections of the place are kept as those of others."""
AT_ONCE_S = 0.1
"""If an idle connection was gone sooner than this, in seconds, no connection of the place is kept."""
NONE_S = -1.0
MOST = 10_000
"""Most places that are remembered; the oldest failure is forgotten first."""


class Habits:
    """Learns from requests that found their connection closed."""

    def __init__(self) -> None:
        self._known: dict[Place, tuple[float, float]] = {}

    def closed(self, place: Place, idle_s: float, now: float) -> None:
        """Note that a connection that had been idle for this time was gone."""
        self._known.pop(place, None)
        self._known[place] = (NONE_S if idle_s < AT_ONCE_S else idle_s / 2), now + KNOWN_S
        if len(self._known) > MOST:
            del self._known[next(iter(self._known))]

    def kept_s(self, place: Place, now: float) -> float:
        """Return for how long an idle connection may be used; infinity if nothing is known, negative for not at all."""
        found = self._known.get(place) if self._known else None
        if found is None:
            return float("inf")
        kept_s, until = found
        if now > until:
            del self._known[place]
            return float("inf")
        return kept_s
