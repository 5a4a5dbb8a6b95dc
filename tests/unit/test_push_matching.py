"""Which endpoints get a message: event types and filters."""

from __future__ import annotations

import json
from typing import Any

import pytest

from emq_push.records.endpoints import Endpoint, EndpointSettings, Filter, tenant_of
from emq_push.service import matching
from emq_push.service.matching import Matcher


def endpoint(id_: str, **settings: Any) -> Endpoint:
    return Endpoint(id=id_, tenant="acme", settings=EndpointSettings(url="https://x.example", **settings))


@pytest.mark.parametrize(
    ("pattern", "event_type", "gets"),
    [
        ("*", "order.paid", True),
        ("order.paid", "order.paid", True),
        ("order.paid", "order.paid.twice", False),
        ("order.*", "order.paid", True),
        ("order.*", "order.item.added", True),
        ("order.*", "order", False),
        ("order.*", "orders.paid", False),
        ("order.item.*", "order.paid", False),
    ],
)
def test_a_pattern_stands_for_what_is_below_it(pattern: str, event_type: str, gets: bool) -> None:
    assert matching.gets(pattern, event_type) is gets


PAYLOAD = {"data": {"amount": 100, "currency": "EUR", "paid": True, "note": None}, "one": 1}


@pytest.mark.parametrize(
    ("field", "op", "value", "holds"),
    [
        ("data.amount", "eq", 100, True),
        ("data.amount", "eq", 100.0, True),
        ("data.amount", "eq", "100", False),
        ("data.amount", "gte", 100, True),
        ("data.amount", "gt", 100, False),
        ("data.amount", "lt", 100.5, True),
        ("data.amount", "lte", "a", False),
        ("data.currency", "gt", "EUQ", True),
        ("data.currency", "in", ("USD", "EUR"), True),
        ("data.currency", "in", (), False),
        ("data.currency", "prefix", "EU", True),
        ("data.amount", "prefix", "1", False),
        ("data.paid", "eq", True, True),
        ("data.paid", "eq", 1, False),
        ("one", "eq", True, False),
        ("data.paid", "gte", 0, False),
        ("data.note", "eq", None, True),
        ("data.note", "exists", True, True),
        ("data.none", "exists", False, True),
        ("data.none", "ne", 1, True),
        ("data.none", "eq", None, False),
        ("data.amount.deeper", "exists", True, False),
    ],
)
def test_a_filter_looks_at_one_field(field: str, op: Any, value: Any, holds: bool) -> None:
    filter_ = Filter(field, op, value)
    matching.check(filter_)
    assert matching.holds(filter_, PAYLOAD) is holds


@pytest.mark.parametrize(
    ("field", "op", "value"),
    [("", "eq", 1), ("a..b", "eq", 1), ("a", "in", "x"), ("a", "exists", "yes"), ("a", "gt", True), ("a", "eq", (1,))],
)
def test_a_filter_without_sense_is_refused(field: str, op: Any, value: Any) -> None:
    with pytest.raises(ValueError, match=r"field|value|op"):
        matching.check(Filter(field, op, value))


def test_a_matcher_finds_by_type_and_filters() -> None:
    large = endpoint("large", event_types=("order.*",), filters=(Filter("amount", "gte", 10),))
    every = endpoint("every")
    going = Endpoint(id="going", tenant="acme", settings=every.settings, is_going=True)
    matcher = Matcher([large, every, going])

    def found(event_type: str, payload: Any) -> list[str]:
        body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        return [each.id for each in matcher.endpoints_of(event_type, body)]

    assert found("order.paid", {"amount": 10}) == ["large", "every"]
    assert found("order.paid", {"amount": 9}) == ["every"]
    assert found("user.made", {"amount": 10}) == ["every"]
    assert found("order.paid", b"not JSON") == ["every"]
    for n in range(matching.MOST_KNOWN + 5):
        assert found(f"order.n{n}", {"amount": 10}) == ["large", "every"]


def test_an_endpoint_belongs_to_its_tenant_and_another_topic_to_itself() -> None:
    assert tenant_of("shop.eu.ep_1") == "shop.eu"
    assert tenant_of("shop.orders") == "shop.orders"
