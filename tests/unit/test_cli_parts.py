"""The parts of the command line that need no store."""

from __future__ import annotations

import io
import re
import sys
import time
from pathlib import Path

import pytest

from emq.host.handlers import Handlers
from emq.observe import epochs
from emq.runtime import errors, plurals
from emq_cli import binding, message_lines, output, topic_settings
from emq_push.cli import pushing


class Dripping(io.RawIOBase):
    """A stream that gives a few bytes at a time, as a slow pipe does."""

    def __init__(self, data: bytes, size: int) -> None:
        self._data, self._size = data, size

    def read1(self, _size: int) -> bytes:
        part, self._data = self._data[: self._size], self._data[self._size :]
        return part


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_lines_are_whole_however_a_stream_drips(size: int) -> None:
    text = b"one\n\ntwo and more\nlast"
    found = [line for chunk in message_lines.chunks(Dripping(text, size)) for line in chunk]  # type: ignore[arg-type]
    assert found == text.split(b"\n")


def test_a_slow_source_is_followed_line_by_line() -> None:
    chunks = message_lines.chunks(Dripping(b"ab\ncd\n", 3))  # type: ignore[arg-type]
    assert list(chunks) == [[b"ab"], [b"cd"]]


def test_what_disturbs_a_terminal_is_escaped() -> None:
    assert output.plain("a\x1b[31mb\nc\u202e é") == "a\\x1b[31mb\\nc\\u202e é"
    assert output.payload(b"\xff\x00") == "b'\\xff\\x00'"


def test_numbers_are_readable() -> None:
    shown = [output.number(n) for n in (0, 12345, 3.0, 0.25, 99.96, 1234.5)]
    assert shown == ["0", "12,345", "3", "0.25", "100", "1,234"]


def test_epochs_are_shown_as_times_that_tell_two_of_them_apart() -> None:
    now_us = time.time_ns() // 1000
    of_now, of_next = epochs.shown(now_us), epochs.shown(now_us + 1)
    assert re.fullmatch(r"(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d\.\d{6}", of_now)
    assert of_now.endswith(f".{now_us % 1_000_000:06d}")
    assert of_now != of_next
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}", epochs.shown(now_us - 3 * 86_400_000_000))
    assert epochs.since_s(now_us) == pytest.approx(now_us / 1e6)


@pytest.mark.parametrize("number", [0, 5, 1_700_000_000, 9_999_999_999_999_999])
def test_a_number_that_is_not_a_time_is_shown_as_it_is(number: int) -> None:
    assert (epochs.shown(number), epochs.since_s(number)) == (str(number), None)


def test_settings_of_a_topic_are_read_as_their_types() -> None:
    pairs = ["qps=2.5", "backoff_s=1, 2.5", "max_length=none", "pacing=smooth", "push.url=http://h/?a=b"]
    given = topic_settings.parse("topic 't'", pairs)
    assert given.settings == {"qps": 2.5, "backoff_s": (1.0, 2.5), "max_length": None, "pacing": "smooth"}
    assert given.attributes == {"push.url": "http://h/?a=b"}
    with pytest.raises(errors.InvalidTopic, match="pacing='fast'"):
        topic_settings.parse("topic 't'", ["pacing=fast"])


def test_a_modules_app_lends_its_handlers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    (tmp_path / "cli_handlers_ok.py").write_text("import emq\napp = emq.App()\nclass more:\n    app = app\nx = 1\n")
    (tmp_path / "cli_handlers_broken.py").write_text("\n1 / 0\n")
    (tmp_path / "cli_handlers_needy.py").write_text("import cli_no_such_package\n")
    assert binding.load("cli_handlers_ok") is binding.load("cli_handlers_ok:more.app")
    for text, said in (
        ("cli_handlers_ok:x", "not an emq.App"),
        ("cli_handlers_ok:y", "not an emq.App"),
        ("cli_handlers_broken", r"ZeroDivisionError.*line 2"),
        ("cli_handlers_needy", "needs the module 'cli_no_such_package'"),
        ("cli_no_such", "no module 'cli_no_such'"),
    ):
        with pytest.raises(errors.InvalidSettings, match=said):
            binding.load(text)


def test_push_takes_what_handlers_leave_and_only_topics_with_an_endpoint() -> None:
    async def push(_: object) -> None: ...

    async def own(_: object) -> None: ...

    handlers = Handlers()
    handlers.bind("mine*", own)
    both = pushing.WithPush(handlers, push, {"tenant", "mine-too"}.__contains__)

    def bound(topic: str) -> object:
        found = both.find(topic)
        return None if found is None else found.call

    assert bound("mine-too") is own
    assert bound("tenant") is push
    assert bound("neither") is None


def test_counted_things_have_their_number() -> None:
    assert [plurals.count(n, "topic") for n in (0, 1, 2, 3000)] == ["0 topics", "1 topic", "2 topics", "3,000 topics"]
    assert [plurals.count(n, "entry", "entries") for n in (1, 2)] == ["1 entry", "2 entries"]
    assert [plurals.are(n) for n in (0, 1, 2)] == ["are", "is", "are"]
    assert [plurals.others(n) for n in (1, 2)] == ["1 other", "2 others"]


WINTER_MS, SUMMER_MS = 1_768_478_400_000, 1_784_116_800_000


@pytest.mark.parametrize(
    ("zone", "times", "shown"),
    [
        ("UTC", [WINTER_MS], "UTC"),
        ("Europe/Berlin", [WINTER_MS], "UTC+01:00"),
        ("Europe/Berlin", [SUMMER_MS, SUMMER_MS], "UTC+02:00"),
        ("Europe/Berlin", [WINTER_MS, SUMMER_MS], "UTC+01:00/+02:00"),
        ("Europe/London", [WINTER_MS, SUMMER_MS], "UTC+00:00/+01:00"),
        ("Asia/Kolkata", [], "UTC+05:30"),
        ("America/St_Johns", [WINTER_MS], "UTC-03:30"),
    ],
)
def test_a_head_names_the_time_zone(zone: str, times: list[int], shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert output.zoned("died", times) == f"died ({shown})"
    finally:
        monkeypatch.undo()
        time.tzset()
