"""A span of time is written alike wherever one is given: as seconds, or as a text such as 90s, 15m, 2h."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
import typer

import emq
from emq.runtime import errors, settings
from emq.topics import asking, catalog_file
from emq_cli import times, topic_settings
from emq_scheduling.pools import documents

REMEDY = "is not a duration; give seconds, or a text such as 90s, 15m, 2h, 7d"


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_in_options_of_topics() -> None:
    given: dict[str, Any] = {"ttl_s": "1h", "backoff_s": ["1m", 90, "2h"], "delay_levels": {"remind": "30m"}}
    options = asking.checked(asking.topic_of("o", {"qps": 5, **given})).options
    assert (options.ttl_s, options.backoff_s, options.delay_levels) == (3600, (60, 90, 7200), {"remind": 1800})
    for wrong in ({"ttl_s": "soon"}, {"ttl_s": True}, {"backoff_s": ["1m", "later"]}, {"delay_levels": {"a": "x"}}):
        with pytest.raises(errors.InvalidTopic, match=REMEDY):
            asking.checked(asking.topic_of("o", {"qps": 5, **wrong}))


async def test_in_changes_of_topics_and_in_messages() -> None:
    app = emq.App("memory:")
    async with app:
        await app.create_topic("o", qps=5)
        changed = await app.update_topic("o", ttl_s="15m")
        assert changed.options.ttl_s == 900
        with pytest.raises(errors.InvalidTopic, match=f"topic 'o': ttl_s = 'soon' {REMEDY}"):
            await app.update_topic("o", ttl_s="soon")
        for span in ("1h", 3600, datetime.timedelta(hours=1)):
            await app.publish("o", b"", ttl_s=span)
            await app.publish("o", b"", delay=span)
            await app.schedule("o", b"", every_s=span)
        for options in ({"ttl_s": "soon"}, {"ttl_s": True}, {"delay": b"1h"}):
            with pytest.raises(errors.InvalidMessage, match=REMEDY):
                await app.publish("o", b"", **options)
        with pytest.raises(errors.InvalidMessage, match=REMEDY):
            await app.schedule("o", b"", every_s="5")


def test_in_what_a_handler_asks_for() -> None:
    assert [emq.Retry(after_s=span).after_s for span in (90, "90", "15m", None)] == [90, 90, 900, None]


def test_in_settings() -> None:
    Path("emq.toml").write_text('drain_s = "1m"\napi_requests_per_s = 5')
    found = settings.load(environ={"EMQ_SESSION_TIMEOUT_S": "20s"})
    assert (found.drain_s, found.session_timeout_s, found.api_requests_per_s) == (60, 20, 5)
    with pytest.raises(errors.InvalidSettings, match=r"session_timeout_s = 3600.* must be from 1 to 120"):
        settings.load(environ={"EMQ_SESSION_TIMEOUT_S": "1h"})
    Path("emq.toml").write_text('api_requests_per_s = "1m"')
    with pytest.raises(errors.InvalidSettings, match="api_requests_per_s = '1m' does not fit"):
        settings.load(environ={})


def test_in_files_of_topics_and_pools() -> None:
    [topic] = catalog_file.load('[[topics]]\nname = "o"\nqps = 5\noptions = { ttl_s = "1h" }\n', "toml")
    assert topic.options.ttl_s == 3600
    pool = documents.load('name = "p"\n[types.t]\nlongest_wait_s = "2m"\n[resources.r]\ntakes = ["t"]\n', "toml")
    assert pool.types["t"].longest_wait_s == 120


def test_in_settings_as_key_and_value() -> None:
    hints = {"ttl_s": float | None, "backoff_s": tuple[float, ...], "qps": float}
    found = {
        key: topic_settings.converted("o", key, text, hints[key])
        for key, text in (("ttl_s", "1h"), ("backoff_s", "1m, 90"), ("qps", "5"))
    }
    assert found == {"ttl_s": 3600, "backoff_s": (60, 90), "qps": 5}
    with pytest.raises(errors.InvalidTopic):
        topic_settings.converted("o", "qps", "5s", float)


@pytest.mark.parametrize(("given", "seconds"), [("2", 2), (0.5, 0.5), ("90m", 5400), ("250ms", 0.25), ("2 min", 120)])
def test_in_options_of_commands(given: str | float, seconds: float) -> None:
    assert times.spans(0.1)(given) == seconds


@pytest.mark.parametrize(("given", "said"), [("soon", REMEDY), ("50ms", "at least 0.1 s"), ("2h", "at most 3600 s")])
def test_a_wrong_option_of_a_command_says_what_is_right(given: str, said: str) -> None:
    with pytest.raises(typer.BadParameter, match=said):
        times.spans(0.1, 3600)(given)
