"""The comparison of gateways to models: what its stand-in counts, and its figures, from made-up results."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="the stand-in of the providers needs the extra push")

from bench.gateway import gateway, page
from emq_scheduling.pools import documents

EXAMPLE = Path(__file__).parents[3] / "examples" / "gateway"
POOL = documents.load((EXAMPLE / "models.toml").read_text())
NOW = 1_800_000_000.0  # the begin of a minute


@pytest.fixture(scope="module")
def providers() -> Any:
    spec = importlib.util.spec_from_file_location("providers", EXAMPLE / "providers.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["providers"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_rolling_limit_counts_any_minute_and_what_was_really_used(providers: Any) -> None:
    limit = providers.Limit("a", "tokens", 100, "minute")
    limit.take(60, NOW + 30)(10)
    limit.take(80, NOW + 50)
    assert (limit.left(NOW + 50), limit.left(NOW + 89), limit.left(NOW + 90)) == (10, 10, 20)
    assert limit.reset_s(100, NOW + 90) == 20
    assert sum(limit.used.values()) == 90


def test_a_bucket_fills_up_evenly_and_never_beyond_its_burst(providers: Any) -> None:
    limit = providers.Limit("a", "tokens", 60, "minute", "bucket", 10)
    settle = limit.take(10, limit.at)
    assert (limit.left(limit.at), limit.left(limit.at + 4), limit.reset_s(10, limit.at)) == (0, 4, 6)
    settle(7)
    assert (limit.left(limit.at), limit.left(limit.at + 100)) == (7, 10)


def test_a_calendar_begins_again_by_the_clock_and_a_day_by_its_zone(providers: Any) -> None:
    limit = providers.Limit("a", "tokens", 100, "minute", "calendar")
    settle = limit.take(100, NOW + 59)
    assert (limit.left(NOW + 59.9), limit.left(NOW + 60), limit.reset_s(1, NOW + 59)) == (0, 100, 1)
    settle(10)  # of a minute that is over
    assert limit.left(NOW + 61) == 100
    day = providers.Limit("west", "requests", 100, "day", zone="America/Los_Angeles")
    assert day.left(NOW) == 60  # others have used 40
    day.take(1, NOW)
    midnight = NOW + day.reset_s(1, NOW)
    assert (day.left(midnight - 1), day.left(midnight)) == (59, 100)
    assert midnight % 86_400 == 8 * 3_600


def test_a_call_counts_for_the_model_its_account_and_its_provider(providers: Any) -> None:
    pool = {"resources": {"p": {"limits": [{"name": "calls", "amount": 1, "per": "in_flight"}]}, "m": {"parent": "p"}}}
    made = providers.Providers(pool)
    [limit] = made.limits("m")
    settle = limit.take(1, NOW)
    assert limit.left(NOW) == 0
    settle(1)
    assert limit.left(NOW) == 1


def test_litellm_gets_of_each_model_the_least_limit_of_its_chain() -> None:
    made = {each["model"]: each for each in gateway.deployments(POOL)}
    assert made["north-large"]["limits"] == {"rpm": 150, "tpm": 100_000, "max_parallel_requests": 30}
    assert made["west-large"]["limits"] == {"tpm": 40_000, "rpd": 150, "daily_reset_time": "08:00"}
    assert (made["south-large"]["group"], made["north-small"]["group"]) == ("large", "small")
    assert made["north-small"]["key"] == "north-secret"


def limit_of(of: str, **more: Any) -> dict[str, Any]:
    return {"name": "tokens", "of": of, "kind": "rolling", "per": "minute", "amount": 100, "refused": 2} | more


def test_the_figures_count_the_minutes_of_the_run_alone() -> None:
    stats = {
        "limits": [
            limit_of("north-large", used={"30000000": 50, "30000001": 100, "30000002": 99}),
            limit_of("south", kind="bucket", burst=20, used={"30000000": 110}),
            limit_of("west", per="day", name="requests", used={"30000000": 45}, amount=100, used_by_others=40),
            limit_of("north", per="in_flight", name="calls", used={}),
        ],
        "tokens_by_user": {"acme": 500, "bolt": 300, "crux": 200, "": 77},
        "calls": {"north-large": 7, "south-large": 3},
    }
    seen = {
        "first_word_s": [0.2] * 50 + [0.5] * 50 + [9.0],
        "unanswered_chats": 1,
        "errors": 4,
        "cpu_s": 3.14,
        "late_s": 0.004,
    }
    found = gateway.judged(POOL, seen, stats, NOW, 120)
    assert found["use"] == {
        "tokens/minute of north-large": 75.0,
        "tokens/minute of south": 50.0,
        "requests/day of west": 75.0,
    }
    assert (found["refusals"], found["calls"], found["chats"], found["chat_p50_s"]) == (8, 10, 101, 0.5)
    assert found["shares"] == {"acme": 50.0, "bolt": 30.0, "crux": 20.0}
    assert found["share_error"] == 10.0


def test_the_page_gets_a_column_for_each_gateway() -> None:
    one = {"use": dict.fromkeys(page.LIMITS, 97.4), "refusals": 1_200, "errors": 3, "chats": 60, "unanswered_chats": 0}
    one |= {
        "chat_p50_s": 0.2,
        "chat_p99_s": 1.5,
        "tokens": {"acme": 3_000},
        "shares": {"acme": 100.0},
        "cpu_s": 7.0,
        "late_s": 0.5,
    }
    run = {"results": [one | {"name": "EMQ"}, one | {"name": "Other"}], "date": "2026-01-02", "machine": "two cores"}
    text = page.written(f"before\n{page.BEGIN}old\n{page.END}\nafter", run | {"litellm": "", "seconds": 180})
    assert "| | EMQ | Other |\n|---|---:|---:|" in text
    assert "| answers 429 of the providers | 1,200 | 1,200 |" in text
    assert "| 97 % | 97 % |" in text
    assert "LiteLLM not installed. One run, 180 s for each." in text
    assert "old" not in text
    assert text.startswith("before")
    assert text.endswith("after")
