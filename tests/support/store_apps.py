"""An app on each store: in memory, in a file, or on a server of the tests."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import emq
from emq.trail.writer import Trail

STORES = ("memory", "sqlite", "postgresql", "redis", "redis_cluster")


@contextlib.asynccontextmanager
async def app_on(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, trail: Trail | None = None
) -> AsyncIterator[emq.App]:
    """Open an app on the store that `request.param` names, with a catalog of its own; `name`: of a store in memory."""
    urls = {"memory": f"memory://{name}", "sqlite": f"sqlite:///{tmp_path}/store.db"}
    servers = {"postgresql": "postgres_url", "redis": "redis_url", "redis_cluster": "redis_cluster_url"}
    url = urls.get(request.param) or request.getfixturevalue(servers[request.param])
    database = f"sqlite:///{tmp_path}/catalog.db"
    async with emq.App(url, database=database, options=emq.Settings(checkpoint_s=0.2), trail=trail) as app:
        yield app
