"""The data of a store in memory, which several instances share."""

from __future__ import annotations

from typing import Any

from emq_stores.memory import World


def test_instances_hear_of_lost_writes_in_the_order_in_which_they_joined() -> None:
    """Else each run of a simulation that loses writes would be another."""
    told: list[int] = []

    class Instance:
        def __init__(self, number: int) -> None:
            self._number = number

        def lose(self) -> None:
            told.append(self._number)

    world, instances = World(), [Instance(number) for number in range(50)]
    joining: list[Any] = instances[::2] + instances[1::2]  # not the order of their addresses
    for instance in joining:
        world.joined(instance)
    world.restore(None)
    assert told == [*range(0, 50, 2), *range(1, 50, 2)]
