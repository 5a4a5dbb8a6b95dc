"""Records of attempts: what a pusher tells."""

from __future__ import annotations

import asyncio

import pytest
import yarl
from aiohttp import web

from emq.runtime import errors
from emq.runtime.clock import ManualClock
from emq.storage.message import Message
from emq_push.addresses import AddressFilter
from emq_push.attempts import Attempt
from emq_push.endpoint import Endpoint
from emq_push.masking import Masking
from emq_push.pusher import Pusher, Reports
from emq_push.schedule import RECOMMENDED_ATTEMPTS, RECOMMENDED_S, Schedule
from support.http_receiver import HttpReceiver

NOW_S = 1_700_000_000.0
DAY_S = 86_400
ANY = AddressFilter(("*",))


class Sink:
    def __init__(self) -> None:
        self.all: list[Attempt] = []

    def attempted(self, attempt: Attempt) -> None:
        self.all.append(attempt)


async def attempted(answer: web.Response | int, attempt: int = 1, **fields: object) -> Attempt:
    """Return the record of one attempt."""
    receiver, sink = HttpReceiver(lambda request: answer), Sink()
    async with receiver.running():
        endpoint = Endpoint("t", yarl.URL(receiver.url()), **fields)  # type: ignore[arg-type]
        async with Pusher(
            {"t": endpoint}.get, clock=ManualClock(NOW_S), addresses=ANY, reports=Reports(attempts=sink)
        ) as push:
            [raised] = await asyncio.gather(
                push(Message("id1", b"{}", topic="t", attempt=attempt)), return_exceptions=True
            )
    [found] = sink.all
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


async def test_a_record_shows_no_secret() -> None:
    text = "wrong password hunter22 in Authorization: Bearer abc.def and whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    found = await attempted(web.Response(status=401, text=text), masked=Masking(["hunter22"]))
    assert found.answer == "wrong password *** in Authorization: Bearer *** and whsec_***"
    assert "hunter22" not in found.reason


async def test_a_record_shows_no_part_of_a_secret_that_is_longer_than_what_is_read() -> None:
    secret = "eyJ" + "k1" * 1000
    found = await attempted(web.Response(status=401, text=f"not valid: {secret}"), masked=Masking([secret]))
    assert found.answer == "not valid: ***"
    assert "k1" not in found.reason


async def test_a_record_is_text_that_every_database_takes() -> None:
    found = await attempted(web.Response(status=500, body=b"a\0b\xffc\n\xe2\x82"))
    assert found.answer == "a\ufffdb\ufffdc\n"


async def test_a_record_keeps_the_begin_of_a_long_answer() -> None:
    found = await attempted(web.Response(status=500, text="x" * 5000))
    assert len(found.answer) == 256


def test_the_recommended_schedule_spans_three_days() -> None:
    assert sum(RECOMMENDED_S) == 75 * 3600 + 35 * 60 + 5
    assert RECOMMENDED_ATTEMPTS == 10
