"""What tests of the API do again and again, with the tenant `acme`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from aiohttp.abc import AbstractResolver

from emq_push.cli import pushing
from support.http_receiver import HttpReceiver, Request
from support.push_api import Api
from support.waiting import until

PATH = "/v1/tenants/acme/messages"


@contextlib.asynccontextmanager
async def hosting(api: Api) -> AsyncIterator[None]:
    """Deliver what the API takes, as `emq up` does."""
    async with pushing.with_push(api.app), api.app.running():
        yield


async def endpoint_of(api: Api, receiver: HttpReceiver | None = None, **body: Any) -> Any:
    """Create an endpoint; without a receiver, one at an address that the tests never reach."""
    url = "https://93.184.216.34/hook" if receiver is None else receiver.url("/hook")
    return await api("POST", "/v1/tenants/acme/endpoints", {"url": url, **body}, status=201)


def message(**more: Any) -> dict[str, Any]:
    return {"event_type": "order.paid", "payload": {"amount": 5}, **more}


async def post(api: Api, body: Any, **more: Any) -> Any:
    return await api("POST", PATH, body, **more)


async def delivered(api: Api, receiver: HttpReceiver, tenant: str) -> Request:
    """Publish a message to a tenant; return the request that brings it."""
    count = len(receiver.requests)
    await api("POST", f"/v1/tenants/{tenant}/messages", message())
    await until(lambda: len(receiver.requests) > count)
    return receiver.requests[-1]


async def lag(api: Api) -> int:
    """Return how many messages are in the queues of all endpoints."""
    topics = await api.app.catalog.list("acme.*")
    return sum(each.unfinished for each in await api.app.admin.lag(topics))


async def states(api: Api) -> dict[str, str]:
    """Return the states of the rows of deliveries by message."""
    query = "SELECT message, state FROM emq_push_deliveries"
    return dict(await api.app.database.run(lambda c: c.exec_driver_sql(query).all()))


class Names(AbstractResolver):
    """Names below `example` with their addresses; no other name has one.

    Args:
        addresses: by name, separated by spaces.
    """

    def __init__(self, **addresses: str) -> None:
        self._addresses = addresses

    async def resolve(self, host: str, *_: object) -> Any:
        found = self._addresses.get(host.removesuffix(".example"))
        if found is None:
            raise OSError("no such name")
        return [{"host": address} for address in found.split()]

    async def close(self) -> None: ...
