"""Each judge finds its fault in made-up evidence, and nothing where it is not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence, Set
from typing import Any

import pytest

from emq.storage import lane_store, log_store, message, slot_store
from emq.topics.model import Kind
from emq.topics.shares import Division
from support.simulation import promises
from support.simulation.evidence import Acquired, Evidence, Start
from support.simulation.plans import TopicPlan
from support.simulation.rules import Rules
from support.simulation.sleeps import Sleep
from support.simulation.violation import Violation
from support.simulation.work import Work

BEGAN_S = 1_700_000_000
CALM = [(0.0, 30.0)]
LOG = TopicPlan("t", 4.0, 4.0, 4.0)
FOUR = Division(0, 4.0, 8.0, 1)


class Story:
    """Evidence to be told message by message; the clocks of hosts are `BEGAN_S` ahead of the true time."""

    def __init__(self, plan: TopicPlan = LOG, *divisions: Division) -> None:
        self.evidence = Evidence()
        self._plan = plan
        self._divisions = divisions or (FOUR,)
        self._owned: set[tuple[str, str, int]] = set()

    def publish(self, at: float, *names: str, key: str = "") -> None:
        for name in names:
            self.evidence.published[f"t#{name}"] = Work(f"t#{name}", key=key), True
            self.evidence.confirmed_at[f"t#{name}"] = at

    def start(
        self, at: float, *names: str, takes: float = 0.0, ready: float | None = None, key: str = "", **fields: Any
    ) -> None:
        for name in names:
            number, us = len(self.evidence.starts), round((BEGAN_S + at) * 1e6)
            ready_us = us if ready is None else round((BEGAN_S + ready) * 1e6)
            start = Start(at, number, "h1", "t/0", 1, Work(f"t#{name}", key=key), name, -1, "", 1, us, ready_us)
            start = start._replace(**fields)
            self.evidence.starts.append(start)
            self.evidence.ends[number] = at + takes, True
            self.evidence.ended_us[number] = us + round(takes * 1e6)
            self.evidence.succeeded.add(start.work.name)
            self._own(start)

    def _own(self, start: Start) -> None:
        owner = start.host, start.group, start.epoch
        if owner not in self._owned:
            self._owned.add(owner)
            at = -9.0 if start.epoch == 1 else start.at - 0.8
            self.evidence.owned.append(Acquired(start.number, at, start.host, start.group, start.epoch))

    def judged(self, calm: Sequence[tuple[float, float]] = CALM, *, informed: bool = True) -> list[Violation]:
        divisions = {"t": list(self._divisions)}
        rules = Rules(False, divisions, informed, {"t": self._plan}, calm)
        return promises.judge(self.evidence, rules, [])


def broken(story: Story, **given: Any) -> set[str]:
    return {violation.promise for violation in story.judged(**given)}


def backlog(story: Story, per_s: Sequence[int], at: float = 1.5) -> None:
    """So many are started at the beginning of each second from 2 on, the last one in the second behind.

    The second before is used up.
    """
    story.publish(at, "a", "b", "c", "d")
    story.start(at, "a", "b", "c", "d")
    names = [str(i) for i in range(sum(per_s) + 1)]
    story.publish(at, *names)
    for second, n in enumerate(per_s):
        story.start(2.0 + second, *names[:n])
        names = names[n:]
    story.start(2.0 + len(per_s), *names)


# ------------------------------------------------------------------------------------------------------------- priority


def test_a_lower_priority_that_starts_while_a_higher_one_is_ready_is_found() -> None:
    right, wrong = Story(), Story()
    for story in (right, wrong):
        story.publish(0.9, "high", "low")
    right.start(2.0, "high", priority=0, ready=1.0)
    right.start(2.1, "low", priority=2, ready=1.0)
    wrong.start(2.0, "low", priority=2, ready=1.0)
    wrong.start(2.1, "high", priority=0, ready=1.0)
    assert "P" not in broken(right, calm=[])
    assert "P" in broken(wrong, calm=[])


def test_a_higher_priority_whose_key_is_running_is_excused() -> None:
    story = Story()
    story.publish(0.9, "1", "2", key="k")
    story.publish(0.9, "low")
    story.start(2.0, "1", takes=1.0, ready=1.0, key="k")
    story.start(2.1, "low", priority=2, ready=1.0)
    story.start(3.0, "2", ready=1.0, key="k")
    assert "P" not in broken(story, calm=[])


@pytest.mark.parametrize(("ready", "found"), [(1.0, True), (2.5, False)])
def test_a_higher_priority_whose_key_has_moved_is_overtaken_once_it_is_ready(ready: float, found: bool) -> None:
    story = Story(LOG._replace(keys=3, sizes=(4.0, 8.0)))
    story.publish(0.9, "low")
    story.publish(0.9, "high", key="k")
    story.start(2.0, "low", priority=2, ready=1.0)
    story.start(3.0, "high", ready=ready, key="k")
    assert ("P" in broken(story, calm=[])) == found


@pytest.mark.parametrize(("low", "found"), [(2.3, False), (2.9, True)])
def test_a_higher_priority_that_is_left_in_the_store_is_found_in_calm_times(low: float, found: bool) -> None:
    story = Story()
    story.publish(1.0, "low")
    story.publish(2.0, "high")
    story.start(low, "low", priority=2)
    story.start(3.2, "high", priority=0)
    assert ("P" in broken(story)) == found
    assert "P" not in broken(story, calm=[(0.0, 2.5)])


# ------------------------------------------------------------------------------------------------------------- repeats


@pytest.mark.parametrize("crashed", [True, False])
def test_only_of_a_message_that_a_lost_owner_had_begun_two_copies_may_be_tried_again(crashed: bool) -> None:
    """The key has moved to a group whose owner stayed, under the epoch that the lost owner had as well."""
    story = Story()
    story.publish(1.0, "1", key="k")
    story.start(2.0, "1", key="k", host="h2")
    if crashed:
        story.start(4.0, "1", key="k", epoch=2)
    for at in (5.0, 6.0):
        story.start(at, "1", key="k", group="t/1", attempt=2)
    assert ("D" in broken(story)) == (not crashed)


@pytest.mark.parametrize("taken_over", [True, False])
def test_another_owner_may_pass_on_a_message_to_a_group_whose_epoch_has_the_number_of_the_former_one(
    taken_over: bool,
) -> None:
    story = Story()
    story.publish(1.0, "1")
    story.start(2.0, "1", attempt=2)
    if taken_over:
        story.evidence.owned.append(Acquired(1, 3.0, "h2", "t/0", 2))
    story.start(5.0, "1", group="t/1", attempt=2)
    assert ("D" in broken(story)) == (not taken_over)


# ------------------------------------------------------------------------------------------------------------------ use


@pytest.mark.parametrize(("per_s", "found"), [((4, 4, 4), False), ((4, 3, 4), True), ((2, 2, 2), True)])
def test_a_backlog_that_does_not_use_its_quota_is_found(per_s: tuple[int, ...], found: bool) -> None:
    story = Story()
    backlog(story, per_s)
    assert broken(story) == ({"use"} if found else set())


@pytest.mark.parametrize(("per_s", "found"), [((4, 4, 4), True), ((8, 8, 8), False)])
@pytest.mark.parametrize("here", [True, False])
def test_a_backlog_that_does_not_use_what_the_topics_other_groups_on_the_host_leave_is_found(
    per_s: tuple[int, ...], found: bool, here: bool
) -> None:
    story = Story(LOG._replace(qps=8.0), Division(0, 8.0, 4.0, 2))
    story.evidence.owned.append(Acquired(0, -9.0, "h1" if here else "h2", "t/1", 1))
    story.publish(1.0, "x", "y", "z", "w")
    story.start(1.5, "x", "y", "z", "w")
    backlog(story, per_s)
    assert ("use" in broken(story)) == (found and here)


def test_a_second_that_was_used_up_by_others_is_used() -> None:
    story = Story()
    backlog(story, (4, 3, 4))
    story.publish(2.9, "other")
    story.start(3.1, "other")
    story.evidence.starts.sort(key=lambda start: start.at)
    assert "use" not in broken(story)


def test_a_move_excuses_what_was_not_used() -> None:
    story = Story()
    names = [str(i) for i in range(9)]
    story.publish(2.0, *names)
    story.start(2.0, *names[:4])
    story.start(4.0, *names[4:8], host="h2", epoch=2)
    story.start(5.0, names[8], host="h2", epoch=2)
    assert broken(story) == set()


@pytest.mark.parametrize(
    ("after", "per_s", "found"),
    [
        (8.0, (4, 4, 8, 8, 8), set()),
        (8.0, (4, 4, 4, 4, 4), {"use"}),
        (2.0, (2, 2, 2, 2, 2), set()),
        (2.0, (2, 2, 4, 4, 4), {"Q"}),
    ],
    ids=["more", "not more", "less", "not less"],
)
def test_a_changed_quota_that_a_host_does_not_take_over_is_found(
    after: float, per_s: tuple[int, ...], found: set[str]
) -> None:
    story = Story(LOG, FOUR, Division(BEGAN_S + 4, after, 8.0, 1))
    backlog(story, per_s)
    assert broken(story) == found


@pytest.mark.parametrize(("calm", "found"), [([CALM[0], (1.0, 30.0)], {"Q"}), ([CALM[0], (9.0, 30.0)], set())])
def test_a_cap_is_judged_once_all_has_settled_also_where_hosts_had_lost_the_catalog(
    calm: list[tuple[float, float]], found: set[str]
) -> None:
    story = Story(LOG._replace(group_qps=8.0), FOUR, Division(BEGAN_S + 4, 2.0, 8.0, 1))
    backlog(story, (2, 2, 4))
    assert broken(story, calm=calm, informed=False) & {"Q"} == found


@pytest.mark.parametrize(
    ("sleeps", "found"),
    [
        ([], True),
        ([Sleep("h1", 1.6, 4.5)], False),
        ([Sleep("h1", 1.6, 1.9)], True),
        ([Sleep("h2", 1.6, 4.5)], True),
    ],
)
def test_a_cap_that_changed_is_judged_but_for_hosts_that_have_just_woken(sleeps: list[Sleep], found: bool) -> None:
    story = Story(LOG._replace(group_qps=8.0), FOUR, Division(BEGAN_S + 4, 2.0, 8.0, 1))
    backlog(story, (0, 0, 4))
    story.evidence.sleeps += [*sleeps, Sleep("h1", 20.0, 25.0)]
    assert ("Q" in broken(story)) == found


def test_a_cap_that_never_changed_is_judged_also_for_hosts_that_have_just_woken() -> None:
    story = Story(LOG._replace(group_qps=8.0))
    backlog(story, (0, 0, 5))
    story.evidence.sleeps.append(Sleep("h1", 1.6, 4.5))
    assert "Q" in broken(story)


# ---------------------------------------------------------------------------------------------------------------- delay


@pytest.mark.parametrize(("at", "found"), [(2.35, set()), (2.6, {"delay"})])
def test_a_message_that_starts_late_with_quota_left_is_found(at: float, found: set[str]) -> None:
    story = Story()
    story.publish(2.3, "one")
    story.start(at, "one")
    assert broken(story) == found


@pytest.mark.parametrize(("published", "at", "found"), [(31.05, 31.31, set()), (31.4, 31.7, {"delay"})])
def test_what_is_late_is_late_by_the_clock_of_its_host_also_while_that_slows_down(
    published: float, at: float, found: set[str]
) -> None:
    """The quota allows a start in every other second. By the host's clock, such a second begins at 31.303."""

    def start(at: float, name: str) -> None:
        story.start(at, name, started_us=round((BEGAN_S + 1.0 + 0.99 * (at - 1.0)) * 1e6))

    story = Story(LOG, Division(0, 0.5, 8.0, 1))
    story.publish(1.0, "first")
    start(1.0, "first")
    story.publish(published, "one")
    start(at, "one")
    assert broken(story, calm=[(0.0, 40.0)]) == found


