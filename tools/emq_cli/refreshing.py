"""A view that is shown once or repeatedly."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable

from rich.console import RenderableType
from rich.live import Live

from emq.runtime import errors
from emq_cli.session import Session, print_json

Look = Callable[[], Awaitable[tuple[object, Callable[[], RenderableType]]]]
"""Looks now; returns plain values for JSON, and a function that makes a view for people."""

WIDE = 110
"""Columns of a terminal from which on tables are shown in full."""

DUTY = 0.25
"""Largest share of its time that a view spends on requests to store and database."""


async def show(session: Session, look: Look, *, watch: bool, interval_s: float, count: int | None = None) -> None:
    """Show what `look` finds: once, or (`watch`) every `interval_s` seconds until cancelled, or `count` times.

    A terminal's screen is redrawn; elsewhere one view follows the other, in JSON one a line. If a look fails while
    watching, the view says so, and the next look comes as usual.
    """
    if not watch:
        data, human = await look()
        session.show(data, human)
    elif session.json or not on_screen(session):
        await _repeat(look, lambda data, human: _print(session, data, human), interval_s, count)
    else:
        with Live(console=session.out, screen=True, auto_refresh=False) as live:
            await _repeat(look, lambda data, human: live.update(human(), refresh=True), interval_s, count)


def on_screen(session: Session) -> bool:
    """Return whether a view can be drawn over the one before."""
    return session.out.is_terminal and not session.out.is_dumb_terminal


def _print(session: Session, data: object, human: Callable[[], RenderableType]) -> None:
    if session.json:
        print_json(data, indent=False)
    else:
        session.out.print(human())


async def _repeat(
    look: Look, show_: Callable[[object, Callable[[], RenderableType]], None], interval_s: float, count: int | None
) -> None:
    rounds = 0
    while rounds != count:
        began = time.monotonic()
        try:
            data, human = await look()
        except (errors.ClusterUnavailable, errors.DatabaseUnavailable) as exc:
            data, human = {"trouble": [str(exc)]}, functools.partial(str, exc)
        show_(data, human)
        rounds += 1
        took = time.monotonic() - began
        if rounds != count:
            await asyncio.sleep(max(interval_s - took, took * (1 - DUTY) / DUTY))
