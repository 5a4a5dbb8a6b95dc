"""A run goes on after its proof, for visitors: the remaining messages are delivered, and its page is served.

The endpoints stay as in the troubled half. No event of this part joins the trail, which was read for the proof.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator

import uvloop

from emq import App
from emq.runtime.settings import Settings
from emq.trail.sink import NullTrail
from emq_demo import page, play
from emq_demo.notices import LAG_S
from emq_demo.page import Page
from emq_demo.places import Place
from emq_demo.receivers import Receivers
from emq_demo.scenario import HEALTHY, TROUBLES
from emq_notices.watching import watch


def go_on(place: Place, before: Page | None, tell: Callable[[Page], None], most_s: float | None = None) -> None:
    """Deliver the messages that a run left, and serve its page, until Enter, Ctrl-C or SIGTERM.

    Args:
        place: of the run; no host uses it now.
        before: the page of the run; None if it is not known.
        tell: called once the page is served.
        most_s: end after so many seconds; None for no limit.

    Raises:
        EMQError, alone or in a group: the run cannot go on; the text says why.
    """
    uvloop.run(_go_on(place, before, tell, most_s))


async def _go_on(place: Place, before: Page | None, tell: Callable[[Page], None], most_s: float | None) -> None:
    app = App(options=Settings(store=place.store, database=place.database or "", lag_s=LAG_S), trail=NullTrail())
    asked = asyncio.Event()
    async with watch(app), app, play.build_pusher(app) as pusher:
        carriers = await app.catalog.names()
        async with _receivers(carriers) as receivers:
            for carrier in carriers:
                await app.admin.update(carrier, attributes={"push.url": receivers.url(carrier)})
            app.handlers.bind("*", pusher)
            async with page.served(app, before) as served:
                with _asking(asked):
                    async with app.running():
                        tell(served)
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(most_s):
                                await asked.wait()


@contextlib.asynccontextmanager
async def _receivers(carriers: Iterable[str]) -> AsyncIterator[Receivers]:
    receivers = Receivers({carrier: TROUBLES.get(carrier, HEALTHY) for carrier in carriers})
    await asyncio.to_thread(receivers.start)
    try:
        yield receivers
    finally:
        await asyncio.to_thread(receivers.stop)


@contextlib.contextmanager
def _asking(asked: asyncio.Event) -> Iterator[None]:
    """Set the event when somebody asks for the end, by a signal or by Enter in a terminal."""
    loop, numbers = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, asked.set)
    listens = sys.stdin is not None and sys.stdin.isatty()

    def entered() -> None:
        sys.stdin.readline()
        asked.set()

    if listens:
        loop.add_reader(sys.stdin.fileno(), entered)
    try:
        yield
    finally:
        if listens:
            loop.remove_reader(sys.stdin.fileno())
        for number in numbers:
            loop.remove_signal_handler(number)
