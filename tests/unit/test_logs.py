"""How `emq up` and `emq host` log: as text for people, as JSON for programs."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from emq.runtime import settings
from emq_cli import logs, supervisor
from emq_cli.session import Session

CREATED_S = 1_700_000_000.25


def record(text: str = "hello", *, failure: BaseException | None = None, **extra: Any) -> logging.LogRecord:
    exc_info = None if failure is None else (type(failure), failure, failure.__traceback__)
    made = logging.LogRecord("emq.some.where", logging.WARNING, "file.py", 1, "%s", (text,), exc_info)
    made.created = CREATED_S
    made.__dict__.update(extra)
    return made


as_json, as_text = (logs.formatter(name).format for name in ("json", "text"))


def raised(text: str) -> ValueError:
    try:
        raise ValueError(text)
    except ValueError as exc:
        return exc


def test_json_is_one_object_a_line_with_time_level_logger_and_the_extra_of_the_record() -> None:
    line = as_json(record("two\nlines", failure=raised("bo\nom"), topic="orders", attempt=2, odd=object()))
    assert "\n" not in line
    told = json.loads(line)
    assert told["event"] == "two\nlines"
    assert (told["timestamp"], told["level"]) == ("2023-11-14T22:13:20.250Z", "warning")
    assert (told["logger"], told["topic"], told["attempt"]) == ("emq.some.where", "orders", 2)
    assert told["odd"].startswith("<object object")
    assert told["pid"] > 0
    assert told["exception"].startswith("Traceback (most recent call last):\n")
    assert told["exception"].endswith("ValueError: bo\nom")


def test_text_is_a_line_with_local_time_and_level_and_the_traceback_below() -> None:
    lines = as_text(record(failure=raised("boom"), topic="orders")).splitlines()
    assert lines[0].endswith(":20.250 [warning  ] hello"), "the extra is for programs"
    assert lines[0].startswith("2023-11-1")
    assert lines[1] == "    Traceback (most recent call last):"
    assert lines[-1] == "    ValueError: boom"
    assert "\x1b" in logs.formatter("text", colors=True).format(record())


def test_the_stack_for_which_a_record_asks_is_told() -> None:
    asked = record(stack_info="Stack (most recent call last):\n  here\x07")
    assert json.loads(as_json(asked))["stack_info"] == asked.stack_info
    assert "stack_info" not in json.loads(as_json(record()))
    lines = as_text(asked).splitlines()
    assert lines[1:] == ["    Stack (most recent call last):", r"      here\x07"]


def test_a_strangers_text_does_not_draw_on_the_terminal() -> None:
    line = as_text(record("\x1b[2J gone", failure=raised("\x1b]0;title\x07")))
    assert "\x1b" not in line
    assert "\x07" not in line
    assert r"\x1b[2J gone" in line


@pytest.mark.parametrize("new_line", ["\n", "\r", "\r\n", "\x85", "\u2028", "\u2029", "\v", "\f"])
def test_a_strangers_text_does_not_pass_for_a_record(new_line: str) -> None:
    forged = "2026-11-23 12:00:00.000 [warning  ] topic bank: all is well"
    error = raised(f"bad{new_line}{forged}")
    error.add_note(forged)
    told = record(f"bad{new_line}{forged}", failure=error)
    lines = as_text(told).splitlines()
    assert len(lines) > 4
    assert [line for line in lines if not line.startswith("    ")] == lines[:1]
    assert len(as_json(told).splitlines()) == 1


class NoText:
    def __repr__(self) -> str:
        raise RuntimeError("an error of the value")


def test_any_extra_is_one_object_of_json() -> None:
    ring: dict[str, object] = {}
    ring["me"] = ring
    for odd in ({(1, 2): 3}, ring, NoText(), float("nan"), b"bytes", {1}, "half \udc80"):
        [line] = as_json(record("said", odd=odd, order=17)).splitlines()
        told = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
        assert (told["event"], told["order"]) == ("said", 17)
        assert isinstance(told["odd"], str)


def test_an_extra_takes_the_place_of_nothing() -> None:
    names = ("event", "exception", "level", "logger", "pid", "timestamp")
    told = json.loads(as_json(record("said", **dict.fromkeys(names, "mine"))))
    assert {told[f"extra_{name}"] for name in names} == {"mine"}
    assert (told["event"], told["level"], told["logger"]) == ("said", "warning", "emq.some.where")
    assert "exception" not in told


@pytest.mark.parametrize("format_", ["text", "json"])
def test_an_error_with_a_text_of_megabytes_is_cut(format_: str) -> None:
    line = logs.formatter(format_).format(record(failure=raised("x" * 5_000_000)))
    assert len(line) < logs.MAX_TRACEBACK + 1_000
    assert "Traceback (most recent call last):" in line
    assert "characters left out" in line


@pytest.mark.parametrize("text", ["x" * 50_000, "\n|" * 50_000, "ü" * 50_000], ids=["x", "lines", "umlauts"])
def test_processes_that_share_a_pipe_write_lines_that_it_takes_whole(text: str) -> None:
    """A pipe tears a longer text apart if another process writes meanwhile; then neither is JSON any more."""
    told = record("said", failure=raised(text), topic="orders")
    whole, cut = (logs.formatter("json", most=most).format(told) for most in (None, 4_096))
    assert len(whole) > 10_000
    assert 1_000 < len(f"{cut}\n".encode()) <= 4_096
    assert "characters left out" in json.loads(cut)["exception"]
    assert logs.formatter("json", most=4_096).format(record("said", failure=raised("short"))).count("left out") == 0


def test_an_option_goes_before_a_variable_and_that_before_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "my.toml"
    file.write_text('log_format = "json"\nlog_level = "error"\n')
    monkeypatch.setenv("EMQ_LOG_LEVEL", "debug")
    found = Session({"log_level": "warning", "log_format": None}, str(file)).settings
    assert (found.log_level, found.log_format) == ("warning", "json")
    assert Session({"log_level": None}, str(file)).settings.log_level == "debug"


def test_the_processes_of_a_host_log_as_their_parent_does() -> None:
    chosen = settings.Settings(log_format="json", log_level="error")
    environ = supervisor._environment(chosen)
    assert settings.load(None, environ) == chosen


def test_what_a_program_has_configured_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    own = logging.StreamHandler(sys.stderr)
    monkeypatch.setattr(logging.root, "handlers", [own])
    before = [logging.getLogger(name).level for name in (None, *logs.CHATTY)]
    logs.configure("debug", "json")
    assert logging.root.handlers == [own]
    assert [logging.getLogger(name).level for name in (None, *logs.CHATTY)] == before


def test_debug_leaves_out_the_chatter_of_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(logging.root, "level", logging.WARNING)
    for name in logs.CHATTY:
        monkeypatch.setattr(logging.getLogger(name), "level", logging.NOTSET)
    logs.configure("debug", "text")
    assert logging.getLogger("emq.some.where").isEnabledFor(logging.DEBUG)
    assert not any(logging.getLogger(name).isEnabledFor(logging.INFO) for name in logs.CHATTY)
    logging.getLogger().manager._clear_cache()  # type: ignore[attr-defined]
