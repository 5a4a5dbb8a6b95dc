"""The demonstration from set-up to report. It stops all that it starts."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import uvloop
from rich.console import Console

from emq import App
from emq.runtime.clock import SystemClock
from emq.runtime.settings import Settings
from emq.topics.model import Topic, quotas
from emq.trail.writer import Trail
from emq_demo import flights, measures, play, scenario, verdict
from emq_demo.notices import LAG_S, Notices
from emq_demo.page import Page, served
from emq_demo.places import Place
from emq_demo.play import Play
from emq_demo.receivers import Receivers
from emq_demo.report import Report
from emq_demo.scenario import Scenario
from emq_demo.verdict import Evidence
from emq_demo.view import LiveScreen, PlainScreen, Scene, Screen
from emq_notices.watching import watch
from emq_proof.proof import Expectations, prove

_PROOF_S = 4.0
"""Seconds that proof and report take, about; for the progress bar only."""


def perform(
    console: Console,
    place: Place,
    store: str,
    seconds: float,
    days: int | None,
    *,
    live: bool,
    screen: Callable[[Scene], Screen] = LiveScreen,
) -> Report:
    """Run the demonstration; `emq_demo.run.main` has the other arguments.

    Args:
        console: shows progress: the live table on a terminal, else one line for each step.
        place: the new and empty place for the run's data.
        live: True to draw the live table on a terminal, and to serve the page of the run.
        screen: draws the live table.

    Raises:
        EMQError, alone or in a group: the demonstration could not run; the text says why.
    """
    started = time.monotonic()
    scenario.halves(seconds, days)  # reading the year takes a second: report a mistake before
    with contextlib.ExitStack() as stack:
        plan = scenario.build(flights.load(), flights.airlines(), seconds, days)
        receivers = stack.enter_context(Receivers(plan.receivers))

        def show(page: Page | None) -> Screen:
            if page is not None:
                console.print(f"Watch it at {page.link}", soft_wrap=True)
            made = screen(_scene(plan, store)) if live and console.is_terminal else PlainScreen(console)
            stack.callback(made.close)
            return made

        noted = Notices()
        done, page = uvloop.run(_play(plan, place, receivers, show, noted, paged=live))
        figures = measures.of_trail(place.trail, done.spans)
        calm, troubled = (waits.pooled(plan.victims) for waits in figures.waits)
        left = done.left
        expected = Expectations(still_queued=left.queued | left.delayed, quotas=_quotas(done.topics))
        evidence = Evidence(
            done.ids, prove(place.trail, expected), receivers.stop(), left, calm, troubled, max(done.others)
        )
    kept = None if place.kept is None else str(place.kept)
    seconds = time.monotonic() - started
    return Report(plan, store, evidence, figures, verdict.judge(evidence), seconds, kept, page, noted.told)


async def _play(
    plan: Scenario,
    place: Place,
    receivers: Receivers,
    show: Callable[[Page | None], Screen],
    noted: Notices,
    *,
    paged: bool,
) -> tuple[Play, Page | None]:
    """Play the run; return its results, and the page that it had, if any."""
    trail = Trail.open(place.trail, "demo", SystemClock())
    try:
        # Not the visitor's own settings.
        options = Settings(store=place.store, database=place.database or "", lag_s=LAG_S)
        async with contextlib.AsyncExitStack() as stack:
            app = App(options=options, trail=trail, middleware=[noted])
            await stack.enter_async_context(watch(app))
            await stack.enter_async_context(app)
            pusher = await stack.enter_async_context(play.build_pusher(app))
            page = await stack.enter_async_context(served(app)) if paged else None
            done = Play(plan, app, pusher, receivers, show(page), noted)
            await done.run()
            return done, page
    finally:
        trail.close()


def _quotas(topics: list[Topic]) -> dict[str, float]:
    """Return the quota of every group, and of every topic for the sum over its groups, in starts a second."""
    of_groups = {t.group(i): quota for t in topics for i, quota in enumerate(quotas(t))}
    return of_groups | {t.name: t.qps for t in topics}


def _scene(plan: Scenario, store: str) -> Scene:
    total_s = 2 * plan.half_s + play.AROUND_S + _PROOF_S
    return Scene(f"{plan.describe()}; store: {store}", total_s, plan.tenants)
