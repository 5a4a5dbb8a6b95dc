"""The comparison with other queues: its ratios, its page, and what handlers report, from made-up results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.peers import page, peers, ratios, reports


def result(name: str, language: str, works: dict[str, Any], not_run: str = "") -> dict[str, Any]:
    told = {"version": f"{name} 1.0", "queues": "a queue each", "configuration": "fast"}
    return {"name": name, "language": language, "not_run": not_run, "works": works, **told}


def drained(rate: int, published_per_s: int = 50) -> dict[str, Any]:
    return {"published": 10, "published_per_s": published_per_s, "started": 10, "drained_per_s": rate}


RESULTS = [
    result("EMQ", "Python", {"drain-3000": drained(9000), "caps": {"least": 10, "most": 10, "cpu_percent": 3.0}}),
    result("slow", "Python", {"drain-3000": drained(100), "caps": {"none": "has none"}}),
    result("quick", "Python", {"drain-3000": drained(300, 70), "drain-1": {"not_run": "started nothing"}}),
    result("other", "Node", {"drain-3000": drained(4500)}),
    result("absent", "Node", {}, "absent is not installed (make bench-peers)"),
]


def test_the_ratios_are_over_the_fastest_python_peer_and_over_the_fastest_of_all() -> None:
    assert ratios.ratio(RESULTS, python_only=True) == 30.0
    assert ratios.ratio(RESULTS, python_only=False) == 2.0
    assert ratios.ratio(RESULTS[:1], python_only=False) == 0.0
    assert ratios.ratio(RESULTS[1:], python_only=False) == 0.0


def test_the_page_tells_all_figures_and_what_is_missing_and_where_a_peer_is_better() -> None:
    run = {"date": "2026-01-02", "machine": "two cores", "results": RESULTS, "messages": 10, "publish_s": 1.0}
    run |= {"drain_s": 2.0, "seconds": 3.0, "fastest_python_ratio": 30.0, "any_peer_ratio": 2.0}
    text = page.page(run)
    assert "| EMQ | 50 / 9,000 | - |" in text
    assert "| quick | 70 / 300 | not run |" in text
    assert "- quick, drain-1: started nothing" in text
    assert "- absent: absent is not installed (make bench-peers)" in text
    assert "| EMQ | 10 to 10, 3.0 % CPU |" in text
    assert "| slow | has none |" in text
    assert "**Publish to 3,000 queues, messages a second**: quick 70; EMQ 50." in text
    assert "30 times that of the fastest Python peer" in " ".join(text.split())
    assert page.chart(RESULTS).count("<rect") == 5
    assert page.readme_rows(RESULTS)[2].endswith("| 9,000 | 300 (quick) | 4,500 (other) |")


def test_starts_are_counted_by_queue_in_whole_seconds_of_the_clock(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert reports.read(log) == []
    starts = [(10.9, 0), (11.0, 0), (11.5, 0), (11.9, 1), (12.1, 0), (12.2, 1), (13.0, 1)]
    lines = [f"b {at_s:.6f} {number} {queue} 10.000000\n" for number, (at_s, queue) in enumerate(starts)]
    log.write_text("".join([*lines, "e 11.700000 1 0 10.000000\n", "b 13.1"]))  # the last line is being written
    read = reports.read(log)
    assert (len(read), read[0]) == (8, reports.Report("b", 10.9, 0, 0, 10.0))
    assert reports.caps_of(read, 2, 10.9, 13.1) == (1, 2, 1.25)
    assert reports.caps_of(read, 2, 10.9, 11.5) == (0, 0, 0.0)


def test_an_unknown_peer_or_work_is_named() -> None:
    assert peers._named("a, b", {"a", "b", "c"}, "peer") == {"a", "b"}
    with pytest.raises(peers.InvalidRun, match="no peer x; there are a, b"):
        peers._named("a,x", {"a", "b"}, "peer")