def test_a_message_that_waits_for_its_quota_is_not_late() -> None:
    story = Story()
    story.publish(2.0, "1", "2", "3", "4")
    story.start(2.0, "1", "2", "3", "4")
    story.publish(2.2, "5")
    story.start(3.0, "5")
    assert broken(story) == set()


@pytest.mark.parametrize(("at", "found"), [(4.55, set()), (4.7, {"delay"})])
def test_a_delayed_message_that_starts_long_after_its_time_is_found(at: float, found: set[str]) -> None:
    story = Story()
    story.publish(2.3, "one")
    story.evidence.first_due_ms["t#one"] = (BEGAN_S + 4.5) * 1000
    story.start(at, "one")
    assert broken(story) == found


@pytest.mark.parametrize(("per_s", "found"), [(4.0, set()), (2.0, {"use"})])
def test_a_smooth_topic_that_does_not_use_its_rate_is_found(per_s: float, found: set[str]) -> None:
    story = Story(LOG._replace(options={"pacing": "smooth"}))
    names = [str(i) for i in range(21)]
    story.publish(2.0, *names)
    for i, name in enumerate(names):
        story.start(2.05 + i / per_s, name)
    assert broken(story) == found


@pytest.mark.parametrize(("fails", "late", "found"), [(3, 0, set()), (2, 1, set()), (2, 0, {"X"}), (0, 2, {"X"})])
def test_a_message_that_is_dead_before_its_last_attempt_is_found(fails: int, late: int, found: set[str]) -> None:
    story = Story(LOG._replace(options={"max_attempts": 3}))
    story.publish(1.0, "a")
    story.evidence.published["t#a"] = Work("t#a", fails=fails), True
    story.evidence.late["t#a"] = late
    rules = Rules(False, {"t": [FOUR]}, True, {"t": LOG._replace(options={"max_attempts": 3})}, CALM)
    assert {violation.promise for violation in promises.judge(story.evidence, rules, ["t#a"])} == found


