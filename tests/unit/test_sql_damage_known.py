"""Damaged rows that a store knows: no entry of theirs is tried for a second, and then one is."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from emq_stores.sql.damage import Damage, damaged


@pytest.mark.parametrize(("later_s", "refused"), [(0.0, True), (0.99, True), (1.01, False)])
def test_known_damage_is_looked_at_again_after_a_second(
    later_s: float, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = SimpleNamespace(s=50.0)
    monkeypatch.setattr("emq_stores.sql.damage.time", SimpleNamespace(monotonic=lambda: now.s))
    error, known = damaged("queue 'q'", "its tail is text", "correct it"), Damage()
    known.found("put", "q", error)
    now.s += later_s
    assert known.refusal("put", "q") is (error if refused else None)
    assert known.refusal("read", "q") is None
    assert known.refusal("put", "other") is None
    found, parts = known.apart("put", ["other", "q"])
    assert found == ({1: error} if refused else {})
    assert [1] in parts or refused
