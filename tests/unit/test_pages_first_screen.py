"""The first screen's verdict, backlog and tenants in trouble, from what hosts have reported."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from emq.host.statistics import HostStatistics, Move, Rates, TroubledTopic
from emq.observe.snapshots import AgedSnapshot
from emq_push.records.attempts import Attempt
from emq_web.pages import first_screen, hosts_screen, rendering
from emq_web.pages.first_screen import Overview

NOTHING = dict.fromkeys(("ready", "held_by_rate", "held_by_key", "held_by_room", "parked", "delayed", "dead"), 0)


def host(name: str = "h1", **facts: Any) -> HostStatistics:
    """A host that runs well, but for these facts."""
    well = {"time": 1000.0, "groups": 3, "rates": Rates(started=12.0), "lag": NOTHING, "lag_at": 995.0}
    blank = HostStatistics(name, 1000.0, store_unreachable="")
    return msgspec.structs.replace(blank, **{"store_unreachable": None, **well, **facts})


def of(*hosts: HostStatistics, age_s: float = 1.0) -> Overview:
    return first_screen.of([AgedSnapshot(one, age_s) for one in hosts])


def topic(
    name: str, cause: str = "backlog", waiting: int = 10, drain_s: float | None = 5.0, **more: Any
) -> TroubledTopic:
    return TroubledTopic(name, cause, more.get("reason", ""), waiting, more.get("dead", 0), 1.0, drain_s)


@pytest.mark.parametrize(
    ("hosts", "age_s", "state", "text"),
    [
        ([], 1, "stopped", "no host runs"),
        ([host()], 1, "flowing", "12 a second on 1 host"),
        ([host()], 42, "unknown", "no host has reported for 42 s"),
        ([host(store_unreachable="connection refused")], 1, "stopped", "connection refused"),
        ([host(), host("h2", store_unreachable="connection refused")], 1, "trouble", "h2: connection refused"),
        ([host(database_unreachable="database away")], 1, "trouble", "database away"),
        ([host(lag_at=None, lag={})], 1, "unknown", "until the hosts have counted"),
        ([host(lag_at=500.0)], 1, "unknown", "until the hosts have counted"),
        ([host(), host("h2", lag_at=None, lag={})], 1, "unknown", "until the hosts have counted"),
        ([host(rates=Rates(), lag={**NOTHING, "ready": 7})], 1, "stopped", "7 messages may start, and nothing starts"),
        ([host(rates=Rates())], 1, "flowing", "nothing to start"),
        ([host(troubled=(topic("shop"),), in_trouble=1)], 1, "trouble", "1 tenant cannot keep up"),
        ([host(troubled=(topic("shop"),), in_trouble=90)], 1, "trouble", "at least 1 tenant cannot keep up"),
        ([host(troubled=(topic("a", "paused"), topic("b", "dead")), in_trouble=2)], 1, "flowing", "12 a second"),
    ],
)
def test_the_verdict_says_whether_it_flows_and_what_is_wrong(
    hosts: list[HostStatistics], age_s: float, state: str, text: str
) -> None:
    found = of(*hosts, age_s=age_s)
    assert found.verdict.state == state
    assert text in found.verdict.text


def test_a_silent_host_beside_a_live_one_is_named_and_counts_for_nothing() -> None:
    dead = host("gone", lag={**NOTHING, "parked": 900}, troubled=(topic("old"),), in_trouble=1)
    found = first_screen.of([AgedSnapshot(host(), 1), AgedSnapshot(dead, 50)])
    assert found.verdict.state == "trouble"
    assert found.notes == ["host gone has been silent for 50 s"]
    assert found.needy == []
    assert {place.name: place.n for place in found.places}["parked"] == 0


def test_the_backlog_has_its_parts_over_all_hosts_and_never_one_sum() -> None:
    found = of(host(lag={**NOTHING, "held_by_rate": 5, "held_by_key": 2}, in_flight=3), host("h2", in_flight=4))
    assert {place.name: place.n for place in found.places} == {
        "ready": 0,
        "rate": 5,
        "key": 2,
        "delayed": 0,
        "flying": 7,
        "parked": 0,
        "dead": 0,
    }


def test_figures_that_no_host_knows_are_unknown_and_not_zero() -> None:
    assert {place.n for place in of(host(), age_s=60).places} == {None}


def test_a_tenant_is_one_line_with_its_worst_cause_and_its_slowest_drain() -> None:
    one = (topic("shop.ep_1", "backlog", 100, 60.0), topic("shop.ep_2", "dead", 0, 0.0, dead=4))
    two = (topic("shop.ep_1", "closed", 20, None, reason="502"), topic("b", waiting=500))
    found = of(host(troubled=one, in_trouble=2), host("h2", troubled=two, in_trouble=2))
    shop, other = found.needy
    assert (shop.tenant, shop.cause, shop.reason, shop.others) == ("shop", "closed", "502", 1)
    assert (shop.waiting, shop.dead, shop.drain_s) == (120, 4, None)
    assert (other.tenant, other.drain_s) == ("b", 5.0)
    assert not found.is_cut_off, "all four topics are in these two lines"
    assert of(host(troubled=one, in_trouble=3)).is_cut_off


def test_the_screen_has_only_the_most_urgent_tenants_however_many_are_in_trouble() -> None:
    many = tuple(topic(f"t{i}", "closed" if i == 4_000 else "backlog", i) for i in range(5_000))
    found = of(host(troubled=many, in_trouble=5_000))
    assert [row.tenant for row in found.needy[:3]] == ["t4000", "t4999", "t4998"]
    assert len(found.needy) == first_screen.SHOWN
    assert found.is_cut_off


def test_a_backlog_that_a_pool_paces_is_no_trouble_of_a_tenant() -> None:
    """The pool's own page judges it, by the limits of its resources."""
    slow, dead, other = topic("sms.code", "full", 900), topic("sms.code", "dead", 0, dead=2), topic("shop", "full")
    one = host(troubled=(slow, other), in_trouble=3)
    found = first_screen.of([AgedSnapshot(one, 1)], {"sms.code"})
    assert ([row.tenant for row in found.needy], found.in_trouble) == (["shop"], 2)
    assert found.verdict.text.endswith("but at least 1 tenant cannot keep up")
    found = first_screen.of([AgedSnapshot(host(troubled=(slow,), in_trouble=1), 1)], {"sms.code"})
    assert (found.verdict.state, found.needy, found.in_trouble) == ("flowing", [], 0)
    found = first_screen.of([AgedSnapshot(host(troubled=(dead,), in_trouble=1), 1)], {"sms.code"})
    assert [(row.tenant, row.cause) for row in found.needy] == [("sms.code", "dead")]


