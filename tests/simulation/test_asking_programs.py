"""Receivers and handlers in threads: what is planted in them is found."""

from __future__ import annotations

from typing import Any

import pytest

from emq.dispatch.dispatcher import Dispatcher
from emq.groups.receiver import Delivery, Receiver
from emq.quota.places.threads import Threads
from simulation.test_checker import CRASH, broken, outcome
from support.simulation.plans import TopicPlan

LOG: dict[str, Any] = {"max_attempts": 3, "backoff_s": (0.3, 0.8), "jitter": 0.0}
RECEIVED = TopicPlan("received", 12.0, 6.0, 8.0, failing=0.3, slow=0.2, options=LOG, by="receiver")
THREADED = TopicPlan("threaded", 12.0, 6.0, 8.0, slow=0.2, options={**LOG, "handler_timeout_s": 1.0}, by="thread")


@pytest.mark.parametrize("topic", [RECEIVED, THREADED], ids=["receiver", "threads"])
def test_nothing_is_found_where_nothing_is_planted(topic: TopicPlan) -> None:
    found = outcome(CRASH, topic, clean=False)
    assert found.violations == []
    assert len(found.evidence.starts) > 100


def test_a_message_that_is_taken_back_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Delivery.extend
    monkeypatch.setattr(Delivery, "extend", lambda self, seconds: real(self, seconds / 2))
    assert "receive" in broken(outcome(topic=RECEIVED))


def test_an_acknowledgement_that_does_not_count_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Delivery, "ack", lambda self: self.nack("planted") or True)
    assert "receive" in broken(outcome(topic=RECEIVED))


def test_a_message_that_is_handed_out_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Receiver.receive

    async def receive(self: Receiver, **given: Any) -> list[Delivery]:
        found = await real(self, **given)
        return found + found[:1]

    monkeypatch.setattr(Receiver, "receive", receive)
    assert "receive" in broken(outcome(topic=RECEIVED))


def test_an_answer_before_its_time_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Receiver.receive

    async def receive(self: Receiver, *, timeout_s: float, **given: Any) -> list[Delivery]:
        return await real(self, timeout_s=timeout_s / 2, **given)

    monkeypatch.setattr(Receiver, "receive", receive)
    assert "receive" in broken(outcome(topic=RECEIVED))


def test_a_host_that_does_not_hear_who_asks_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Dispatcher, "wanted", lambda self, receiver, topics=None: None)
    assert broken(outcome(topic=RECEIVED._replace(rate=20.0))) & {"L", "delay"}


def test_places_that_are_not_given_back_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Threads, "_give_back", lambda self, call: None)
    assert broken(outcome(topic=THREADED._replace(rate=20.0, slow=0.0)))


def test_a_function_whose_failure_is_swallowed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Threads._ended
    monkeypatch.setattr(Threads, "_ended", lambda self, call, result, failure: real(self, call, result, None))
    assert "L" in broken(outcome(topic=THREADED._replace(failing=0.3)))
