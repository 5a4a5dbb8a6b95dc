"""Every store's slots against a plain Python model, over call sequences that hypothesis thinks of."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import initialize, rule, run_state_machine_as_test

from emq.runtime import errors
from emq.storage.slot_store import (
    Fold,
    Keep,
    Recover,
    Slot,
    SlotAdd,
    SlotClaim,
    SlotClaimed,
    SlotKind,
    SlotSettle,
    SlotState,
    SlotVerdict,
)
from emq_testing.contract.chance import variant
from emq_testing.contract.models import StoreMachine
from emq_testing.contract.slot_model import FOLDS, SlotModel
from emq_testing.contract.slot_user import NOW
from emq_testing.contract.target import Target, settle_down, watching

pytestmark = pytest.mark.usefixtures("in_order")

MEMBERS = (b"a", b"b", b"c\x00", b"\xff")
OWNERS = (SlotVerdict.ACK, SlotVerdict.RETRY, SlotVerdict.REST, SlotVerdict.YIELD, SlotVerdict.DEAD)

members = st.sampled_from(MEMBERS)
places = st.integers(0, 12)
verdicts = st.tuples(
    st.integers(0, len(MEMBERS) - 1),
    st.sampled_from([*(v for v in SlotVerdict if not v.is_of_all), SlotVerdict.RETRY]),
    st.sampled_from(["its", "its", "its", "its", "an old one", "none"]),
    st.sampled_from([None, None, -16, -15, *range(13)]),
    st.sampled_from(["", "why", "other", "and"]),
)


class SlotMachine(StoreMachine):
    """One slot, whose members come back again and again.

    Attributes:
        kind, apart: of the slot.
        tokens: all that each member ever had.
    """

    kind: SlotKind
    apart: bool

    def __init__(self) -> None:
        super().__init__()
        self.sorted = self.store.sorted
        self.slot = Slot(f"{self.topic}/0", self.kind, self.apart)
        self.canary = f"{self.topic}/9/high"
        self.now_ms = NOW
        self.tokens: dict[bytes, list[int]] = {member: [] for member in MEMBERS}
        self.watching = watching(self.store, self.canary)
        self.watcher = self.call(self.watching.__aenter__())

    def teardown(self) -> None:
        self.call(self.watching.__aexit__(None, None, None))
        super().teardown()

    def score(self, place: int) -> int:
        """The time or priority of a place; those below 0 are numbers of retries left."""
        return 17 + place if place < 0 or self.kind is SlotKind.PRIORITY else NOW + place

    @initialize(fold=st.sampled_from(FOLDS))
    def begin(self, fold: Fold) -> None:
        """A fold for good, as a topic has it; and an owner, since who has never claimed fences nobody off."""
        self.fold = fold if self.apart else FOLDS[0]
        self.model = SlotModel(self.kind, self.apart, self.fold, self.target.doubts)
        assert self.call(self.sorted.claim([SlotClaim(self.slot, 1, 1, NOW)], NOW)) == [SlotClaimed([], None)]
        self.model.arm()

    @rule(
        what=st.lists(st.tuples(members, places, st.sampled_from(Keep)), min_size=1, max_size=4),
        most=st.sampled_from([None, None, 0, 1, 2, 3]),
    )
    def add(self, what: list[tuple[bytes, int, Keep]], most: int | None) -> None:
        adds = [
            SlotAdd(self.slot, member, self.score(n), keep, *((b"%d" % n, b"n%d" % n) if self.apart else ()))._replace(
                fold=self.fold, max_length=most
            )
            for member, n, keep in what
        ]
        answers = self.call(self.sorted.add(adds))
        for add, answer in zip(adds, answers, strict=True):
            expected = self.model.add(add)
            assert isinstance(answer, errors.TopicFull) if expected is None else answer is expected
        self.model.note_wakes()

    @rule(limit=st.integers(1, 4), until=places, passed=st.integers(0, 1500), step=st.integers(0, 1))
    def claim(self, limit: int, until: int, passed: int, step: int) -> None:
        self.check_wakes()
        self.now_ms += passed
        # A new owner recovers before it claims; see there.
        self.model.epoch += step if not self.model.prepared else 0
        self.model.sure |= not self.model.prepared
        claimable = [member for member in self.check_waiting() if member not in self.model.prepared]
        due = [m for m in claimable if self.model.due(self.model.waiting[m].score, NOW + until)][:limit]
        claim = SlotClaim(self.slot, limit, self.model.epoch, NOW + until)
        (answer,) = self.call(self.sorted.claim([claim], self.now_ms))
        assert isinstance(answer, SlotClaimed)
        left = [member for member in claimable if member not in due]
        assert answer.next_score == (self.model.waiting[left[0]].score if left else None)
        expected = [(self.model.waiting[member].history, self.model.claim(member, self.now_ms)) for member in due]
        assert [entry[:7] for entry in answer.entries] == [entry[:7] for _, entry in expected]
        for entry, (history, _) in zip(answer.entries, expected, strict=True):
            assert history is None or sorted(why for _, why in entry.history) == sorted(why for _, why in history)
        assert answer.rest_ms == self.model.rest_ms
        for entry in answer.entries:
            self.tokens[entry.member].append(entry.token)
        self.model.arm()

    @rule(what=st.lists(verdicts, min_size=1, max_size=3), stale=st.sampled_from([0] * 9 + [1]))
    def settle(self, what: list[tuple[int, SlotVerdict, str, int | None, str]], stale: int) -> None:
        model, settles = self.model, list[SlotSettle]()
        administered = {
            SlotVerdict.REPLAY: [*model.dead],
            SlotVerdict.PURGE: [*model.dead],
            SlotVerdict.RECALL: [*model.waiting],
        }
        for n, verdict, whose, place, reason in what:
            member, token = MEMBERS[n], 0
            there = sorted(administered.get(verdict, [*model.prepared]))
            if whose == "its" and there:
                member = there[n % len(there)]
                token = model.prepared[member].token if member in model.prepared else 0
            elif whose == "an old one" and self.tokens[member]:
                token = self.tokens[member][0]
            epoch = self.model.epoch - stale if verdict in OWNERS else None
            score = token % 1000 if place is None else self.score(place)
            keep = [None, *Keep][(n + len(reason) + len(settles)) % 5]
            rest_ms = self.now_ms + 700 * (n + len(settles))
            settles.append(
                SlotSettle(self.slot, member, verdict, token, epoch, score, reason, self.fold, keep, rest_ms)
            )
        answers = self.call(self.sorted.settle(settles))
        for settle, answer in zip(settles, answers, strict=True):
            expected = self.model.settle(settle)
            assert isinstance(answer, errors.NotOwner) if expected is None else answer is expected, settle
        self.model.note_wakes()
        if any(settle.verdict is SlotVerdict.DEAD for settle in settles):
            self.check_dead()

    @rule(member=members, n=places, lost=st.booleans(), reason=st.sampled_from(["", "gone", "again"]))
    def live_and_die(self, member: bytes, n: int, lost: bool, reason: str) -> None:
        """A whole life, since chance alone lets hardly any member die twice."""
        self.add([(member, n, Keep.LAST)], None)
        self.claim(len(MEMBERS), 12, 0, 0)
        for verdict, place in ((SlotVerdict.RETRY, -16), (SlotVerdict.DEAD, None))[1 - lost :]:
            if member in self.model.prepared:
                self.settle([(sorted(self.model.prepared).index(member), verdict, "its", place, reason)], 0)
            if verdict is SlotVerdict.RETRY:
                self.claim(len(MEMBERS), 12, 0, 0)
                self.recover(1, None, [], 0)

    @rule(
        step=st.sampled_from([0, 0, 0, 1, -1]),
        age=st.sampled_from([None, 0, 1, 2]),
        held=st.lists(members, max_size=2),
        passed=st.integers(0, 1500),
    )
    def recover(self, step: int, age: int | None, held: list[bytes], passed: int) -> None:
        self.now_ms += passed
        older_than_ms = None if age is None else (self.now_ms // 1000 - age) * 1000
        recover = Recover(self.slot, self.model.epoch + step, older_than_ms, held, "lost")
        (answer,) = self.call(self.sorted.recover([recover], self.now_ms))
        expected = self.model.recover(recover, self.now_ms)
        assert isinstance(answer, errors.NotOwner) if expected is None else answer == expected
        self.model.note_wakes()
        self.check_waiting()
        self.check_dead()

    @rule(until=places)
    def look(self, until: int) -> None:
        model = self.model
        (state,) = self.call(self.sorted.inspect([self.slot], NOW + until))
        due = {member for member, kept in model.waiting.items() if model.due(kept.score, NOW + until)}
        first = min((kept.score for kept in model.waiting.values()), key=model.place, default=None)
        oldest_ms = min((prepared.token // 1000 * 1000 for prepared in model.prepared.values()), default=None)
        sizes = (len(model.waiting), len(model.prepared), len(model.dead))
        resting = sum(prepared.rest is not None for prepared in model.prepared.values())
        assert state == SlotState(sizes[0], state.due, *sizes[1:], first, oldest_ms, resting)
        # Whether one that waits for its twin "may run" is left to the store, but not for `priority`.
        assert len(due if self.kind is SlotKind.PRIORITY else due - model.prepared.keys()) <= state.due <= len(due)
        self.check_waiting()
        self.check_dead()

    def check_waiting(self) -> list[bytes]:
        """Compare what waits, and answer the members in claim order."""
        shown = self.call(self.sorted.waiting(self.slot))
        assert {each.member for each in shown} == self.model.waiting.keys()
        for each in shown:
            assert each == (each.member, *self.model.waiting[each.member][:4])
        assert [each.score for each in shown] == sorted((each.score for each in shown), key=self.model.place)
        return [each.member for each in shown]

    def check_dead(self) -> None:
        shown = self.call(self.sorted.dead(self.slot))
        assert [(each.dead_ms, each.member) for each in shown] == sorted((each.dead_ms, each.member) for each in shown)
        assert {each.member for each in shown} == self.model.dead.keys()
        for each in shown:
            dead_ms, reason, kept = self.model.dead[each.member]
            assert each[:5] == (self.slot, each.member, kept.body, kept.note, reason)
            assert dead_ms in (None, each.dead_ms)
            if kept.history is not None:
                # Retries are stamped by the store, long after the time of the machine, by which recoveries are.
                lost = [attempt for attempt in each.history if attempt[0] <= self.now_ms]
                assert lost == [attempt for attempt in kept.history if attempt[0] is not None]
                retried = [why for at_ms, why in each.history if at_ms > self.now_ms]
                assert retried == [why for at_ms, why in kept.history if at_ms is None]

    def check_wakes(self) -> None:
        """What must have woken since the last claim has done so, and what must not has not."""
        self.call(settle_down(self.store, self.watcher, self.canary))
        woken = self.watcher.woken.count(self.slot.address)
        assert self.model.must_wake <= woken <= (self.model.must_wake or self.model.may_wake)
        self.watcher.forget()


@pytest.mark.parametrize("kind", SlotKind)
@pytest.mark.parametrize("apart", [False, True], ids=["plain", "apart"])
def test_slots_behave_like_their_model(target: Target, kind: SlotKind, apart: bool) -> None:
    near = target.is_near
    phases = [phase for phase in Phase if near or phase not in (Phase.shrink, Phase.explain)]
    run_state_machine_as_test(
        variant(SlotMachine, f"{target.name} {kind} {apart}", target=target, kind=kind, apart=apart),
        settings=settings(
            max_examples=25 if near else 5,
            stateful_step_count=40,
            deadline=None,
            phases=phases,
            suppress_health_check=list(HealthCheck),
        ),
    )