@pytest.mark.parametrize("due_s", [-0.1, 0.1])
async def test_a_delayed_message_that_starts_before_its_time_is_found(due_s: float) -> None:
    evidence = Evidence()
    m = message.Message("id", Work("t#1").payload(), topic="t", started_us=BEGAN_S * 1_000_000)
    evidence.due_ms["t/0", "id"] = (BEGAN_S + due_s) * 1000
    evidence.started("h1", 1, m, "")
    assert [v.promise for v in evidence.violations] == ["time"] * (due_s > 0)


@pytest.mark.parametrize("was_claimed", [True, False])
@pytest.mark.parametrize(
    ("verdict", "promise"), [(lane_store.LaneVerdict.RETRY, "time"), (lane_store.LaneVerdict.ACK, "D")]
)
async def test_only_what_was_claimed_when_the_store_lost_its_last_writes_may_start_once_more(
    verdict: lane_store.LaneVerdict, promise: str, was_claimed: bool
) -> None:
    evidence = Evidence()
    if was_claimed:
        claim = lane_store.LaneClaim("t/0", 1, 1)
        evidence.applied("h1", "lanes.claim", [[claim]], [lane_store.LaneClaimed([("id", b"")], None, is_empty=False)])
    evidence.store_lost({}, {}, [], {})
    settle = lane_store.LaneSettle("t/0", "id", verdict, 1, due_ms=(BEGAN_S + 1) * 1000)
    evidence.applied("h1", "lanes.settle", [[settle]], [True])
    evidence.started("h1", 1, _from_lane(), "")
    assert [v.promise for v in evidence.violations] == [promise] * (not was_claimed)


