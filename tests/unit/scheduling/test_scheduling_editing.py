"""Changes of a pool written as text."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from emq.runtime import errors
from emq_scheduling.model import KeyLimit, Limit, Pool, Resource, TaskType, Tenant
from emq_scheduling.pools import editing

POOL = Pool(
    "sms",
    resources={
        "acme": Resource(
            limits=(Limit("requests", 10, "second"), Limit("requests", 500, "hour"), Limit("tokens", 9, "minute")),
            takes={"code": {"tokens": 3}, "notice": {}},
        )
    },
    types={"code": TaskType(), "notice": TaskType(costs={"tokens": 2})},
)


def entry(what: Any, name: str, *pairs: str) -> Any:
    changed = editing.changed(POOL, what, name, pairs)
    return {"resource": changed.resources, "type": changed.types, "tenant": changed.tenants}[what][name]  # type: ignore[index]


def amounts(*pairs: str) -> dict[str, float]:
    return {f"{limit.name}/{limit.per}": limit.amount for limit in entry("resource", "acme", *pairs).limits}


def test_fields_are_set_one_by_one() -> None:
    acme = entry("resource", "acme", "paused=true", "weight=2.5", "parent=none", "price=1")
    assert (acme.paused, acme.weight, acme.parent, acme.price) == (True, 2.5, None, 1)
    kind = entry("type", "code", "priority=3", "longest_wait_s=5", "timeout_s=none", "backoff_s=1, 2.5")
    assert (kind.priority, kind.longest_wait_s, kind.timeout_s, kind.backoff_s) == (3, 5, None, (1, 2.5))
    assert entry("tenant", "shop", "weight=3") == Tenant(3)


def test_limits_are_changed_added_and_taken_away() -> None:
    assert amounts("limits.tokens=7") == {"requests/second": 10, "requests/hour": 500, "tokens/minute": 7}
    assert amounts("limits.requests/hour=100")["requests/hour"] == 100
    assert amounts("limits.slots/in_flight=4")["slots/in_flight"] == 4
    assert amounts("limits.requests/hour=none", "limits.requests=20") == {"requests/second": 20, "tokens/minute": 9}


def test_types_and_costs_are_changed() -> None:
    assert entry("resource", "acme", "takes=code").takes == {"code": {"tokens": 3}}
    assert entry("resource", "acme", "takes=none").takes == {}
    assert entry("resource", "acme", "takes.notice.tokens=4").takes["notice"] == {"tokens": 4}
    assert entry("resource", "acme", "takes.code.tokens=none").takes["code"] == {}
    assert entry("type", "notice", "costs.tokens=none", "costs.requests=2").costs == {"requests": 2}


def test_attributes_are_set_and_taken_away_one_by_one() -> None:
    pairs = ["attributes.url=https://sms.example/a=1,b", "attributes.region=eu"]
    pool = editing.changed(POOL, "resource", "acme", pairs)
    assert pool.resources["acme"].attributes == {"url": "https://sms.example/a=1,b", "region": "eu"}
    pool = editing.changed(pool, "resource", "acme", ["attributes.url=none"])
    assert pool.resources["acme"].attributes == {"region": "eu"}


@pytest.mark.parametrize(
    ("what", "name", "pair", "text"),
    [
        ("resource", "acne", "weight=1", "has no resource 'acne'; did you mean 'acme'"),
        ("type", "x", "priority=1", "has no type 'x'; it has code, notice"),
        ("resource", "acme", "weight", "'weight' is not a change; write field=value"),
        ("resource", "acme", "wait=1", "there is no field 'wait'; did you mean 'weight'? the fields are parent"),
        ("resource", "acme", "weight=much", "weight='much' does not fit; write a number"),
        ("resource", "acme", "paused=yes", "paused='yes' does not fit; write true or false"),
        ("resource", "acme", "paused=perhaps", "paused='perhaps' does not fit"),
        ("resource", "acme", "limits.requests=1", "does not name one limit; it has limits.requests/second, limits.re"),
        ("resource", "acme", "limits.calls=1", "it has limits.requests/second, limits.requests/hour, limits.tokens"),
        ("resource", "acme", "limits.requests/week=1", "period 'week' is not one of second, minute"),
        ("resource", "acme", "limits=1", "write limits.NAME=AMOUNT"),
        ("resource", "acme", "takes.spam.tokens=1", "takes.spam.tokens names no cost"),
        ("resource", "acme", "weight.x=1", "weight has no parts"),
        ("type", "code", "costs=1", "costs cannot be given as one value; write costs.LIMIT=UNITS"),
        ("resource", "acme", "attributes=x", "attributes cannot be given as one value; write attributes.NAME=TEXT"),
        ("resource", "acme", "attributes.=x", "write attributes.NAME=TEXT"),
        ("type", "code", "hours=9", "hours cannot be given as one value"),
    ],
)
def test_what_cannot_be_read_is_told_with_what_would_be_right(what: Any, name: str, pair: str, text: str) -> None:
    with pytest.raises(errors.InvalidPool) as caught:
        editing.changed(POOL, what, name, [pair])
    assert text in str(caught.value)


def test_a_limit_by_key_and_its_exceptions_are_changed() -> None:
    pool = msgspec.structs.replace(POOL, limits={"each": KeyLimit("tenant", 5, "in_flight", amounts={"b": 2})})
    pairs = ("amount=7", "amounts.acme=20", "amounts.b=none", "by=tenant,model", "types=code")
    changed = editing.changed(pool, "limit", "each", pairs).limits["each"]
    assert changed == KeyLimit(("tenant", "model"), 7, "in_flight", amounts={"acme": 20}, types=("code",))
    assert editing.changed(pool, "limit", "each", ["by=account"]).limits["each"].by == "account"
    for pair, text in (
        ("amounts=3", "write amounts.KEY=AMOUNT"),
        ("amounts.acme=many", "amounts.acme='many' does not fit"),
        ("per=week", "per='week' does not fit"),
    ):
        with pytest.raises(errors.InvalidPool, match=re.escape(text)):
            editing.changed(pool, "limit", "each", [pair])
    with pytest.raises(errors.InvalidPool, match="has no limit 'other'; it has each"):
        editing.changed(pool, "limit", "other", ["amount=1"])
