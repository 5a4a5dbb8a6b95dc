"""The command line with sorted topics, delays and schedules: what it does, what it prints, and how it says no."""

from __future__ import annotations

import json
import time
import typing
from pathlib import Path
from typing import Any

import pytest

from emq.app import App
from emq.runtime import errors
from emq.storage.slot_store import SlotClaim, SlotSettle, SlotVerdict
from emq.timetable import delay_levels
from emq.topics import model
from emq_cli import times, topic_arguments, topic_settings
from support.emq_shell import Shell, opened

EPOCH = 0


def waiting(topic: str) -> list[tuple[bytes, float]]:
    """Members with their scores, over all slots."""

    async def read(made: App) -> Any:
        found = await made.catalog.get(topic)
        return [(w.member, w.score) for i in range(found.slots) for w in await made.store.sorted.waiting(found.slot(i))]

    members: list[tuple[bytes, float]] = opened(read)
    return sorted(members)


def fail(topic: str, *reasons: str, dies: bool = True) -> None:
    """Let all that waits in a topic's slots fail, once for each reason; of the last one it dies."""

    async def work(made: App) -> None:
        found, now_ms = await made.catalog.get(topic), int(time.time() * 1000)
        for slot in map(found.slot, range(found.slots)):
            for turn, reason in enumerate(reasons, 1):
                [claimed] = await made.store.sorted.claim([SlotClaim(slot, 100, EPOCH, now_ms + 10_000)], now_ms)
                assert not isinstance(claimed, errors.NotOwner)
                verdict = SlotVerdict.DEAD if dies and turn == len(reasons) else SlotVerdict.RETRY
                await made.store.sorted.settle(
                    [SlotSettle(slot, e.member, verdict, e.token, EPOCH, 16, reason) for e in claimed.entries]
                )

    opened(work)


# --------------------------------------------------------------------------------------------------------------- topics


def test_a_sorted_topic_lives_from_create_to_delete(emq: Shell) -> None:
    made = "topic 't': 120 a second in 4 slots, priority\n"
    assert emq("topic create t --qps 120 --kind priority") == made
    assert emq("topic create t --qps 120 --kind priority --exist-ok") == made
    assert emq("topic create t --qps 99 --kind priority --exist-ok") == made.replace("\n", " (was there)\n")
    listed = emq("topic list")
    assert "priority" in listed
    assert "4 slots" in listed
    assert emq.json("topic set t qps=40 max_attempts=3")["options"]["max_attempts"] == 3
    emq("publish t a b c --priority 50")
    shown = emq.json("topic show t")
    assert (shown["kind"], shown["slots"], shown["lag"]["ready"]) == ("priority", 4, {"slot": 3})
    assert [s["quota"] for s in shown["slot_list"]] == [10, 10, 10, 10]
    assert {s["best_priority"] for s in shown["slot_list"] if s["ready"]} == {50}
    assert "best" in emq("topic show t")
    exported = emq("topic export")
    assert "still holds 3 messages" in emq.refused("topic delete t --yes")
    assert emq.json("topic delete t --yes --force") == {"deleted": "t", "messages": 3}
    Path("t.toml").write_text(exported)
    assert emq.json("topic import t.toml") == {"topics": ["t"]}
    assert waiting("t") == []


def test_kinds_on_the_command_line_are_those_of_the_model() -> None:
    assert list(typing.get_args(topic_arguments.KindName)) == [kind.value for kind in model.Kind]


def test_each_slot_is_shown_with_what_it_holds_and_when_it_is_due(emq: Shell) -> None:
    emq("topic create t --qps 10 --kind fixed_time --slots 2")
    emq("publish t soon --delay 1ms --key a")
    emq("publish t later --delay 2h --key a")
    time.sleep(0.003)
    [of_a] = [s for s in emq.json("topic show t")["slot_list"] if s["ready"]]
    assert (of_a["ready"], of_a["delayed"], of_a["claimed"], of_a["dead"]) == (1, 1, 0, 0)
    assert abs(of_a["next_due_ms"] / 1000 - time.time()) < 5
    assert emq.json("topic show t")["lag"] == {
        "topic": "t", "ready": {"slot": 1}, "delayed": 1, "claimed": 0, "dead": 0,
    }  # fmt: skip
    fail("t", "boom", "boom again")
    assert emq.json("lag t")[0]["dead"] == 1


