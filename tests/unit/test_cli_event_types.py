"""`emq push types`: the catalogue of event types at the command line."""

from __future__ import annotations

import json
from pathlib import Path

from emq_push.records.event_types import CatalogueSettings
from support.emq_shell import Shell

SCHEMA = {"type": "object", "required": ["order"]}


def test_an_event_type_is_set_shown_archived_and_deleted(emq: Shell, tmp_path: Path) -> None:
    (tmp_path / "order.json").write_text(json.dumps(SCHEMA))
    (tmp_path / "paid.json").write_text('{"order": 17}')
    said = emq("push types set order.paid --description Paid --schema order.json --example paid.json")
    assert said == "event type 'order.paid': created\n"
    assert emq("push types set order.paid --check") == "event type 'order.paid': changed\n"
    shown = emq.json("push types show order.paid")
    assert shown == json.loads(emq("push types show order.paid"))
    assert (shown["schemas"], shown["example"], shown["checked"]) == ({"1": SCHEMA}, {"order": 17}, True)
    emq("push types set order.paid --schema order.json --version 3")
    emq("push types archive order.paid")
    [listed] = emq.json("push types list")
    assert (listed["versions"], listed["archived"], listed["description"]) == (["1", "3"], True, "Paid")
    assert "archived" in emq("push types list")
    assert not emq.json("push types archive order.paid --undo")["archived"]
    assert emq("push types delete order.paid --yes") == "deleted event type 'order.paid'\n"
    assert emq.json("push types list") == []


def test_messages_are_refused_as_the_setting_says(emq: Shell, tmp_path: Path) -> None:
    (tmp_path / "order.json").write_text(json.dumps(SCHEMA))
    emq("push tenant acme --qps 5")
    emq("push types set order.paid --schema order.json")
    assert emq("push types check") == f"check: {CatalogueSettings().check}\n" == "check: off\n"
    emq("push send acme order.paid {}")
    assert emq("push types check known") == "check: known\n"
    assert '"order" is a required property' in emq.refused("push send acme order.paid {}")
    emq("push send acme order.sent {}")
    emq("push types check strict")
    assert "'order.sent' is not in the catalogue" in emq.refused("push send acme order.sent {}")


def test_what_is_wrong_is_named(emq: Shell, tmp_path: Path) -> None:
    (tmp_path / "wrong.json").write_text('{"type": "objekt"}')
    (tmp_path / "text.json").write_text("order")
    assert "this is no JSON Schema" in emq.refused("push types set order.paid --schema wrong.json")
    assert "text.json" in emq.refused("push types set order.paid --schema text.json")
    assert "--example 'none.json' cannot be read" in emq.refused("push types set order.paid --example none.json")
    assert "give --schema" in emq.refused("push types set order.paid --version 2")
    assert "regex" in emq.refused("push types set order:paid")
    for line in ("show none", "archive none", "delete none --yes"):
        assert "there is no event type 'none'" in emq.refused(f"push types {line}")
