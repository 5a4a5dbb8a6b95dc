"""The proof passes a clean ledger and tells what it found; the other `test_proof_*` plant faults, one checker each."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from emq_proof.proof import Expectations, Proof, Wait, prove
from emq_proof.report import render
from support.trail_story import Delivery, Story, clean, host_segment, in_segments, tell


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


# ------------------------------------------------------------------------------------------------------ clean ledgers


def test_a_clean_ledger_is_proved(story: Story) -> None:
    proof = tell(story, clean(), Expectations(still_queued=(), quotas={"shop/0": 20.0, "shop": 20}))
    assert proof.ok, proof
    assert (proof.events, proof.segments) == (61, 4)
    assert (proof.published, proof.delivered, proof.dead, proof.unfinished) == (20, 20, 0, 0)


def test_retries_dead_letters_and_crashes_are_no_violation_in_themselves(story: Story) -> None:
    deliveries = [
        Delivery("a", 10, 20, outcome="retried", key="k"),
        Delivery("a", 500, 510, 499, key="k", offset=-1, attempt=2),
        Delivery("b", 30, 40, 29, offset=1, outcome="dead"),
        Delivery("c", 50, None, 49, key="x", offset=2),
        Delivery("c", 700, 701, 699, key="x", offset=2, source="successor"),
        Delivery("d", 702, 703, 700, key="x", offset=3, source="successor"),
    ]
    proof = tell(story, deliveries)
    assert proof.ok, proof
    assert (proof.delivered, proof.dead) == (3, 1)


def test_waits_are_those_of_first_attempts(story: Story) -> None:
    deliveries = [Delivery(f"m{i}", i, i, offset=i) for i in range(1, 101)]
    deliveries.append(Delivery("m1", 5000, 5001, attempt=2, offset=-1, outcome="retried"))
    assert tell(story, deliveries).waits == {"shop": Wait(100, 50_000, 99_000)}


# ------------------------------------------------------------------------------------------------------------- output


def printed(proof: Proof) -> str:
    text = io.StringIO()
    Console(width=160, file=text).print(render(proof))
    return text.getvalue()


def test_the_proof_is_readable_and_fit_for_json(story: Story) -> None:
    proof = tell(story, clean())
    text = printed(proof)
    assert "✓ proved from 61 events in 4 segments" in text
    assert "✗" not in text
    assert json.loads(json.dumps(proof.to_dict()))["published"] == 20


def test_a_broken_and_a_void_proof_say_so(story: Story) -> None:
    ledger = in_segments(story)
    proof = prove(ledger, Expectations(quotas={"shop/0": 1}))
    assert "✗ broken: Q" in printed(proof)
    assert "shop/0 started 20 in second" in printed(proof)
    host_segment(ledger, 3).unlink()
    assert "void: host-" in printed(prove(ledger))
    assert proof.to_dict()["promises"] == {letter: letter != "Q" for letter in "LDQPKOMTX"}
