"""The live table. `Screen` is the demonstration's side; `python -m emq_demo.view` is the process that draws.

Drawing one table takes ten times as long as a message waits. So a process of its own draws, and the drawing does not
lengthen the waits that it shows. The process gets one line of JSON four times a second. If it is too slow, the
demonstration drops lines. The process ends at the end of its input, which comes also when the parent dies.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import Protocol

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from emq.runtime import durations
from emq_demo.scenario import PRIORITIES, Tenant

FRAME_S = 0.25
_STOP_TIMEOUT_S = 5.0
_BAR = 6
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_SLOW_US = 100_000


class Row(msgspec.Struct, array_like=True, frozen=True):
    """One tenant's numbers; `emq_demo.tally.TenantTally` explains them."""

    rate: int
    in_flight: int
    backlog: list[int]
    retries: int
    dead: int
    wait_us: int


class Frame(msgspec.Struct, frozen=True):
    """The figures of one moment.

    Attributes:
        title: title of the current step.
        notice: a sentence that tells the reader where to look.
        elapsed_s: seconds since the start.
        troubled: whether the four airlines are in trouble.
        rows: one for each tenant of the scene, in the same order.
        told: the most telling notice to the operators so far; empty before the first one.
    """

    title: str
    notice: str
    elapsed_s: float
    troubled: bool
    rows: list[Row]
    told: str = ""


class Scene(msgspec.Struct, frozen=True):
    """The part of the picture that stays the same.

    Attributes:
        subtitle: one line with the flights and the store.
        total_s: rough duration of the whole run, in seconds.
        tenants: the airlines, one row for each.
    """

    subtitle: str
    total_s: float
    tenants: tuple[Tenant, ...]


class Screen(Protocol):
    """Shows the progress."""

    def show(self, frame: Frame) -> None:
        """Take a frame to show; never wait."""

    def close(self) -> None:
        """Leave the terminal as it was. Safe to repeat."""


