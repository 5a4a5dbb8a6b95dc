"""A group on its way from one owner to the next."""

from __future__ import annotations

import math

import pytest

from emq.allocation.handoff import Handoff
from emq.allocation.other_members import release_s
from emq.allocation.plan import drafting
from emq.allocation.plan.drafting import DROPPED, NOBODY, Place, Previous
from emq.allocation.plan.plan import PlacementReason, Plan
from emq.allocation.records import EVERYBODY, Entry, Former, Order, Running


def running(incarnation: str = "x", **fields: object) -> Running:
    return Running(incarnation, "machine", 1, 1.0, 0.0, **fields)  # type: ignore[arg-type]


def nobody_has(former: Former, group: str) -> bool:
    return True


def somebody_has(former: Former, group: str) -> bool:
    return False


def taken() -> Handoff:
    """A group that plan 5 gave to this host, and that it has taken."""
    handoff = Handoff()
    handoff.plan(5, {"t/0": Entry(5, "ring")})
    handoff.taken(handoff.free(nobody_has))
    return handoff


NOW = 1_000_000.0

FORMER = Former("b", "y", 7)


def test_a_group_is_free_only_after_each_former_owner_has_let_go() -> None:
    handoff = Handoff()
    handoff.plan(7, {"t/0": Entry(7, "ring", (FORMER,)), "t/1": Entry(5, "ring")})
    assert handoff.free(somebody_has) == {"t/1": 5}
    assert handoff.awaited() == {"b"}
    assert handoff.free(nobody_has) == {"t/0": 7, "t/1": 5}


def test_a_group_that_was_taken_away_drains_until_the_host_has_let_go() -> None:
    handoff = taken()
    handoff.plan(6, {})
    assert handoff.draining == {"t/0"}
    assert handoff.free(nobody_has) == {}
    assert not handoff.is_empty
    handoff.released(["t/0"])
    assert handoff.draining == set()
    assert handoff.is_empty


def test_a_group_given_back_under_a_new_epoch_is_let_go_of_first() -> None:
    handoff = taken()
    handoff.plan(7, {"t/0": Entry(7, "evened")})
    assert handoff.draining == {"t/0"}
    assert handoff.free(nobody_has) == {}
    handoff.released(["t/0"])
    assert handoff.free(nobody_has) == {"t/0": 7}


def test_what_is_kept_cannot_be_released_by_a_late_word() -> None:
    handoff = taken()
    handoff.released(["t/0"])
    handoff.plan(6, {})
    assert handoff.draining == {"t/0"}


def test_a_group_that_a_stranger_took_is_not_free_again_under_the_epoch_that_was_refused() -> None:
    handoff = taken()
    assert handoff.refused("t/0", 5)
    assert handoff.free(nobody_has) == {}
    assert handoff.draining == set()
    handoff.plan(6, {"t/0": Entry(6, "ring")})
    assert handoff.free(nobody_has) == {"t/0": 6}


def test_a_refusal_of_what_the_plan_took_away_is_as_it_should_be() -> None:
    handoff = taken()
    handoff.plan(6, {})
    assert not handoff.refused("t/0", 5)
    assert handoff.is_empty


def test_a_deleted_topics_group_is_let_go_of_even_if_the_plan_never_noticed() -> None:
    handoff = taken()
    assert handoff.renew("t/0") == 5
    assert handoff.renew("unknown/0") is None
    assert handoff.draining == {"t/0"}
    handoff.released(["t/0"])
    handoff.plan(6, {"t/0": Entry(5, "ring")})
    assert handoff.free(nobody_has) == {}
    handoff.plan(7, {"t/0": Entry(7, "ring")})
    assert handoff.free(nobody_has) == {"t/0": 7}


# ------------------------------------------------------------------------------------------------------------- drafting


def previous(places: dict[str, Place], **incarnations: str) -> Previous:
    return Previous(places, incarnations)


def test_a_group_that_stays_keeps_its_epoch_and_one_that_moves_waits_for_its_former_owner() -> None:
    before = previous({"t/0": Place("a", Entry(5, "ring")), "t/1": Place("a", Entry(5, "ring"))}, a="x", b="y")
    members = {"a": running("x"), "b": running("y")}
    lists = drafting.draft(9, {"t/0": "a", "t/1": "b"}, {"t/1": "evened"}, members, before, NOW)
    assert lists["a"] == {"t/0": Entry(5, "ring")}
    assert lists["b"] == {"t/1": Entry(9, "evened", (Former("a", "x", 9),))}