@pytest.mark.parametrize("deleted", ["t", "other"])
async def test_what_was_acknowledged_may_start_only_if_its_topic_was_deleted(deleted: str) -> None:
    evidence = Evidence()
    ack = lane_store.LaneSettle("t/0", "id", lane_store.LaneVerdict.ACK, 1)
    evidence.applied("publisher", "lanes.settle", [[ack]], [True])
    evidence.dropped(deleted)
    evidence.started("h1", 1, _from_lane(), "")
    assert [v.promise for v in evidence.violations] == ["D"] * (deleted == "other")


@pytest.mark.parametrize("had_started", [False, True])
async def test_an_acknowledgement_sent_again_may_take_a_copy_that_came_to_the_lane_meanwhile(had_started: bool) -> None:
    evidence = Evidence()
    ack = lane_store.LaneSettle("t/0", "id", lane_store.LaneVerdict.ACK, 1)
    claim = lane_store.LaneClaim("t/0", 1, 1)
    for again in (False, True):
        evidence.acknowledged.clear()  # as when the copy is added
        evidence.applied("h1", "lanes.claim", [[claim]], [lane_store.LaneClaimed([("id", b"")], None, is_empty=False)])
        if had_started or not again:
            evidence.started("h1", 1, _from_lane(), "")
        evidence.applied("h1", "lanes.settle", [[ack]], [True])
    evidence.started("h1", 1, _from_lane(), "")
    assert [v.promise for v in evidence.violations] == ["D"] * had_started


