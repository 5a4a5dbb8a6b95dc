"""The places of messages in flight: who is called when some become free."""

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from emq.dispatch.flight import Flight
from emq.quota.places.sharing import HoldingTimes


class Owner:
    """A topic that has nothing in flight, whose handler waits and whose messages take no time."""

    def __init__(self) -> None:
        self.in_flight = self.flying = 0
        self.waits, self.batch_size = 1.0, 1
        self.pace = HoldingTimes()
        self.pace.took_s, self.pace.heard = 0.0, 1_000_000
        self.topic = SimpleNamespace(qps=1000.0)


def topic() -> Any:
    return Owner()


def group(owner: Any) -> Any:
    return SimpleNamespace(owner=owner, in_flight=0, gauge=SimpleNamespace(flying=0))


class Called(list[Any]):
    def __call__(self, owner: Any) -> None:
        self.append(owner)


async def test_one_free_place_calls_one_of_the_waiting_topics() -> None:
    called = Called()
    flight = Flight(100, called)
    busy = group(topic())
    flight.enter(busy, 100, 0)
    waiting = [topic() for _ in range(10)]
    for owner in waiting:
        assert flight.places(owner, 1, 0.0) == 0
    for left in range(4):
        assert len(called) == left
        flight.leave(busy, 1, 0)
        flight.admit()
    assert flight.places(called[0], 1, 0.0) == 1
    flight.stop()


async def test_a_called_topic_that_asks_for_nothing_keeps_its_place_from_others_only_for_a_moment() -> None:
    called = Called()
    flight = Flight(100, called)
    busy = group(topic())
    flight.enter(busy, 100, 0)
    for _ in range(100):
        flight.places(topic(), 1, 0.0)
    flight.leave(busy, 1, 0)
    flight.admit()
    assert len(called) == 1
    flight.admit()
    assert len(called) == 1
    flight._look_again()
    called.clear()
    flight.admit()
    assert len(called) == 1
    flight.stop()


async def test_a_look_at_a_topic_that_breaks_keeps_the_others_from_no_look() -> None:
    flight = Flight(100, mock.Mock(side_effect=RuntimeError))
    flight.enter(group(topic()), 100, 0)
    for _ in range(2):
        flight.places(topic(), 1, 0.0)
    for _ in range(2):
        timer = flight._looking
        assert timer is not None
        timer.cancel()
        with pytest.raises(RuntimeError):
            flight._look_again()
    assert not flight.waiting
    flight.stop()


async def test_an_unknown_topic_gets_one_place_until_messages_have_ended_or_while_few_places_are_taken() -> None:
    flight = Flight(1_000, Called())
    owner = topic()
    owner.pace = HoldingTimes()
    assert flight.places(owner, 64, 0.0) == 64
    busy = group(topic())
    flight.enter(busy, 150, 0)
    assert flight.places(owner, 64, 0.0) == 1
    flight.enter(group(owner), 1, 0)
    owner.pace.began(0)
    assert flight.places(owner, 64, 0.5) == 0
    assert flight.places(owner, 64, 2.0) == 64
    flight.enter(busy, 350, 0)
    assert flight.places(owner, 64, 2.0) == 0
    owner.pace.ended(0, 2_000_000)
    assert flight.places(owner, 64, 2.0) == 1
    owner.pace.passed(9)
    assert flight.places(owner, 64, 2.0) == 10
    flight.stop()


async def test_a_topic_whose_handler_never_waits_starts_as_many_messages_as_it_wants_while_one_place_is_left() -> None:
    flight = Flight(1_000, Called())
    owner = topic()
    owner.waits = 0.0
    flight.enter(group(topic()), 999, 0)
    assert flight.places(owner, 64, 0.0) == 64
    owner.batch_size = 10  # the messages of a batch are in flight from its start
    assert flight.places(owner, 64, 0.0) == 1
    flight.stop()