def test_hosts_show_their_share_of_the_load_and_the_latest_moves_first() -> None:
    one = host("h1", quota=300.0, plan=5, moves=(Move(10.0, 9, 0), Move(90.0, 0, 3)))
    two = host("h2", quota=100.0, plan=6, moves=(Move(91.0, 3, 0),))
    found = hosts_screen.of([AgedSnapshot(one, 1), AgedSnapshot(two, 1), AgedSnapshot(host("gone", quota=9.0), 99)])
    assert [(row.seen.host.host, row.share, row.load, row.behind) for row in found.rows] == [
        ("h1", 0.75, 1.5, True),
        ("h2", 0.25, 0.5, False),
        ("gone", None, None, False),
    ]
    assert [(m.host, m.move.taken, m.move.let_go) for m in found.moves] == [("h2", 3, 0), ("h1", 0, 3), ("h1", 9, 0)]


@pytest.mark.parametrize(
    ("status", "reason", "shown"),
    [
        (500, "HTTP 500: out of paper", "HTTP 500: out of paper"),
        (200, "", "200"),
        (0, "timeout after 3 s", "timeout after 3 s"),
        (0, "", rendering.UNKNOWN),
        (401, "the token is refused", "401 the token is refused"),
    ],
)
def test_the_status_of_an_answer_is_shown_once(status: int, reason: str, shown: str) -> None:
    attempt = Attempt("acme.ep_1", "m1", 0, 1, 0, status, "retry", reason, "", "h1")
    assert rendering.answer(attempt) == shown
