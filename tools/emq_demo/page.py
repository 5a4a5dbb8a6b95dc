"""The dashboard of a run, at an address of this machine only."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import NamedTuple

from emq import App
from emq.runtime import errors
from emq.runtime.settings import Address
from emq_push.service.service import PushService
from emq_web import serving

ADDRESS = Address("127.0.0.1", 8090)
"""The address of the page, unless another program has the port."""


class Page(NamedTuple):
    """Attributes:
    address: where the page is served.
    key: signs in at this run's page only.
    """

    address: Address
    key: str

    @property
    def link(self) -> str:
        """The URL that signs a browser in with the key; the part behind # stays in the browser."""
        return f"http://{self.address}/ui/sign-in#{self.key}"


@contextlib.asynccontextmanager
async def served(app: App, before: Page | None = None) -> AsyncIterator[Page]:
    """Serve the dashboard of an open app for the length of a block.

    Args:
        before: the earlier page of the same run; the new one has its address and key, unless somebody took the port.
    """
    wanted = ADDRESS if before is None else before.address
    service = await PushService.open(app)
    key = before.key if before is not None else (await service.keys.create("admin", "demo", name="demo"))[1]
    async with contextlib.AsyncExitStack() as stack:
        try:
            where = await stack.enter_async_context(serving.serving(app, wanted))
        except errors.InvalidSettings:  # the port is taken
            where = await stack.enter_async_context(serving.serving(app, wanted._replace(port=0)))
        yield Page(where, key)
