"""`emq size`: what a steady flow needs, and what limits it first."""

import math

import pytest

from emq_cli import sizing
from emq_cli.sizing import Flow, Model, Sizes
from support.emq_shell import Shell

SIZES = Sizes(
    host_cores=[0.0, 10e-6, 5e-6, 0.0],
    store_cores=[0.0, 3.9e-6, 0.0, 0.0],
    host_mb=[60.0, 0.01],
    date="2030-01-01",
    machine="made up",
)
FLOW = Flow(awake=1_000, rate=100_000.0, payload=2_000)


def model(checkpoint_s: float = 1.0, max_in_flight: int = 20_000, cpu_s: float = 0.0, time_s: float = 0.0) -> Model:
    return Model(SIZES, checkpoint_s, max_in_flight, cpu_s, time_s)


def test_hosts_and_masters_stay_below_their_share_of_a_core() -> None:
    found = model().needs(FLOW, outage_s=60.0)
    assert found.hosts == 4  # 100,000 x (10 + 2 x 5) us = 2 cores, 0.6 of one each
    assert found.host_use == pytest.approx(0.5)
    assert found.host_mb == pytest.approx(60 + 250 * 0.01)
    assert found.masters == 1
    assert found.store_mb == pytest.approx(100_000 * 60 * 2_040 / 1e6)


def test_a_handler_takes_cpu_and_room() -> None:
    assert model(cpu_s=100e-6).needs(FLOW, 60.0).hosts == 20
    slow = model(time_s=2.0, max_in_flight=20_000).needs(FLOW, 60.0)
    assert slow.hosts == 10
    assert slow.in_flight == pytest.approx(200_000)


@pytest.mark.parametrize(
    ("changed", "first", "rate"),
    [
        (model(), "store", 0.4 / 3.9e-6),
        (model(cpu_s=3.9e-6), "hosts", 4 * 0.6 / 23.9e-6),
        (model(time_s=0.8, max_in_flight=20_000), "in flight", 100_000.0),
    ],
    ids=["store", "hosts", "in flight"],
)
def test_the_first_limit_is_the_one_with_the_least_rate(changed: Model, first: str, rate: float) -> None:
    limits = changed.needs(FLOW, 60.0).limits
    assert [*limits.values()] == sorted(limits.values())
    assert next(iter(limits)) == first
    assert limits[first] == pytest.approx(rate, rel=0.002)


def test_a_checkpoint_saves_a_queue_once_however_many_messages_it_had() -> None:
    assert sizing.rows_per_s(FLOW, 1.0) == pytest.approx(1_000)
    assert sizing.rows_per_s(Flow(100_000, 10.0, 100), 1.0) == pytest.approx(10, rel=0.01)
    many = Flow(60_000, 60_000.0, 100)
    assert model().needs(many, 60.0).limits["database"] < many.rate
    assert math.isinf(model(checkpoint_s=5.0).needs(many, 60.0).limits["database"])


def test_a_flow_beyond_all_hosts_is_refused() -> None:
    with pytest.raises(sizing.TooMuch):
        model(cpu_s=1.0).needs(FLOW, 60.0)


def test_the_figures_that_ship_are_those_of_a_run() -> None:
    shipped = sizing.measured()
    assert shipped.date >= "2026-11-30"
    assert all(each >= 0 for each in (*shipped.host_cores, *shipped.store_cores, *shipped.host_mb))
    assert 30 < shipped.host_mb[0] < 200


def test_the_command_names_the_first_limit_and_what_sleeps(emq: Shell) -> None:
    shown = emq("size --tenants 1000000 --awake 20000 --rate 50000 --payload 2k")
    assert "First limit: " in shown
    assert "980,000 tenants asleep" in shown
    data = emq.json("size --tenants 1000000 --awake 20000 --rate 50000 --payload 2k")
    assert (data["awake"], data["payload"]) == (20_000, 2_000)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--awake 1001", "1,001 of 1,000 tenants; give at most --tenants"),
        ("--payload 2q", "'2q' is not a size; write 800, 2k or 1m"),
        ("--handler-cpu fast", "'fast' is not a duration"),
        ("--handler-time 1000d", "need more than 1,024 hosts"),
    ],
)
def test_what_is_wrong_is_told_in_a_line(emq: Shell, words: str, told: str) -> None:
    assert told in emq.refused(f"size --tenants 1000 --rate 100000 {words}")
