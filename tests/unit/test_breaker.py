"""A circuit breaker of one thing that is called."""

from __future__ import annotations

import pytest

from emq.quota.breaker import CLOSED_S, FAILURES, JITTER, MOST_CLOSED_S, Breaker


def test_a_probe_that_succeeds_ends_a_row_of_failures_and_shortens_the_next_rest() -> None:
    breaker = Breaker(20)
    for _ in range(FAILURES):
        assert not breaker.is_out
        breaker.failed()
    assert breaker.is_out
    rests = [breaker.rest_s() for _ in range(10)]
    assert MOST_CLOSED_S <= rests[-1] <= MOST_CLOSED_S * (1 + JITTER)
    breaker.answers_again()
    assert not breaker.is_out
    assert CLOSED_S <= breaker.rest_s() <= CLOSED_S * (1 + JITTER)


@pytest.mark.parametrize(("call_s", "is_out"), [(0.0, False), (60.0, True)])
def test_failures_of_rare_calls_fade_more_slowly(call_s: float, is_out: bool) -> None:
    breaker = Breaker(20)
    for number in range(FAILURES):
        breaker.fade(60.0 * number, call_s)
        breaker.failed()
    assert (breaker.bad > FAILURES - 1.5) is is_out
