"""A key that is deleted while it makes others leaves none of them, whoever is quicker."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from emq import App
from emq.runtime import settings
from emq_push.records.keys import Key
from emq_push.service.refusals import NotFound
from emq_push.service.service import PushService

ROUNDS = 20


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_nothing_is_left_of_a_key_that_was_deleted_meanwhile(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path}/emq.db" if kind == "sqlite" else request.getfixturevalue("postgres_url")
    options = settings.Settings(store="memory:", database=url)
    async with App(options=options) as app, App(options=options) as other:
        here, there = (await PushService.open(app)).keys, (await PushService.open(other)).keys

        async def make(maker: Key, depth: int) -> None:
            with contextlib.suppress(NotFound):
                made, _ = await there.create("admin", "test", maker=maker)
                if depth:
                    await asyncio.gather(*[make(made, depth - 1) for _ in range(3)])

        for n in range(ROUNDS):
            top, _ = await here.create("admin", "test")
            making = [asyncio.create_task(make(top, 2)) for _ in range(3)]
            await asyncio.sleep(n / 200)
            await here.delete(top.id, "test")
            await asyncio.gather(*making)
            assert (await here.page(500)).rows == []
