"""Deliveries are searched by the key of their message, in the API and at the command line."""

from __future__ import annotations

from support import push_api
from support.emq_shell import Shell
from support.push_api import Api
from support.push_api_calls import endpoint_of

api = push_api.fixture("acme")


async def test_deliveries_are_found_by_the_key_of_their_message(api: Api) -> None:
    for _ in range(2):
        await endpoint_of(api)
    for number in range(6):
        given = {
            "id": f"m{number}",
            "event_type": f"order.{number % 3}",
            "key": f"customer-{number % 2}",
            "payload": {},
        }
        await api("POST", "/v1/tenants/acme/messages", given)

    async def found(**which: object) -> list[str]:
        listed = await api.listed("/v1/tenants/acme/deliveries", limit=1, **which)
        return [each["message"] for each in listed]

    assert await found(key="customer-1") == ["m5", "m5", "m3", "m3", "m1", "m1"]
    assert await found(key="customer-1", event_type="order.0") == ["m3", "m3"]
    assert await found(key="customer-1", message="m3") == ["m3", "m3"]
    assert await found(key="customer-1", message="m2") == []
    assert await found(key="customer-1", state="dead") == []
    assert await found(key="customer") == []
    assert await found(message="m2") == ["m2", "m2"]


def test_deliveries_are_searched_at_the_command_line(emq: Shell) -> None:
    emq("push tenant acme --qps 5")
    emq("push endpoint acme https://93.184.216.34/hook")
    for number in range(4):
        emq(f"push send acme order.{number} {{}} --id m{number} --key customer-{number % 2}")

    def found(options: str) -> list[str]:
        return [each["message"] for each in emq.json(f"push deliveries acme {options}")]

    assert found("--key customer-1") == ["m3", "m1"]
    assert found("--key customer-1 --event-type order.3") == ["m3"]
    assert found("--event-type order.1 --event-type order.2") == ["m2", "m1"]
    assert found("--message m2") == ["m2"]
    assert found("--status 500") == []
