"""The parts of the command line that need no store; how its tables look, and topics' options."""

from __future__ import annotations

import io
import re
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from emq.host.handlers import Handlers
from emq.runtime import errors, plurals
from emq.topics.model import Topic, TopicOptions
from emq_cli import binding, exit_codes, message_lines, output, topic_settings
from emq_push.cli import pushing
from emq_trace import epochs
from support.emq_shell import Shell


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


NAMES = ("a-tenant-with-a-longer-name-1", "short", "x" * 128)


@pytest.mark.parametrize("width", [20, 40, 60, 80, 110])
@pytest.mark.parametrize("spare", [(), ("delayed", "claimed")])
def test_the_first_column_never_disappears(width: int, spare: tuple[str, ...]) -> None:
    columns = ("topic", "high", "mid", "low", "delayed", "claimed", "dead", "reason")
    rows = [(name, 1_000_000, 2, 3, 4, 5, 6, "connect timeout after ten seconds") for name in NAMES]
    file = io.StringIO()
    table = output.table("", columns, rows, right=columns[1:-1], spare=spare)
    Console(file=file, width=width, highlight=False).print(table)
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    shown = "".join("".join(lines).split())
    assert all(name[:12] in shown for name in NAMES)
    assert shown.count("1,000,000") == len(NAMES)


def test_a_table_that_fits_is_not_changed() -> None:
    file = io.StringIO()
    Console(file=file, width=60).print(output.table("", ("topic", "n"), [("a", 1), ("b", 20)], right=("n",)))
    assert file.getvalue().splitlines()[2:] == ["a        1", "b       20"]


def test_an_id_that_begins_with_a_hyphen_comes_after_two(emq: Shell) -> None:
    emq("topic create t --qps 1")
    for line in ("dead show t", "schedule show t", "schedule recall t", "trace --topic t"):
        assert "-own-id" in emq.refused(f"{line} -- -own-id", code=exit_codes.FAILED)


def test_topic_options_lists_every_field_with_its_meaning(emq: Shell) -> None:
    found = {option["name"]: option for option in emq.json("topic options")}
    settable = ("qps", "group_qps", "priorities", "kind", "slots")
    assert [*found] == [*settable, *TopicOptions.__struct_fields__]
    assert all(option["type"] and option["meaning"] for option in found.values())
    for name, option in found.items():
        unit = {"_s": "s", "ms": "ms"}.get(name[-2:])
        if unit is not None and name != "group_qps":
            assert option["unit"] == unit or name == "delay_levels", name
    defaults = TopicOptions()
    assert found["max_attempts"]["default"] == defaults.max_attempts
    assert found["backoff_s"]["default"] == [*defaults.backoff_s]
    assert found["group_qps"]["default"] == Topic("t", 1.0).group_qps
    shown = emq("topic options")
    assert all(name in shown for name in found)
    assert [o["name"] for o in emq.json("topic options max_*")] == [n for n in found if n.startswith("max_")]


@pytest.mark.parametrize("kind", ["log", "fixed_time"])
def test_topic_show_prints_every_option(kind: str, emq: Shell) -> None:
    emq(f"topic create t --qps 1 --kind {kind} --set max_payload=7 --set attributes.team=blue")
    lines = {line.split()[0]: line for line in emq("topic show t").splitlines() if line.strip()}
    assert {*TopicOptions.__struct_fields__} - {"attributes"} <= lines.keys()
    assert "blue" in lines["team"]
    assert lines["max_payload"].split()[1:] == ["7"]
    assert lines["jitter"].split()[1:] == ["0.1", "(default)"]


def test_an_unknown_option_lists_the_known_ones(emq: Shell) -> None:
    emq("topic create t --qps 1")
    for line in ("topic set t max_attemps=2", "topic create u --qps 1 --set max_attemps=2"):
        said = emq.refused(line, code=exit_codes.WRONG)
        assert "did you mean 'max_attempts'?" in said
        assert all(name in said for name in TopicOptions.__struct_fields__)
