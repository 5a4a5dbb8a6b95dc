"""The live screen of `emq top`."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from emq import durations, errors
from emq.app import App
from emq.cli import output, patterns
from emq.host.statistics import IN_SLOT, ThrottledTopic
from emq.observe import backlog as backlogs
from emq.observe import snapshots
from emq.observe.snapshots import AgedSnapshot, TopicTotal
from emq.topics.model import Topic

MANY = 300
"""With more topics than this, the screen looks only at those that hosts count among their busiest."""


class Row(NamedTuple):
    """A topic on the screen.

    Attributes:
        rate: starts a second now; 0 where no live host counts it among its busiest.
        max_in_flight: most that its live hosts would have in flight; 0 where none counts it among its busiest.
        held_by: the budget that holds the topic back; empty if none does.
        throttle: set if a live host closes or limits the topic.
        backlog: what is ready, as `Backlog.ready`; the others as there, too.
    """

    topic: str
    limit: float
    state: str
    rate: float
    in_flight: int
    max_in_flight: int
    backlog: dict[str, int]
    delayed: int
    claimed: int
    dead: int
    throttle: ThrottledTopic | None = None
    held_by: str = ""

    @property
    def word(self) -> str:
        """The word behind the row: paused or draining, closed, limited or held; empty for a topic that runs."""
        if self.state != "active":
            return self.state
        if self.throttle is None:
            return f"held by {self.held_by}" if self.held_by else ""
        return "closed" if self.throttle.rate is None else f"at {output.number(self.throttle.rate)}"

    def data(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return self._asdict() | {"throttle": msgspec.to_builtins(self.throttle)}


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
                *(r.topic, r.limit, r.rate, output.of_most(r.in_flight, r.max_in_flight)),
                _by_priority(r.backlog) if wide else sum(r.backlog.values()),
                *(r.delayed, r.claimed, r.dead, r.word),
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
        started = snapshots.rates(self.hosts).started
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
        busy = {t.name: t for t in snapshots.topics(seen) if t.name in self._topics}
        if len(self._topics) <= MANY:
            chosen = list(self._topics.values())
        else:
            chosen = [self._topics[name] for name in list(busy)[:rows]]
        found = await self._rows(chosen, busy, snapshots.throttled(seen))
        found.sort(key=lambda r: (-r.rate, -sum(r.backlog.values()) - r.delayed - r.claimed, -r.in_flight, r.topic))
        nothing = "" if self._topics else patterns.none(self._pattern, self._app.place)
        return Frame(seen, found[:rows], len(self._topics), none=nothing)

    async def _rows(
        self, chosen: Sequence[Topic], busy: dict[str, TopicTotal], throttled: Mapping[str, ThrottledTopic]
    ) -> list[Row]:
        rows = []
        for topic, backlog in zip(chosen, await backlogs.of(self._app.admin, chosen), strict=True):
            now = busy.get(topic.name)
            rows.append(
                Row(
                    topic.name,
                    topic.qps,
                    topic.state.value,
                    now.started_per_s if now else 0.0,
                    now.in_flight if now else 0,
                    now.max_in_flight if now else 0,
                    backlog.ready,
                    backlog.delayed,
                    backlog.claimed,
                    backlog.dead,
                    throttled.get(topic.name),
                    now.held_by if now else "",
                )
            )
        return rows

    async def _follow_catalog(self) -> None:
        changes = await self._app.catalog.changes_since(self._version)
        for name in changes.gone(self._topics):
            self._topics.pop(name, None)
        names = fnmatch.filter([t.name for t in changes.changed], self._pattern)
        changed = {t.name: t for t in changes.changed}
        self._topics.update({name: changed[name] for name in names})
        self._version = changes.version


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
