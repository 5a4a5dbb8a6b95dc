"""The throttles of the topics on one host, set by their handlers."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from typing import Protocol

from emq.dispatch import retry
from emq.groups.owned import OwnedGroup, OwnedTopic
from emq.quota.throttle import Throttle
from emq.runtime import errors
from emq.runtime.clock import Clock
from emq.storage.message import Message
from emq.trail import events
from emq.trail.sink import TrailSink

log = logging.getLogger(__name__)

LONGEST_S = 366 * 86_400.0
"""Most seconds for which a topic can be closed: a year. A longer time is more likely a mistake of units."""

SOON_S = 1.0
"""A rising limit does not wake a group that wakes by itself within this many seconds."""


class Starts(Protocol):
    """What throttles tell the dispatcher."""

    def recheck(self, group: OwnedGroup) -> None:
        """Look at the group now, even if it is parked."""

    def revoke(self, owner: OwnedTopic) -> None:
        """Give back the starts that the topic's groups have been granted and have not used."""


class Throttles:
    """Closes topics on this host for a while, or lets them start fewer messages than their quota.

    For handlers whose endpoint or resource cannot take the topic's whole quota now. Messages that are held back wait in
    their order, use no attempt and no quota, and expire as others do. A throttle ends when the topic's last group
    leaves this host (the next owner learns by itself), and when the topic's attributes change, since these may name
    another endpoint. All methods ignore a topic that has no group here.
    """

    def __init__(self, owned: Mapping[str, OwnedTopic], starts: Starts, clock: Clock, trail: TrailSink) -> None:
        """Args:
        owned: topics with a group on this host, by name.
        trail: records the messages that handlers give back.
        """
        self._owned = owned
        self._starts = starts
        self._clock = clock
        self._trail = trail

    def __iter__(self) -> Iterator[tuple[str, Throttle]]:
        """Yield the topics that have a throttle now, with their throttles."""
        found = [
            (name, owner.throttle_at(self._clock.now()))
            for name, owner in self._owned.items()
            if owner.throttle is not None
        ]
        return iter([(name, throttle) for name, throttle in found if throttle is not None])

    def of(self, topic: str) -> Throttle | None:
        """Return the topic's throttle; None if the topic uses its whole quota, or has no group here."""
        owner = self._owned.get(topic)
        return None if owner is None else owner.throttle_at(self._clock.now())

    def quota(self, topic: str) -> float:
        """Return the starts a second that the topic's groups on this host may make without a throttle."""
        owner = self._owned.get(topic)
        return 0.0 if owner is None else sum(group.quota for group in owner.groups.values())

    def close(self, topic: str, for_s: float, reason: str) -> None:
        """Start nothing of the topic for `for_s` seconds, 0 to a year; then one message, as a probe.

        After the probe call `open`, `limit` or `close`. Without such a call another probe starts a minute later.

        Raises:
            InvalidSettings: `for_s` is out of range.
        """
        if not 0 <= for_s <= LONGEST_S:
            raise errors.InvalidSettings(f"a topic cannot be closed for {for_s!r} s; give 0 to {LONGEST_S:.0f}")
        if (owner := self._owned.get(topic)) is not None:
            now = self._clock.now()
            if owner.throttle_at(self._clock.now()) is None:
                log.info("topic %s is closed on this host for %.1f s: %s", topic, for_s, reason)
            self._starts.revoke(owner)
            self._throttle(owner).close(now + for_s, reason, now)
            self._look_at(owner)

    def pause(self, topic: str, for_s: float, reason: str) -> None:
        """Start nothing of the topic for `for_s` seconds; then go on as before, at the limit that it had, if any.

        A closed topic stays closed, at least for this time. Use this if the handler lacks something itself, which says
        nothing about its endpoint.

        Raises:
            InvalidSettings: `for_s` is not from 0 to a year.
        """
        if not 0 <= for_s <= LONGEST_S:
            raise errors.InvalidSettings(f"a topic cannot be paused for {for_s!r} s; give 0 to {LONGEST_S:.0f}")
        if (owner := self._owned.get(topic)) is not None:
            now, before = self._clock.now(), owner.throttle_at(self._clock.now())
            if before is None:
                log.info("topic %s pauses on this host for %.1f s: %s", topic, for_s, reason)
            self._starts.revoke(owner)
            self._throttle(owner).pause(now + for_s, reason, now, is_new=before is None)
            self._look_at(owner)

    def given_back(self, group: OwnedGroup, message: Message, failure: errors.GiveBack) -> None:
        """Pause the topic of a message that its handler gave back, before the message can start again."""
        reason = retry.describe(failure)
        self.pause(group.owner.topic.name, retry.pause_s(failure), reason)
        if self._trail.enabled:
            self._trail.record(events.Returned(self._clock.now_us(), message, reason))

    def limit(self, topic: str, rate: float, reason: str) -> None:
        """Start at most `rate` messages of the topic a second on this host, above 0. The quota holds as well.

        Raises:
            InvalidSettings: `rate` is not a number above 0.
        """
        if not (rate > 0 and math.isfinite(rate)):
            raise errors.InvalidSettings(f"a topic cannot be limited to {rate!r} messages a second; give more than 0")
        if (owner := self._owned.get(topic)) is not None:
            if owner.throttle_at(self._clock.now()) is None:
                log.info("topic %s is limited to %.3g a second on this host: %s", topic, rate, reason)
            now, before = self._clock.now(), owner.throttle
            # Groups may be parked until then. A limit that rises step by step need not wake them each time.
            held_until = now if before is None or before.room(now) else before.next_at(now)
            was_closed = before is not None and not before.is_limited
            if before is None:
                self._starts.revoke(owner)
            throttle = self._throttle(owner)
            throttle.limit(rate, reason, now)
            if was_closed or held_until > max(now + SOON_S, throttle.next_at(now)):
                self._look_at(owner)

    def open(self, topic: str) -> None:
        """Let the topic use its whole quota again."""
        owner = self._owned.get(topic)
        if owner is not None and owner.throttle_at(self._clock.now()) is not None:
            log.info("topic %s may use its whole quota on this host again", topic)
            owner.set_throttle(None)
            self._look_at(owner)

    def _throttle(self, owner: OwnedTopic) -> Throttle:
        """Return the topic's throttle; put a new one above the counters of its groups if it has none."""
        if (throttle := owner.throttle) is None:
            throttle = Throttle()
            owner.set_throttle(throttle)
        return throttle

    def _look_at(self, owner: OwnedTopic) -> None:
        for group in list(owner.groups.values()):
            self._starts.recheck(group)
