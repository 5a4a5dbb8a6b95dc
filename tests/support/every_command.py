"""Every command of `emq`, with arguments that suit it in a directory that `fill` has filled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from emq_cli import consuming
from emq_cli.commands import app
from emq_demo import run as demonstration
from emq_web.cli import serving_api
from support.emq_shell import Shell

TOPIC = "shop"
FAMILY = "below.*"

ARGUMENTS = {
    "api key create": "",
    "api key delete": "key_1 --yes",
    "api key list": "",
    "api serve": "",
    "audit": "trail",
    "backup check": "",
    "dead list": "",
    "dead purge": f"{TOPIC} --yes",
    "dead replay": TOPIC,
    "dead show": f"{TOPIC} some-id",
    "demo": "",
    "drain": "some-host",
    "family create": "new.* --qps 5",
    "family delete": "gone.* --yes",
    "family drain": FAMILY,
    "family list": "",
    "family pause": FAMILY,
    "family resume": FAMILY,
    "family set": f"{FAMILY} qps=7",
    "family show": FAMILY,
    "host": "",
    "hosts": "",
    "lag": "",
    "load": "plan.toml --ledger ledger",
    "offsets reset": f"{TOPIC} --yes",
    "offsets show": TOPIC,
    "size": "--tenants 1000 --rate 100",
    "store orphans": "",
    "store spread": "",
    "upgrade": "",
    "plan": "--simulate --hosts 2 --topics 3",
    "publish": f"{TOPIC} payload",
    "push attempts": "acme ep_1:m1",
    "push import": "svix export.json",
    "push pause": "acme",
    "push resume": "acme",
    "notices list": "",
    "notices off": "",
    "notices on": "",
    "notices test": "",
    "push deliveries": "acme",
    "push endpoint": "acme https://203.0.113.9/in",
    "push endpoints": "acme",
    "push replay": "acme --dry-run",
    "push replays": "acme",
    "push resend": "acme ep_1:m1",
    "push send": "acme order.created {}",
    "push tenant": "acme --qps 5",
    "push tenants": "",
    "push types archive": "order.paid",
    "push types check": "known",
    "push types delete": "order.gone --yes",
    "push types list": "",
    "push types set": "order.sent --description Sent",
    "push types show": "order.paid",
    "run": "shop_app",
    "schedule levels": TOPIC,
    "schedule list": "",
    "schedule recall": f"{TOPIC} some-id",
    "schedule show": f"{TOPIC} some-id",
    "scheduling cancel": "sms some-id",
    "scheduling delete": "gone --yes",
    "scheduling export": "sms",
    "scheduling import": "pool.toml",
    "scheduling pools": "",
    "scheduling set": "sms resource acme weight=2",
    "scheduling show": "sms",
    "scheduling status": "sms some-id",
    "scheduling submit": "sms code payload",
    "scheduling verify": "sms",
    "scheduling what-if": "sms",
    "settings": "",
    "stats": "",
    "top": "--count 1",
    "topic create": "made --qps 1 --exist-ok",
    "topic delete": "gone --yes",
    "topic drain": TOPIC,
    "topic encrypt": "",
    "topic export": "",
    "topic import": "topics.toml",
    "topic list": "",
    "topic options": "",
    "topic pause": TOPIC,
    "topic resume": TOPIC,
    "topic set": f"{TOPIC} qps=20",
    "topic show": TOPIC,
    "trace": "some-id",
    "trail verify": "trail",
    "trial": "",
    "up": "",
    "weight": "some-host 2",
}
"""By command."""

POOL = """
name = "sms"
types.code = {}
[resources.acme]
limits = [{name = "requests", amount = 5, per = "second"}]
takes = ["code"]
"""

SPARK = ("audit", "load", "trial")


class JavaStarted(Exception):
    """A command has got past its checks and would start Java."""


def commands() -> dict[str, Any]:
    """Return all commands, by their names as somebody types them."""
    return dict(_within(get_command(app), ""))


def _within(group: Any, before: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _within(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def own_parameters(command: Any) -> list[Any]:
    """Return the parameters of a command that take a value, without those that every command has."""
    shared = {"store", "database", "cluster", "environment", "settings_file"}
    return [p for p in command.params if p.name not in shared and not getattr(p, "is_flag", False)]


def fill(emq: Shell, directory: Path) -> None:
    """Fill the current directory."""
    emq(f"topic create {TOPIC} --qps 20")
    emq(f"family create {FAMILY} --qps 5")
    emq("topic export -o topics.toml")
    for name in ("order.paid", "order.gone"):
        emq(f"push types set {name}")
    (directory / "trail").mkdir()
    (directory / "latin.txt").write_bytes(b"qps = 1 # caf\xe9\n")
    (directory / "pool.toml").write_text(POOL)
    emq("scheduling import pool.toml")
    (directory / "plan.toml").write_text('duration_s = 5\n[[tenants]]\ntopics = ["shop"]\nrate_per_s = 1\n')


def start_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no command start Java, a demonstration or a host."""
    monkeypatch.setattr(demonstration, "main", lambda **_: 0)
    monkeypatch.setattr(demonstration, "resume", lambda *_, **__: 0)
    monkeypatch.setattr(consuming, "run", lambda *_, **__: None)
    monkeypatch.setattr(serving_api, "run", lambda *_: None)
    monkeypatch.setattr(consuming, "run_many", lambda *_: None)
    try:
        from emq_spark import session
    except ModuleNotFoundError:
        return

    def borrowed(*_: object, **__: object) -> None:
        raise JavaStarted

    monkeypatch.setattr(session, "borrowed", borrowed)
