"""Which pools there can be: a wrong value is named with the remedy, in one line; a legal oddity is only told."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from emq.runtime import errors
from emq_scheduling.model import Limit, Pool, Resource, TaskType
from emq_scheduling.pools import documents, rules

GOOD: dict[str, Any] = {
    "name": "sms",
    "zone": "Europe/Berlin",
    "types": {
        "verification": {"priority": 0, "longest_wait_s": 5, "share": 0.2},
        "marketing": {"priority": 2, "costs": {"requests": 2}, "hours": [{"start": "09:00", "end": "20:00"}]},
    },
    "calendars": {"office": {"zone": "Asia/Kolkata", "hours": [{"days": "mon-fri", "amounts": {"requests": 20}}]}},
    "resources": {
        "acme": {"limits": [{"name": "requests", "amount": 50, "per": "second"}]},
        "acme-1": {
            "parent": "acme",
            "calendar": "office",
            "limits": [{"name": "requests", "amount": 10, "per": "second"}],
            "takes": {"verification": {}, "marketing": {"requests": 3}},
        },
    },
    "tenants": {"shop": {"weight": 3}},
}


def pool(**changes: Any) -> dict[str, Any]:
    """Return the good pool with values at dotted paths replaced; None takes the key away."""
    document: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(GOOD))
    for path, value in changes.items():
        *parents, last = path.split("__")
        at: Any = document
        for key in parents:
            at = at.setdefault(key.replace("_1", "-1"), {})
        at[last.replace("_1", "-1")] = value
    return document


def test_a_good_pool_passes() -> None:
    found = documents.converted(GOOD)
    assert found.costs("marketing", "acme-1") == {"requests": 3}
    assert rules.warnings(found) == []


LIMIT = {"name": "requests", "amount": 10, "per": "second"}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"name": "s.m"}, "pool 's.m': name 's.m' contains '.'"),
        ({"name": "x" * 41}, "has 41 bytes; give 1 to 40"),
        ({"name": ""}, "has 0 bytes"),
        ({"zone": "Europe/Berlim"}, "zone 'Europe/Berlim' is not known; give an IANA name"),
        ({"zone": "../etc/passwd"}, "zone '../etc/passwd' is not known"),
        ({"types__a*b": {}}, "type 'a*b': name 'a*b' contains '*'"),
        ({"types__verification__priority": -1}, "type 'verification': priority -1 must be 0 or more"),
        ({"types__marketing__near_priority": 3}, "near_priority 3 must be from 0 to its priority, 2"),
        ({"types__marketing__near_priority": -1}, "near_priority -1 must be from 0"),
        ({"types__verification__longest_wait_s": 0}, "longest_wait_s 0 must be above 0"),
        ({"types__verification__ttl_s": -3}, "ttl_s -3 must be above 0"),
        ({"types__verification__duration_s": float("inf")}, "duration_s inf must be a finite number"),
        ({"types__verification__duration_s": float("nan")}, "duration_s nan must be a finite number"),
        *[
            ({f"types__verification__{name}": 1e300}, f"{name} 1e+300 must be at most 316,224,000")
            for name in ("longest_wait_s", "ttl_s", "timeout_s", "duration_s")
        ],
        ({"types__verification__backoff_s": [1, 1e9]}, "backoff_s 1e+09 must be at most 316,224,000"),
        ({"types__verification__priority": 10**30}, "priority 1e+30 must be at most 1,000,000"),
        ({"types__verification__max_attempts": 10**12}, "max_attempts 1e+12 must be at most 1,000,000"),
        ({"types__verification__share": 1.5}, "share 1.5 must be from 0 to 1"),
        ({"types__marketing__share": 0.9}, "the shares of its types (verification 0.2, marketing 0.9) add up to 1.1"),
        ({"types__verification__max_attempts": 0}, "max_attempts 0 must be at least 1"),
        ({"types__verification__backoff_s": []}, "backoff_s must list at least one number"),
        ({"types__verification__backoff_s": [-1]}, "backoff_s -1 must be 0 or more"),
        ({"types__verification__costs": {"request": 1}}, "limit 'request' is not known; did you mean 'requests'?"),
        ({"types__verification__costs": {"requests": -1}}, "cost of 'requests' -1 must be 0 or more"),
        ({"types__verification__hours": [{"start": "9:00"}]}, "hours 1: time '9:00' is not HH:MM"),
        ({"types__verification__hours": [{"start": "24:00", "end": "01:00"}]}, "start 24:00 is the end of the day"),
        ({"types__verification__hours": [{"start": "09:00", "end": "09:00"}]}, "start 09:00 is also the end"),
        ({"types__verification__hours": [{"days": "mon-fry"}]}, "day 'fry' is not one of mon, tue"),
        ({"types__verification__hours": [{"amounts": {"requests": 1}}]}, "amounts are for calendars"),
        ({"calendars__office__zone": "Mars"}, "calendar 'office': zone 'Mars' is not known"),
        ({"calendars__office__hours": [{"amounts": {"requests": -1}}]}, "amount of 'requests' -1 must be 0 or more"),
        ({"calendars__office__hours": [{"amounts": {"tokens": 1}}]}, "calendar 'office': hours: limit 'tokens'"),
        (
            {
                "calendars__office__hours": [
                    {"days": "sun", "start": "22:00", "end": "02:00", "amounts": {"requests": 1}},
                    {"days": "mon", "start": "01:00", "end": "03:00", "amounts": {"requests": 2}},
                ]
            },
            "hours 1 (sun 22:00 to 02:00) and hours 2 (mon 01:00 to 03:00) overlap, and both set 'requests'",
        ),
        ({"resources__acme__parent": "acme"}, "its parents lead back to it (acme > acme)"),
        ({"resources__acme__parent": "acme-1"}, "its parents lead back to it"),
        ({"resources__acme_1__parent": "acne"}, "parent 'acne' is not known; did you mean 'acme'"),
        ({"resources__acme_1__calendar": "offices"}, "calendar 'offices' is not known; did you mean 'office'?"),
        ({"resources__acme_1__weight": 0}, "weight 0 must be above 0"),
        ({"resources__acme_1__weight": 5e-324}, "weight 4.94066e-324 must be 1e-06 or more"),
        ({"tenants__shop__weight": 1e300}, "weight 1e+300 must be at most 1,000,000"),
        ({"resources__acme__limits": [{**LIMIT, "amount": 1e300}]}, "1e+300 must be at most 1,000,000,000,000,000"),
        ({"resources__acme_1__price": -1}, "price -1 must be 0 or more"),
        ({"resources__acme_1__limits": [LIMIT, LIMIT]}, "limit 'requests' per second is there twice"),
        ({"resources__acme_1__limits": [{**LIMIT, "amount": -1}]}, "amount of 'requests' per second -1 must be 0"),
        ({"resources__acme_1__limits": [LIMIT, {**LIMIT, "per": "day"}]}, "per second and per day; give these limits"),
        ({"resources__acme_1__takes": {"spam": {}}}, "takes: type 'spam' is not known; the pool has verification"),
        ({"resources__acme_1__takes": {"marketing": {"tokens": 1}}}, "limit 'tokens' is not known; the pool has"),
        ({"resources__acme_1__takes": {"marketing": {"requests": 21}}}, "costs 21 of 'requests', but the limit is ne"),
        ({"resources__acme__limits": [{**LIMIT, "amount": 2}]}, "but the limit of 'acme' is never above 2 per second"),
        ({"resources__a\nb": {}}, "has control characters"),
        ({"resources__none": {}}, "resource 'none': name 'none' means no value in files and commands"),
        ({"tenants__a/b": {}}, "tenant 'a/b' contains '/'"),
        ({"tenants__shop__weight": 0}, "tenant 'shop': weight 0 must be above 0"),
        ({"resources__acme__limit": []}, "resource 'acme': there is no key 'limit'; did you mean 'limits'?"),
    ],
)
def test_a_wrong_value_is_named_with_the_remedy(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(errors.InvalidPool) as caught:
        documents.converted(pool(**changes))
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_long_circle_of_parents_is_found_from_a_resource_outside_of_it() -> None:
    resources = {"out": {"parent": "r0"}} | {f"r{i}": {"parent": f"r{(i + 1) % 3}"} for i in range(3)}
    document = pool(resources=GOOD["resources"] | resources)
    with pytest.raises(errors.InvalidPool, match="lead back"):
        documents.converted(document)


def test_a_cost_may_reach_what_the_calendar_allows_at_most() -> None:
    documents.converted(pool(resources__acme_1__takes={"marketing": {"requests": 20}}))


def test_a_limit_of_0_closes_a_resource_and_is_no_error() -> None:
    document = pool(resources__acme__limits=[{**LIMIT, "amount": 0}])
    found = rules.warnings(documents.converted(document))
    assert found == [
        f"every resource that takes type '{name}' has a limit of 0; tasks of it would wait"
        for name in ("verification", "marketing")
    ]


def test_oddities_are_told_with_the_tasks_that_wait() -> None:
    document = pool(resources={"a": {"takes": {"marketing": {}}, "paused": True}, "b": {}}, types__marketing={})
    found = rules.warnings(documents.converted(document), {"verification": 1234, "marketing": 1, "gone": 2})
    assert found == [
        "no resource takes type 'verification'; 1,234 tasks of it wait, and nothing is lost",
        "every resource that takes type 'marketing' is paused; 1 task of it waits, and nothing is lost",
        "the pool has no type 'gone'; 2 tasks of it wait, and nothing is lost",
        "resource 'a' and its parents have no limits; tasks start there without bound",
        "resource 'b' takes no type and is no parent, so nothing reaches it",
        "no resource uses calendar 'office'",
    ]


def test_a_pool_made_in_code_is_checked_as_one_from_a_file() -> None:
    good = documents.converted(GOOD)
    assert documents.checked(good) == good
    for wrong in ({"zone": 7}, {"types": {"a": {"priority": "high"}}}, {"resources": None}):
        with pytest.raises(errors.InvalidPool):
            documents.checked(msgspec.structs.replace(good, **wrong))


@pytest.mark.parametrize("fmt", ["toml", "json"])
def test_a_pool_comes_back_from_its_file(fmt: str) -> None:
    document = pool(types__verification__timeout_s=None, resources__acme_2={"takes": {"verification": {}}})
    found = documents.converted(document)
    text = documents.dump(found, fmt)
    assert documents.load(text, fmt) == found
    assert isinstance(found, Pool)


def test_a_file_is_short_where_it_can_be() -> None:
    text = documents.dump(documents.converted(pool(types__verification__timeout_s=None, resources__x={"takes": {}})))
    assert 'timeout_s = "none"' in text
    found = documents.load('name = "p"\n[types.a]\n[resources.r]\ntakes = ["a"]\n')
    assert found.able("a") == ["r"]
    assert re.search(r"takes = \[\s*\"a\",?\s*\]", documents.dump(found))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name = ", "the pool is not valid TOML"),
        ('nam = "x"', "the pool: there is no key 'nam'; did you mean 'name'?"),
        ("zone = 'UTC'", "the pool: key 'name' is missing"),
        ('name = "p"\nresources = 3', "pool 'p': resources does not fit"),
        ('name = "p"\n[resources]\nr = 3', "pool 'p': resource 'r': the document does not fit"),
        ('name = "p"\n[resources.r]\ntakes = [1]', "takes does not fit"),
        (
            'name = "p"\n[resources.r]\nlimits = [{name="x", amount=1, per="week"}]',
            "resource 'r': limits[0].per = 'week'",
        ),
        ('name = "p"\n[resources.r]\nlimits = [{name="x", amount=1e999, per="day"}]', "must be a finite number"),
        ('name = "p"\n[types.a]\nduration_s = "none"', "duration_s"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_the_place(text: str, said: str) -> None:
    with pytest.raises(errors.InvalidPool) as caught:
        documents.load(text)
    assert said in str(caught.value)


def test_amounts_too_large_for_a_float_are_refused() -> None:
    with pytest.raises(errors.InvalidPool):
        documents.load(f'name = "p"\n[resources.r]\nlimits = [{{name="x", amount={"9" * 400}, per="day"}}]')


def test_a_type_that_cannot_be_done_in_its_time_is_odd() -> None:
    resource = Resource(limits=(Limit("requests", 10, "second"),), takes={"code": {}, "call": {}})
    types = {"code": TaskType(longest_wait_s=0.5), "call": TaskType(longest_wait_s=2.0, duration_s=2.0)}
    [line] = rules.warnings(Pool("p", resources={"r": resource}, types=types))
    assert line.startswith("type 'code': longest_wait_s 0.5 is below duration_s 1, so each task is refused")


EACH = {"by": "tenant", "amount": 5, "per": "in_flight"}


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        ({"by": []}, "by has 0 names; give tenant, or up to 4 names of keys"),
        ({"by": ["a", "b", "c", "d", "e"]}, "by has 5 names"),
        ({"by": ["a", "a"]}, "by names 'a' twice; keep one"),
        ({"by": ""}, "by '' has 0 bytes"),
        ({"amount": -1}, "amount of 'each' per in flight -1 must be 0 or more"),
        ({"kind": "rolling"}, "kind 'rolling' is for limits by time"),
        ({"types": ["nope"]}, "types: type 'nope' is not known"),
        ({"amounts": {"acme": -2}}, "amount of 'acme' -2 must be 0 or more"),
        ({"by": ["tenant", "model"], "amounts": {"acme": 2}}, "'acme' is not a key; give the values of tenant, model"),
        (
            {"units": "requests", "amounts": {"acme": 2.5}},
            "costs 3 of 'requests', but limit 'each' allows no more than",
        ),
        ({"more": 1}, "there is no key 'more'"),
    ],
)
def test_a_wrong_limit_by_key_is_named_with_the_remedy(limit: dict[str, Any], text: str) -> None:
    with pytest.raises(errors.InvalidPool) as caught:
        documents.converted(pool(limits={"each": EACH | limit}))
    assert text in str(caught.value)
    assert "limit 'each'" in str(caught.value) or "acme-1" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_pool_with_limits_by_key_comes_back_from_its_file() -> None:
    limits = {"each": EACH | {"amounts": {"acme": 20, "none": 0}}, "rate": EACH | {"by": ["tenant", "model"]}}
    made = documents.converted(pool(limits=limits))
    for fmt in ("toml", "json"):
        assert documents.load(documents.dump(made, fmt), fmt) == made
    assert made.costs("marketing", "acme-1") == {"requests": 3, "each": 1, "rate": 1}
    with pytest.raises(errors.InvalidPool, match="21 limits by key are too many; give at most 20"):
        documents.converted(pool(limits={f"l{number}": EACH for number in range(21)}))
