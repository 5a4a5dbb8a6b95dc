"""Payload templates: what an endpoint declares is what it gets, signed; a payload that does not fit is never sent."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook

from emq.runtime import errors
from emq_push import template
from support import push_api
from support.http_receiver import HttpReceiver
from support.push_api import Api
from support.push_api_calls import endpoint_of
from support.pushing import SECRET, deliver, endpoint, message

api = push_api.fixture("acme", push_allow="127.0.0.1")

PAYLOAD = b'{"data": {"title": "Hi", "rates": [1.10, 2]}, "first name": "Ann", "big": 123456789012345678, "no": null}'


def rewritten(form: object, payload: bytes = PAYLOAD) -> bytes:
    found = template.parsed(json.dumps(form))
    assert found is not None
    return found.rewritten(message("m-1", payload, headers={"event-type": "order.paid"}, key="k")).payload


@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        ({}, b"{}"),
        ({"text.$": "$.data.title"}, b'{"text":"Hi"}'),
        ({"a": {"b": [{"c.$": "$.data.rates[1]"}, True, "$.data"]}}, b'{"a":{"b":[{"c":2},true,"$.data"]}}'),
        (
            {"rate.$": "$.data.rates[0]", "big.$": "$['big']", "x": 2.50},
            b'{"rate":1.10,"big":123456789012345678,"x":2.5}',
        ),
        ({"name.$": '$["first name"]', "no.$": "$.no"}, b'{"name":"Ann","no":null}'),
        ({"id.$": "$$.id", "type.$": "$$.event_type", "k.$": "$$.key"}, b'{"id":"m-1","type":"order.paid","k":"k"}'),
    ],
)
def test_fields_with_paths_get_values_and_all_others_are_constants(form: object, wanted: bytes) -> None:
    assert rewritten(form) == wanted


def test_the_whole_payload_is_a_path_too() -> None:
    assert json.loads(rewritten({"event.$": "$"})) == {"event": json.loads(PAYLOAD)}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("[1]", "must be a JSON object"),
        ("{", "must be a JSON object"),
        ('{"a": 1e99999999999999999999}', "must be a JSON object"),
        ('{"a.$": 1}', "has 'a.$' with '1', which is not a path such as $.data.items[0]"),
        ('{"a.$": "$.items[*]"}', "which is not a path"),
        ('{"a.$": "$..title"}', "which is not a path"),
        ('{"a.$": "$[?@.x]"}', "which is not a path"),
        ('{"a.$": "x"}', "which is not a path"),
        ('{"a.$": "States.UUID()"}', "which is not a path"),
        ('{"a.$": "$$.secret"}', "of a message there are $$.id, $$.event_type, $$.key, $$.topic"),
        ('{"a": 1, "a.$": "$"}', "gives 'a' twice"),
        (json.dumps({"a": [0] * 256}), "may have 256 values"),
        ('{"a":' * 18 + "1" + "}" * 18, "in 16 levels"),
        (json.dumps({"a": "x" * 8_192}), "at most 8,192"),
    ],
)
def test_a_template_that_cannot_be_used_says_why(text: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=re.escape(wrong)):
        template.parsed(text)


@pytest.mark.parametrize(
    ("payload", "wrong"),
    [
        (b"{}", "the payload has nothing at '$.data.title'"),
        (b'{"data": "title"}', "has nothing at"),
        (b'{"data": ["title"]}', "has nothing at"),
        (b"no JSON", "the payload is not JSON"),
        (b"\xff", "the payload is not JSON"),
        (b'{"a": 1e99999999999999999999}', "the payload is not JSON"),
        (b"[" * 100_000, "the payload is nested too deeply"),
        (b'"%s"' % (b"x" * template.MOST_BYTES), "bytes; at most 262,144 are rewritten"),
    ],
)
def test_a_payload_that_does_not_fit_fails_and_shows_nothing_of_itself(payload: bytes, wrong: str) -> None:
    with pytest.raises(ValueError, match=re.escape(wrong)):
        rewritten({"text.$": "$.data.title"}, payload)


def test_paths_do_not_multiply_a_payload() -> None:
    many = {f"copy{number}.$": "$" for number in range(250)}
    with pytest.raises(ValueError, match="what its paths find has more than 262,144 bytes"):
        rewritten(many, b'"%s"' % (b"x" * 100_000))


async def test_what_is_sent_is_what_is_signed(receiver: HttpReceiver) -> None:
    found = endpoint(receiver.url(), secret=SECRET, template='{"text.$": "$.data.title"}')
    sent = message("m", PAYLOAD)
    assert await deliver(found, sent) == [None]
    [request] = receiver.requests
    assert request.body == b'{"text":"Hi"}'
    Webhook(SECRET).verify(request.body, request.headers)
    assert sent.payload == PAYLOAD, "a retry has the payload of its publish"


async def test_each_message_of_a_batch_is_rewritten_and_one_that_does_not_fit_fails_alone(
    receiver: HttpReceiver,
) -> None:
    found = endpoint(receiver.url(), batch="2", template='{"n.$": "$.n"}')
    good = [message("a", b'{"n": 1, "x": 1}'), message("b", b'{"n": 2}')]
    outcomes = await deliver(found, good[0], message("bad", b"{}"), good[1])
    assert receiver.bodies == [b'[{"n":1},{"n":2}]']
    assert [str(each) for each in outcomes if each is not None] == ["template: the payload has nothing at '$.n'"]
    assert isinstance(outcomes[1], errors.Retry)


async def test_a_template_is_shown_changed_by_its_members_and_removed(api: Api, receiver: HttpReceiver) -> None:
    form: dict[str, Any] = {"text.$": "$.title", "more": {"a": 1, "b.$": "$"}}
    made = await endpoint_of(api, receiver, template=form)
    path = f"/v1/tenants/acme/endpoints/{made['id']}"
    assert made["template"] == form
    changed = await api("PATCH", path, {"template": {"more": {"a": None, "c": 2}}})
    assert changed["template"] == {"text.$": "$.title", "more": {"b.$": "$", "c": 2}}
    assert (await api("PATCH", path, {"qps": 5}))["template"] == changed["template"]
    wrong = await api("PATCH", path, {"template": {"text.$": "title"}}, status=422)
    assert wrong["pointer"] == "/template"
    assert "template has 'text.$' with 'title', which is not a path" in wrong["detail"]
    assert (await api("GET", path))["template"] == changed["template"]
    assert (await api("PATCH", path, {"template": None}))["template"] is None


async def test_a_preview_sends_nothing(api: Api, receiver: HttpReceiver) -> None:
    made = await endpoint_of(api, receiver, template={"text.$": "$.title"})
    path = f"/v1/tenants/acme/endpoints/{made['id']}:preview"
    shown = await api("POST", path, {"payload": {"title": "Hi"}})
    assert shown == {"payload": {"text": "Hi"}}
    tried = {"template": {"kind.$": "$$.event_type"}, "event_type": "order.paid"}
    assert await api("POST", path, tried) == {"payload": {"kind": "order.paid"}}
    await api("PUT", "/v1/event-types/order.paid", {"example": {"title": "Of the catalogue"}})
    assert await api("POST", path, {"event_type": "order.paid"}) == {"payload": {"text": "Of the catalogue"}}
    unfit = await api("POST", path, {"payload": {"name": 1}}, status=422)
    assert (unfit["pointer"], "the payload has nothing at '$.title'" in unfit["detail"]) == ("/payload", True)
    assert (await api("POST", path, {"template": {"a.$": 1}}, status=422))["pointer"] == "/template"
    await api("POST", path, {}, key=await api.key_of("send", "acme"), status=403)
    assert receiver.requests == []
