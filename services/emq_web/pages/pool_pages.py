"""The paths of the pages about pools of resources, for operators."""

from __future__ import annotations

from starlette.responses import Response

from emq_web.pages import changes, pools_screen
from emq_web.pages.routing import AdminView, new_router
from emq_web.scheduling import catalog

POOLS = 50
"""Pools on a page."""

router = new_router()


@router.get("/pools")
async def pools(screen: AdminView, after: str = "") -> Response:
    page = await catalog.summaries(screen.desk, POOLS, after)
    return screen.answer_either("pools", page=page, after=after)


@router.get("/pools/{pool}")
async def pool(pool: str, screen: AdminView, start: int = 0, done: str = "") -> Response:
    stored = await screen.desk.catalog.get(pool)
    snapshot = await screen.desk.snapshots.load(pool)
    now = pools_screen.of(stored, snapshot, screen.desk.now(), max(0, start))
    return screen.answer_either("pool", now=now, done=changes.DONE.get(done, ""))
