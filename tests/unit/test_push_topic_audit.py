"""The audit log of the push service has what `emq topic` and programs change of its endpoints' topics."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

import msgspec
import pytest

from emq import App, Client
from emq.runtime import errors
from emq_push.service.service import PushService
from support.emq_shell import Shell, opened

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.fixture(autouse=True)
def _any_address(emq: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMQ_PUSH_ALLOW", "*")


@pytest.fixture
def topic(emq: Shell) -> str:
    """The topic of an endpoint of the tenant `acme`."""
    emq("push tenant acme --qps 5")
    return f"acme.{emq.json('push endpoint acme http://127.0.0.1:9/')['id']}"


def entries() -> list[tuple[str, str, str, Any]]:
    """Return tenant, actor, target and changes of what `emq topic` did, the first one first."""
    query = "SELECT tenant, actor, target, changes FROM emq_push_audit_log WHERE action = ? ORDER BY created_us, id"
    with sqlite3.connect("emq.db") as connection:
        rows = connection.execute(query, ("endpoint.topic_changed",)).fetchall()
    return [(*rest, json.loads(changes)) for *rest, changes in rows]


def test_each_change_of_an_endpoints_topic_is_an_entry_without_secrets(emq: Shell, topic: str) -> None:
    emq(f"topic set {topic} push.batch=50 handler_timeout_s=30 push.secret={SECRET} push.basic=me:hunter22")
    emq(f"topic set acme.* push.batch= attributes.note={'x' * 500} --yes")
    emq(f"topic pause {topic}")
    emq(f"topic resume {topic}")
    changes = [
        {"handler_timeout_s": 30.0, "push.batch": "50", "push.secret": "***", "push.basic": "***"},
        {"push.batch": None, "note": "x" * 200},
        {"state": "paused"},
        {"state": "active"},
    ]
    assert entries() == [("acme", "command line", topic[5:], each) for each in changes]


def test_a_refused_change_leaves_no_entry(emq: Shell, topic: str) -> None:
    emq.refused(f"topic set {topic} push.batch=0")
    emq.refused(f"topic set {topic} priorities=a,b")
    assert entries() == []


def test_topics_of_no_endpoint_are_not_in_it(emq: Shell) -> None:
    named = "--set push.url=http://127.0.0.1:9/ --set attributes.tenant=acme"
    emq(f"topic create plain --qps 1 {named}")
    emq("topic set plain push.batch=50")  # there is no push service yet
    emq("push tenant acme --qps 5")
    emq("topic set plain push.batch=60")
    emq("topic set acme handler_timeout_s=5")
    emq("topic pause plain")
    assert entries() == []


def test_another_rate_on_the_command_line_resets_nothing(emq: Shell) -> None:
    async def make(app: App) -> None:
        service = await PushService.open(app)
        settings = {"qps": 5, "name": "Acme", "payload_retention_s": 7_200, "delete_on_success": True}
        await service.tenants.change("acme", settings, "test", creates=True)

    emq("push tenant acme --qps 1 --name other")
    opened(make)
    emq("push tenant acme --qps 9")
    [found] = emq.json("push tenants")
    assert (found["qps"], found["name"], found["payload_retention_s"]) == (9, "Acme", 7_200)
    assert found["delete_on_success"] is True
    emq("push tenant acme --qps 9", "--name", "")
    assert emq.json("push tenants")[0]["name"] == ""


def test_the_app_and_its_client_leave_the_same_entries(topic: str) -> None:

    async def change(app: App) -> None:
        attributes = {**(await app.catalog.get(topic)).options.attributes, "push.batch": "50"}
        await app.update_topic(topic, handler_timeout_s=30.0, attributes={**attributes, "push.secret": SECRET})
        await app.pause(topic)
        await app.resume(topic)
        await app.drain(topic)

    opened(change)
    with Client("sqlite:///emq.db") as client:
        client.resume(topic)
        client.create_topic(topic, 3, update=True)
    changes = [
        {"handler_timeout_s": 30.0, "push.batch": "50", "push.secret": "***"},
        {"state": "paused"},
        {"state": "active"},
        {"state": "draining"},
        {"state": "active"},
        {"qps": 3.0},
    ]
    assert entries() == [("acme", "app", topic[5:], each) for each in changes]


def test_all_options_at_once_leave_no_secret_either(topic: str) -> None:

    async def change(app: App) -> None:
        options = (await app.catalog.get(topic)).options
        attributes = {**options.attributes, "push.secret": SECRET}
        options = msgspec.structs.replace(options, attributes=attributes, max_attempts=3)
        await app.update_topic(topic, options=options)  # type: ignore[call-arg]

    opened(change)
    [(_, _, _, changes)] = entries()
    assert (changes["push.secret"], changes["max_attempts"]) == ("***", 3)
    assert SECRET not in str(changes)


@pytest.mark.parametrize(
    "wrong", [{"nothing": 1}, {"attributes": {"a": 1}}, {"attributes": None}, {"priorities": ["a"]}, {"qps": "x"}]
)
def test_a_wrong_change_in_code_is_refused_as_for_any_topic(topic: str, wrong: dict[str, Any]) -> None:

    async def change(app: App) -> None:
        await app.create_topic("plain", 5)
        with pytest.raises(errors.InvalidTopic) as plain:
            await app.update_topic("plain", **wrong)
        with pytest.raises(errors.InvalidTopic) as refused:
            await app.update_topic(topic, **wrong)
        assert str(refused.value).replace(topic, "plain") == str(plain.value)

    opened(change)
    assert entries() == []
