"""The demonstration from set-up to report. It stops all that it starts."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import uvloop
from rich.console import Console

from emq import errors, servers
from emq.app import App
from emq.clock import SystemClock
from emq.demo import flights, measures, play, scenario, verdict
from emq.demo.play import Play
from emq.demo.receivers import Receivers
from emq.demo.report import Report
from emq.demo.scenario import Scenario
from emq.demo.verdict import Evidence
from emq.demo.view import LiveScreen, NoScreen, PlainScreen, Scene, Screen
from emq.settings import Settings
from emq.topics.model import Topic, quotas
from emq.trail.proof import Expectations, prove
from emq.trail.writer import Trail

STORES = ("sqlite", "redis", "memory")

_PROOF_S = 4.0
"""Seconds that proof and report take, about; for the progress bar only."""


class Place(NamedTuple):
    """The places of one run's data.

    Attributes:
        store: URL of the store.
        database: URL of the database for catalog and checkpoints; None for the store's own.
        trail: directory of the trail.
        kept: the directory that holds all of them, if it stays after the run; else None.
    """

    store: str
    database: str | None
    trail: Path
    kept: Path | None


def perform(
    console: Console, store: str, seconds: float, days: int | None, keep: str | Path | None, *, live: bool
) -> Report:
    """Run the demonstration; see `emq.demo.run.main` for the arguments.

    Args:
        console: shows progress: the live table on a terminal, else one line for each step.
        live: True to show progress.

    Raises:
        EMQError, alone or in a group: the demonstration could not run; the text says why.
    """
    started = time.monotonic()
    scenario.halves(seconds, days)  # reading the year takes a second: tell a mistake before
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(_place(store, keep))
        plan = scenario.build(flights.load(), flights.airlines(), seconds, days)
        receivers = stack.enter_context(Receivers(plan.receivers))
        screen = _screen(console, plan, store, live)
        stack.callback(screen.close)
        done = uvloop.run(_play(plan, place, receivers, screen))
        figures = measures.of_trail(place.trail, done.spans)
        calm, troubled = (waits.pooled(plan.victims) for waits in figures.waits)
        left = done.left
        expected = Expectations(still_queued=left.queued | left.delayed, quotas=_quotas(done.topics))
        evidence = Evidence(
            done.ids, prove(place.trail, expected), receivers.stop(), left, calm, troubled, max(done.others)
        )
    kept = None if place.kept is None else str(place.kept)
    return Report(plan, store, evidence, figures, verdict.judge(evidence), time.monotonic() - started, kept)


async def _play(plan: Scenario, place: Place, receivers: Receivers, screen: Screen) -> Play:
    trail = Trail.open(place.trail, "demo", SystemClock())
    try:
        options = Settings(store=place.store, database=place.database or "")  # not the visitor's own
        async with App(options=options, trail=trail) as app, play.build_pusher(app) as pusher:
            done = Play(plan, app, pusher, receivers, screen)
            await done.run()
            return done
    finally:
        trail.close()


def _quotas(topics: list[Topic]) -> dict[str, float]:
    """Return the quota of every group, and of every topic for the sum over its groups, in starts a second."""
    of_groups = {t.group(i): quota for t in topics for i, quota in enumerate(quotas(t))}
    return of_groups | {t.name: t.qps for t in topics}


@contextlib.contextmanager
def _place(store: str, keep: str | Path | None) -> Iterator[Place]:
    if store not in STORES:
        raise errors.InvalidSettings(f"store {store!r} is not known to the demo; use {', '.join(STORES)}")
    with contextlib.ExitStack() as stack:
        if keep is None:
            temporary = tempfile.TemporaryDirectory(prefix="emq-demo-", ignore_cleanup_errors=True)
            directory = Path(stack.enter_context(temporary))
        else:
            directory = _empty_directory(Path(keep))
        kept = None if keep is None else directory
        url, database = f"sqlite:///{directory / 'emq.db'}", None
        if store == "redis":
            server = servers.start_redis(directory=directory / "redis", appendonly=keep is not None)
            url, database = stack.enter_context(server).url, url
        elif store == "memory":
            url = "memory:"
        yield Place(url, database, directory / "trail", kept)


def _empty_directory(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise errors.InvalidSettings(f"directory {str(path)!r} is not empty; name a new one")
    except OSError as exc:
        raise errors.InvalidSettings(f"cannot keep anything in {str(path)!r} ({exc.strerror}); name another") from exc
    return path.absolute()


def _screen(console: Console, plan: Scenario, store: str, live: bool) -> Screen:
    if not live:
        return NoScreen()
    if not console.is_terminal:
        return PlainScreen(console)
    total_s = 2 * plan.half_s + play.AROUND_S + _PROOF_S
    return LiveScreen(Scene(f"{plan.describe()}; store: {store}", total_s, plan.tenants))
