"""The places of messages in flight: who is called when some become free."""

from types import SimpleNamespace
from typing import Any

from emq.dispatch.flight import Flight
from emq.places.sharing import HoldingTimes


class Owner:
    """A topic that has nothing in flight and whose messages take no time."""

    def __init__(self) -> None:
        self.in_flight = self.flying = 0
        self.pace = HoldingTimes()
        self.pace.took_s = 0.0
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
