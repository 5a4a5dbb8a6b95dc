"""Disables endpoints that are gone or fail for days, in the catalog, so that every host knows.

A disabled endpoint has the attribute `push.disabled` with the reason. Hosts do not consume its topic: the messages wait
in the store, in order and uncounted, until somebody removes the attribute. An endpoint that fails has the attribute
`push.failing_since` from an hour after its first failure on, so that a restart does not forget the time.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Mapping

from emq.runtime import durations, errors
from emq.runtime.clock import Clock
from emq_push.attributes import DISABLED, FAILING_SINCE, URL
from emq_push.endpoint import Endpoint, failing_note

log = logging.getLogger(__name__)

NOTE_AFTER_S = 3600.0
"""Seconds of failure after which hosts note its begin in the catalog."""

FORGET_S = 36 * 3600.0
"""Seconds without an attempt after which the next failure counts as the first. The longest usual wait for a retry is a
day."""

FEWEST = 5
"""Failures in a row that this host must have seen before it disables an endpoint."""

AGAIN_S = 5.0
"""Seconds until a failed change of the catalog is tried again."""

FEW = 1_000

Change = Callable[[str, Mapping[str, str], Mapping[str, str]], Awaitable[object]]
"""Sets attributes of a topic, if it has the attributes given last: `emq.topics.catalog.Catalog.set_attributes`."""


@dataclasses.dataclass(slots=True)
class _Outage:
    """Attributes:
    url: the URL that fails; another one of the same topic has not failed yet.
    since, last: the first and the latest failure, in seconds since the epoch.
    failures: seen by this host.
    """

    url: str
    since: float
    last: float
    failures: int = 0


class Outages:
    """Follows the failures of endpoints over days.

    A write that fails is lost; the next delivery finds the same difference to the catalog, and writes again.

    Args:
        change: writes to the catalog; None to disable nothing.
        clock: tells the time.
    """

    def __init__(self, change: Change | None, clock: Clock) -> None:
        self._change = change
        self._clock = clock
        self._known: dict[str, _Outage] = {}
        self._writing: dict[str, asyncio.Task[None]] = {}
        self._most = FEW

    def succeeded(self, endpoint: Endpoint) -> None:
        """The endpoint has taken a message."""
        if endpoint.topic in self._known:
            del self._known[endpoint.topic]
        if endpoint.failing_since:
            self._write(endpoint, {FAILING_SINCE: ""})

    def failed(self, endpoint: Endpoint, reason: str) -> None:
        """A delivery failed, by a fault of the endpoint."""
        if endpoint.disabled:
            return
        now, outage = self._clock.now(), self._known.get(endpoint.topic)
        if outage is None or outage.url != endpoint.written_url or now > outage.last + FORGET_S:
            self._forget_old(now)
            since = endpoint.failing_since or now
            outage = self._known[endpoint.topic] = _Outage(endpoint.written_url, since, now)
        outage.last = now
        outage.failures += 1
        lasts_s = now - outage.since
        if lasts_s >= endpoint.disable_after_s and outage.failures >= FEWEST:
            self._disable(endpoint, f"it has failed for {durations.brief(lasts_s)}: {reason}")
        elif lasts_s >= NOTE_AFTER_S and not endpoint.failing_since:
            self._write(endpoint, {FAILING_SINCE: failing_note(outage.since, endpoint.written_url)})

    def gone(self, endpoint: Endpoint, reason: str) -> None:
        """The endpoint says that it wants no more messages."""
        self._disable(endpoint, f"it is gone: {reason}")

    async def close(self) -> None:
        """End writes under way."""
        tasks = list(self._writing.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _disable(self, endpoint: Endpoint, reason: str) -> None:
        if endpoint.topic not in self._writing and self._change is not None:
            log.warning("topic %s: its endpoint is disabled: %s", endpoint.topic, reason)
        self._write(endpoint, {DISABLED: reason, FAILING_SINCE: ""})

    def _write(self, endpoint: Endpoint, changes: Mapping[str, str]) -> None:
        if self._change is None or endpoint.topic in self._writing:
            return
        task = asyncio.create_task(self._written(self._change, endpoint, changes), name="emq endpoint state")
        self._writing[endpoint.topic] = task
        task.add_done_callback(lambda _: self._writing.pop(endpoint.topic, None))

    async def _written(self, change: Change, endpoint: Endpoint, changes: Mapping[str, str]) -> None:
        # Not if the topic has another endpoint by now, or its owner has disabled it in other words.
        given = {URL: endpoint.written_url, DISABLED: ""}
        while True:
            try:
                await change(endpoint.topic, changes, given)
            except errors.DatabaseUnavailable:
                await asyncio.sleep(AGAIN_S)
                continue
            except (errors.UnknownTopic, errors.InvalidTopic) as exc:
                log.warning("topic %s: the state of its endpoint was not kept: %s", endpoint.topic, exc)
            except Exception:
                log.exception("topic %s: the state of its endpoint was not kept; it is written again", endpoint.topic)
                await asyncio.sleep(AGAIN_S)
                return
            else:
                await asyncio.sleep(1.0)  # until this host has read the change: it would write it again
            if DISABLED in changes:
                self._known.pop(endpoint.topic, None)
            return

    def _forget_old(self, now: float) -> None:
        if len(self._known) >= self._most:
            self._known = {name: found for name, found in self._known.items() if now <= found.last + FORGET_S}
            self._most = max(FEW, 2 * len(self._known))


def set_disabled(change: Change, topic: str, reason: str) -> Awaitable[object]:
    """Let a topic's messages wait, for the owner of the endpoint; with an empty reason, deliver them, in their order.

    Raises:
        UnknownTopic: there is no such topic.
        DatabaseUnavailable: try again later.
    """
    return change(topic, {DISABLED: reason, FAILING_SINCE: ""}, {})
