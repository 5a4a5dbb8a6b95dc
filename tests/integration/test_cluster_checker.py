"""What judges the runs of clusters finds each fault that is planted, and none where there is none."""

from __future__ import annotations

from support import cluster_receipts
from support.cluster_receipts import Crash, Receipt

QUOTA = 2.0


def start(number: int, second: float, host: str = "a", epoch: int = 1, attempt: int = 1) -> Receipt:
    at_us = round(second * 1e6)
    return Receipt("start", f"m{number}", attempt, "orders", 0, 0, number, at_us, epoch, at_us, host)


CLEAN = [start(0, 1.0), start(1, 1.5), start(2, 2.0), start(3, 4.0, "b", 2), start(3, 4.5, "b", 2, attempt=2)]


def test_a_clean_run_is_clean() -> None:
    assert cluster_receipts.unexcused(CLEAN, [], 0.5) == []
    assert cluster_receipts.over_cap(CLEAN, lambda r: QUOTA) == []
    assert cluster_receipts.two_owners(CLEAN) == []
    assert list(cluster_receipts.moves(CLEAN, 0, 5)) == [("orders/0", 1)]


def test_a_move_counts_at_the_time_of_its_plan_not_at_its_first_start() -> None:
    assert list(cluster_receipts.moves(CLEAN, 2, 3)) == [("orders/0", 1)]
    assert list(cluster_receipts.moves(CLEAN, 3, 5_000_000)) == []


def test_a_repetition_counts_unless_its_host_crashed_right_after_the_first_time() -> None:
    again = [*CLEAN, start(2, 5.0, "b", 2)]
    assert len(cluster_receipts.unexcused(again, [], 0.5)) == 1
    assert len(cluster_receipts.unexcused(again, [Crash("b", 2_100_000)], 0.5)) == 1
    assert len(cluster_receipts.unexcused(again, [Crash("a", 60_000_000)], 0.5)) == 1
    assert cluster_receipts.unexcused(again, [Crash("a", 2_100_000)], 0.5) == []


def test_one_start_too_many_in_a_second_counts_also_if_two_hosts_share_them() -> None:
    assert len(cluster_receipts.over_cap([*CLEAN, start(4, 1.9)], lambda r: QUOTA)) == 1
    assert len(cluster_receipts.over_cap([*CLEAN, start(4, 1.9, "b", 2)], lambda r: QUOTA)) == 1


def test_a_start_by_who_is_not_the_owner_any_more_counts() -> None:
    assert len(cluster_receipts.two_owners([*CLEAN, start(4, 4.1)])) == 1
    assert len(cluster_receipts.two_owners([*CLEAN, start(4, 4.1, "c", 2)])) == 1
    assert len(cluster_receipts.two_owners([*CLEAN, start(4, 4.9, "c", 0)])) > 0
