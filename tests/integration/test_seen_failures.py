"""A user sees in the log of `emq up` why handlers and endpoints fail."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.emq_processes import PATIENCE_S, Shell, line_with

MODULE = """
import asyncio
import logging
import emq

app = emq.App()


@app.handler("plain")
def plain(message):
    return {}[message.payload.decode()]


@app.handler("rejects")
async def rejects(message):
    raise emq.Reject("no such customer")


@app.handler("hangs")
async def hangs(message):
    await asyncio.sleep(60)


@app.handler("fine")
async def fine(message):
    logging.getLogger("shop").info("a line of the user's own", extra={"order": 17})


@app.handler("batch", batch_size=10)
async def batch(messages):
    raise emq.PartialFailure({messages[0].id: ValueError("only this one")})
"""


@pytest.fixture
def emq(emq: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("EMQ_PUSH_ALLOW", "127.0.0.1")
    (tmp_path / "shop.py").write_text(MODULE)
    return emq


def stop(host: subprocess.Popen[str]) -> None:
    host.send_signal(signal.SIGTERM)
    assert host.wait(PATIENCE_S) == 0


def told(host: subprocess.Popen[str], fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The next object in the host's log that fits."""
    assert host.stderr is not None
    for line in host.stderr:
        found: dict[str, Any] = json.loads(line)
        if fits(found):
            return found
    raise AssertionError("ended without saying so")


def test_each_kind_of_failure_is_an_object_in_the_log(emq: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    for name in ("plain", "rejects", "hangs", "fine", "batch"):
        emq.here(f"topic create {name} --qps 20")
    emq.here("topic set hangs handler_timeout_s=0.1")
    emq.here(f"topic create hook --qps 20 --url http://127.0.0.1:{port}/")
    host = emq.start("up --app shop --log-format json")
    told(host, lambda line: "consuming" in line["event"])
    facts, ids = {}, {}
    for name in ("plain", "rejects", "hangs", "batch", "hook"):
        [ids[name]] = emq.json(f"publish {name} nothing")["ids"]
        facts[name] = told(host, lambda line, name=name: line.get("topic") == name)  # type: ignore[misc]
    emq.here("publish fine x")
    own = told(host, lambda line: line["logger"] == "shop")
    stop(host)
    assert {name: fact["message_id"] for name, fact in facts.items()} == ids
    assert {name: fact["reason"] for name, fact in facts.items()} == {
        "plain": "KeyError: 'nothing'",
        "rejects": "no such customer",
        "hangs": "the handler took longer than 0.1 s",
        "batch": "ValueError: only this one",
        "hook": "connection refused",
    }
    assert {name for name, fact in facts.items() if fact["outcome"] == "dead"} == {"rejects"}
    assert {fact["level"] for fact in facts.values()} == {"warning"}
    assert all(0 < fact["retry_in_s"] <= 10 for name, fact in facts.items() if name != "rejects")
    for name, line in {"plain": "return {}[message.payload.decode()]", "hangs": "await asyncio.sleep(60)"}.items():
        assert line in facts[name]["exception"]
    assert "emq/dispatch" not in facts["plain"]["exception"], "it begins with the handler"
    assert "exception" not in facts["rejects"]
    assert "exception" not in facts["hook"]
    assert (own["event"], own["order"]) == ("a line of the user's own", 17)


def test_the_text_has_the_failure_in_a_line_with_its_time_and_the_level_is_obeyed(emq: Shell) -> None:
    emq.here("topic create plain --qps 20")
    host = emq.start("up --app shop --log-level warning")
    [id_] = emq.json("publish plain nothing")["ids"]
    assert host.stderr is not None
    line = host.stderr.readline()  # with the level "warning", the first
    assert line_with(host, "shop.py")
    assert line_with(host, "KeyError") == "    KeyError: 'nothing'\n"
    stop(host)
    time, _, said = line.partition(" [warning  ] ")
    assert len(time) == len("2026-01-01 10:00:00.000")
    assert said.startswith(f"topic plain: message {id_} failed, attempt 1 of 16: KeyError: 'nothing'; tried again in ")


@pytest.mark.parametrize("command", ["up", "host", "demo"])
@pytest.mark.parametrize("option", ["--log-level loud", "--log-format xml"])
def test_a_wrong_choice_is_refused_before_anything_starts(emq: Shell, command: str, option: str) -> None:
    _, err = emq(f"{command} {option}", code=2)
    assert option.partition(" ")[2] in err
    assert not Path("emq.db").exists()
