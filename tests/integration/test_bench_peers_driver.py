"""EMQ's driver does what the benchmark of peers asks of every driver."""

from __future__ import annotations

from collections import Counter

import pytest

import emq_servers
from bench.peers import field, reports, works
from bench.peers.running import Place

WAIT_S = 60.0


@pytest.fixture(autouse=True)
def server() -> None:
    try:
        emq_servers.redis.find_redis()
    except emq_servers.ServerMissing as missing:
        pytest.skip(str(missing))


def test_it_publishes_to_all_queues_and_its_workers_count_and_report_each_start() -> None:
    with Place(field.EMQ) as place:
        published, published_s = place.publish(queues=10, messages=100)
        assert published == 100
        assert published_s > 0
        with place.working(queues=10) as driver:
            assert works._awaited(driver, driver.counted, 100, WAIT_S) == 100
    with Place(field.EMQ) as place:
        place.publish(queues=10, first_queue=5, messages=20, per_s=1000.0)
        log = place.directory / "log"
        with place.working(queues=10, first_queue=5, log=str(log), wait_s=0.001) as driver:
            works._awaited(driver, lambda: len(reports.read(log)), 40, WAIT_S)
        read = reports.read(log)
    assert Counter((report.kind, report.queue) for report in read) == {
        (kind, queue): 2 for kind in "be" for queue in range(5, 15)
    }
    assert all(report.published_s <= report.at_s for report in read)
