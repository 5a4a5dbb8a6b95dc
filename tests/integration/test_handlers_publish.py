"""Handlers of a host publish: through the app of their module, which the host has opened, or the current app."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from support.emq_processes import PATIENCE_S, Shell, line_with, until

CHAIN = """
import emq

app = emq.App({argument})


@app.handler("orders")
async def order(message: emq.Message) -> None:
    await app.publish("mails", b"for " + message.payload)


@app.handler("mails")
def mail(message: emq.Message):
    return emq.App.current().publish("done", message.payload)


@app.handler("done")
async def done(message: emq.Message) -> None:
    with open("done.txt", "a") as file:
        print(message.payload.decode(), emq.App.current() is app, file=file)
"""


def done() -> list[str]:
    file = Path("done.txt")
    return sorted(file.read_text().splitlines()) if file.exists() else []


def test_a_handler_publishes_through_the_app_of_its_module(emq: Shell) -> None:
    Path("chain.py").write_text(CHAIN.format(argument=""))
    host = emq.start("up --app chain")
    line_with(host, "consuming 0 topics")
    for topic in ("orders", "mails", "done"):
        emq.here(f"topic create {topic} --qps 100")
    emq.here("publish orders a b")
    until(lambda: len(done()) == 2)
    assert done() == ["for a True", "for b True"]
    host.send_signal(signal.SIGINT)
    assert host.wait(PATIENCE_S) == 0


def test_several_processes_open_the_app_of_the_module_on_the_store_of_the_command(
    emq: Shell, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMQ_DATABASE", "sqlite:///catalog.db")
    Path("chain.py").write_text(CHAIN.format(argument='"sqlite:///wrong.db", environment="sandbox"'))
    where = f"--store {redis_url} --env sandbox"
    for topic in ("orders", "mails", "done"):
        emq.here(f"topic create {topic} --qps 100 {where}")
    parent = emq.start(f"host --processes 2 --app chain --store {redis_url}")
    emq.here(f"publish orders a b c {where}")
    until(lambda: len(done()) == 3)
    assert done() == ["for a True", "for b True", "for c True"]
    assert not Path("wrong.db").exists()
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(PATIENCE_S) == 0
