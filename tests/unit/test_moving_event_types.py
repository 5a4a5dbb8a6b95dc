"""Event types of other senders come along into the catalogue, or the import says why not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from emq_push.moving.carrying import Carrying
from support import push_api
from support.emq_shell import Shell
from support.former_senders import of_convoy, of_outpost, of_svix, plan_of
from support.push_api import Api

api = push_api.fixture("acme")

SCHEMA = {"type": "object", "required": ["order"]}
URL = "https://93.184.216.34/hook"
OF_SVIX = {"data": [{"name": "order.paid", "description": "Paid", "schemas": {"2": SCHEMA}, "archived": True}]}
OF_CONVOY = {
    "data": {
        "content": [
            {"uid": "1", "name": "*", "description": "all"},
            {
                "name": "order.paid",
                "description": "Paid",
                "json_schema": SCHEMA,
                "deprecated_at": "2026-01-02T03:04:05Z",
            },
        ]
    }
}


OF_ALL = {
    "svix": (of_svix(URL) | {"event_types": OF_SVIX}, ("Paid", {"2": SCHEMA}, True)),
    "convoy": (of_convoy(URL) | {"event_types": OF_CONVOY}, ("Paid", {"1": SCHEMA}, True)),
    "convoy, as it answered once": (
        of_convoy(URL) | {"event_types": {"data": {"event_types": OF_CONVOY["data"]["content"]}}},
        ("Paid", {"1": SCHEMA}, True),
    ),
    "outpost": (of_outpost(URL) | {"topics": ["*", "order.paid"]}, ("", {}, False)),
}


@pytest.mark.parametrize("kind", OF_ALL)
async def test_event_types_come_along(api: Api, kind: str) -> None:
    export, wanted = OF_ALL[kind]
    plan = plan_of(kind.partition(",")[0], export)
    trial = Carrying(api.service, "test", is_trial=True)
    await trial.add_types(plan.types)
    assert await api.listed("/v1/event-types") == []
    carrying = Carrying(api.service, "test", is_trial=False)
    await carrying.add_types(plan.types)
    assert carrying.types == trial.types == ["order.paid"]
    shown = await api("GET", "/v1/event-types/order.paid")
    assert (shown["description"], shown["schemas"], shown["archived"]) == wanted
    await api("PATCH", "/v1/event-types/order.paid", {"description": "mine"})
    again = Carrying(api.service, "test", is_trial=False)
    await again.add_types(plan.types)
    assert again.types == []
    assert (await api("GET", "/v1/event-types/order.paid"))["description"] == "mine", "what is there stays"


def test_the_command_names_event_types_that_cannot_be_made(emq: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMQ_PUSH_ALLOW", "*")
    types = [
        {"name": "order.paid", "featureFlag": "beta"},
        {"name": "order.sent", "schemas": {"1": {"$ref": "https://schemas.example/order.json"}}},
        {"name": "order..gone"},
        {"name": "order.new", "schemas": {"one": SCHEMA}},
    ]
    Path("export.json").write_text(json.dumps(of_svix("http://127.0.0.1:9/") | {"event_types": types}))
    said = emq("push import svix export.json --dry-run", code=1)
    assert said == "would make 1 endpoint of 1 tenant, 1 event type\n"
    for line in (
        "order.paid: is for applications with a feature flag",
        "event type order.sent: this is no JSON Schema",
    ):
        assert line in emq.error
    assert emq.json("push types list") == []
    found = emq.json("push import svix export.json", code=1)
    assert found["event_types"] == ["order.paid"]
    assert set(found["failed"]) == {"event type order.sent", "event type order..gone", "event type order.new"}
