"""Commands as processes: pipes, signals, and a host that is really there."""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from support.emq_processes import EMQ, PATIENCE_S, Shell, line_with, until


@pytest.fixture
def shared(emq: Shell, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that several host processes may use."""
    monkeypatch.setenv("EMQ_STORE", redis_url)
    monkeypatch.setenv("EMQ_DATABASE", "sqlite:///catalog.db")
    monkeypatch.setenv("EMQ_HOST_NAME", "h")


def test_ctrl_c_while_waiting_for_input_counts_what_was_published(emq: Shell) -> None:
    emq.here("topic create t --qps 100")
    process = emq.start("publish t -")
    assert process.stdin is not None
    process.stdin.write('{"payload": 1}\n{"payload": 2}\n')
    process.stdin.flush()
    until(lambda: emq.json("lag")[0]["ready"]["mid"] == 2)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 130
    assert process.stderr is not None
    assert process.stderr.read() == "emq: interrupted; 2 messages published before\n"


@pytest.mark.parametrize("loading", ["emq_cli.commands", "emq_cli.running", "emq.runtime.errors", "importlib.metadata"])
@pytest.mark.parametrize("begin", ["emq_cli.main()", "runpy.run_module('emq', run_name='__main__')"])
def test_ctrl_c_while_the_command_loads_ends_it_without_a_word(emq: Shell, loading: str, begin: str) -> None:
    program = f"""
import runpy, sys, emq_cli
class Interrupted:
    def find_spec(self, name, *_):
        if name == "{loading}":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
{begin}
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "")


def test_a_reader_that_goes_away_is_no_error_of_ours(emq: Shell) -> None:
    topics = [{"name": f"topic-{n}", "qps": 1} for n in range(2_000)]
    Path("t.json").write_text(json.dumps({"topics": topics}))
    emq.here("topic import t.json")
    for line in ("topic export", "topic list", "topic list --json", "top"):
        process = emq.start(line)
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(PATIENCE_S) == 141
        assert process.stderr.read() == ""


