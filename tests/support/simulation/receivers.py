"""Programs that ask for messages, and how they settle what they are given: in time, late, or not at all."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from emq.groups.receiver import Delivery, Receiver
from emq.storage.message import Message
from support.simulation.evidence import Evidence
from support.simulation.work import Work

if TYPE_CHECKING:
    from support.simulation.member import Member

VISIBILITY_S = 1.5
ASKING_S = 1.0
ASKING = 2
"""Programs that ask at each host."""

PAUSES, PAUSE_S = 0.2, 0.04
"""How often a program does something else before it asks again, and for how long."""

SLACK_S = 1e-3


class _Given:
    """A message on its way through a receiver.

    Attributes:
        until: when its time is over, if it is not settled; None before it was handed out.
        acked: what was said of it: True, False or nothing.
    """

    def __init__(self) -> None:
        self.until: float | None = None
        self.acked: bool | None = None


class JudgedReceiver(Receiver):
    """A receiver of a host; what it gives, and when it takes it back, is judged."""

    def __init__(self, member: Member, evidence: Evidence) -> None:
        super().__init__(VISIBILITY_S)
        self._member = member
        self._evidence = evidence
        self._given: dict[int, _Given] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def handle(self, message: Message) -> None:
        number, succeeded = self._member.started(message), False
        given = self._given[id(message)] = _Given()
        try:
            await super().handle(message)
            succeeded = True
        except Exception:
            if given.acked is None and (given.until is None or self._evidence.now < given.until - SLACK_S):
                self._wrong(message, f"it ended at {self._evidence.now:.3f} s, and had time until {given.until}")
            work = Work.parse(message.payload)
            if given.acked is None and message.attempt > work.fails:
                self._evidence.late[work.name] += 1
            raise
        finally:
            if succeeded is not (given.acked is True) and given.acked is not None:
                self._wrong(message, f"it ended {'well' if succeeded else 'badly'} after the receiver said otherwise")
            self._member.ended(number, succeeded)
            del self._given[id(message)]

    async def ask(self, rng: random.Random) -> None:
        """Be a program that asks again and again. Ends by cancellation."""
        while True:
            if rng.random() < PAUSES:
                await asyncio.sleep(PAUSE_S)
            most, begin = rng.choice((2, 5)), self._evidence.now
            found = await self.receive(max_messages=most, timeout_s=ASKING_S)
            if len(found) > most or len({id(delivery.message) for delivery in found}) < len(found):
                self._evidence.violated("receive", "", f"{len(found)} of {most} messages in one answer")
            if not found and self._evidence.now < begin + ASKING_S - SLACK_S:
                self._evidence.violated("receive", "", f"no answer after {self._evidence.now - begin:.3f} s")
            for delivery in found:
                given = self._given.get(id(delivery.message))
                if given is None or given.until is not None:
                    self._wrong(delivery.message, "it was handed out when it had ended, or twice")
                    continue
                given.until = self._evidence.now + VISIBILITY_S
                task = asyncio.create_task(self._treat(delivery, given))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _treat(self, delivery: Delivery, given: _Given) -> None:
        m = delivery.message
        work = Work.parse(m.payload)
        left_s = work.takes_ms / 1000
        while left_s > 0:
            await asyncio.sleep(min(left_s, VISIBILITY_S / 2))
            left_s -= VISIBILITY_S / 2
            if left_s > 0 and delivery.extend(VISIBILITY_S):
                given.until = self._evidence.now + VISIBILITY_S
        if m.attempt > work.fails:
            self._say(given, delivery.ack, True)
        elif work.number % 3:
            self._say(given, lambda: delivery.nack("no", after_s=0.4 if work.number % 2 else None), False)
        else:
            self._evidence.happened["unsettled"] += 1

    def _say(self, given: _Given, say: Callable[[], bool], acked: bool) -> None:
        """A verdict that comes in time counts, and no other does."""
        if say():
            given.acked = acked

    def _wrong(self, m: Message, text: str) -> None:
        self._evidence.violated("receive", f"{m.topic}/{m.group}", f"{Work.parse(m.payload).name}: {text}")
