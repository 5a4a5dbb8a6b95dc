"""One topic in full, for `emq topic show`."""

from __future__ import annotations

from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from emq.cli import output
from emq.lag import SlotLag
from emq.model import Topic, TopicOptions, quotas
from emq.offsets.checkpoints import Checkpoint

MAX_GROUPS = 20
"""Groups shown in the table; JSON has all."""


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


def groups(topic: Topic, offsets: list[tuple[Checkpoint, int, int]]) -> list[GroupView]:
    """The topic's groups, from what `Admin.offsets` answers."""
    left = iter(offsets)
    shares = quotas(topic)
    return [
        GroupView(g, shares[g], g >= topic.active_groups, {p: unfinished(*next(left)) for p in topic.priorities})
        for g in range(topic.groups)
    ]


def unfinished(checkpoint: Checkpoint, head: int, tail: int) -> int:
    """Messages of a queue that are not finished, as far as the checkpoint knows."""
    start = max(head, checkpoint.watermark)
    beyond = sum(max(0, min(end, tail) - max(begin, start)) for begin, end in checkpoint.finished)
    return max(0, tail - start - beyond)


def lag(topic: Topic, found: list[GroupView], slots: SlotLag) -> dict[str, Any]:
    sums = {p: sum(g.unfinished[p] for g in found) for p in topic.priorities}
    return {"unfinished": sums, "delayed": slots.delayed, "claimed": slots.claimed, "dead": slots.dead}


def render(topic: Topic, found: list[GroupView], slots: SlotLag) -> RenderableType:
    sums = {p: sum(g.unfinished[p] for g in found) for p in topic.priorities}
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in (
        ("topic", output.plain(topic.name)),
        ("state", topic.state.value),
        ("qps", f"{output.number(topic.qps)}, over {output.count(topic.groups, 'group')} of up to "
                f"{output.number(topic.group_qps)}"),
        ("priorities", ", ".join(topic.priorities)),
        ("unfinished", output.by_priority(sums)),
        ("retries", f"{output.number(slots.delayed)} waiting for their time, {output.number(slots.claimed)} claimed"),
        ("dead letters", output.number(slots.dead)),
        *((option, _shown(value)) for option, value in _options(topic)),
    ):  # fmt: skip
        facts.add_row(name, value)
    rows = [(g.group, g.quota, *g.unfinished.values(), "retired" if g.retired else "") for g in found[:MAX_GROUPS]]
    numbers = ("group", "quota", *topic.priorities)
    parts: list[RenderableType] = [facts, "", output.table("", (*numbers, ""), rows, right=numbers)]
    if len(found) > MAX_GROUPS:
        parts.append(Text(f"... and {len(found) - MAX_GROUPS:,} more groups; --json has all"))
    return Group(*parts)


def _options(topic: Topic) -> list[tuple[str, Any]]:
    """The options that differ from their defaults, attributes one by one; headers may be secrets."""
    usual = TopicOptions()
    names = [n for n in TopicOptions.__struct_fields__ if n != "attributes"]
    changed = [(n, getattr(topic.options, n)) for n in names if getattr(topic.options, n) != getattr(usual, n)]
    hidden = [(n, "***" if n.startswith("push.headers.") else v) for n, v in topic.options.attributes.items()]
    return [*changed, *hidden]


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(output.cell, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return output.cell(value)