def test_what_failed_is_shown_as_a_retry(emq: Shell) -> None:
    emq("topic create t --qps 10 --kind priority --slots 1")
    emq("publish t x --priority 90")
    fail("t", "boom", dies=False)
    [slot] = emq.json("topic show t")["slot_list"]
    assert (slot["retries_left"], slot["best_priority"]) == (16, None)
    assert "a retry, 16 left" in emq("topic show t")


def test_under_aging_the_priority_is_shown_as_it_has_grown(emq: Shell) -> None:
    emq("topic create t --qps 10 --kind priority --slots 1 --set priority_policy=aging --set aging_s=1000")
    emq("publish t x --priority 90")
    [slot] = emq.json("topic show t")["slot_list"]
    assert 90 <= slot["best_priority"] < 90.1


def test_delay_levels_are_written_as_names_with_durations(emq: Shell) -> None:
    given = topic_settings.parse("topic 't'", ["delay_levels=remind=30m,final=2h, week=7d"])
    assert given.settings == {"delay_levels": {"remind": 1800, "final": 7200, "week": 604_800}}
    assert topic_settings.parse("topic 't'", ["delay_levels=rocketmq"]).settings == {
        "delay_levels": delay_levels.ROCKETMQ
    }
    assert topic_settings.parse("topic 't'", ["delay_levels=none"]).settings == {"delay_levels": {}}
    emq("topic create t --qps 1 --set delay_levels=remind=30m,90s=90s")
    assert "remind 30 m, 90s 1 m 30 s" in emq("topic show t")


