"""The live screen of `emq top`."""

from __future__ import annotations

import fnmatch
import time
from typing import Any, NamedTuple

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from emq.app import App
from emq.host.statistics import IN_SLOT, ThrottledTopic
from emq.observe import snapshots
from emq.observe.snapshots import AgedSnapshot
from emq.runtime import durations, errors
from emq.topics.model import State, Topic
from emq_cli import output, patterns
from emq_trace import backlog as backlogs
from emq_trace import host_totals
from emq_trace.backlog import Backlog
from emq_trace.host_totals import TopicTotal

MANY = 300
"""With more topics than this, the screen looks only at those that hosts count among their busiest."""


class Row(NamedTuple):
    """A topic on the screen.

    Attributes:
        now: what its live hosts do; zeros where none counts it among its busiest.
        throttle: set if a live host closes or limits the topic.
    """

    topic: Topic
    now: TopicTotal
    backlog: Backlog
    throttle: ThrottledTopic | None

    @property
    def word(self) -> str:
        """The word behind the row: paused or draining, closed, limited or held; empty for a topic that runs."""
        if self.topic.state is not State.ACTIVE:
            return self.topic.state.value
        if self.throttle is None:
            return f"held by {self.now.held_by}" if self.now.held_by else ""
        return "closed" if self.throttle.rate is None else f"at {output.number(self.throttle.rate)}"

    def data(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        now, backlog = self.now, self.backlog
        return {
            "topic": self.topic.name,
            "limit": self.topic.qps,
            "state": self.topic.state.value,
            "rate": now.started_per_s,
            "in_flight": now.in_flight,
            "max_in_flight": now.max_in_flight,
            "backlog": backlog.ready,
            "delayed": backlog.delayed,
            "claimed": backlog.claimed,
            "dead": backlog.dead,
            "throttle": msgspec.to_builtins(self.throttle),
            "held_by": now.held_by,
        }


class Frame(NamedTuple):
    """One refresh.

    Attributes:
        trouble: why the frame is not up to date; empty if it is.
        none: says that no topic matches; empty if there is one.
    """

    hosts: list[AgedSnapshot]
    rows: list[Row]
    topics: int
    trouble: str = ""
    none: str = ""

    def data(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        live = [s.host for s in self.hosts if s.live]
        return {
            "time": time.time(),
            "hosts": [
                {"host": h.host, "buffered": h.buffered_messages, "in_flight": h.in_flight, "loop_lag_s": h.loop_lag_s}
                for h in live
            ],
            "topics": [row.data() for row in self.rows],
            "trouble": self.trouble or None,
        }

    def render(self, rows: int, *, wide: bool = True) -> RenderableType:
        """The screen; if it is not `wide`, what is ready is one number for a topic."""
        columns = ("topic", "limit", "rate", "in flight", "ready", "delayed", "claimed", "dead", "")
        cells = [
            (
                *(r.topic.name, r.topic.qps, r.now.started_per_s, output.of_most(r.now.in_flight, r.now.max_in_flight)),
                _by_priority(r.backlog.ready) if wide else sum(r.backlog.ready.values()),
                *(r.backlog.delayed, r.backlog.claimed, r.backlog.dead, r.word),
            )
            for r in self.rows[:rows]
        ]
        parts: list[RenderableType] = [Text(self._head()), *map(Text, map(_host_line, self.hosts))]
        if self.trouble:
            parts.append(Text(self.trouble, style="red"))
        if self.none:
            return Group(*parts, Text(self.none))
        right = {*columns[1:8]} - ({"ready"} if wide else set())
        spare = () if wide else ("claimed", "delayed", "limit", "in flight")
        parts.append(output.table("", columns, cells, right=right, spare=spare))
        return Group(*parts)

    def _head(self) -> str:
        live = sum(s.live for s in self.hosts)
        started = host_totals.rates(self.hosts).started
        shown = f", {len(self.rows)} shown" if len(self.rows) < self.topics else ""
        return (
            f"{time.strftime('%H:%M:%S')} {output.zone()}  {output.count(live, 'live host')}  "
            f"{output.count(self.topics, 'topic')}{shown}  {output.number(started)} started a second"
        )


class Screen:
    """Keeps a picture of the catalog, and asks for the rest at each refresh.

    Args:
        pattern: shows only topics whose names match.
    """

    def __init__(self, app: App, pattern: str = "*") -> None:
        self._app = app
        self._pattern = pattern
        self._topics: dict[str, Topic] = {}
        self._version = 0
        self._last = Frame([], [], 0)

    async def refresh(self, rows: int) -> Frame:
        """Look now. If a server is out of reach, return the last frame again, with the reason."""
        try:
            self._last = await self._look(rows)
        except errors.EMQError as exc:
            self._last = self._last._replace(trouble=str(exc))
        return self._last

    async def _look(self, rows: int) -> Frame:
        await self._follow_catalog()
        seen = await snapshots.load(self._app)
        busy = {t.name: t for t in host_totals.topics(seen) if t.name in self._topics}
        if len(self._topics) <= MANY:
            chosen = list(self._topics.values())
        else:
            chosen = [self._topics[name] for name in list(busy)[:rows]]
        throttled = host_totals.throttled(seen)
        found = [
            Row(
                topic, busy.get(topic.name) or TopicTotal(topic.name, topic.qps, ""), backlog, throttled.get(topic.name)
            )
            for topic, backlog in zip(chosen, await backlogs.of(self._app.admin, chosen), strict=True)
        ]
        found.sort(key=_busiest_first)
        nothing = "" if self._topics else patterns.none(self._pattern, self._app.place)
        return Frame(seen, found[:rows], len(self._topics), none=nothing)

    async def _follow_catalog(self) -> None:
        changes = await self._app.catalog.changes_since(self._version)
        for name in changes.gone(self._topics):
            self._topics.pop(name, None)
        names = fnmatch.filter([t.name for t in changes.changed], self._pattern)
        changed = {t.name: t for t in changes.changed}
        self._topics.update({name: changed[name] for name in names})
        self._version = changes.version


def _busiest_first(row: Row) -> tuple[float, int, int, str]:
    waiting = sum(row.backlog.ready.values()) + row.backlog.delayed + row.backlog.claimed
    return -row.now.started_per_s, -waiting, -row.now.in_flight, row.topic.name


def _by_priority(ready: dict[str, int]) -> str:
    return output.number(ready[IN_SLOT]) if [*ready] == [IN_SLOT] else output.by_priority(ready)


def _host_line(seen: AgedSnapshot) -> str:
    host = seen.host
    if not seen.live:
        return f"{host.host}: stale, last heard of {durations.brief(seen.age_s)} ago"
    trouble = ", ".join(host.troubles)
    return (
        f"{host.host}: {output.number(host.buffered_messages)} buffered, {output.number(host.in_flight)} in flight, "
        f"loop lag {host.loop_lag_s * 1000:.1f} ms{f', {trouble}' if trouble else ''}"
    )
