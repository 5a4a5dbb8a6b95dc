"""What the plan gives to a host and nobody consumes, as the host, its probes and its operators see it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import KeysView
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from emq.allocation.membership import Membership
from emq.host.consumption import LATE_S, Consumption, Unconsumed
from emq.host.ownership import Ownership
from emq.host.statistics import HostStatistics
from emq.observe.snapshots import AgedSnapshot
from emq_cli import host_view
from emq_cli.cluster import DatabaseView
from support.virtual import virtual

pytestmark = virtual

DRAIN_S = 10.0


class Host:
    """A host that the plan gives groups, and that consumes some of them."""

    def __init__(self, *given: str) -> None:
        self.plan = dict.fromkeys(given, 1)
        self.consumed: dict[str, int] = {}
        self.why = ""
        self.consumption = Consumption(cast(Membership, self), cast(Ownership, self), lambda: self.why, DRAIN_S)

    def given(self) -> KeysView[str]:
        return self.plan.keys()

    def consumes(self, *names: str) -> None:
        self.consumed.update(dict.fromkeys(names, 1))


async def test_a_group_counts_from_the_first_look_that_misses_it() -> None:
    host = Host("a/0", "a/1", "b/0")
    host.consumes("a/0")
    host.consumption.look()
    await asyncio.sleep(4)
    host.consumes("b/0")
    host.why = "StoreUnavailable: down"
    host.consumption.look()
    found = host.consumption.unconsumed()
    assert (found.groups, found.group, round(found.for_s)) == (1, "a/1", 4)
    assert str(found) == "groups of the plan that are not consumed: 1, a/1 for 4 s: StoreUnavailable: down"
    host.consumes("a/1")
    host.consumption.look()
    assert host.consumption.unconsumed() == Unconsumed()


async def test_a_host_is_late_only_after_what_a_move_may_take() -> None:
    host = Host("a/0")
    host.consumption.look()
    await asyncio.sleep(DRAIN_S + LATE_S - 1)
    assert not host.consumption.is_late(host.consumption.unconsumed())
    await asyncio.sleep(2)
    assert host.consumption.is_late(host.consumption.unconsumed())


def snapshot(**fields: Any) -> AgedSnapshot:
    waiting = HostStatistics("h1", 1_700_000_000.0, store_unreachable="")
    return AgedSnapshot(msgspec.structs.replace(waiting, **fields), 0.5)


def troubles(members: dict[str, str], *seen: AgedSnapshot) -> list[str]:
    """What operators see of members that tell of their own troubles, and of what was seen of them."""
    known = {name: SimpleNamespace(trouble=trouble) for name, trouble in members.items()}
    view = cast(Any, SimpleNamespace(groups={}, members=known, leader="h1", of=lambda _: ()))
    return host_view.troubles(view, [], DatabaseView([], {}, 0, list(seen)))


def test_operators_see_what_a_host_does_not_consume() -> None:
    text = "groups of the plan that are not consumed: 3, a/1 for 60 s: the handler is closed"
    assert troubles({"h1": ""}, snapshot(unconsumed=3, unconsumed_s=60.0, unconsumed_why=text)) == [f"h1: {text}"]
    assert troubles({"h1": ""}, snapshot(unconsumed=3, unconsumed_s=1.0, unconsumed_why=text)) == []


def test_operators_see_a_host_that_does_not_reach_its_store_and_one_that_is_silent() -> None:
    told = functools.partial(troubles, {"h1": "", "h2": "database away since 10:00"})
    down = snapshot(store_unreachable="redis://x does not answer")
    assert told(down) == ["h1: redis://x does not answer", "h2: database away since 10:00"]
    silent = down._replace(age_s=33.0)
    why = "it is paused, has ended, or does not reach its database"
    assert told(silent, silent._replace(host=msgspec.structs.replace(silent.host, host="h2"))) == [
        f"h1: silent for 33 s: {why}",
        "h2: database away since 10:00",
    ]
    assert told(silent._replace(host=msgspec.structs.replace(silent.host, host="gone")))[:-1] == []