def test_a_value_that_begins_with_an_at_sign_is_read_from_a_file(emq: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMQ_LUA_FOLDS", "true")
    Path("fold.lua").write_text("local a, b = ...\nreturn a .. b\n")
    emq("topic create t --qps 1 --kind range_merge --set merge=key --set fold=lua --set fold_lua=@fold.lua")
    assert emq.json("topic show t")["options"]["fold_lua"] == "local a, b = ...\nreturn a .. b"
    emq("topic set t attributes.owner=@@blue")
    assert emq.json("topic show t")["options"]["attributes"] == {"owner": "@blue"}


# -------------------------------------------------------------------------------------------------------------- publish


def test_numbers_are_priorities_and_the_latest_counts(emq: Shell) -> None:
    emq("topic create t --qps 1 --kind priority --slots 1")
    made = emq.json("publish t a b --priority 50")
    assert made["published"] == len(set(made["ids"])) == 2
    emq("publish t a --priority 70.5")
    assert waiting("t") == [(b"a", 70.5), (b"b", 50)]


def test_times_are_spans_levels_or_instants(emq: Shell) -> None:
    emq("topic create t --qps 1 --set delay_levels=remind=30m")
    before = time.time()
    emq("publish t a --delay 90s")
    emq("publish t b --delay remind")
    emq("publish t c --at", "in 2h")
    emq("publish t d --at 2033-01-31T12:00+01:00 --ttl 1h")
    due = {e["payload"]: e["due_ms"] / 1000 for e in emq.json("schedule list t")}
    assert due.pop("d") == 1_990_782_000
    for payload, delay_s in (("a", 90), ("b", 1800), ("c", 7200)):
        assert before + delay_s <= due[payload] < before + delay_s + 60


def test_a_range_and_a_merge_key_go_with_sorted_topics(emq: Shell) -> None:
    emq("topic create t --qps 1 --kind range_merge --set merge=key --set fold=sum --slots 1")
    emq("publish t 2 3 --merge-key total --time-range 1h --ttl 2h --header a=b")

    async def read(made: App) -> Any:
        return await made.store.sorted.waiting((await made.catalog.get("t")).slot(0))

    [found] = opened(read)
    assert (found.member, found.body, found.merged) == (b"total", b"5", 2)
    assert "is not a number" in emq.refused("publish t many --time-range 1h")


def test_lines_understand_the_same_names(emq: Shell) -> None:
    emq("topic create p --qps 1 --kind priority --slots 1")
    emq("topic create f --qps 1 --kind fixed_time --slots 1")
    emq("topic create r --qps 1 --kind range_merge --slots 1 --set merge=key")
    emq("topic create log --qps 1 --set delay_levels=soon=5m")
    lines = [
        {"topic": "p", "payload": "p1", "priority": 60},
        {"topic": "p", "payload": "p2", "priority": "70"},
        {"topic": "p", "payload": "p1", "priority": 20},
        {"topic": "f", "payload": "f1", "at": "2033-01-31T12:00:00Z"},
        {"topic": "f", "payload": "f2", "at": 1_990_782_000},
        {"topic": "r", "payload": "r1", "time_range_ms": 3_600_000, "merge_key": "k", "ttl_s": 60},
        {"topic": "r", "payload": "r2", "delay_ms": 3_600_000, "merge_key": "k"},
        {"topic": "log", "payload": "l1"},
        {"topic": "log", "payload": "l2", "delay": "soon"},
        {"topic": "log", "payload": "l3", "ttl_s": 60},
        {"topic": "log", "payload": "l4"},
    ]
    assert emq.json("publish", stdin="\n".join(map(json.dumps, lines))) == {"published": 11}
    assert waiting("p") == [(b"p1", 20), (b"p2", 70)]
    assert waiting("f") == [(b"f1", 1_990_785_600_000), (b"f2", 1_990_782_000_000)]
    assert [member for member, _ in waiting("r")] == [b"k"]
    ready = {b["topic"]: (b["ready"], b["delayed"]) for b in emq.json("lag")}
    assert ready["log"] == ({"high": 0, "mid": 3, "low": 0}, 1)
    assert ready["p"] == ({"slot": 2}, 0)
    assert ready["f"] == ({"slot": 0}, 2)


def test_what_a_line_says_of_when_replaces_the_options(emq: Shell) -> None:
    emq("topic create f --qps 1 --kind fixed_time --slots 1")
    lines = '{"payload": "a"}\n{"payload": "b", "at": 1990782000}\n'
    emq("publish f --delay 1h", stdin=lines)
    found = dict(waiting("f"))
    assert found[b"b"] == 1_990_782_000_000
    assert abs(found[b"a"] / 1000 - time.time() - 3600) < 60


def test_schedules_are_made_with_every_or_cron(emq: Shell) -> None:
    emq("topic create t --qps 1 --set delay_levels=soon=5m")
    emq.json("publish t tick --every 90s --repeat 3 --delay soon --priority low")
    made = emq.json("publish t daily --missed skip --tz Europe/Berlin --cron", "0 9 * * 1-5")
    assert made["scheduled"] == len(made["ids"]) == 1
    found = {e["payload"]: e for e in emq.json("schedule list t")}
    assert found["tick"]["text"] == "every 1 m 30 s, 3 more"
    assert found["tick"]["priority"] == "low"
    assert abs(found["tick"]["due_ms"] / 1000 - time.time() - 300) < 60
    assert found["daily"]["text"] == "cron 0 9 * * 1-5 Europe/Berlin"
    assert "emq schedule show t" in emq("publish t tick --every 5m")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("topic create x --qps 1 --kind priority --slots 3", "slots 3 must be a power of two"),
        ("topic create x --qps 1 --set kind=priority", "--kind"),
        ("topic create x --qps 1 --set fold=sum", "choose a kind"),
        ("topic create x --qps 1 --set delay_levels=remind", "'remind'"),
        ("topic create x --qps 1 --set delay_levels=remind=soon", "remind=30m"),
        ("topic create x --qps 1 --set fold_lua=@nothing.lua", "'nothing.lua'"),
        ("topic set p kind=log", "kind may not change"),
        ("topic set p slots=8", "slots may not change"),
        ("publish p x", "a number above 16"),
        ("publish p x --priority high", "'high'"),
        ("publish p x --priority 50 --time-range 5s", "time_range_ms"),
        ("publish f x", "say when"),
        ("publish log x --delay soon", "delay 'soon' is neither"),
        ("publish log x --delay 5s --at 5s", "--delay and --at both say when"),
        ("publish log x --time-range 5s", "time_range_ms"),
        ("publish log x --merge-key k", "merge_key"),
        ("publish log x --repeat 3", "--repeat 3 goes with --every or --cron"),
        ("publish log x --tz Europe/Berlin", "goes with --cron"),
        ("publish log x --missed all", "--missed all"),
        ("publish log x --every 5m --merge-key k", "--merge-key k does not go with"),
        ("publish log x --every 5m --tz Europe/Berlin", "tz 'Europe/Berlin'"),
        ("publish log - --every 5m", "payloads as arguments"),
        ("offsets show p", "its slots have no offsets"),
        ("offsets reset p --yes", "its slots have no offsets"),
        ("dead replay f --priority 50", "its letters go by time"),
        ("dead replay log --priority 50", "keep their own"),
        ("dead replay p --priority 5", "must be a number above 16"),
    ],
)
def test_bad_input_gets_one_line_that_names_the_value(emq: Shell, arguments: str, said: str) -> None:
    emq("topic create p --qps 1 --kind priority")
    emq("topic create f --qps 1 --kind fixed_time")
    emq("topic create log --qps 1")
    assert said in emq.refused(arguments)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"payload": "x", "priority": 5}', "line 2: priority 5 must be"),
        ('{"payload": "x"}', "line 2: topic 'p' goes by priority"),
        ('{"payload": "x", "topic": "log", "at": "2030-01-31"}', "line 2: at '2030-01-31' does not say"),
        ('{"payload": "x", "topic": "log", "delay": "soon"}', "line 2: delay 'soon'"),
        ('{"payload": "x", "topic": "log", "delay_ms": 1, "at": 1990782000}', "line 2: give only one"),
        ('{"payload": "x", "topic": "log", "delay_ms": 1, "delay": "1s"}', "line 2: give only one"),
        ('{"payload": "x", "topic": "log", "delay_ms": -1}', "line 2: delay_ms -1"),
    ],
)
def test_lines_before_a_bad_one_are_published_and_counted(emq: Shell, line: str, said: str) -> None:
    emq("topic create p --qps 1 --kind priority --slots 1")
    emq("topic create log --qps 1")
    good = '{"payload": "a", "priority": 20}\n'
    error = emq.refused("publish p", stdin=f"{good}{line}\n{good}")
    assert said in error
    assert "1 message published" in error
    assert waiting("p") == [(b"a", 20)]


