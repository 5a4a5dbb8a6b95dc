"""What the trail proves of priority while the keys of a topic move to other groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from emq_proof.proof import Expectations, prove
from support import resized_trail
from support.virtual import virtual


@virtual
async def test_a_key_that_waits_for_its_former_group_is_not_overtaken_and_one_that_may_start_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await resized_trail.write(tmp_path, monkeypatch)
    proof = prove(tmp_path, Expectations(still_queued=()))
    assert [letter for letter, held in proof.promises.items() if not held] == ["P"], proof
    places = {line.partition(" in ")[2].partition(" ")[0] for line in proof.priority_inversions.examples}
    assert places == {f"{resized_trail.FAULTY}/1"}, "the gate of the lawful topic held its high message back"
    assert 0 < proof.priority_inversions.count < resized_trail.LOWS, "those before the gate opened overtook nothing"