class PlainScreen:
    """Prints steps and notices, a line each, where standard output is no terminal; a quiet console shows nothing."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._title = self._told = ""

    def show(self, frame: Frame) -> None:
        if frame.title != self._title:
            self._title = frame.title
            self._console.print(f"{frame.elapsed_s:4.0f} s  {frame.title}: {frame.notice}", soft_wrap=True)
        if frame.told != self._told:
            self._told = frame.told
            self._console.print(f"{frame.elapsed_s:4.0f} s  Operators are told: {frame.told}", soft_wrap=True)

    def close(self) -> None:
        pass


class LiveScreen:
    """Shows the live table; a process of its own draws it."""

    def __init__(self, scene: Scene) -> None:
        # A session of its own keeps a terminal's Ctrl-C away from the process: it ends when `close` closes its input.
        self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
            [sys.executable, "-m", "emq_demo.view"], stdin=subprocess.PIPE, start_new_session=True
        )
        assert self._process.stdin
        self._pipe = self._process.stdin.fileno()
        self._process.stdin.write(msgspec.json.encode(scene) + b"\n")
        self._process.stdin.flush()
        os.set_blocking(self._pipe, False)

    def show(self, frame: Frame) -> None:
        line = msgspec.json.encode(frame) + b"\n"
        # A pipe takes a line of up to 4,096 bytes (PIPE_BUF) whole or not at all.
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self._pipe, line)

    def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin
        process.stdin.close()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


# --------------------------------------------------------------------------------------------------------- one picture


def picture(scene: Scene, frame: Frame) -> RenderableType:
    """Return the whole screen, for 100 columns and 30 lines."""
    head = Table.grid(padding=(0, 1), expand=True)
    head.add_column(no_wrap=True)
    head.add_column(ratio=1)
    head.add_column(justify="right", no_wrap=True)
    head.add_row(
        Text("EMQ demo", style="bold"),
        ProgressBar(total=scene.total_s, completed=min(frame.elapsed_s, scene.total_s)),
        Text(f"{frame.elapsed_s:.0f} s of about {scene.total_s:.0f} s", style="dim"),
    )
    style = "bold yellow" if frame.troubled else "bold green"
    step = Text.assemble((frame.title, style), "  ", frame.notice)
    told = Text(f"Operators are told: {frame.told}" if frame.told else "", style="bold red", no_wrap=True)
    return Group(head, Text(scene.subtitle, style="dim"), Text(), step, told, _table(scene, frame))


def _table(scene: Scene, frame: Frame) -> Table:
    table = plain_table()
    table.add_column("\nairline", no_wrap=True, ratio=1)
    table.add_column("\nendpoint", no_wrap=True, min_width=9)
    table.add_column("\nlimit", justify="right", no_wrap=True)
    table.add_column("now\n/s", justify="right", no_wrap=True)
    table.add_column("of\nlimit", no_wrap=True, min_width=_BAR)
    table.add_column("wait\np99", justify="right", no_wrap=True, min_width=8)
    table.add_column("in\nflight", justify="right", no_wrap=True)
    for name in PRIORITIES:
        table.add_column(f"waiting\n{name}" if name == PRIORITIES[0] else f"\n{name}", justify="right", min_width=5)
    for name in ("re-\ntries", "\ndead"):
        table.add_column(name, justify="right", no_wrap=True)
    for tenant, row in zip(scene.tenants, frame.rows, strict=True):
        table.add_row(*_cells(tenant, row, frame.troubled))
    table.add_row(*_sums(scene, frame), style="bold")
    return table


def plain_table() -> Table:
    """Return a table without lines, with columns one space apart: a terminal has only 100 characters across."""
    return Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, expand=True, header_style="dim")


def _cells(tenant: Tenant, row: Row, troubled: bool) -> list[Text]:
    trouble = tenant.trouble if troubled else ""
    return [
        airline(tenant, trouble),
        endpoint(trouble),
        Text(f"{tenant.limit:,}", style="dim"),
        Text(f"{row.rate:,}"),
        _bar(row.rate / tenant.limit),
        _wait(row.wait_us),
        count(row.in_flight),
        *(count(n, "yellow") for n in row.backlog),
        count(row.retries, "magenta"),
        count(row.dead, "red"),
    ]


def _sums(scene: Scene, frame: Frame) -> list[str]:
    rows = frame.rows
    backlog = (sum(column) for column in zip(*(r.backlog for r in rows), strict=True))
    return [
        "all",
        "",
        f"{sum(t.limit for t in scene.tenants):,}",
        f"{sum(r.rate for r in rows):,}",
        "",
        "",
        f"{sum(r.in_flight for r in rows):,}",
        *(f"{n:,}" for n in backlog),
        f"{sum(r.retries for r in rows):,}",
        f"{sum(r.dead for r in rows):,}",
    ]


def airline(tenant: Tenant, trouble: str) -> Text:
    """Return an airline's code and name, in another colour when it is in trouble."""
    name = tenant.airline.removesuffix(" Inc.").removesuffix(" Corporation")
    return Text.assemble((tenant.carrier, "bold"), " ", name, style="yellow" if trouble else "")


def endpoint(trouble: str) -> Text:
    """Return the state of a tenant's endpoint, in a word or two."""
    kind, _, value = trouble.partition(":")
    texts = {
        "": ("healthy", "green"),
        "flood": ("flooded", "bold yellow"),
        "slow": (f"takes {value} s", "bold yellow"),
        "flaky": (f"fails 1/{value}", "bold magenta"),
        "down": ("down", "bold red"),
    }
    return Text(*texts[kind])


def _bar(part: float) -> Text:
    eighths = round(min(1.0, part) * _BAR * 8)
    whole, rest = divmod(eighths, 8)
    cells = "█" * whole + (_EIGHTHS[rest] if rest else "")
    return Text(cells, style="yellow" if part >= 1 else "green")


def _wait(wait_us: int) -> Text:
    if not wait_us:
        return Text("")
    style = "green" if wait_us < _SLOW_US else "yellow" if wait_us < 1_000_000 else "bold yellow"
    return Text(durations.brief(us=wait_us), style=style)


def count(n: int, style: str = "") -> Text:
    """Return a number as text, or a dot for 0."""
    return Text(f"{n:,}", style=style) if n else Text("·", style="dim")


# ------------------------------------------------------------------------------------------------ the drawing process


def main() -> None:
    """Entry point of the drawing process."""
    os.nice(5)
    scene = msgspec.json.decode(sys.stdin.buffer.readline(), type=Scene)
    decoder = msgspec.json.Decoder(Frame)
    # Two columns stay free for the "^C" that a terminal echoes: on a line of its own it would spoil the clearing.
    console = Console(width=Console().width - 2)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        for line in sys.stdin.buffer:
            live.update(picture(scene, decoder.decode(line)), refresh=True)


if __name__ == "__main__":
    main()