def test_only_a_group_that_the_plan_before_did_not_know_is_called_first() -> None:
    members = {"a": running("x"), "b": running("y", fenced={"t/3": 5})}
    places = {"t/0": Place("a", Entry(5, "ring")), "t/1": Place("a", Entry(5, "ring", (), True))}
    places |= {"t/2": Place("gone", Entry(5, "ring")), "t/3": Place("b", Entry(5, "ring", (), True))}
    before = Previous(places, {"a": "x", "b": "y"}, {"u/0": Entry(5, "let go")})
    owner = {"t/0": "b", "t/1": "a", "t/2": "b", "t/3": "b", "u/0": "b", "t/4": "b"}
    lists = drafting.draft(9, owner, {}, members, before, NOW)
    first = {group for entries in lists.values() for group, entry in entries.items() if entry.is_first}
    assert first == {"t/1", "t/4"}, "t/1 stands as it stood"
    assert not drafting.draft(9, {"t/4": "a"}, {}, members, None, NOW)["a"]["t/4"].is_first


def test_a_group_is_first_until_the_host_has_taken_it() -> None:
    handoff = Handoff()
    handoff.plan(6, {"t/0": Entry(6, "ring", (), True), "t/1": Entry(6, "ring"), "t/2": Entry(6, "ring", (), True)})
    assert handoff.first({"t/0": 6, "t/1": 6}) == {"t/0"}
    handoff.taken({"t/0": 6, "t/1": 6})
    handoff.plan(7, {"t/0": Entry(6, "ring", (), True), "t/1": Entry(6, "ring"), "t/2": Entry(6, "ring", (), True)})
    assert handoff.first(handoff.free(lambda former, group: True)) == {"t/2"}


def test_who_was_waited_for_is_waited_for_still_when_a_group_moves_on() -> None:
    before = previous({"t/0": Place("b", Entry(5, "ring", (Former("a", "x", 5),)))}, a="x", b="y", c="z")
    members = {"a": running("x", generation=4), "b": running("y"), "c": running("z")}
    lists = drafting.draft(9, {"t/0": "c"}, {}, members, before, NOW)
    assert lists["c"]["t/0"].after == (Former("a", "x", 5), Former("b", "y", 9))


def test_nobody_waits_for_hosts_that_are_gone_or_have_let_go() -> None:
    formers = (Former("a", "x", 5), Former("gone", "w", 5), Former("again", "old", 5))
    before = previous({"t/0": Place("b", Entry(5, "ring", formers))}, a="x", b="y", c="z")
    members = {"a": running("x", generation=5), "c": running("z"), "again": running("new")}
    assert drafting.draft(9, {"t/0": "c"}, {}, members, before, NOW)["c"]["t/0"].after == ()
    draining = {**members, "a": running("x", generation=5, draining=("t/0",))}
    assert drafting.draft(9, {"t/0": "c"}, {}, draining, before, NOW)["c"]["t/0"].after == (Former("a", "x", 5),)


def test_a_host_that_came_back_gets_its_groups_under_a_new_epoch() -> None:
    before = previous({"t/0": Place("a", Entry(5, "ring"))}, a="old")
    members = {"a": running("new")}
    assert drafting.changed({"t/0": "a"}, members, before)
    assert drafting.draft(9, {"t/0": "a"}, {}, members, before, NOW)["a"]["t/0"].epoch == 9


def test_a_group_that_a_stranger_took_is_given_anew() -> None:
    before = previous({"t/0": Place("a", Entry(5, "ring"))}, a="x")
    members = {"a": running("x", fenced={"t/0": 5})}
    assert drafting.changed({"t/0": "a"}, members, before)
    assert drafting.draft(9, {"t/0": "a"}, {}, members, before, NOW)["a"]["t/0"] == Entry(9, "")
    assert not drafting.changed({"t/0": "a"}, {"a": running("x", fenced={"t/0": 4})}, before)


def test_without_a_former_plan_everybody_is_waited_for() -> None:
    lists = drafting.draft(9, {"t/0": "a"}, {}, {"a": running("x"), "b": running("y")}, None, NOW)
    assert lists == {"a": {"t/0": Entry(9, "", (Former(EVERYBODY, "", 9),))}, "b": {}}


