"""One topic in full, for `emq topic show`."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from emq.offsets.checkpoints import Checkpoint
from emq.offsets.lag import of_place
from emq.producer.scores import AGING_EPOCH_S
from emq.runtime import durations
from emq.storage.answers import served
from emq.storage.lane_store import LaneState
from emq.storage.slot_store import RETRIES, SlotState
from emq.storage.store import Store
from emq.timetable import delay_levels
from emq.topics import secret_attributes
from emq.topics.model import SORTED_OPTIONS, Kind, Topic, TopicOptions, quotas
from emq_cli import output, topic_settings
from emq_trace.backlog import Backlog

MAX_GROUPS = 20
"""Groups shown in the table; JSON has all."""


LONGEST = 200
"""Characters shown of an option's text; JSON has all."""


class GroupView(NamedTuple):
    """Attributes:
    quota: starts a second.
    retired: it takes no new messages and goes once it is empty.
    unfinished: in the log and not finished, by priority.
    """

    group: int
    quota: float
    retired: bool
    unfinished: dict[str, int]


class SlotView(NamedTuple):
    """Attributes:
    quota: starts a second.
    ready, delayed, claimed, dead: as in `Backlog`, of this slot and its group's lane.
    next_due_ms: when the next message that waits for its time is due; in the past if it is late.
    best_priority: of those that wait; under aging, what it has grown to by now.
    retries_left: set if a failed message comes next in the slot.
    """

    slot: int
    quota: float
    ready: int
    delayed: int
    claimed: int
    dead: int
    next_due_ms: int | None
    best_priority: float | None
    retries_left: int | None


def groups(topic: Topic, offsets: list[tuple[Checkpoint, int, int]]) -> list[GroupView]:
    """The topic's groups, from what `Admin.offsets` answers."""
    left = iter([checkpoint.unfinished(head, tail) for checkpoint, head, tail in offsets])
    shares = quotas(topic)
    return [
        GroupView(g, shares[g], g >= topic.active_groups, {p: next(left) for p in topic.priorities})
        for g in range(topic.groups)
    ]


def lag(topic: Topic, found: list[GroupView], backlog: Backlog) -> dict[str, Any]:
    sums = {p: sum(g.unfinished[p] for g in found) for p in topic.priorities}
    return {"unfinished": sums, "delayed": backlog.delayed, "claimed": backlog.claimed, "dead": backlog.dead}


async def slots(store: Store, topic: Topic, now_ms: int) -> list[SlotView]:
    """The slots of a sorted topic, each together with its group's lane."""
    shares, places = quotas(topic), [topic.slot(i) for i in range(topic.slots)]
    states = served(await store.sorted.inspect(places, now_ms))
    lanes = served(await store.lanes.inspect([place.name for place in places]))
    return [
        SlotView(i, shares[i], *of_place(lane, state), *_next(topic, state, lane, now_ms))
        for i, (state, lane) in enumerate(zip(states, lanes, strict=True))
    ]


def _next(topic: Topic, state: SlotState, lane: LaneState, now_ms: int) -> tuple[int | None, float | None, int | None]:
    """Next due time, best priority, and retries left of the failed one that comes next in the slot."""
    due_ms, score = lane.next_due_ms, state.next_score
    if score is None:
        return due_ms, None, None
    if score <= RETRIES:
        return due_ms, None, int(score)
    if topic.kind is not Kind.PRIORITY:
        return min(int(score), int(score) if due_ms is None else due_ms), None, None
    if topic.options.priority_policy == "aging":
        score -= (AGING_EPOCH_S - now_ms / 1000) / topic.options.aging_s
    return due_ms, score, None


def render(topic: Topic, found: list[GroupView], backlog: Backlog, held_by: str = "") -> RenderableType:
    """Show a log topic; `held_by`: the budget that holds the topic back now, if one does."""
    facts = _facts(
        topic,
        ("priorities", ", ".join(topic.priorities)),
        ("unfinished", output.by_priority({p: sum(g.unfinished[p] for g in found) for p in topic.priorities})),
        *_waiting(backlog, held_by),
    )
    rows = [(g.group, g.quota, *g.unfinished.values(), "retired" if g.retired else "") for g in found[:MAX_GROUPS]]
    numbers = ("group", "quota", *topic.priorities)
    return _with_rest(facts, output.table("", (*numbers, ""), rows, right=numbers), len(found), "groups")


