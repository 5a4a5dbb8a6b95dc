"""Records of attempts: what a pusher tells."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from aiohttp import web

from emq.runtime import errors
from emq_push.attempts import Attempt
from emq_push.masking import Masking
from emq_push.pusher import Reports
from emq_push.schedule import RECOMMENDED_ATTEMPTS, RECOMMENDED_S, Schedule
from support.http_receiver import HttpReceiver
from support.manual_clock import ManualClock
from support.pushing import Attempts, deliver, endpoint, message

NOW_S = 1_700_000_000.0


async def attempted(answer: web.Response | int, attempt: int = 1, **fields: Any) -> Attempt:
    """Return the record of one attempt."""
    receiver, records = HttpReceiver(lambda request: answer), Attempts()
    async with receiver.running():
        to, reports = dataclasses.replace(endpoint(receiver.url()), **fields), Reports(attempted=records.attempted)
        [raised] = await deliver(to, message(attempt=attempt), clock=ManualClock(NOW_S), reports=reports)
    [found] = records.all
    if isinstance(raised, errors.Retry | errors.GiveBack):
        assert raised.reason == found.reason
    if found.next_us:
        assert isinstance(raised, errors.Retry)
        assert raised.after_s is not None
        assert found.next_us == pytest.approx((NOW_S + raised.after_s) * 1e6, abs=2)
    return found


async def test_a_success_is_recorded() -> None:
    found = await attempted(web.Response(text="thanks"), 3)
    assert found == Attempt("t", "id1", 3, int(NOW_S * 1e6), 0, 200, "delivered", "", "thanks", 0)


async def test_a_failure_is_recorded_with_the_time_of_the_next_attempt() -> None:
    schedule = Schedule((10.0, 100.0), 0.5, 5)
    found = await attempted(500, 2, schedule=schedule)
    assert (found.status, found.outcome, found.reason) == (500, "retry", "HTTP 500")
    assert 50 <= found.next_us / 1e6 - NOW_S <= 100
    asked = await attempted(web.Response(status=503, headers={"Retry-After": "700"}), 1, schedule=schedule)
    assert asked.next_us == int((NOW_S + 700) * 1e6)


@pytest.mark.parametrize("asked", ["0", "1", "Wed, 21 Oct 2015 07:28:00 GMT"])
async def test_an_endpoint_that_asks_for_a_short_wait_does_not_shorten_the_schedule(asked: str) -> None:
    answer = web.Response(status=429, headers={"Retry-After": asked})
    found = await attempted(answer, 2, schedule=Schedule((10.0, 100.0), 0.0, 5))
    assert found.next_us == int((NOW_S + 100) * 1e6)


async def test_the_last_attempt_is_dead_and_one_at_an_endpoint_that_is_gone_is_parked() -> None:
    found = await attempted(500, 5, schedule=Schedule((10.0,), 0.0, 5))
    assert (found.outcome, found.next_us) == ("dead", 0)
    found = await attempted(410, 5, schedule=Schedule((10.0,), 0.0, 5))
    assert (found.outcome, found.next_us, found.status) == ("parked", 0, 410)


@pytest.mark.parametrize(
    ("said", "masked", "kept"),
    [
        (
            b"wrong password hunter22 in Authorization: Bearer abc.def and whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "hunter22",
            "wrong password *** in Authorization: Bearer *** and whsec_***",
        ),
        # longer than what is read
        (b"not valid: eyJ" + b"k1" * 1000, "eyJ" + "k1" * 1000, "not valid: ***"),
        (b"a\0b\xffc\n\xe2\x82", "hunter22", "a\ufffdb\ufffdc\n"),
        (b"x" * 5000, "hunter22", "x" * 256),
    ],
)
async def test_a_record_is_the_begin_of_the_answer_without_secrets_as_any_database_takes_it(
    said: bytes, masked: str, kept: str
) -> None:
    found = await attempted(web.Response(status=401, body=said), masked=Masking([masked]))
    assert found.answer == kept
    assert "hunter22" not in found.reason
    assert "k1" not in found.reason


def test_the_recommended_schedule_spans_three_days() -> None:
    assert sum(RECOMMENDED_S) == 75 * 3600 + 35 * 60 + 5
    assert RECOMMENDED_ATTEMPTS == 10
