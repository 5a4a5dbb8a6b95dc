"""Every command on an embedded store: what it does, what it prints, and how it says no."""

from __future__ import annotations

import asyncio
import datetime
import io
import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from emq.app import App
from emq.database import host_stats
from emq.host import statistics
from emq.runtime import errors
from emq.storage import message
from emq.storage.lane_store import LaneAdd
from emq.storage.log_store import Read
from emq_cli import exit_codes, offsets, watching
from emq_cli.session import Session
from support.emq_shell import Shell, opened


def bury(topic: str, *ids: str, reason: str = "HTTP 503") -> None:
    async def add(made: App) -> None:
        await made.store.lanes.add([LaneAdd(f"{topic}/0", i, b"body of " + i.encode(), 0, reason) for i in ids])

    opened(add)


# --------------------------------------------------------------------------------------------------------------- topics


def test_a_topic_lives_from_create_to_delete(emq: Shell) -> None:
    assert emq("topic create shop --qps 120 --set max_attempts=3") == "topic 'shop': 120 a second in 3 groups\n"
    assert "shop" in emq("topic list")
    assert emq.json("topic set shop qps=40 backoff_s=1,2 handler_timeout_s=none")["qps"] == 40
    shown = emq.json("topic show shop")
    assert shown["options"]["backoff_s"] == [1, 2]
    assert shown["options"]["max_attempts"] == 3
    assert [g["quota"] for g in shown["group_list"]] == [40, 0, 0]  # nothing is left in the retired ones
    assert emq.json("topic pause shop")["state"] == "paused"
    assert emq.json("topic drain shop")["state"] == "draining"
    assert "resume it first" in emq.refused("publish shop x")
    assert emq.json("topic resume shop")["state"] == "active"
    emq("publish shop x")
    assert "still holds 1 message;" in emq.refused("topic delete shop --yes")
    assert emq.json("topic delete shop --yes --force") == {"deleted": "shop", "messages": 1}
    assert emq.json("topic list") == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("topic show shap", "did you mean 'shop'"),
        ("topic create a/b --qps 1", "'/'"),
        ("topic create t --qps 0", "qps 0.0 must be"),
        ("topic create t --qps 1 --group-qps 1000", "group_qps 1000 must be from 1 to 150"),
        ("topic create t --qps 1 --set max_attempts", "key=value"),
        pytest.param("topic create t --qps 1 --url ftp://h", "must start with http", marks=pytest.mark.services),
        pytest.param("topic create t --qps 1 --set push.batch=1", "push.url is missing", marks=pytest.mark.services),
        ("topic create shop --qps 99", "exists already"),
        ("topic set shop qpss=1", "did you mean 'qps'"),
        ("topic set shop max_attempts=many", "max_attempts='many' does not fit; write a whole number"),
        ("topic set shop max_in_flight=many", "max_in_flight='many' does not fit; write a whole number or none"),
        ("topic set shop priorities=a,b", "may not change"),
        ("topic set shop push.url=nonsense", "push.url"),
        ("topic import nothing.toml", "nothing.toml"),
        ("publish shop x --priority urgent", "high, mid, low"),
        ("publish nothing x", "no topic 'nothing'"),
        ("offsets reset shop --to 77", "77"),
        ("offsets reset shop --queue 9/high", "it has 0/high"),
        ("dead show shop nothing", "no dead letter 'nothing'"),
        ("lag --store sqlite:////no/such/place.db", "/no/such/place.db"),
        ("host --processes 2", "one host process"),
        ("up --app no_such_module", "no_such_module"),
        ("trail verify nowhere", "nowhere"),
    ],
)
def test_bad_input_gets_one_line_that_names_the_value(emq: Shell, arguments: str, said: str) -> None:
    emq("topic create shop --qps 20")
    assert said in emq.refused(arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        "nothing",
        "topic create t --qps fast",
        "topic create t --qps 1 --kind heap",
        "publish shop x --header novalue",
        "publish t x --at tomorrow",
        "publish t x --at 2030-01-31T12:00",
        "publish t x --ttl 30",
        "publish t x --every often",
        "publish t x --every 5m --repeat -1",
        "publish t x --every 5m --missed some",
        "dead list shop --since yesterday",
        "dead replay shop --rate 0",
        "offsets reset shop --to middle",
        "top --count 0",
        "topic export --format yaml",
        "demo --store nonsense",
    ],
)
def test_wrong_usage_exits_with_2(emq: Shell, arguments: str) -> None:
    emq("topic create shop --qps 20")
    emq.refused(arguments, code=2)


