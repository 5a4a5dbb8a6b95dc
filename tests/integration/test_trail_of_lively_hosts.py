"""What hosts wrote in a lively minute is proved, and each fault that is planted in it is found."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from emq.topics.model import Topic
from emq.trail import events
from emq_proof.limits import limits
from emq_proof.proof import Expectations, Proof, prove
from support import lively_trail
from support.hostile import in_lively
from support.hostile.in_lively import PLANTS, Plant, Rows
from support.virtual import run

pytestmark = pytest.mark.xdist_group("lively")  # the minute is written once


class Lively(NamedTuple):
    directory: Path
    topics: list[Topic]
    rows: Rows


@pytest.fixture(scope="module")
def lively(tmp_path_factory: pytest.TempPathFactory) -> Lively:
    directory = tmp_path_factory.mktemp("lively")
    topics = run(lively_trail.write(directory))
    return Lively(directory, topics, in_lively.rows_of(directory))


def proof_of(directory: Path, topics: list[Topic]) -> Proof:
    quotas, bursts = limits(topics)
    expected = Expectations(
        still_queued=(),
        quotas=quotas,
        bursts=bursts,
        max_attempts={t.name: t.options.max_attempts for t in topics},
        rejects=[t.name for t in topics],
    )
    return prove(directory, expected)


def test_a_lively_minute_is_proved(lively: Lively) -> None:
    proof = proof_of(lively.directory, lively.topics)
    assert proof.ok, proof


def test_a_lively_minute_has_every_event_that_needs_no_accident(lively: Lively) -> None:
    counts = Counter(row["event"] for row in lively.rows)
    ends = {events.SETTLED, *events.AGAIN, events.DEAD, events.RECALLED, events.REPLAYED}
    assert counts.keys() == ends | {events.PUBLISHED, events.MERGED, events.STARTED, events.OWNED, events.RELEASED}
    assert min(counts.values()) > 2


@pytest.mark.parametrize(("plant", "letter"), PLANTS, ids=[plant.__name__ for plant, _ in PLANTS])
def test_a_fault_in_a_lively_minute_is_found(lively: Lively, tmp_path: Path, plant: Plant, letter: str) -> None:
    rows = copy.deepcopy(lively.rows)
    plant(rows)
    in_lively.write_rows(rows, tmp_path)
    assert not proof_of(tmp_path, lively.topics).promises[letter]


def test_what_was_not_changed_is_proved_when_it_is_written_again(lively: Lively, tmp_path: Path) -> None:
    in_lively.write_rows(copy.deepcopy(lively.rows), tmp_path)
    proof = proof_of(tmp_path, lively.topics)
    assert proof.ok, proof
