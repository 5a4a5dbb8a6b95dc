"""Merge keys: what a delivery stands for is judged, each kind of planted fault is found."""

from __future__ import annotations

from typing import Any

import pytest

from emq.dispatch.slot_settler import MemberSettler
from emq.storage import folds, message, slot_store
from emq.storage.slot_store import Fold, Keep
from emq.topics.model import Kind
from emq_stores.memory import slot_store as memory_sorted
from emq_stores.memory.slot_members import Kept
from simulation.test_checker import CRASH, broken, outcome
from support.simulation.evidence import Evidence
from support.simulation.folding import WORK
from support.simulation.plans import TopicPlan
from support.simulation.work import Work

OPTIONS: dict[str, Any] = {
    "merge": "key",
    "fold": "sum",
    "time_range_ms": 300,
    "ordering": "none",
    "prepare_timeout_s": 20.0,
    "retry": "backoff",
    "max_attempts": 3,
    "backoff_s": (0.3, 0.8),
    "jitter": 0.0,
}
FOLDED = TopicPlan(
    *("folded", 12.0, 6.0, 12.0, Kind.RANGE_MERGE), failing=0.3, doomed=0.1, slow=0.2, options=OPTIONS, merging=4
)


@pytest.mark.parametrize("fold", ["latest", "sum", "max", "min", "union", "count"])
@pytest.mark.parametrize("kind", [Kind.RANGE_MERGE, Kind.FIXED_TIME, Kind.PRIORITY])
def test_nothing_is_found_where_nothing_is_planted(kind: Kind, fold: str) -> None:
    options = {**OPTIONS, "fold": fold}
    if kind is not Kind.RANGE_MERGE:
        del options["time_range_ms"]
    topic = FOLDED._replace(kind=kind, options=options, delayed=1.0 if kind is Kind.FIXED_TIME else 0.0, doomed=0.3)
    found = outcome(CRASH, topic, clean=False)
    assert found.violations == []
    assert found.happened["merged"] > 5
    assert found.evidence.folding.dead


def test_a_publish_that_is_not_folded_in_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folds, "apply", lambda fold, older, newer: newer)
    assert "fold" in broken(outcome(topic=FOLDED))


def test_a_union_in_the_wrong_order_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = folds.apply
    monkeypatch.setattr(folds, "apply", lambda fold, older, newer: real(fold, newer, older))
    assert "fold" in broken(outcome(topic=FOLDED._replace(options={**OPTIONS, "fold": "union"})))


def test_what_is_folded_in_twice_after_a_failure_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = memory_sorted._roll_back

    def roll_back(slot: slot_store.Slot, found: Any, member: bytes, kept: Kept, *rest: Any) -> None:
        twice = kept._replace(body=folds.apply(Fold("sum"), kept.body, kept.body))
        real(slot, found, member, twice, *rest)

    monkeypatch.setattr(memory_sorted, "_roll_back", roll_back)
    assert "fold" in broken(outcome(topic=FOLDED))


def test_what_a_failed_delivery_loses_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = memory_sorted._roll_back

    def roll_back(slot: slot_store.Slot, found: Any, member: bytes, *rest: Any) -> None:
        if member not in found.waiting:
            real(slot, found, member, *rest)

    monkeypatch.setattr(memory_sorted, "_roll_back", roll_back)
    assert "fold" in broken(outcome(topic=FOLDED._replace(rate=20.0, merging=2)))


def test_a_merge_that_takes_the_later_time_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Keep.of
    monkeypatch.setattr(Keep, "of", lambda keep, *scores: real(Keep.LAST, *scores))
    found = outcome(topic=FOLDED)
    assert any("instead of" in v.text and "score" in v.text for v in found.violations)


def test_an_acknowledgement_of_what_failed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = MemberSettler.settle

    async def settle(self: MemberSettler, settles: Any, *rest: Any) -> Any:
        wrong = [s._replace(verdict=slot_store.SlotVerdict.ACK) if s.reason else s for s in settles]
        return await real(self, wrong, *rest)

    monkeypatch.setattr(MemberSettler, "settle", settle)
    found = outcome(topic=FOLDED)
    assert any("whose handler did not" in violation.text for violation in found.violations)


def test_dead_letters_that_forget_an_earlier_one_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = memory_sorted._die

    def die(slot: slot_store.Slot, found: Any, member: bytes, *rest: Any) -> None:
        found.dead.pop(member, None)
        found.dead_order = [entry for entry in found.dead_order if entry[1] != member]
        real(slot, found, member, *rest)

    monkeypatch.setattr(memory_sorted, "_die", die)
    assert "X" in broken(outcome(topic=FOLDED._replace(merging=1, doomed=0.3)))


async def test_a_store_that_forgot_an_acknowledgement_may_hear_of_it_again() -> None:
    evidence = Evidence()
    folding, slot, token = evidence.folding, slot_store.Slot("t/0", slot_store.SlotKind.FIXED_TIME, apart=True), 1_016
    note = message.encode_note(message.Note(headers={WORK: "t#1"}))
    evidence.published["t#1"] = Work("t#1"), True
    folding.added(slot_store.SlotAdd(slot, b"m0", 1_000, Keep.LAST, b"1", note), was_new=True)
    claim = slot_store.SlotClaim(slot, 1, 1, 1_000)
    folding.claimed(claim, slot_store.SlotClaimed([slot_store.Entry(b"m0", 1_000, token, b"1", note)], None))
    told = message.Message(
        "m0", b"1", topic="t", member=b"m0", token=token, headers={WORK: "t#1"}, started_us=1_000_000
    )
    folding.started(1, told)
    evidence.ends[1] = 1.0, True
    before, ack = folding.snapshot(), slot_store.SlotSettle(slot, b"m0", slot_store.SlotVerdict.ACK, token)
    folding.told(ack, was_prepared=True)
    folding.lost(before)
    folding.told(ack, was_prepared=True)
    assert not evidence.violations
    assert not folding.unsettled["t/0", b"m0"]
    folding.told(ack, was_prepared=True)
    assert [violation.promise for violation in evidence.violations] == ["fold"]