def test_a_file_that_is_no_database_exits_with_2(emq: Shell, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("something else, and long enough to be looked at " * 20)
    for option in ("--database", "--store"):
        said = emq.refused(f"topic list {option} sqlite:///{tmp_path}/notes.txt", code=2)
        assert "notes.txt is not an SQLite database; give another path, or move that file away" in said


@pytest.mark.services
def test_topics_go_out_to_a_file_and_come_back(emq: Shell, tmp_path: Path) -> None:
    emq("topic create a --qps 20 --priorities fast,slow --url https://a.example/x")
    emq("topic create b --qps 70")
    for fmt in ("toml", "json"):
        file = tmp_path / f"topics.{fmt}"
        emq(f"topic export --format {fmt} -o {file}")
        assert file.read_text() == emq(f"topic export --format {fmt}")
        one = emq(f"topic export b --format {fmt}")
        assert one == emq(f"topic export [b-z]* --format {fmt}") != file.read_text()
        assert "example" not in one
        before = emq.json("topic list")
        emq("topic delete b --yes --force")
        assert emq.json(f"topic import {file}") == {"topics": ["a", "b"]}
        assert emq.json("topic list") == before
        emq("publish b after-its-second-birth")


IN_ATTRIBUTES = "put it under [topics.options.attributes]"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("max_attempts = 3", "no key 'max_attempts'; put it under [topics.options]"),
        pytest.param("push.url = 'https://a.example'", IN_ATTRIBUTES, marks=pytest.mark.services),
        ("attributes.team = 'a'", "no key 'attributes'; put it under [topics.options]"),
        ("max_attemps = 3", "did you mean 'max_attempts'"),
        ("[topics.options]\nqps = 3", "no key 'options.qps'; put it under [[topics]]"),
        pytest.param("[topics.options]\n\"push.url\" = 'http://a'", IN_ATTRIBUTES, marks=pytest.mark.services),
        ("[topics.options]\nmax_attemps = 3", "no key 'options.max_attemps'; did you mean 'max_attempts'"),
    ],
)
def test_a_key_in_the_wrong_table_is_told_where_it_belongs(line: str, said: str, emq: Shell, tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_text(f'[[topics]]\nname = "a"\nqps = 5\n{line}\n')
    assert said in emq.refused(f"topic import {file}", code=exit_codes.WRONG)


def test_a_file_of_another_shape_is_told_how_to_begin(emq: Shell, tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_text('[topics]\nname = "a"\n')
    assert "write a table [[topics]] in it for each topic" in emq.refused(f"topic import {file}")
    file = file.with_suffix(".json")
    file.write_text('{"topics": [{"name": "a", "qps": 1, "jitter": 0}]}')
    assert "no key 'jitter'; put it under \"options\"" in emq.refused(f"topic import {file}")


@pytest.mark.services
def test_an_import_with_a_wrong_endpoint_changes_nothing(emq: Shell, tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    bad = {"name": "b", "qps": 1, "options": {"attributes": {"push.url": "ftp://b"}}}
    file.write_text(json.dumps({"topics": [{"name": "a", "qps": 1}, bad]}))
    assert "'b'" in emq.refused(f"topic import {file}")
    assert not (tmp_path / "emq.db").exists()


@pytest.mark.services
def test_an_attribute_is_taken_away_by_an_empty_value(emq: Shell) -> None:
    emq("topic create t --qps 1 --url http://h/x --set attributes.team=blue")
    emq("topic set t push.url= push.url=")
    assert emq.json("topic show t")["options"]["attributes"] == {"team": "blue"}


@pytest.mark.services
def test_an_endpoint_on_this_machine_must_be_allowed(emq: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = "push.url leads to the loopback address 127.0.0.1, which is not allowed"
    assert refused in emq.refused("topic create t --qps 1 --url http://127.0.0.1:8042/")
    emq("topic create t --qps 1 --url https://a.example/x")
    assert refused in emq.refused("topic set t push.url=http://localhost/")
    monkeypatch.setenv("EMQ_PUSH_ALLOW", "127.0.0.0/8")
    emq("topic set t push.url=http://localhost/")
    monkeypatch.delenv("EMQ_PUSH_ALLOW")
    emq("topic set t push.timeout_s=2")  # the address stays what it was
    monkeypatch.setenv("EMQ_PUSH_ALLOW", "my-network")
    assert "push_allow has 'my-network'" in emq.refused("topic set t push.url=http://localhost/")


@pytest.mark.services
def test_secrets_are_not_shown(emq: Shell) -> None:
    secret = "whsec_aHVzaC1odXNoLWh1c2gtaHVzaC1odXNoLWh1c2g="
    emq(f"topic create t --qps 1 --url http://h/x --set push.headers.Authorization=hush --set push.secret={secret}")
    shown = emq("topic show t")
    assert "hush" not in shown
    assert secret not in shown
    assert shown.count("***") == 2


# -------------------------------------------------------------------------------------------------------------- publish


def contents(topic: str, priority: str = "mid") -> list[tuple[bytes, str | None, dict[str, str] | None]]:
    async def read(made: App) -> Any:
        [batch] = await made.store.log.read([Read(f"{topic}/0/{priority}", 1, 10_000, 1 << 40)])
        return [(m.payload, m.key, m.headers) for m in map(message.decode, batch.bodies)]

    found: list[tuple[bytes, str | None, dict[str, str] | None]] = opened(read)
    return found


def test_arguments_are_published_in_order(emq: Shell) -> None:
    emq("topic create t --qps 1")
    made = emq.json("publish t one two --key k --priority high --header a=b")
    assert made["published"] == len(set(made["ids"])) == 2
    assert contents("t", "high") == [(b"one", "k", {"a": "b"}), (b"two", "k", {"a": "b"})]


def test_lines_are_published_in_order_each_as_it_says(emq: Shell) -> None:
    emq("topic create t --qps 1")
    emq("topic create u --qps 1")
    lines = [
        '{"payload": "caf\\u00e9"}',
        '{"payload": {"n": 1.50, "s": "x"}, "key": "k", "headers": {"h": "1"}}',
        "",
        '{"payload": [1,2], "headers": {"h": "2"}}',
        '{"payload": null, "topic": "u", "priority": "low"}',
        '{"payload": "last"}',
    ]
    assert emq.json("publish t --header d=0", stdin="\n".join(lines)) == {"published": 5}
    default = {"d": "0"}
    assert contents("t") == [
        ("café".encode(), None, default),
        (b'{"n": 1.50, "s": "x"}', "k", {"h": "1"}),
        (b"[1,2]", None, {"h": "2"}),
        (b"last", None, default),
    ]
    assert contents("u", "low") == [(b"null", None, default)]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ('{"payload": "c"', "line 3 is not valid JSON"),
        ('{"payload": "c", "colour": 1}', "line 3 is not a message"),
        ('{"topic": "t"}', "line 3 is not a message"),
        ('{"payload": "c", "priority": "urgent"}', "line 3: topic 't' has no priority 'urgent'"),
        ('{"payload": "c", "topic": "nothing"}', "line 3: there is no topic 'nothing'"),
        ('{"payload": "cccccccccccccccc"}', "line 3: payload of 16 bytes"),
    ],
)
def test_lines_before_a_bad_one_are_published_and_counted(emq: Shell, bad: str, said: str) -> None:
    emq("topic create t --qps 1 --set max_payload=9")
    text = f'{{"payload": "a"}}\n{{"payload": "b"}}\n{bad}\n{{"payload": "d"}}\n'
    error = emq.refused("publish t -", stdin=text)
    assert said in error
    assert "2 messages published" in error
    assert [payload for payload, _, _ in contents("t")] == [b"a", b"b"]


def test_a_refusal_by_the_store_counts_what_went_in(emq: Shell) -> None:
    emq("topic create t --qps 1 --set max_length=2")
    emq("publish t one two")
    assert "0 messages published" in emq.refused("publish t", stdin='{"payload": "three"}\n')


def test_lines_without_any_topic_are_refused(emq: Shell) -> None:
    emq("topic create other --qps 1")
    assert "line 1: no topic" in emq.refused("publish -", stdin='{"payload": 1}\n')


# ------------------------------------------------------------------------------------- watching, dead letters, offsets


def test_every_data_command_prints_valid_json(emq: Shell) -> None:
    emq("topic create t --qps 2")
    emq("publish t a b")
    bury("t", "d1")
    assert emq.json("lag") == [
        {"topic": "t", "ready": {"high": 0, "mid": 2, "low": 0}, "delayed": 0, "claimed": 0, "dead": 1}
    ]
    assert emq.json("stats")["hosts"] == []
    [row] = emq.json("top --count 1")["topics"]
    assert (row["topic"], row["backlog"]["mid"], row["dead"]) == ("t", 2, 1)
    assert emq.json("settings")["store"] == "sqlite:///emq.db"
    assert [q["unfinished"] for q in emq.json("offsets show t")] == [0, 2, 0]
    assert emq.json("dead list t")[0]["payload"] == "body of d1"
    assert emq.json("dead show t d1")["reason"] == "HTTP 503"
    assert emq.json("dead replay t") == {"replayed": 1}
    assert emq.json("dead purge t --yes") == {"purged": 0}
    assert emq.json("offsets reset t --yes")["executed"] is True


def test_every_data_command_prints_a_table(emq: Shell) -> None:
    emq("topic create t --qps 2")
    emq("topic delete t --yes")
    assert "no topics yet" in emq("topic list")
    emq("topic create t --qps 2")
    bury("t", "d1")
    for line in ("lag", "top --count 1", "offsets show t", "topic show t", "dead list t", "dead show t d1"):
        assert emq(line).count("\n") >= 3
    assert "no host is running" in emq("stats")
    assert "drain_s" in emq("settings")
    assert "# drain_s = 10.0" in emq("settings --defaults")


def test_top_shows_only_topics_that_match(emq: Shell) -> None:
    for name in ("mail", "shop.a", "shop.b"):
        emq(f"topic create {name} --qps 1")
    shown = emq.json("top shop.* --count 1")
    assert [row["topic"] for row in shown["topics"]] == ["shop.a", "shop.b"]
    assert [row["topic"] for row in emq.json("top mail --count 1")["topics"]] == ["mail"]
    assert "no topic matches 'x*' in the store" in emq("top x* --count 1")
    assert "no topic 'mall'" in emq.refused("top mall --count 1", code=exit_codes.FAILED)


@pytest.mark.parametrize("line", ["dead list", "schedule list"])
def test_an_empty_answer_names_the_store_and_the_database(line: str, emq: Shell) -> None:
    emq("topic create shop --qps 1")
    place = f"in the store and database sqlite:///{Path('emq.db').resolve()}"
    assert emq(line).rstrip().endswith(place)
    for each in (line, "topic list", "lag"):
        assert f"no topic matches 'x*' {place}" in " ".join(emq(f"{each} x*").split())
    emq("topic delete shop --yes")
    assert f"there are no topics yet {place}" in " ".join(emq("lag").split())


def test_ids_are_printed_up_to_a_bound(emq: Shell) -> None:
    emq("topic create shop --qps 1")
    assert len(emq("publish shop", *"abcd").split(": ")[1].split(", ")) == 4
    shown = emq("publish shop", *["x"] * 25)
    assert len(shown.split(", ")) == 20
    assert shown.endswith(" and 5 more; --json prints all ids\n")
    assert shown.count("\n") == 1, "a pipe gets the line whole"


def test_each_table_with_times_names_their_zone_once_and_json_does_not(
    emq: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        emq("topic create shop --qps 1")
        emq("topic create timed --qps 1 --kind fixed_time --slots 1")
        bury("shop", "m1")
        delayed = emq.json("publish shop later --delay 1h")["ids"][0]
        for line in (
            *("dead list", "dead show shop m1", "schedule list", f"schedule show shop {delayed}"),
            *("topic show timed", "offsets show shop", f"trace {delayed} --topic shop", "top --count 1"),
        ):
            assert emq(line).count("UTC+05:30") == 1, line
            assert "UTC" not in emq(f"{line} --json"), line
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_schedule_is_no_message(emq: Shell) -> None:
    emq("topic create shop --qps 1")
    assert emq("publish shop x --every 1h").startswith("made 1 schedule for 'shop': ")
    assert "made 2 schedules for 'shop': " in (shown := emq("publish shop x y --every 1h"))
    assert "look at the first with: emq schedule show shop " in shown


def test_top_fills_the_screen_of_a_terminal_and_no_more(emq: Shell) -> None:
    for n in range(8):
        emq(f"topic create t{n} --qps 1")
    session = Session({})
    session.out = Console(file=(screen := io.StringIO()), force_terminal=True, width=120, height=9)
    asyncio.run(watching.top(session, count=2, interval=0.01))
    assert [n for n in range(8) if f"t{n} " in screen.getvalue()] == [0, 1, 2, 3]


SNAPSHOT = statistics.HostStatistics(
    "h1", 0, 5, 1, 1, 3, 0, 7, 7, 2, 0.001, None, None, statistics.Totals(started=10),
    statistics.Rates(started=3), (statistics.TopicStatistics("t", 50, "active", 1, 3.0, 2, {"high": 7}, 1),),
)  # fmt: skip


def test_stats_mark_hosts_that_are_stale_and_leave_them_out_of_the_sums(emq: Shell) -> None:
    async def save(made: App) -> None:
        now_ms = int(time.time() * 1000)
        for host, age_ms in (("h1", 1_000), ("h2", 60_000), ("h3", 7_200_000)):
            text = msgspec.json.encode(msgspec.structs.replace(SNAPSHOT, host=host)).decode()
            await host_stats.save(made.database, "online", host, text, now_ms - age_ms)

    opened(save)
    found = emq.json("stats")
    assert [(h["host"], h["live"]) for h in found["hosts"]] == [("h1", True), ("h2", False)]
    assert found["totals"]["started"] == 10
    assert [(t["name"], t["started_per_s"], t["buffered"]) for t in found["topics"]] == [("t", 3, {"high": 7})]
    assert "stale" in emq("stats")


def test_dead_letters_are_chosen_by_time_reason_and_id(emq: Shell) -> None:
    emq("topic create t --qps 2")
    bury("t", "old", reason="HTTP 500")
    time.sleep(0.003)
    between = datetime.datetime.now().isoformat()
    time.sleep(0.003)
    bury("t", "new", "newer", reason="connect timeout")

    def ids(options: str) -> list[str]:
        return [letter["id"] for letter in emq.json(f"dead list * {options}")]

    assert ids("") == ["old", "new", "newer"]
    assert ids(f"--since {between}") == ["new", "newer"]
    assert ids(f"--until {between}") == ["old"]
    assert ids("--since 1h --until 0s") == ["old", "new", "newer"]
    assert ids("--until 1h") == []
    assert ids("--limit 2") == ["old", "new"]
    assert ids("--reason TIMEOUT") == ["new", "newer"]
    assert emq.json("dead replay t newer --rate 1000") == {"replayed": 1}
    assert emq.json("dead purge t --reason timeout --yes") == {"purged": 1}
    assert ids("") == ["old"]
    assert emq.json("lag t")[0]["delayed"] == 1


def test_an_identity_names_one_message_though_another_has_it_as_its_id(emq: Shell) -> None:
    emq("topic create t --qps 2")
    one, alike = "a#0123456789abc", "a#0123456789abc#0123456789abd"

    async def plan(made: App) -> None:
        await made.store.lanes.add([LaneAdd("t/0", uid, uid.encode(), 1 << 42) for uid in (one, alike)])

    opened(plan)
    assert [emq.json(f"schedule show t {how}")["uid"] for how in (one, f"--identity {one}")] == [alike, one]
    assert emq.json(f"trace --identity {one} --topic t")["place"]["id"] == one
    assert emq.json(f"trace {one} --topic t")["place"]["id"] == alike
    assert emq.json(f"schedule recall t --identity {one}")["recalled"] == [one]
    assert [each["uid"] for each in emq.json("schedule list t")] == [alike]
    one, alike = one.replace("a", "b", 1), alike.replace("a", "b", 1)
    bury("t", one, alike)
    assert [emq.json(f"dead show t {how}")["uid"] for how in (one, f"--identity {one}")] == [alike, one]
    assert emq.json(f"dead replay t --identity {alike}") == {"replayed": 1}
    assert emq.json(f"dead purge t --identity {one} --yes") == {"purged": 1}
    for command in ("dead show t", "schedule show t", "trace --topic t", "schedule recall t"):
        assert "--identity" in emq.refused(command)
    assert "either the ID" in emq.refused(f"trace x --identity {one}")


def test_a_reset_is_a_preview_until_it_is_agreed_to(emq: Shell) -> None:
    emq("topic create t --qps 2")
    emq("publish t a b c")
    preview = emq("offsets reset t --to tail --queue 0/mid", code=2)
    assert preview.splitlines()[-1].split() == ["t/0/mid", "1", "4", "1", "4", "0", "3"]
    assert "skip 3? Add --yes to agree" in emq.error
    assert emq.json("lag t")[0]["ready"]["mid"] == 3
    [made] = emq.json("offsets reset t --to tail --queue 0/mid --yes")["queues"]
    assert made == {"queue": "t/0/mid", "watermark": 1, "to": 4, "head": 1, "tail": 4, "again": 0, "skipped": 3}
    assert emq.json("lag t")[0]["ready"]["mid"] == 0
    [back] = emq.json("offsets reset t --to 2 --queue t/0/mid --yes")["queues"]
    assert (back["again"], back["skipped"]) == (2, 0)
    assert emq.json("lag t")[0]["ready"]["mid"] == 2


async def test_a_reset_is_refused_while_a_fresh_snapshot_speaks_of_a_host_on_a_shared_store() -> None:
    async with App("memory:") as made:
        made.store.shared = True
        await offsets.refuse_if_consumed(made)
        text, now_ms = msgspec.json.encode(SNAPSHOT).decode(), int(time.time() * 1000)
        await host_stats.save(made.database, "online", "h1", text, now_ms)
        with pytest.raises(errors.StillConsumed, match=r"'h1'.*stop it"):
            await offsets.refuse_if_consumed(made)
        await host_stats.save(made.database, "online", "h1", text, now_ms - 20_000)
        await offsets.refuse_if_consumed(made)


def test_settings_come_from_the_command_line_then_the_environment_then_the_file(
    emq: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "emq.toml").write_text('store = "sqlite:///file.db"\ndrain_s = 3\nlog_level = "error"\n')
    (tmp_path / "other.toml").write_text("drain_s = 4\n")
    monkeypatch.setenv("EMQ_STORE", "sqlite:///variable.db")
    found = emq.json("settings --env sandbox")
    assert (found["store"], found["drain_s"], found["environment"]) == ("sqlite:///variable.db", 3, "sandbox")
    assert emq.json("settings --store sqlite:///given.db")["database"] == "sqlite:///given.db"
    assert emq.json("settings --settings other.toml")["drain_s"] == 4
    assert "s3cret" not in emq("settings --store redis://u:s3cret@h/0")
    assert next(line for line in emq("settings").splitlines() if line.startswith("lua_folds")).split()[1] == "false"


def test_dead_letters_of_many_topics_are_put_back_or_thrown_away_at_once(emq: Shell) -> None:
    for topic in ("mail.a", "mail.b", "other"):
        emq(f"topic create {topic} --qps 10")
        bury(topic, f"{topic}-1", f"{topic}-2")
    assert "1 of the 2 ids found no dead letter" in emq.refused("dead replay mail.* mail.a-1 nobody", code=1)
    assert emq("dead replay mail.*").strip() == "replayed 3 dead letters of 2 topics that match 'mail.*'"
    assert emq.json("dead purge o* other-1 --yes") == {"purged": 1}
    assert [letter["id"] for letter in emq.json("dead list")] == ["other-2"]
    assert emq.json("dead replay nobody.*") == {"replayed": 0}


def test_the_sandbox_shares_nothing_with_online(emq: Shell) -> None:
    emq("topic create t --qps 1 --env sandbox")
    assert emq.json("topic list") == []
    assert len(emq.json("topic list --env sandbox")) == 1


def test_only_commands_that_publish_or_consume_keep_a_trail(
    emq: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMQ_TRAIL", str(tmp_path / "trail"))
    emq("topic create t --qps 1")
    emq("lag")
    assert not (tmp_path / "trail").exists()
    emq("publish t x")
    found = emq.json("trail verify trail --catalog")
    assert (found["ok"], found["published"], found["caps_judged"]) == (True, 1, True)
    assert "rates were not checked" in emq("trail verify trail")
    segment = next((tmp_path / "trail").iterdir())
    segment.write_bytes(b"torn")
    assert emq.json("trail verify trail", code=3)["ok"] is False
