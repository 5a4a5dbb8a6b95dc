"""One host, or several processes of one, from start to clean stop."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
from collections.abc import Iterator, Sequence

import msgspec
import uvloop

from emq.app import App
from emq.host import garbage_collection
from emq.runtime import errors, extending, plurals
from emq.runtime.passwords import hide_password
from emq.runtime.settings import Settings
from emq.trail.sink import NullTrail
from emq_cli import binding, logs, output, supervisor
from emq_cli.session import Session

log = logging.getLogger("emq")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run(session: Session, member: str | None = None, *, child: bool = False, api: bool = False) -> None:
    """Consume in this process until a signal.

    Args:
        member: `I/N` if this is the I-th of N processes of a parent.
        child: this process stops with its parent.
        api: serve the HTTP API, too, if the setting `api` says where.
    """
    logs.configure(session.settings.log_level, session.settings.log_format, shared=member is not None)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_consume(session, member, child=child, api=api))


def run_many(session: Session, processes: int) -> None:
    """Consume in several processes until a signal.

    Raises:
        InvalidSettings: store or database cannot be shared, or the handlers cannot be loaded; nothing was started.
    """
    logs.configure(session.settings.log_level, session.settings.log_format)
    app = binding.app_of(session)  # handlers that cannot be loaded fail here rather than in every process
    asyncio.run(_refuse_unshared(app.settings, processes))
    asyncio.run(supervisor.Supervisor(app.settings, processes).run())


async def _consume(session: Session, member: str | None, *, child: bool, api: bool) -> None:
    if member is not None:  # the parent has put the settings together, and handed over all of them
        session = dataclasses.replace(session, overrides=msgspec.to_builtins(session.settings))
    app = binding.app_of(session)
    process = 0 if member is None else int(member.partition("/")[0])
    ending = _Ending()
    try:
        async with app.monitor.serving(process), extending.consuming(app), contextlib.AsyncExitStack() as stack:
            with ending.by_signals():
                if child or member is not None:
                    _stop_with_parent(app, ending)
                # A task group of a hook must end in the task in which it began; this task also closes the app.
                await stack.enter_async_context(app)
                if api:
                    await stack.enter_async_context(extending.serving(app))
                ending.is_open = True
                membership = None if member is None else app.membership(process)
                announcer = asyncio.create_task(_announce(app))
                try:
                    await app.run_until_signal(membership)
                finally:
                    announcer.cancel()
                    ending.listen()  # a signal ends the shutdown hook that runs
                    await stack.aclose()
    except asyncio.CancelledError:
        if not ending.is_asked:
            raise
        if not ending.is_open:
            log.info("stopped while it waited for the store, the database or a start-up hook")
            return
    if app.host is not None:
        totals = app.host.statistics().totals
        counts = (plurals.count(totals.started, "message"), f"{totals.succeeded:,}", f"{totals.failed:,}")
        left = totals.started - totals.succeeded - totals.failed
        more = f", {left:,} given back or not finished" if left > 0 else ""
        log.info("stopped: %s started, %s succeeded, %s failed%s", *counts, more)


class _Ending:
    """Cancels the task that made this object when a signal comes or the parent ends.

    Attributes:
        is_asked: a signal has come, or the parent has ended.
        is_open: the app is open; from then on `run_until_signal` listens to signals while the app consumes.
    """

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self.is_asked = False
        self.is_open = False

    def ask(self) -> None:
        assert self._task is not None
        self.is_asked = True
        self._task.cancel()

    def listen(self) -> None:
        for number in _SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self.ask)

    @contextlib.contextmanager
    def by_signals(self) -> Iterator[None]:
        """Listen to signals for the length of a block."""
        self.listen()
        try:
            yield
        finally:
            for number in _SIGNALS:
                asyncio.get_running_loop().remove_signal_handler(number)


async def _announce(app: App) -> None:
    while app.host is None:  # noqa: ASYNC110 (the host is made in the first steps of `run`)
        await asyncio.sleep(0.01)
    await app.host.running.wait()
    garbage_collection.shorten_pauses()
    ownership = app.host.ownership
    if warning := _nothing_to_call(app, [*ownership.topics]):
        log.warning(warning)
    if app.store.shared and ownership.topics and not ownership.groups:
        log.info(
            "joined the cluster [%s], which has no groups for this host yet; Ctrl-C stops", app.settings.environment
        )
        return
    # A budget needs no handler: most budgets have no messages of their own.
    budgets = {topic.options.budget for topic in ownership.topics.values()}
    named = [owner for name, owner in ownership.owned.items() if owner.handler is not None or name not in budgets]
    idle = sum(owner.handler is None for owner in named)
    log.info(
        "consuming %s in %s from %s [%s]%s; Ctrl-C stops",
        output.count(len(named) - idle, "topic"),
        output.count(len(ownership.groups), "group"),
        hide_password(app.settings.store),
        app.settings.environment,
        f" ({output.count(idle, 'topic')} without a handler{extending.addresses()}, or paused)" if idle else "",
    )


def _nothing_to_call(app: App, topics: Sequence[str]) -> str:
    """Return a warning if this host can hand over the messages of no topic; else an empty text."""
    if not topics or any(app.handlers.find(name) is not None for name in topics):
        return ""
    have = "1 topic has" if len(topics) == 1 else f"{len(topics):,} topics have"
    remedy = f"bind handlers to their names in {app.settings.app}" if app.settings.app else "give --app MODULE:APP"
    lacking = "no handler"
    for taker in extending.takers():
        lacking = f"neither a handler nor {taker.address}"
        remedy += f", or set {taker.address} of a topic"
    return f"{have} {lacking}, so this host consumes nothing; {remedy}"


def _stop_with_parent(app: App, ending: _Ending) -> None:
    """Stop the app when the parent ends: standard input is a pipe from it. A look each second makes sure."""
    loop, parent = asyncio.get_running_loop(), os.getppid()

    def stop() -> None:
        if not ending.is_open:
            ending.ask()
        elif app.host is None:
            loop.call_later(0.05, stop)  # it is being made
        else:
            app.stop()

    def gone() -> None:
        loop.remove_reader(0)
        stop()

    def look() -> None:
        if os.getppid() == parent:
            loop.call_later(1.0, look)
        else:
            stop()

    loop.add_reader(0, gone)
    look()


async def _refuse_unshared(settings: Settings, processes: int) -> None:
    async with App(options=settings, trail=NullTrail(), patient=True) as app:
        if not app.store.shared:
            raise errors.InvalidSettings(
                f"store {hide_password(settings.store)!r} serves one host process, not {processes}; "
                "use redis:// or postgresql://, or --processes 1"
            )
    if settings.database_is_private:
        raise errors.InvalidSettings(
            f"database {settings.database_url!r} is in memory, where {processes} processes cannot share it; "
            "give --database sqlite:///FILE or postgresql://..."
        )
