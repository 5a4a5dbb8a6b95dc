"""The simulated handler that takes lists."""

from __future__ import annotations

from typing import Any

import pytest

from emq.runtime import errors
from emq.storage.message import Message
from support.simulation.member import Member
from support.simulation.work import Work


class Told:
    """What the handler tells of its messages, by their place in the batch."""

    def __init__(self) -> None:
        self.attempts: list[int] = []
        self.succeeded: dict[int, bool] = {}

    def started(self, m: Message) -> int:
        self.attempts.append(m.attempt)
        return len(self.attempts) - 1

    def ended(self, number: int, succeeded: bool) -> None:
        self.succeeded[number] = succeeded


def message(id_: str, attempt: int, fails: int) -> Message:
    return Message(id_, Work(id_, fails=fails).payload(), attempt=attempt)


async def test_of_two_copies_of_a_message_in_a_batch_one_has_to_do() -> None:
    batch = [message("twice", 3, 2), message("twice", 1, 2), message("fails", 1, 1)]
    told: Any = Told()
    with pytest.raises(errors.PartialFailure) as raised:
        await Member._handle_batch(told, batch)
    assert set(raised.value.failures) == {"fails"}
    assert told.succeeded == {0: True, 1: True, 2: False}
