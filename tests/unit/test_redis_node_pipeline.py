from __future__ import annotations

import asyncio
from unittest import mock

import pytest

from emq_stores.redis.node_pipeline import NodePipeline


@pytest.mark.parametrize("broken", ["execute_command", "answers"])
async def test_a_pipeline_that_breaks_or_answers_too_little_keeps_no_caller_waiting(broken: str) -> None:
    client = mock.AsyncMock()
    client.pipeline = mock.Mock(return_value=(pipeline := mock.AsyncMock()))
    pipeline.execute_command = mock.Mock(side_effect=TypeError if broken == "execute_command" else None)
    pipeline.execute.return_value = [b"1"]
    line = NodePipeline("10.0.0.1:7000", client)
    async with asyncio.timeout(5):
        told = await asyncio.gather(*(line.send(["GET", name]) for name in "ab"), return_exceptions=True)
    assert all(isinstance(outcome, Exception) for outcome in told)
    await line.close()
