"""The benchmark of scale counts only the time in which all hosts were at work, and says what limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.cluster import series
from bench.cluster.crew import InvalidRun
from bench.cluster.scale import Run, judged, limit, median
from bench.cluster.series import Sample, SeriesFile


def working(begin_s: int, end_s: int, per_s: float, cores: float, until_s: int = 20) -> list[Sample]:
    """Samples of each second, of a process that works from one second to another and idles around it."""
    seconds = [min(max(s, begin_s), end_s) - begin_s for s in range(until_s + 1)]
    return [Sample(float(s), worked * per_s, worked * cores) for s, worked in enumerate(seconds)]


def test_only_the_time_counts_in_which_all_hosts_were_at_work() -> None:
    hosts = [working(2, 12, per_s=100.0, cores=0.5), working(4, 16, per_s=80.0, cores=0.75)]
    run = judged(hosts, server=working(0, 20, 0.0, cores=0.25), machine=working(0, 20, 0.0, cores=1.5))
    assert run.hosts == pytest.approx((0.5, 0.75))
    assert (run.started_per_s, run.server, run.machine) == pytest.approx((180.0, 0.25, 1.5))


def test_hosts_that_did_not_work_at_the_same_time_tell_nothing() -> None:
    idle = working(0, 20, 0.0, cores=0.0)
    with pytest.raises(InvalidRun, match="give more --messages"):
        judged([working(1, 5, 100.0, 1.0), working(6, 12, 100.0, 1.0)], idle, idle)


def test_between_two_samples_progress_is_taken_as_even() -> None:
    assert series.between(working(0, 10, per_s=40.0, cores=1.0), 2.5, 4.5) == pytest.approx((40.0, 1.0))


def test_samples_are_read_as_they_are_written_a_half_written_one_later(tmp_path: Path) -> None:
    path = tmp_path / "host.samples"
    assert series.read(path) == []
    file = SeriesFile(path)
    file.add(7, 0.25)
    with path.open("a") as other:
        other.write("12.5 8")
    [sample] = series.read(path)
    assert sample[1:] == (7.0, 0.25)


@pytest.mark.parametrize(
    ("run", "text"),
    [
        (Run(1.0, (0.97,), 0.5, 1.5), "The hosts limit"),
        (Run(1.0, (0.97, 0.4), 0.95, 3.0), "The server limits"),
        (Run(1.0, (0.7, 0.7), 0.55, 3.9), "The machine limits"),
        (Run(1.0, (0.5,), 0.4, 1.0), "No core limits"),
    ],
)
def test_what_limits_is_said_in_a_sentence_with_the_shares(run: Run, text: str) -> None:
    said = limit(run, cores=4)
    assert said.startswith(text)
    assert f"server {run.server:.2f}" in said


def test_the_run_in_the_middle_counts() -> None:
    runs = [Run(rate, (1.0,), 0.5, 1.5) for rate in (300.0, 100.0, 200.0)]
    assert median(runs).started_per_s == 200.0
    assert median(runs[:2]).started_per_s == 100.0
