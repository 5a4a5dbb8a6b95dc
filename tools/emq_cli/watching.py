"""`emq stats`, `emq top`, `emq lag`: show hosts, topics and backlogs."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from emq.runtime import durations, errors
from emq.runtime.inputs import is_pattern
from emq_cli import output, times
from emq_cli.arguments import Pattern
from emq_cli.patterns import none
from emq_cli.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import RenderableType

    from emq.app import App
    from emq.host.statistics import ThrottledTopic
    from emq.observe.snapshots import AgedSnapshot
    from emq_trace.backlog import Backlog
    from emq_trace.host_totals import TopicTotal

MAX_TOPICS = 40
"""Topics that `emq stats` shows; JSON has all that the snapshots have, and the backlogs of these."""

MAX_PLACES = 6
"""Most columns for ready messages."""

IN_SLOT = "slot"
"""As in `emq.host.statistics`, which is not loaded for `--help`."""


async def stats(session: Session) -> None:
    """Show what all hosts do: totals, each host, the busiest topics, and those held below their quota.

    Hosts write a snapshot of themselves to the database each second. in flight: messages started and not finished.
    buffered: messages that a host has read ahead. loop lag: how late the host's event loop runs. For the other columns
    of the topics, which come from the store, see `emq lag --help`.

    Example: emq stats --json
    """
    from emq.observe import snapshots
    from emq_trace import host_totals

    async with session.app() as opened:
        seen = await snapshots.load(opened)
        topics = host_totals.topics(seen)
        backlog, trouble = await _backlog(opened, [t.name for t in topics[:MAX_TOPICS]])
    data = {
        "totals": host_totals.totals(seen),
        "rates_per_s": host_totals.rates(seen),
        "hosts": [{"age_s": round(s.age_s, 3), "live": s.live, **_without_topics(s)} for s in seen],
        "topics": topics,
        "backlog": [*backlog.values()],
        "trouble": trouble,
    }
    session.show(data, lambda: _stats(seen, topics, backlog, trouble))


async def lag(
    session: Session,
    pattern: Pattern = "*",
) -> None:
    """Show the unfinished messages of each topic. Reads the store and the saved progress, so no host has to run.

    A column for each priority: messages that are ready or in flight. in slots: messages of sorted topics that are
    ready. delayed: messages and retries that wait for their time. claimed: messages that a host has taken from the
    slots or from the delayed ones, and not finished. dead: dead letters.

    Example: emq lag 'shop.*'
    """
    from emq_trace import backlog

    async with session.app() as opened:
        found = await backlog.of(opened.admin, await opened.catalog.matching(pattern))
    session.page(found, lambda: _lag(found), none=none(pattern, opened.place))


async def top(
    session: Session,
    pattern: Pattern = "*",
    count: Annotated[int | None, typer.Option(min=1, help="End after this many refreshes.")] = None,
    interval: Annotated[
        float, typer.Option(parser=times.spans(0.1), metavar="SPAN", help="Time between two refreshes.")
    ] = 1.0,
) -> None:
    """Watch the busiest topics live, until Ctrl-C. For the columns, see `emq lag --help`.

    With a pattern, the line at the top still counts the starts of all topics.

    Example: emq top 'shop.*' --interval 0.5
    """
    from emq_cli import refreshing
    from emq_cli.top import Screen

    on_screen = refreshing.on_screen(session) and not session.json
    async with session.app() as opened:
        if not is_pattern(pattern):
            await opened.catalog.get(pattern)  # a name that is not there is a mistake
        screen = Screen(opened, pattern)

        async def look() -> tuple[object, Callable[[], RenderableType]]:
            room = max(3, session.out.height - 5) if on_screen else MAX_TOPICS
            frame = await screen.refresh(room)
            rows = max(3, room - len(frame.hosts)) if on_screen else room
            return frame.data(), lambda: frame.render(rows, wide=session.out.width >= refreshing.WIDE)

        await refreshing.show(session, look, watch=True, interval_s=interval, count=count)


def _without_topics(seen: AgedSnapshot) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.to_builtins(seen.host)
    del data["busiest"]
    return data


async def _backlog(opened: App, names: Sequence[str]) -> tuple[dict[str, Backlog], str | None]:
    """The backlogs of topics that are still there, and what stands in the way of knowing them."""
    from emq_trace import backlog

    topics = []
    for name in names:
        with contextlib.suppress(errors.UnknownTopic):
            topics.append(await opened.catalog.get(name))
    try:
        return {b.topic: b for b in await backlog.of(opened.admin, topics)}, None
    except errors.StoreUnavailable as exc:
        return {}, str(exc)


def _stats(
    seen: Sequence[AgedSnapshot], topics: Sequence[TopicTotal], backlog: dict[str, Backlog], trouble: str | None
) -> RenderableType:
    from rich.console import Group

    from emq_trace import host_totals

    if not seen:
        return "no host is running; start one with: emq up"
    totals, rates = host_totals.totals(seen), host_totals.rates(seen)
    names = ("fetched", "started", "succeeded", "failed", "retried", "dead", "expired", "holes", "fenced", "shrunk")
    counts = [(name, getattr(totals, name), getattr(rates, name, None)) for name in names]
    busiest = [_topic(topic, backlog.get(topic.name)) for topic in topics[:MAX_TOPICS]]
    parts: list[RenderableType] = [
        output.table("Hosts", _HOST_COLUMNS, map(_host, seen), right=_HOST_COLUMNS[2:]),
        "",
        output.table("Since they started", ("", "total", "per second"), counts, right=("total", "per second")),
        "",
        output.table("Busiest topics", _TOPIC_COLUMNS, busiest, right=_TOPIC_COLUMNS[1:-1]),
    ]
    if len(topics) > MAX_TOPICS:
        parts.append(f"... and {len(topics) - MAX_TOPICS} more; --json has them")
    if held := host_totals.throttled(seen):
        rows = [_throttled(topic) for topic in list(held.values())[:MAX_TOPICS]]
        parts += ["", output.table("Below their quota", _THROTTLED_COLUMNS, rows, right=("per s",))]
        more = sum(s.host.closed + s.host.limited for s in seen if s.live) - len(rows)
        if more > 0:
            parts.append(f"... and {more} more")
    if trouble:
        parts.append(trouble)
    parts += [text for s in seen for text in s.troubles]
    return Group(*parts)


_THROTTLED_COLUMNS = ("topic", "", "per s", "since", "next probe", "reason")
_HOST_COLUMNS = ("host", "", "groups", "per s", "in flight", "buffered", "loop lag", "up")
_TOPIC_COLUMNS = ("topic", "qps", "per s", "in flight", "ready", "delayed", "claimed", "dead", "")


def _host(seen: AgedSnapshot) -> tuple[output.Cell, ...]:
    host = seen.host
    return (
        host.host,
        seen.state,
        host.groups,
        host.rates.started,
        host.in_flight,
        host.buffered_messages,
        f"{host.loop_lag_s * 1000:.1f} ms",
        durations.brief(host.uptime_s),
    )


def _topic(topic: TopicTotal, backlog: Backlog | None) -> tuple[output.Cell, ...]:
    waiting: tuple[int | None, ...] = (None,) * 4
    if backlog is not None:
        waiting = (sum(backlog.ready.values()), backlog.delayed, backlog.claimed, backlog.dead)
    in_flight = output.of_most(topic.in_flight, topic.max_in_flight)
    held = f"held by its budget {topic.held_by}" if topic.held_by else ""
    state = held if topic.state == "active" else topic.state
    return (topic.name, topic.qps, topic.started_per_s, in_flight, *waiting, state)


def _throttled(topic: ThrottledTopic) -> tuple[output.Cell, ...]:
    now = time.time()
    closed = topic.rate is None
    probe = f"in {durations.brief(max(0.0, topic.until - now))}" if closed else ""
    since = f"{durations.brief(max(0.0, now - topic.since))} ago"
    return (topic.name, "closed" if closed else "limited", topic.rate, since, probe, topic.reason)


def _lag(found: Sequence[Backlog]) -> RenderableType:
    # One column for each priority if all topics that have any have the same; a sorted topic has its one.
    kinds = {tuple(b.ready) for b in found}
    places = tuple(dict.fromkeys(name for names in sorted(kinds, key=len, reverse=True) for name in names))
    apart = len(kinds) <= 1 + ((IN_SLOT,) in kinds) and len(places) <= MAX_PLACES
    if not apart:
        places = ("ready",)
    rows: list[list[output.Cell]] = [
        [
            b.topic,
            *([b.ready.get(place) for place in places] if apart else [output.by_priority(b.ready)]),
            *(b.delayed, b.claimed, b.dead),
        ]
        for b in found
    ]
    rest = ("delayed", "claimed", "dead")
    titles = tuple("in slots" if place == IN_SLOT else place for place in places)
    return output.table("", ("topic", *titles, *rest), rows, right=(*(titles if apart else ()), *rest))