@pytest.mark.parametrize("place", ["lane", "slot"])
@pytest.mark.parametrize(
    ("sealed", "lost", "opened", "found"),
    [(True, True, False, False), (True, True, True, True), (True, False, False, True), (False, True, False, True)],
    ids=["seal lost", "seal lost, opened again", "seal kept", "never sealed"],
)
def test_only_where_the_store_has_lost_a_seal_messages_may_find_no_owner(
    place: str, sealed: bool, lost: bool, opened: bool, found: bool
) -> None:
    slot, body = slot_store.Slot("t/0", slot_store.SlotKind.RANGE_MERGE), Work("t#1").payload()

    def turn(evidence: Evidence, verdict: str) -> None:
        if place == "lane":
            of_lane = lane_store.LaneSettle("t/0", "", lane_store.LaneVerdict(verdict))
            evidence.applied("publisher", "lanes.settle", [[of_lane]], [True])
        else:
            of_slot = slot_store.SlotSettle(slot, b"", slot_store.SlotVerdict(verdict))
            evidence.applied("publisher", "sorted.settle", [[of_slot]], [True])

    async def put() -> bool:
        evidence = Evidence()
        if sealed:
            turn(evidence, "seal")
        if lost:
            evidence.store_lost({}, {}, [], {})
        if opened:
            turn(evidence, "open")
        if place == "lane":
            stored = message.encode_retry(message.Message("id", body))
            evidence.applied("publisher", "lanes.add", [[lane_store.LaneAdd("t/0", "id", stored, 0)]], [True])
        else:
            add = slot_store.SlotAdd(slot, body, BEGAN_S * 1000.0, slot_store.Keep.FIRST)
            evidence.applied("publisher", "sorted.add", [[add]], [True])
        return "t#1" not in evidence.forgotten

    assert asyncio.run(put()) == found


@pytest.mark.parametrize(
    ("left", "deleted", "found"),
    [(None, False, False), (frozenset(), False, True), (frozenset(), True, False), ({"t/1/high"}, True, True)],
    ids=["all lost", "last second lost", "topic deleted", "seal kept"],
)
async def test_a_retired_group_is_not_dropped_while_the_store_may_lose_its_seals(
    left: Set[str] | None, deleted: bool, found: bool
) -> None:
    evidence = Evidence()
    seal = log_store.Trim("t/1/high", 0, None, seal=True)
    evidence.applied("h1", "log.trim", [[seal]], [True])
    evidence.store_lost({}, {}, [], {}, left)
    if deleted:
        evidence.dropped("t")
    body = message.encode("id", Work("t#1").payload(), None, 1, None)
    evidence.applied("publisher", "log.put", [[log_store.Put("t/1/high", [body])]], [range(1, 2)])
    assert ("t#1" not in evidence.forgotten) == found


def _from_lane() -> message.Message:
    return message.Message("id", Work("t#1").payload(), topic="t", started_us=BEGAN_S * 1_000_000)


@pytest.mark.parametrize("left_s", [-0.1, 0.1])
async def test_a_message_that_starts_after_it_has_expired_is_found(left_s: float) -> None:
    evidence = Evidence()
    m = message.Message("id", Work("t#1").payload(), topic="t", offset=1, started_us=BEGAN_S * 1_000_000)
    m.expires_us = m.started_us + round(left_s * 1e6)
    evidence.started("h1", 1, m, "t/0/high")
    assert [v.promise for v in evidence.violations] == ["time"] * (left_s < 0)


