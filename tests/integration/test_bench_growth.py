"""The benchmark of growth runs each of its parts, and refuses what it cannot run."""

from __future__ import annotations

import pytest

from bench.cluster.crew import InvalidRun
from bench.growth import growth, payload
from bench.support.stage import Stage


async def test_a_backlog_is_drained_to_its_end_and_saved() -> None:
    with Stage("sqlite", quiet=True) as stage:
        found = await growth.run(stage, only="backlog", backlog_messages=3_000)
    assert (found["backlog_messages"], found["backlog_unfinished"]) == (3_000, 0)
    assert 0 < found["backlog_flat"] <= 1
    assert min(found[f"backlog_part{part}_per_s"] for part in range(1, 6)) > 0


async def test_no_more_handlers_wait_at_a_time_than_the_host_may_have() -> None:
    with Stage("memory", quiet=True) as stage:
        found = await growth.run(stage, only="handlers", handlers_wait=0.02, handlers_rounds=3, handlers_most=10)
    assert found["handlers_1_most"] == 1
    assert 1 < found["handlers_10_most"] <= 10
    assert found["handlers_1_use"] <= 1
    assert "handlers_100_most" not in found


async def test_each_size_of_payload_is_read_and_written_beside_the_bare_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload, "ROUNDS", 1)
    monkeypatch.setattr(payload, "SIZES", {"100b": 100, "1mb": 1_000_000})
    with Stage("redis", quiet=True) as stage:
        found = await growth.run(stage, only="payload", payload_megabytes=1)
    for size in payload.SIZES:
        assert found[f"payload_{size}_put_ratio"] > 0
        assert found[f"payload_{size}_get_ratio"] > 0
    assert found["payload_stall_ms"] > 0


@pytest.mark.parametrize(
    ("store", "only", "sizes", "text"),
    [
        ("sqlite", "unknown", {}, "choose one of payload, awake, handlers, backlog"),
        ("sqlite", "payload", {"payload_megabytes": 1}, "runs on redis, not on 'sqlite'"),
        ("sqlite", "backlog", {"backlog_messages": 0}, "--backlog-messages: 0 is too small"),
    ],
)
async def test_what_cannot_run_is_told_in_one_line(store: str, only: str, sizes: dict[str, float], text: str) -> None:
    with Stage(store, quiet=True) as stage, pytest.raises(InvalidRun, match=text):
        await growth.run(stage, only=only, **sizes)
