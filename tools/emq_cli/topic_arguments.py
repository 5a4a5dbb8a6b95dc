"""The options with which topics and families are created."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

KindName = Literal["log", "range_merge", "priority", "fixed_time"]
"""The kinds of topics, as in `emq.topics.model`, which is not loaded for `--help`."""

KindOption = Annotated[
    KindName | None,
    typer.Option(
        help="log: in order of publishing. Sorted kinds: range_merge merges equal messages of a time range, "
        "priority goes by a number, fixed_time starts each message at its time. (default: log)"
    ),
]
Slots = Annotated[
    int | None,
    typer.Option(help="Slots of a sorted topic (parts with one owner each), a power of two. (default: by qps)"),
]
GroupQps = Annotated[
    float | None,
    typer.Option(help="Most starts a second of one group, the part of a topic that one host owns. (default: 50)"),
]
Priorities = Annotated[str | None, typer.Option(help="Names of the priorities, highest first. (default: high,mid,low)")]
Url = Annotated[str | None, typer.Option(help="Push the messages to this HTTP endpoint (needs the push service).")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any other option, as key=value, or key=@FILE for the text in a file; may be repeated."),
]
