"""Faults and oddities that a hostile reader planted in trails: the proof finds the first and condemns no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from emq.topics.model import Topic, split
from emq.topics.shares import Division
from emq_proof.limits import limits
from emq_proof.proof import Expectations, Proof, prove
from support.hostile.border_faults import BORDER_FAULTS
from support.hostile.border_lawful import BORDER_LAWFUL
from support.hostile.faults import FAULTS, VOID, Planter
from support.hostile.lawful import LAWFUL, a_high_one_was_finished_unseen_by_a_killed_host
from support.hostile.told import T0_S, Told


def verdict(proof: Proof) -> str:
    """The letters of what is broken, or `void`; empty if all is proved."""
    return "".join(p for p, held in proof.promises.items() if not held) or (VOID if proof.void_reasons else "")


@pytest.mark.parametrize(
    ("plant", "expected", "given"),
    [*FAULTS, *BORDER_FAULTS],
    ids=[plant.__name__ for plant, *_ in (*FAULTS, *BORDER_FAULTS)],
)
def test_a_hostile_fault_is_found(tmp_path: Path, plant: Planter, expected: str, given: dict[str, Any]) -> None:
    Told.of(plant).write(tmp_path)
    proof = prove(tmp_path, Expectations(**{"still_queued": (), **given}))
    assert verdict(proof) == expected, proof


@pytest.mark.parametrize(
    ("plant", "given"),
    [*LAWFUL, *BORDER_LAWFUL],
    ids=[plant.__name__ for plant, _ in (*LAWFUL, *BORDER_LAWFUL)],
)
def test_a_hostile_oddity_is_not_condemned(tmp_path: Path, plant: Planter, given: dict[str, Any]) -> None:
    Told.of(plant).write(tmp_path)
    proof = prove(tmp_path, Expectations(**{"still_queued": (), **given}))
    assert verdict(proof) == "", proof


def test_what_a_killed_host_may_have_finished_is_no_high_one_that_waits(tmp_path: Path) -> None:
    Told.of(a_high_one_was_finished_unseen_by_a_killed_host).write(tmp_path)
    assert not prove(tmp_path, Expectations(still_queued=())).priority_inversions


# ------------------------------------------------------------------------------------------------- catalogs and caps


def capped(directory: Path, told: Told, topic: Topic) -> Proof:
    told.write(directory)
    quotas, bursts = limits([topic])
    return prove(directory, Expectations(still_queued=(), quotas=quotas, bursts=bursts))


def busy(*counts: int) -> Told:
    """So many starts in each second."""
    told = Told()
    told.own()
    offset = 0
    for second, count in enumerate(counts):
        for n in range(count):
            told.message(f"m{second}-{n}", 1000 * second + 10 * n, offset, took=1)
            offset += 1
    return told


def lowered(since_s: int, *more: Division) -> Topic:
    topic = split(Topic("shop", qps=4))
    return msgspec.structs.replace(topic, divisions=(*more, Division(since_s, 4, 50, 1)))


def test_the_cap_of_a_topic_before_it_was_changed_is_not_that_of_now(tmp_path: Path) -> None:
    assert verdict(capped(tmp_path, busy(10, 10, 4, 4), lowered(T0_S + 2))) == ""


def test_the_cap_of_a_topic_since_it_was_changed_is_that_of_now(tmp_path: Path) -> None:
    assert verdict(capped(tmp_path, busy(10, 10, 4, 5), lowered(T0_S + 2))) == "Q"


def test_a_leap_of_the_quota_begins_in_its_second_and_not_in_the_one_before(tmp_path: Path) -> None:
    topic = lowered(T0_S + 3, Division(T0_S + 1, 2, 50, 1), Division(T0_S + 2, 10, 50, 1))
    assert verdict(capped(tmp_path / "kept", busy(3, 2, 10, 4), topic)) == ""
    assert verdict(capped(tmp_path / "early", busy(3, 3, 10, 4), topic)) == "Q"
    assert verdict(capped(tmp_path / "late", busy(3, 2, 10, 5), topic)) == "Q"