def test_groups_that_nobody_may_have_remember_who_may_still_hold_them() -> None:
    before = previous({"t/0": Place("a", Entry(5, "ring"))}, a="x")
    members = {"a": running("x", leaving=True)}
    owner = drafting.places(Plan({}, {}), {"t/0": 1.0})
    lists = drafting.draft(9, owner, {}, members, before, NOW)
    assert lists == {"a": {}, NOBODY: {"t/0": Entry(9, "", (Former("a", "x", 9),))}}
    after = previous({"t/0": Place(NOBODY, lists[NOBODY]["t/0"])}, a="x")
    both = {**members, "b": running("y")}
    assert not drafting.changed(owner, members, after)
    assert drafting.draft(10, {"t/0": "b"}, {}, both, after, NOW)["b"]["t/0"].after == (Former("a", "x", 9),)


def test_what_an_operator_wants_goes_before_what_a_host_is_set_to() -> None:
    members = {"a": running(), "b": running(leaving=True), "c": running(), "d": running()}
    orders = {"c": Order(weight=2.5), "d": Order(drain=True, weight=3.0), "gone": Order(drain=True)}
    assert drafting.shares(members, orders) == {"a": 1.0, "b": 0.0, "c": 2.5, "d": 0.0}


def test_the_reason_of_a_move_is_kept_with_the_group() -> None:
    lists = drafting.draft(9, {"t/0": "a"}, {"t/0": PlacementReason.WALKED}, {"a": running()}, previous({}, a="x"), NOW)
    assert lists["a"]["t/0"].why == "walked"


def test_the_last_second_of_everybody_is_waited_for() -> None:
    everybody = Former(EVERYBODY, "", 5)
    members = {"a": running("x", generation=5), "b": running("y", generation=5, released_s=NOW + 0.4)}
    assert release_s(everybody, "t/0", members, NOW) == pytest.approx(0.4)
    assert release_s(everybody, "t/0", {**members, "c": running("z", generation=4)}, NOW) == math.inf


def test_a_topic_that_comes_again_waits_for_the_owners_of_the_deleted_one() -> None:
    before = previous({"t/0": Place("a", Entry(5, "ring")), "t/1": Place("b", Entry(5, "ring"))}, a="x", b="y")
    members = {"a": running("x", generation=5), "b": running("y", generation=5)}
    deleted = drafting.draft(6, {}, {}, members, before, NOW)
    held = (Former("a", "x", 6),)
    assert deleted == {
        "a": {},
        "b": {},
        DROPPED: {"t/0": Entry(6, "", held), "t/1": Entry(6, "", (Former("b", "y", 6),))},
    }
    members["b"] = running("y", generation=6)
    again = drafting.draft(7, {"t/0": "b"}, {}, members, drafting.previous(deleted, before.incarnations), NOW)
    assert again == {"a": {}, "b": {"t/0": Entry(7, "", held)}}
    assert not drafting.changed({}, members, drafting.previous(deleted, before.incarnations))


def test_a_deleted_group_is_forgotten_although_its_last_owner_lets_go_of_others_all_the_time() -> None:
    """Else the list would grow with each topic that is deleted, as long as topics are deleted."""
    at = int(NOW * 1e6)
    draft = drafting.previous({"a": {"t/0": Entry(5, "ring"), "t/1": Entry(5, "ring")}}, {"a": "x"})
    dropped = []
    for second in range(0, 30, 3):
        generation, now_s = at + second * 1_000_000, NOW + second
        members = {"a": running("x", generation=generation - 1, released_s=now_s, draining=("t/1",))}
        lists = drafting.draft(generation, {}, {}, members, draft, now_s)
        draft = drafting.previous(lists, {"a": "x"})
        dropped.append((second, sorted(lists.get(DROPPED, {}))))
    assert dropped[4] == (12, ["t/0", "t/1"]), "it was first found let go in second 3"
    assert dropped[5] == (15, ["t/1"])
    assert dropped[-1] == (27, ["t/1"]), "it is still held"


def test_who_has_let_go_just_now_is_named_still_since_clocks_differ() -> None:
    formers = (Former("a", "x", 5),)
    before = previous({"t/0": Place("b", Entry(5, "ring", formers))}, a="x", b="y", c="z")
    members = {"a": running("x", generation=5, released_s=NOW - 1), "b": running("y", generation=9), "c": running("z")}
    assert drafting.draft(9, {"t/0": "c"}, {}, members, before, NOW)["c"]["t/0"].after == formers
    assert drafting.draft(9, {"t/0": "c"}, {}, members, before, NOW + 10)["c"]["t/0"].after == ()
