"""The benchmark of scale counts only the time in which all hosts were at work, and says what limits."""

from __future__ import annotations

import pytest

from bench.cluster.scale import judged
from bench.cluster.series import Sample


def working(begin_s: int, end_s: int, per_s: float, cores: float, until_s: int = 20) -> list[Sample]:
    """Samples of each second, of a process that works from one second to another and idles around it."""
    seconds = [min(max(s, begin_s), end_s) - begin_s for s in range(until_s + 1)]
    return [Sample(float(s), worked * per_s, worked * cores) for s, worked in enumerate(seconds)]


def test_only_the_time_counts_in_which_all_hosts_were_at_work() -> None:
    hosts = [working(2, 12, per_s=100.0, cores=0.5), working(4, 16, per_s=80.0, cores=0.75)]
    run = judged(hosts, server=working(0, 20, 0.0, cores=0.25), machine=working(0, 20, 0.0, cores=1.5))
    assert run.hosts == pytest.approx((0.5, 0.75))
    assert (run.started_per_s, run.server, run.machine) == pytest.approx((180.0, 0.25, 1.5))