# ----------------------------------------------------------------------------------------------------------------- keys


@pytest.mark.parametrize(("ordering", "found"), [("slot", True), ("none", False)])
def test_two_messages_of_a_slot_that_run_side_by_side_are_found(ordering: str, found: bool) -> None:
    story = Story(LOG._replace(kind=Kind.RANGE_MERGE, options={"ordering": ordering}))
    story.publish(1.0, "1", "2")
    story.start(1.0, "1", takes=2.0)
    story.start(2.0, "2")
    assert ("K" in broken(story, calm=[])) == found


@pytest.mark.parametrize("in_order", [True, False])
def test_a_key_that_runs_at_two_owners_is_found_if_the_first_has_let_go(in_order: bool) -> None:
    story = Story()
    story.publish(1.0, "1", "2", key="k")
    story.start(1.0, "1", takes=2.0, key="k")
    if in_order:
        story.evidence.let_go["h1", "t/0", 1] = 1.5
    story.start(2.0, "2", key="k", host="h2", epoch=2)
    assert ("K" in broken(story, calm=[])) == in_order


@pytest.mark.parametrize(
    ("happened", "found"),
    [
        (["put 1", "empty", "put 2", "back"], False),
        (["put 1", "empty", "back", "put 2"], True),
        (["put 1", "empty", "back", "put 2", "back"], True),
        (["put 1", "put 2", "back"], True),
        (["put 1", "put 2"], True),
    ],
    ids=["put between", "put later", "put later and lost", "only the overtaker was lost", "nothing lost"],
)
async def test_only_a_message_that_the_store_has_again_may_be_overtaken_by_one_that_came_meanwhile_and_is_lost(
    happened: list[str], found: bool
) -> None:
    """A store comes back empty, or once more as it was when it had the first message only."""
    queue, story = "t/0/high", Story()
    evidence = story.evidence
    first = message.encode("1", Work("t#1", key="k").payload(), "k", 1, None)
    for event in happened:
        if event == "empty":
            evidence.store_lost({}, {}, [], {})
        elif event == "back":
            evidence.store_lost({queue: (2, {1: first})}, {}, [], {queue: {1: "t#1"}})
        else:
            name = event.removeprefix("put ")
            story.publish(1.0, name, key="k")
            body = message.encode(name, Work(f"t#{name}", key="k").payload(), "k", 1, None)
            offset = 1 + len(evidence.offsets[queue])
            put = log_store.Put(queue, [body])
            evidence.applied("publisher", "log.put", [[put]], [range(offset, offset + 1)])
    story.start(2.0, "2", key="k")
    story.start(3.0, "1", key="k")
    assert ("K" in broken(story, calm=[])) == found


# --------------------------------------------------------------------------------------------------------------- pauses


@pytest.mark.parametrize(("at", "found"), [(3.0, False), (5.0, True), (8.5, False), (12.0, True)])
def test_a_topic_that_goes_on_in_its_pause_or_not_behind_it_is_found(at: float, found: bool) -> None:
    story = Story(LOG._replace(pauses=True))
    story.evidence.paused.append(("t", 2.0, 8.0))
    story.publish(1.0, "1")
    story.start(at, "1")
    assert ("pause" in broken(story, calm=[(0.0, 1.0), (1.5, 30.0)])) == found


@pytest.mark.parametrize(
    ("sleep", "found"),
    [
        (Sleep("h1", 2.1, 4.5), False),
        (Sleep("h1", 1.0, 4.5), False),
        (Sleep("h1", 2.1, 2.5), True),
        (Sleep("h1", 5.5, 7.0), True),
        (Sleep("h2", 2.1, 4.5), True),
    ],
)
def test_a_host_that_slept_may_hear_later_of_a_pause_by_as_much(sleep: Sleep, found: bool) -> None:
    story = Story(LOG._replace(pauses=True))
    story.evidence.paused.append(("t", 2.0, 8.0))
    story.evidence.sleeps.append(sleep)
    story.publish(1.0, "1")
    story.start(5.0, "1")
    assert ("pause" in broken(story, calm=[(0.0, 1.0), (1.5, 30.0)])) == found