def test_one_ctrl_c_is_enough_at_a_prompt(emq: Shell) -> None:
    emq.here("topic create t --qps 100")
    terminal, inside = pty.openpty()
    process = subprocess.Popen(
        [*EMQ, "topic", "delete", "t"], stdin=inside, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    asked = b""
    while not asked.endswith(b"[y/N]:"):
        asked += process.stderr.read(1)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 130
    assert b"emq: interrupted; nothing was changed" in process.stderr.read()
    for file in (process.stdout, process.stderr):
        file.close()
    os.close(terminal)
    os.close(inside)
    assert len(emq.json("topic list")) == 1


def test_the_package_runs_as_the_command_does(emq: Shell) -> None:
    emq.here("topic create t --qps 100")
    for arguments in (["topic", "list", "--json"], ["topic", "list", "--wrong"], ["--help"]):
        ran = [
            subprocess.run([*start, *arguments], capture_output=True, text=True, check=False)
            for start in (EMQ, [sys.executable, "-m", "emq"])
        ]
        assert ran[0].returncode == ran[1].returncode
        assert (ran[0].stdout, ran[0].stderr) == (ran[1].stdout, ran[1].stderr)


def test_a_closed_or_full_standard_output_is_no_traceback(emq: Shell) -> None:
    emq.here("topic create t --qps 100")
    for redirection, code in ((">&-", 0), (">&- 2>&- <&-", 0), (">/dev/full", 1)):
        line = " ".join([shlex.join(EMQ), "topic list", redirection])
        done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
        assert done.returncode == code
        assert done.stderr.count("\n") == (code == 1)


def test_a_running_host_is_seen_respected_and_stopped_cleanly(emq: Shell) -> None:
    Path("mine.py").write_text("import emq\napp = emq.App()\n\n\n@app.handler('t')\nasync def handle(m):\n    pass\n")
    emq.here("topic create t --qps 20")
    emq.here("topic create nobody --qps 20")
    emq.here("publish t " + "x " * 200)
    host = emq.start("up --app mine")
    announced = line_with(host, "consuming")
    assert "1 topic in 2 groups" in announced
    assert "1 topic without a handler" in announced

    _, refusal = emq("up --app mine", code=1)
    assert "emq.db already" in refusal
    assert refusal.count("emq: ") == 1
    _, refusal = emq("offsets reset t --to head --yes", code=1)
    assert "is running; stop it" in refusal
    until(lambda: emq.json("stats")["totals"]["started"] >= 20)
    [seen] = emq.json("stats")["hosts"]
    assert seen["live"]
    assert seen["groups"] == 2

    host.send_signal(signal.SIGINT)
    assert host.wait(PATIENCE_S) == 0
    assert "stopped: " in line_with(host, "stopped")
    assert emq.json("stats")["hosts"] == []
    assert "3 queues set" in emq.here("offsets reset t --to tail --yes")


def test_a_killed_host_does_not_stand_in_the_way_of_a_reset(emq: Shell) -> None:
    emq.here("topic create t --qps 20")
    host = emq.start("up")
    line_with(host, "consuming")
    host.kill()
    host.wait(PATIENCE_S)
    assert "3 queues set" in emq.here("offsets reset t --yes")


def test_ctrl_c_ends_a_live_view_without_complaint(emq: Shell) -> None:
    emq.here("topic create t --qps 20")
    view = emq.start("top --json --interval 0.1")
    assert view.stdout is not None
    assert view.stderr is not None
    assert json.loads(view.stdout.readline())["topics"][0]["topic"] == "t"
    view.send_signal(signal.SIGINT)
    assert view.wait(PATIENCE_S) == 0
    assert view.stderr.read() == ""


def noting_host(emq: Shell, pattern: str, processes: int) -> subprocess.Popen[str]:
    """Start host processes that write a line to the file `receipts` for each start: id, topic, second, process."""
    Path("mine.py").write_text(f"""
import os
import emq

app = emq.App()
file = os.open("receipts", os.O_WRONLY | os.O_APPEND | os.O_CREAT)


@app.handler("{pattern}")
async def handle(m):
    os.write(file, f"{{m.id}} {{m.topic}} {{m.started_us // 1_000_000}} {{os.getpid()}}\\n".encode())
""")
    Path("receipts").touch()
    return emq.start(f"host --processes {processes} --app mine")


def test_topics_that_come_while_host_processes_work_move_groups_without_a_repeat_or_a_cap_exceeded(
    emq: Shell, shared: None
) -> None:
    parent = noting_host(emq, "cli-new-*", 3)
    names = [f"cli-new-{n}" for n in range(9)]
    for name in names:
        emq.here(f"topic create {name} --qps 150")
        emq.here(f"publish {name} " + "x " * 900)
        time.sleep(0.4)
    until(lambda: len(Path("receipts").read_text().split("\n")) > 9 * 900)
    starts = [line.split() for line in Path("receipts").read_text().splitlines()]
    assert len({message for message, *_ in starts}) == len(starts) == 9 * 900
    assert max(Counter((topic, second) for _, topic, second, _ in starts).values()) <= 150
    hosts = emq.json("hosts")["hosts"]
    assert [(host["host"], host["groups"]) for host in hosts] == [("h-0", 9), ("h-1", 9), ("h-2", 9)]
    assert "3 hosts" in emq.here("plan")
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(PATIENCE_S) == 0
    for name in names:
        emq.here(f"topic delete {name} --yes --force")


def test_the_plan_names_the_host_that_starts_the_messages_of_a_family_s_topic_also_after_a_drain(
    emq: Shell, shared: None
) -> None:
    emq.here("family create cli-family-* --qps 50")
    parent = noting_host(emq, "cli-family-*", 2)
    line_with(parent, "consuming")

    def shares() -> dict[str, int]:
        found = emq.json("hosts")["hosts"]
        return {host["host"]: host["buckets"] for host in found if not host["waiting_buckets"]}

    until(lambda: min(shares().get("h-0", 0), shares().get("h-1", 0)) > 400)
    names = [f"cli-family-{n}" for n in range(6)]

    def check() -> set[str]:
        """Publish to each topic; return the hosts that the plan names, after these have started the messages."""
        Path("receipts").write_text("")
        for name in names:
            emq.here(f"publish {name} x")
        until(lambda: Path("receipts").read_text().count("\n") == len(names))
        pids = {host["pid"]: host["host"] for host in emq.json("hosts")["hosts"]}
        starts = [line.split() for line in Path("receipts").read_text().splitlines()]
        started = {topic: pids[int(pid)] for _, topic, _, pid in starts}
        planned = {name: emq.json(f"plan {name}/0") for name in names}
        assert {name: found["host"] for name, found in planned.items()} == started
        assert all(found["bucket"].startswith("cli-family-*/bucket/") for found in planned.values())
        return {*started.values()}

    assert check() <= {"h-0", "h-1"}
    groups = {host["host"]: host["groups"] for host in emq.json("hosts")["hosts"]}
    assert sum(groups.values()) == len(names)
    done = emq.json("drain h-0 --timeout 30")
    assert done["moved_to"].get("h-1", 0) == groups["h-0"]
    assert done["buckets_moved_to"]["h-1"] > 400
    assert check() == {"h-1"}
    assert [row["host"] for row in emq.json("plan cli-family-*")["hosts"]] == ["h-1"]
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(PATIENCE_S) == 0
    for name in names:
        emq.here(f"topic delete {name} --yes --force")


def test_host_processes_end_when_their_parent_was_killed(emq: Shell, shared: None) -> None:
    parent = emq.start("host --processes 2")
    line_with(parent, "consuming")
    children = psutil.Process(parent.pid).children()
    assert len(children) == 2
    parent.kill()
    parent.wait(PATIENCE_S)
    until(lambda: not any(child.is_running() for child in children))
