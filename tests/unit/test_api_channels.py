"""Channels: an endpoint with channels gets the messages that name one of them, and one without gets all."""

from __future__ import annotations

from typing import Any

import pytest

from emq_push.moving.carrying import Carrying
from support import push_api
from support.emq_shell import Shell
from support.former_senders import of_svix, plan_of
from support.push_api import Api
from support.push_api_calls import PATH, endpoint_of, message, post

api = push_api.fixture("acme")


async def names_of(api: Api, made: dict[str, str], **more: Any) -> set[str]:
    """Publish a message; return the names of the endpoints that get it."""
    receipt = await post(api, message(**more))
    return {made[delivery.partition(":")[0]] for delivery in receipt["deliveries"]}


async def test_an_endpoint_with_channels_gets_only_messages_that_name_one(api: Api) -> None:
    made = {
        (await endpoint_of(api, channels=channels))["id"]: name
        for name, channels in {"all": [], "eu": ["eu"], "both": ["eu", "us"]}.items()
    }
    assert await names_of(api, made) == {"all"}
    assert await names_of(api, made, channels=[]) == {"all"}
    assert await names_of(api, made, channels=["eu"]) == {"all", "eu", "both"}
    assert await names_of(api, made, channels=["asia", "us"]) == {"all", "both"}
    assert await names_of(api, made, channels=["EU"]) == {"all"}
    assert await names_of(api, made, event_type="order.sent", channels=["us"]) == {"all", "both"}
    eu = next(id_ for id_, name in made.items() if name == "eu")
    changed = await api("PATCH", f"/v1/tenants/acme/endpoints/{eu}", {"channels": ["asia"]})
    assert changed["channels"] == ["asia"]
    assert await names_of(api, made, channels=["eu"]) == {"all", "both"}
    await api("PATCH", f"/v1/tenants/acme/endpoints/{eu}", {"channels": None})
    assert await names_of(api, made) == {"all", "eu"}


async def test_filters_hold_beside_channels(api: Api) -> None:
    filters = [{"field": "amount", "op": "gte", "value": 100}]
    made = {(await endpoint_of(api, channels=["eu"], filters=filters))["id"]: "large"}
    assert await names_of(api, made, channels=["eu"], payload={"amount": 100}) == {"large"}
    assert await names_of(api, made, channels=["eu"], payload={"amount": 5}) == set()
    assert await names_of(api, made, payload={"amount": 100}) == set()


async def test_a_message_keeps_its_channels_and_is_another_one_with_others(api: Api) -> None:
    await post(api, message(id="m1", channels=["eu", "us"]))
    assert (await api("GET", f"{PATH}/m1"))["channels"] == ["eu", "us"]
    assert (await api.listed(PATH))[0]["channels"] == ["eu", "us"]
    await post(api, message(id="m1", channels=["eu", "us"]))
    assert (await post(api, message(id="m1", channels=["eu"]), status=409))["code"] == "message_exists"


@pytest.mark.parametrize("channels", [["a"] * 6, ["a b"], [""], ["a\n"], ["x" * 129], "eu", [1]])
async def test_a_wrong_channel_of_a_message_is_refused(api: Api, channels: Any) -> None:
    found = await post(api, message(channels=channels), status=422)
    assert found["pointer"].startswith("/channels")


async def test_an_endpoint_has_at_most_ten_channels(api: Api) -> None:
    await endpoint_of(api, channels=[f"c{n}" for n in range(10)])
    body = {"url": "https://93.184.216.34/hook", "channels": [f"c{n}" for n in range(11)]}
    found = await api("POST", "/v1/tenants/acme/endpoints", body, status=422)
    assert found["pointer"] == "/channels"


async def test_channels_come_along_from_svix(api: Api) -> None:
    plan = plan_of("svix", of_svix("https://93.184.216.34/hook", channels=["eu"]))
    assert plan.notes == [note for note in plan.notes if "channel" not in note.text]
    [made] = await Carrying(api.service, "test", is_trial=False).run(plan.tenants)
    assert (await api("GET", f"/v1/tenants/shop-one/endpoints/{made.id}"))["channels"] == ["eu"]


def test_channels_at_the_command_line(emq: Shell) -> None:
    emq("push tenant acme --qps 5")
    emq("push endpoint acme https://93.184.216.34/hook --channel eu --channel us")
    assert emq.json("push send acme order.paid {}")["deliveries"] == []
    assert len(emq.json("push send acme order.paid {} --channel us")["deliveries"]) == 1
