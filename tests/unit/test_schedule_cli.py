"""`emq schedule`: what it lists, shows and takes back, and how it says no."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from emq.app import App
from emq.storage import message
from emq.storage.lane_store import LaneAdd
from emq.storage.message import Message
from emq.timetable import delay_levels, schedule
from support.emq_shell import Shell, opened, shell

NOW_MS = int(time.time() * 1000)
HOUR_MS = 3_600_000


@pytest.fixture
def emq(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """With topic `t` of two groups, and in it a delayed message, a retry and two schedules."""
    made = shell(tmp_path, monkeypatch)

    async def fill(app: App) -> None:
        await app.create_topic("t", 100, delay_levels={"soon": 5, "later": 90})
        every = schedule.create(start_ms=NOW_MS + 2 * HOUR_MS, every_s=300, repeat=6)
        cron = schedule.create(start_ms=NOW_MS + 40 * 24 * HOUR_MS, cron="0 9 * * 1-5", tz="Europe/Berlin")
        entries = (
            (Message("d1", b"one", key="k"), 0, NOW_MS + HOUR_MS),
            (Message("r1", b"\xff", priority=2, attempt=3, error="HTTP 503"), 1, NOW_MS + 1000),
            (Message("e1", b"two", schedule=every.encode()), 1, every.due_ms),
            (Message("c1", b"three", schedule=cron.encode()), 0, cron.due_ms),
        )
        await app.store.lanes.add([LaneAdd(f"t/{g}", m.id, message.encode_retry(m), due) for m, g, due in entries])

    opened(fill)
    return made


def test_all_that_waits_is_listed_by_due_time(emq: Shell) -> None:
    found = emq.json("schedule list t")
    assert [(e["id"], e["kind"], e["group"], e["attempts"]) for e in found] == [
        ("r1", "retry", 1, 2),
        ("d1", "delayed", 0, 0),
        ("e1", "every", 1, 0),
        ("c1", "cron", 0, 0),
    ]
    assert [e["text"] for e in found] == ["HTTP 503", "", "every 5 m, 6 more", "cron 0 9 * * 1-5 Europe/Berlin"]
    assert found[0]["payload_base64"] == "/w=="
    assert (found[1]["payload"], found[1]["key"], found[1]["priority"]) == ("one", "k", "high")
    table = emq("schedule list t")
    assert table.index("r1") < table.index("d1") < table.index("every 5 m, 6 more") < table.index("0 9 * * 1-5")


def test_the_list_is_paged(emq: Shell) -> None:
    assert [e["id"] for e in emq.json("schedule list * --limit 3")] == ["r1", "d1", "e1"]
    assert [e["id"] for e in emq.json("schedule list * --limit 3 --page 2")] == ["c1"]
    assert "--page 2 shows more" in emq("schedule list t --limit 3")
    assert "shows more" not in emq("schedule list t --limit 4")
    assert emq("schedule list t --page 9") == "there is no page 9\n"
    assert emq.json("schedule list t --page 9") == []


def test_an_entry_is_shown_with_its_next_occurrences(emq: Shell) -> None:
    shown = emq.json("schedule show t e1")
    first = NOW_MS + 2 * HOUR_MS
    assert [(n["number"], n["due_ms"]) for n in shown["next"]] == [(i + 1, first + i * 300_000) for i in range(5)]
    assert shown["payload"] == "two"
    text = emq("schedule show t e1")
    assert "e1.5" in text
    assert "e1.6" not in text
    assert "every 5 m, 6 more" in text
    assert len(emq.json("schedule show t c1")["next"]) == 5
    delayed = emq.json("schedule show t d1")
    assert (delayed["next"], delayed["due_ms"], delayed["key"]) == ([], NOW_MS + HOUR_MS, "k")
    assert "one" in emq("schedule show t d1")


def test_what_is_recalled_is_gone(emq: Shell) -> None:
    assert emq("schedule recall t d1 e1") == "recalled 2 messages of 't'\n"
    assert [e["id"] for e in emq.json("schedule list t")] == ["r1", "c1"]
    assert emq.json("schedule recall t c1") == {"recalled": ["c1"], "not_waiting": []}


def test_a_recall_names_what_was_not_waiting(emq: Shell) -> None:
    assert emq("schedule recall t d1 x y x", code=1) == "recalled 1 message of 't'\n"
    assert "not recalled, since not waiting in topic 't': x, y; see what waits: emq schedule list t" in emq.error
    assert emq.json("schedule recall t d1", code=1) == {"recalled": [], "not_waiting": ["d1"]}


def test_a_recall_is_in_the_trail(emq: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from emq.trail import segments

    monkeypatch.setenv("EMQ_TRAIL", str(tmp_path / "trail"))
    emq("schedule recall t d1")
    monkeypatch.delenv("EMQ_TRAIL")
    rows = segments.read(tmp_path / "trail").table.to_pylist()
    assert [(r["event"], r["topic"], r["group"], r["id"]) for r in rows] == [("recalled", "t", 0, "d1")]


def test_levels_are_those_of_a_topic_or_rocketmqs(emq: Shell) -> None:
    assert emq.json("schedule levels") == delay_levels.ROCKETMQ
    assert emq.json("schedule levels t") == {"soon": 5, "later": 90}
    assert "1 m 30 s" in emq("schedule levels t")
    assert emq("schedule levels").count("\n") >= 18
    emq("topic create plain --qps 1")
    assert emq("schedule levels plain") == (
        "topic 'plain' has no delay levels; set them: emq topic set plain delay_levels=remind=30m,final=2h\n"
    )
    assert emq.json("schedule levels plain") == {}


def test_a_topic_in_which_nothing_waits_says_so(emq: Shell) -> None:
    emq("topic create plain --qps 1")
    assert emq("schedule list plain").startswith("nothing waits for its time in the store and database sqlite:")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("schedule list nothing", "no topic 'nothing'"),
        ("schedule show nothing x", "no topic 'nothing'"),
        ("schedule show t x", "nothing with id 'x' waits in topic 't'; see what waits: emq schedule list t"),
        ("schedule recall nothing x", "no topic 'nothing'"),
        ("schedule levels nothing", "no topic 'nothing'"),
    ],
)
def test_bad_input_gets_one_line_that_names_the_value(emq: Shell, line: str, said: str) -> None:
    assert said in emq.refused(line)


@pytest.mark.parametrize(
    "line", ["schedule show t", "schedule list t --page 0", "schedule list t --limit 0", "schedule recall t"]
)
def test_wrong_usage_exits_with_2(emq: Shell, line: str) -> None:
    emq.refused(line, code=2)
