"""The made-up runs of the benchmark `audit` are clean, and the hard ones among them are hard."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from bench.spark import synthetic
from emq_proof.proof import Proof, prove


def _proof(directory: Path, *, keys_wait: bool) -> Proof:
    return prove(synthetic.write(directory, synthetic.Shape(4, 8, keys_wait=keys_wait))[1])


@pytest.mark.parametrize("keys_wait", [False, True])
def test_a_made_up_run_is_clean(tmp_path: Path, keys_wait: bool) -> None:
    assert _proof(tmp_path, keys_wait=keys_wait).ok


def test_where_keys_wait_only_the_keys_excuse_that_messages_of_the_highest_priority_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synthetic._Block, "keys", property(lambda block: pa.nulls(len(block.number), pa.string())))
    proof = _proof(tmp_path, keys_wait=True)
    assert [letter for letter, held in proof.promises.items() if not held] == ["P"]
    # In every second but the first and that of the move, in the five groups of each second tenant.
    assert proof.priority_inversions.count >= 2 * 5 * 6
