"""`emq topic` below a family."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.emq_shell import shell


def test_a_topic_created_without_settings_has_all_those_of_its_family(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emq = shell(tmp_path, monkeypatch)
    emq("family create orders.* --qps 7 --priorities high,low --set max_attempts=3")
    emq("topic create orders.a")
    [topic] = emq.json("topic list")
    assert (topic["qps"], topic["priorities"], topic["options"]["max_attempts"]) == (7, ["high", "low"], 3)
    assert (topic["family"], topic["own"]) == ("orders.*", [])