def render_slots(topic: Topic, found: list[SlotView], backlog: Backlog, held_by: str = "") -> RenderableType:
    """The fullest slots, if there are many; `held_by` as for `render`."""
    facts = _facts(topic, ("ready", output.number(sum(backlog.ready.values()))), *_waiting(backlog, held_by))
    fullest = sorted(found, key=lambda s: -(s.ready + s.delayed + s.claimed + s.dead))[:MAX_GROUPS]
    numbers: tuple[str, ...] = ("slot", "quota", "ready", "delayed", "claimed", "dead")
    by_priority = topic.kind is Kind.PRIORITY
    rows = [
        (*s[: len(numbers)], *([_best(s)] if by_priority else []), _due(s, failed_too=not by_priority))
        for s in sorted(fullest)
    ]
    if by_priority:
        numbers = (*numbers, "best")
    next_due = output.zoned("next due", (slot.next_due_ms for slot in fullest if slot.next_due_ms is not None))
    return _with_rest(facts, output.table("", (*numbers, next_due), rows, right=numbers), len(found), "slots")


def _facts(topic: Topic, *lines: tuple[str, str]) -> Table:
    over = f"{topic_settings.split(topic)} of up to {output.number(topic.group_qps)}"
    if topic.is_sorted:
        over = topic_settings.split(topic)
    return output.facts(
        (
            ("topic", topic.name),
            ("kind", topic.kind.value),
            ("state", topic_settings.state(topic)),
            *_family(topic),
            ("qps", f"{output.number(topic.qps)}, over {over}"),
            *lines,
            *_options(topic),
        )
    )


def _family(topic: Topic) -> list[tuple[str, str]]:
    if not topic.family:
        return []
    own = ", ".join(topic.own) or "nothing"
    return [("family", topic.family), ("its own", f"{own}; all else is the family's")]


def _waiting(backlog: Backlog, held_by: str) -> list[tuple[str, str]]:
    names = (("delayed", backlog.delayed), ("claimed", backlog.claimed), ("dead letters", backlog.dead))
    lines = [(name, output.number(count)) for name, count in names]
    return [*lines, ("held back", f"by its budget {output.plain(held_by)}")] if held_by else lines


def _with_rest(facts: Table, table: RenderableType, count: int, what: str) -> RenderableType:
    more = [Text(f"... and {count - MAX_GROUPS:,} more {what}; --json has all")] if count > MAX_GROUPS else []
    return Group(facts, "", table, *more)


def _best(slot: SlotView) -> str:
    if slot.retries_left is not None:
        return f"a retry, {slot.retries_left} left"
    return output.cell(slot.best_priority)


def _due(slot: SlotView, *, failed_too: bool) -> str:
    if failed_too and slot.retries_left is not None:
        return f"now: a retry, {slot.retries_left} left"
    if slot.next_due_ms is None:
        return "-"
    late_s = time.time() - slot.next_due_ms / 1000
    return f"{output.when_briefly(slot.next_due_ms)}{f' ({durations.brief(late_s)} late)' if late_s >= 1 else ''}"


def _options(topic: Topic) -> list[tuple[str, str]]:
    """Every option, attributes one by one; headers may be secrets."""
    usual = TopicOptions()
    lines = []
    for name in TopicOptions.__struct_fields__:
        value = getattr(topic.options, name)
        if name in SORTED_OPTIONS and not topic.is_sorted:
            lines.append((name, "- (for sorted kinds)"))
        elif name != "attributes":
            lines.append((name, f"{_shown(value)}{' (default)' if value == getattr(usual, name) else ''}"))
    shown = secret_attributes.masked(topic.options.attributes)
    return [*lines, *((name, _shown(value)) for name, value in shown.items())]


def _shown(value: Any) -> str:
    if value is None or value in ((), {}, ""):
        return "none"
    if isinstance(value, dict):
        return ", ".join(_level(name, seconds) for name, seconds in value.items())
    if isinstance(value, str) and len(value) > LONGEST:
        return f"{output.plain(value[:LONGEST])}... ({output.count(len(value), 'character')})"
    if isinstance(value, tuple):
        return ", ".join(map(output.cell, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return output.cell(value)


def _level(name: str, seconds: float) -> str:
    span = delay_levels.written(seconds * 1000)
    return output.plain(name) if name == span.replace(" ", "") else f"{output.plain(name)} {span}"
