"""Serves the API with uvicorn, within the event loop of the app."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import AsyncIterator

import uvicorn

from emq import App
from emq.runtime import errors
from emq.runtime.settings import Address
from emq_push import files
from emq_push.service.service import PushService
from emq_web import application
from emq_web.connections import Connection, Doors
from emq_web.limits import Limits

DEFAULT_ADDRESS = "127.0.0.1:8080"

BACKLOG = 2_048
"""Most connections that wait until they are accepted."""


def bound(address: Address) -> socket.socket:
    """Return a socket bound to an address.

    Raises:
        InvalidSettings: the address is taken, or not one of this machine.
    """
    family = socket.AF_INET6 if ":" in address.host or not address.host else socket.AF_INET
    found = socket.socket(family)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if not address.host:
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        found.bind((address.host or "::", address.port))
    except OSError as exc:
        found.close()
        raise _unusable(address, exc) from exc
    return found


def _listen(listener: socket.socket, address: Address) -> None:
    """Let clients connect: they wait until the server accepts them, rather than being refused."""
    try:
        listener.listen(BACKLOG)
    except OSError as exc:
        raise _unusable(address, exc) from exc


def _unusable(address: Address, exc: OSError) -> errors.InvalidSettings:
    reason = (exc.strerror or str(exc)).lower()
    return errors.InvalidSettings(
        f"the API cannot be served at {address}: {reason}; give another address (setting api)"
    )


class _Server(uvicorn.Server):
    """Leaves signals to the command, which ends the server."""

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        yield


@contextlib.asynccontextmanager
async def serving(app: App, address: Address, limits: Limits | None = None) -> AsyncIterator[Address]:
    """Serve the API for the length of a block; yields the address, with the port that was taken for port 0.

    Args:
        app: open.
        limits: None for those of the settings.

    Raises:
        InvalidSettings: the address cannot be used.
        DatabaseUnavailable: the tables cannot be set up.
    """
    with contextlib.closing(bound(address)) as listener:
        service = await PushService.open(app)
        built = application.build(service, limits)
        config = uvicorn.Config(
            built,
            backlog=BACKLOG,
            log_config=None,
            log_level="warning",  # the command says itself that it serves, and where
            access_log=False,
            lifespan="off",
            server_header=False,
            proxy_headers=False,  # anybody can send X-Forwarded-For, and limits count by address
            http=functools.partial(Connection, doors=Doors(files.most_connections())),  # type: ignore[arg-type]
            timeout_keep_alive=75,
            timeout_graceful_shutdown=5,
            ws="none",
        )
        server = _Server(config)
        where = Address(address.host, listener.getsockname()[1])
        async with service.keeping():
            _listen(listener, address)
            task = asyncio.create_task(server.serve(sockets=[listener]), name="emq api")
            try:
                yield where
            finally:
                server.should_exit = True
                await task
                await built.state.desk.close()
