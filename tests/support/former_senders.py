"""Exports of other senders, as the tests of moving in read them."""

from __future__ import annotations

from typing import Any

from emq_push.moving import convoy, outpost
from emq_push.moving import svix as from_svix
from emq_push.moving.plan import Plan

SECRET, OTHER = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
OWN = "Vuk5LM0uujddIsqO5v_eSuz88"
READERS = {"svix": from_svix, "convoy": convoy, "outpost": outpost}


def of_svix(url: str, **more: Any) -> dict[str, Any]:
    endpoint = {
        "id": "ep_1srOrx2ZWZBpBUvZwXKQmoEYga2",
        "uid": None,
        "url": url,
        "description": "Orders",
        "filterTypes": ["order.paid"],
        "rateLimit": 20,
        "version": 1,
        "disabled": False,
        "channels": None,
        "metadata": {},
        "createdAt": "2026-01-02T03:04:05.123456Z",
        "updatedAt": "2026-01-02T03:04:05.123456Z",
        "secret": {"key": SECRET},
        "headers": {"headers": {"X-Shop": "17"}, "sensitive": []},
        **more,
    }
    application = {"id": "app_1srOrx2ZWZBpBUvZwXKQmoEYga2", "uid": "shop.one", "name": "Shop One", "rateLimit": None}
    return {"applications": {"data": [{**application, "metadata": {}, "endpoints": [endpoint]}], "done": True}}


def of_convoy(url: str, subscription: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    endpoint = {
        "uid": "01H3FRSZYKNYWGPVV46RN98PM5",
        "name": "Orders",
        "owner_id": "shop",
        "url": url,
        "status": "active",
        "advanced_signatures": True,
        "secrets": [{"uid": "s1", "value": OWN, "expires_at": None, "deleted_at": None}],
        "rate_limit": 120,
        "rate_limit_duration": 60,
        "http_timeout": 20,
        **more,
    }
    given = {"uid": "sub1", "endpoint_metadata": {"uid": endpoint["uid"]}, "filter_config": {"event_types": ["*"]}}
    found = [{**given, **(subscription or {})}]
    content = {"status": True, "message": "fetched", "data": {"content": [endpoint], "pagination": {}}}
    return {"endpoints": content, "subscriptions": {"data": {"content": found}}}


def of_outpost(url: str, **more: Any) -> dict[str, Any]:
    destination = {
        "id": "des_1",
        "type": "webhook",
        "topics": ["order.paid", "order.sent"],
        "disabled_at": None,
        "config": {"url": url, "custom_headers": '{"X-Shop": "17"}'},
        "credentials": {"secret": OWN},
        **more,
    }
    return {"tenants": {"models": [{"id": "shop", "destinations_count": 1, "destinations": [destination]}]}}


def plan_of(kind: str, export: dict[str, Any], signing: str = "") -> Plan:
    plan = Plan(100.0, signing)
    READERS[kind].read(export, plan)
    return plan
