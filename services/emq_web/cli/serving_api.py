"""The API in a process of its own, from start to clean stop."""

from __future__ import annotations

import asyncio
import logging
import signal

import uvloop

from emq.runtime import errors
from emq.runtime.passwords import hide_password
from emq.runtime.settings import address
from emq_cli import logs
from emq_cli.session import Session
from emq_web import serving

log = logging.getLogger("emq")


def run(session: Session) -> None:
    """Serve until a signal.

    Raises:
        InvalidSettings: one process alone can use the store; or the address cannot be used.
    """
    logs.configure(session.settings.log_level, session.settings.log_format)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(session))


async def _serve(session: Session) -> None:
    settings = session.settings
    asked = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, asked.set)
    async with session.app(recorded=True, patient=True, create=True) as app:
        if not app.store.shared:
            raise errors.InvalidSettings(
                f"store {hide_password(settings.store)!r} serves one process, not an API beside a host; "
                "use redis:// or postgresql://, or emq up --api"
            )
        async with serving.serving(app, address(settings.api or serving.DEFAULT_ADDRESS)) as where:
            log.info("serving the API at http://%s; Ctrl-C stops", where)
            await asked.wait()