def test_a_time_to_come_says_its_zone() -> None:
    assert [times.ahead(text, 1_000.0) for text in ("90s", "in 15m", "in 1.5h")] == [1_090, 1_900, 6_400]
    assert times.ahead("2033-01-31T12:00Z", 1_000.0) == 1_990_785_600
    for text, said in (("2033-01-31T12:00", "time zone"), ("tomorrow", "not a time"), ("in", "not a time")):
        with pytest.raises(ValueError, match=said):
            times.ahead(text, 0.0)


# ------------------------------------------------------------------------------------------- watching and dead letters


def test_queues_and_slots_are_shown_together_in_their_place(emq: Shell) -> None:
    emq("topic create log --qps 1")
    emq("topic create p --qps 1 --kind priority --slots 1")
    emq("publish p a b --priority 50")
    table = emq("lag")
    for column in ("high", "mid", "low", "in slots", "delayed", "claimed", "dead"):
        assert column in table
    assert emq("lag p").split()[:2] == ["topic", "in"]
    emq("topic create other --qps 1 --priorities fast,slow")
    assert "slot 2" in emq("lag")
    [row] = [row for row in emq.json("top --count 1")["topics"] if row["topic"] == "p"]
    assert (row["backlog"], row["delayed"], row["claimed"], row["dead"]) == ({"slot": 2}, 0, 0, 0)
    assert "high 0  mid 0  low 0" in emq("top --count 1")
    assert emq.json("stats")["backlog"] == []


def test_a_dead_letter_is_shown_with_its_history(emq: Shell) -> None:
    emq("topic create t --qps 1 --kind priority --slots 1")
    emq("publish t x --priority 50")
    fail("t", "HTTP 503", "HTTP 503", "timed out")
    [letter] = emq.json("dead list t")
    assert [h["reason"] for h in letter["history"]] == ["HTTP 503", "HTTP 503", "timed out"]
    table = emq(f"dead show t {letter['id']}")
    assert "Failed attempts" in table
    assert "the same" in table


@pytest.mark.parametrize(("options", "score"), [("", 17), ("--priority 70", 70)])
def test_dead_letters_come_back_with_the_priority_given(emq: Shell, options: str, score: float) -> None:
    emq("topic create t --qps 1 --kind priority --slots 1")
    emq("publish t x --priority 50")
    fail("t", "boom")
    assert emq.json(f"dead replay t {options}") == {"replayed": 1}
    assert waiting("t") == [(b"x", score)]


def test_under_aging_a_replayed_letter_competes_at_its_priority(emq: Shell) -> None:
    emq("topic create t --qps 1 --kind priority --slots 1 --set priority_policy=aging")
    emq("publish t x y --priority 50")
    fail("t", "boom")
    emq("dead replay t --priority 80")
    emq("publish t z --priority 60")
    scores = dict(waiting("t"))
    assert scores[b"x"] > scores[b"z"] > 1e6
