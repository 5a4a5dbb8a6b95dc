"""`emq stats`, `emq top`, `emq lag`: what is going on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from emq.cli import output
from emq.cli.session import Session, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from emq.cli.snapshots import Seen, TopicTotal

MAX_TOPICS = 40
"""Topics that `emq stats` shows; JSON has all that the snapshots have."""


async def stats(session: Session) -> None:
    """Show what all hosts do: totals, each host, and the busiest topics, by the hosts' latest snapshots."""
    from emq.cli import snapshots

    async with session.app() as opened:
        seen = await snapshots.load(opened)
    topics = snapshots.topics(seen)
    data = {
        "totals": snapshots.totals(seen),
        "rates_per_s": snapshots.rates(seen),
        "hosts": [{"age_s": round(s.age_s, 3), "live": s.live, **_without_topics(s)} for s in seen],
        "topics": topics,
    }
    session.show(data, lambda: _stats(seen, topics))


async def lag(
    session: Session,
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="Shell pattern over topic names.")] = "*",
) -> None:
    """Show what topics still have to do, by the store and the checkpoints; no host need run.

    Under each priority: ready or in flight. Delayed: retries that wait for their time. Retrying: retries that a
    host has claimed.
    """
    from emq.cli.topics import matching

    async with session.app() as opened:
        topics = await matching(opened, pattern)
        ready = await opened.admin.lag(topics)
        slots = await opened.admin.slot_lag(topics)
    by_topic: dict[str, dict[str, int]] = {t.name: {} for t in topics}
    for row in ready:
        by_topic[row.topic][row.priority] = row.unfinished
    found: list[dict[str, Any]] = [
        {"topic": s.topic, "ready": by_topic[s.topic], "delayed": s.delayed, "claimed": s.claimed, "dead": s.dead}
        for s in slots
    ]
    session.show(found, lambda: _lag(found, pattern))


async def top(
    session: Session,
    count: Annotated[int | None, typer.Option(min=1, help="End after so many refreshes.")] = None,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two refreshes.")] = 1.0,
) -> None:
    """Watch the busiest topics live, until Ctrl-C."""
    import asyncio

    from emq.cli.top import Screen

    async with session.app() as opened:
        screen = Screen(opened)
        if session.json or not session.out.is_terminal:
            rounds = 0
            while True:
                frame = await screen.refresh(MAX_TOPICS)
                if session.json:
                    print_json(frame.data(), indent=False)
                else:
                    session.out.print(frame.render(MAX_TOPICS))
                rounds += 1
                if rounds == count:
                    return
                await asyncio.sleep(interval)
        await screen.live(session.out, interval, count)


def _without_topics(seen: Seen) -> dict[str, Any]:
    import msgspec

    data: dict[str, Any] = msgspec.to_builtins(seen.host)
    del data["busiest"]
    return data


def _stats(seen: Sequence[Seen], topics: Sequence[TopicTotal]) -> RenderableType:
    from rich.console import Group

    from emq.cli import snapshots

    if not seen:
        return "no host is running; start one with: emq up"
    totals, rates = snapshots.totals(seen), snapshots.rates(seen)
    counts = [
        (name, getattr(totals, name), getattr(rates, name, None))
        for name in ("fetched", "started", "succeeded", "failed", "retried", "dead", "holes", "fenced")
    ]
    parts: list[RenderableType] = [
        output.table("Hosts", _HOST_COLUMNS, map(_host, seen), right=_HOST_COLUMNS[2:]),
        "",
        output.table("Since they started", ("", "total", "per second"), counts, right=("total", "per second")),
        "",
        output.table("Busiest topics", _TOPIC_COLUMNS, map(_topic, topics[:MAX_TOPICS]), right=_TOPIC_COLUMNS[1:6]),
    ]
    if len(topics) > MAX_TOPICS:
        parts.append(f"... and {len(topics) - MAX_TOPICS} more; --json has them")
    parts += [f"{s.host.host}: {text}" for s in seen if s.live for text in _troubles(s)]
    return Group(*parts)


_HOST_COLUMNS = ("host", "", "groups", "per s", "in flight", "buffered", "loop lag", "up")
_TOPIC_COLUMNS = ("topic", "qps", "per s", "in flight", "buffered", "retries", "state")


def _host(seen: Seen) -> tuple[output.Cell, ...]:
    host = seen.host
    return (
        host.host,
        "live" if seen.live else f"stale, {output.duration(seen.age_s)}",
        host.groups,
        host.rates.started,
        host.in_flight,
        host.buffered_messages,
        f"{host.loop_lag_s * 1000:.1f} ms",
        output.duration(host.uptime_s),
    )


def _topic(topic: TopicTotal) -> tuple[output.Cell, ...]:
    buffered = sum(topic.buffered.values())
    return topic.name, topic.qps, topic.started_per_s, topic.in_flight, buffered, topic.retries_buffered, topic.state


def _troubles(seen: Seen) -> list[str]:
    return [text for text in (seen.host.store_unreachable, seen.host.database_unreachable) if text]


def _lag(found: list[dict[str, Any]], pattern: str) -> RenderableType:
    if not found:
        return f"no topic matches {pattern!r}" if pattern != "*" else "there are no topics yet"
    same = len({tuple(row["ready"]) for row in found}) == 1
    priorities = tuple(found[0]["ready"]) if same and len(found[0]["ready"]) <= 5 else ("ready",)
    rest = ("delayed", "claimed", "dead")
    rows: list[list[output.Cell]] = [
        [row["topic"], *(row["ready"].values() if priorities != ("ready",) else [output.by_priority(row["ready"])]),
         *(row[name] for name in rest)]
        for row in found
    ]  # fmt: skip
    numbers = (*(priorities if priorities != ("ready",) else ()), *rest)
    return output.table("", ("topic", *priorities, *rest), rows, right=numbers)
