"""Keeps a host's clock by the time of its environment, so that all hosts count the same seconds.

**Which time.** Hosts count starts by aligned seconds. If their clocks differed, a group that moves would spend a
second's quota twice. All hosts of an environment share one database, the catalog's, so the database's clock is the
*reference*. There is exactly one such clock, while a Redis Cluster has as many as masters. For SQLite and for databases
in memory, the reference is the machine's own clock.

**How.** The host does as NTP does: it asks the reference, takes the middle of the round trip as the time of the answer,
believes the answer with the shortest round trip of the last few, and allows for `DRIFT` since then. The host asks every
`INTERVAL_S`, and at once when the machine's wall clock jumps.

**Never twice.** The environment's time never goes back (`successor`); hosts note it in the database. If the reference's
clock jumps back, the environment's time goes on from where it was, or up to `UNNOTED_US` later. The environment's time
then runs slower by `SLEW` until both agree again, and hosts lose this part of their quotas. The note does not show a
jump back to a time after the note. Running hosts see such a jump by their own count and report it (`anchor_us`); so
does a host that starts on the machine that noted the time.

If the clock jumps forward, the environment's time follows at once and leaves out seconds. A host starts nothing in the
second in which it lands, since another host may have used this second's quota of the same groups. A host whose own
clock is ahead stands still until the time has come.

**A lost database.** A database that comes back empty or from an old copy has lost the note. A host notices this if the
database tells an earlier time than before, and then restores the environment's time (`anchor_us`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

import msgspec

from emq.runtime import errors, pace
from emq.runtime.clock import Nanoseconds, SystemClock
from emq.runtime.lease import Lease

log = logging.getLogger(__name__)

INTERVAL_S = 2.0
"""Seconds between questions to the reference."""

AGAIN_S = 0.05
"""Seconds between questions when the host wants a few answers in a row."""

LOOK_S = 0.5
"""Seconds between looks at the machine's wall clock."""

KEPT = 8
"""Most answers kept. The best one counts; beyond this number the worst is forgotten."""

FIRST = 3
"""Questions in a row at the start and after a jump."""

DRIFT = 200e-6
"""Most drift of a machine's clock from the reference's, in seconds a second; a quartz drifts by a quarter of this."""

SLEW = 0.01
"""Part by which the environment's time runs slower while it is ahead of the reference's clock."""

TOLERANCE_US = 2_000
"""Microseconds below which a clock is not corrected, since round trips do not tell the time more exactly."""

JUMP_S = 0.25
"""Seconds of difference between a wall clock's move and the time passed that count as a jump."""

UNNOTED_US = 8_000_000
"""Most microseconds that the environment's time may have gone on since its last note. If the reference's clock is
behind the note, the time goes on from this much later: hosts that have died since may have counted those seconds."""

BOUND_S = 0.25
"""Most error of a host's clock, in seconds, with which the host still starts messages."""


class Noted(NamedTuple):
    """The environment's time as a host noted it.

    Attributes:
        time_us, at_us: the environment's time, and the reference's clock at that moment, in microseconds.
        run, passed_us: the run of the machine (`clock.this_run`) that noted the time, and the time passed in that run.
    """

    time_us: int
    at_us: int
    run: int = 0
    passed_us: int = 0


class Successor(NamedTuple):
    """Attributes:
    time_us: the environment's time.
    has_jumped: the reference's clock was set back since the time was noted, so it has to be noted again.
    """

    time_us: int
    has_jumped: bool = False


def successor(reference_us: int, noted: Noted | None, run: int = 0, passed_us: int = 0) -> Successor:
    """Return the environment's time when the reference's clock is at `reference_us`; microseconds since the epoch.

    Args:
        noted: the last note; None if the time was never noted.
        run, passed_us: the run of the asking machine, and the time passed in it. If that machine noted the time, they
            tell how much time has passed since the note.
    """
    if noted is None:
        return Successor(reference_us)
    seen_us = reference_us - noted.at_us
    truly_us = passed_us - noted.passed_us if run and run == noted.run else None
    if truly_us is None or truly_us < 0:
        counted_us, back_us = UNNOTED_US, -seen_us
    else:
        counted_us, back_us = min(UNNOTED_US, truly_us), truly_us - seen_us - round(DRIFT * truly_us)
    if seen_us < UNNOTED_US and back_us > JUMP_S * 1e6:
        return Successor(max(noted.time_us + counted_us, reference_us), True)
    if seen_us < 0:
        return Successor(max(noted.time_us, reference_us))
    return Successor(max(reference_us, noted.time_us + seen_us - round(seen_us * SLEW)))


class Asked(NamedTuple):
    """The environment's time, with the time that had passed on this machine before and after the question."""

    time_us: int
    sent_us: int
    came_us: int


class Reference(Protocol):
    """Asks for the environment's time."""

    def __call__(self, passed_us: Callable[[], int], note: bool, anchor_us: int | None = None, /) -> Awaitable[Asked]:
        """Args:
            passed_us: returns the time passed on this machine, in microseconds.
            note: note the answer, so that the environment's time cannot go back behind the answer.
            anchor_us: the anchor of a host's clock that is ahead of the note; the environment's time goes on from it.

        Raises:
            DatabaseUnavailable: ask again later.
        """


class Answer(NamedTuple):
    """One answer of the reference.

    Attributes:
        anchor_us: the clock's right anchor by this answer; see `SystemClock`.
        error_us: most microseconds by which the anchor was wrong when the answer came.
        at_us: when the answer came, in microseconds passed on this machine.
    """

    anchor_us: int
    error_us: float
    at_us: int

    def error_at(self, passed_us: int) -> float:
        """Return the microseconds by which the answer may be wrong at `passed_us`."""
        return self.error_us + (passed_us - self.at_us) * DRIFT


class ClockState(msgspec.Struct, frozen=True):
    """The state of a host's clock.

    Attributes:
        uncertain_s: most seconds by which the clock may be wrong; None before the first answer of the reference.
        corrected_s: sum of all corrections since the start, in seconds.
        machine_ahead_s: seconds by which the machine's wall clock is ahead of the environment's time.
        trouble: the reason why the host starts nothing, or the fault of the machine's clock; None if all is well.
    """

    uncertain_s: float | None = None
    corrected_s: float = 0.0
    machine_ahead_s: float = 0.0
    trouble: str | None = None


def _answer(asked: Asked) -> Answer:
    middle_us = (asked.sent_us + asked.came_us) // 2
    return Answer(asked.time_us - middle_us, (asked.came_us - asked.sent_us) / 2, asked.came_us)


class Timekeeper:
    """Keeps a clock by its environment's time; see the module.

    States: *unknown* (no answer yet: hosts start nothing), *kept*, *doubtful* (no answer for so long that the clock may
    be wrong by more than the bound: hosts start nothing until the next answer).

    Args:
        clock: the clock to correct; nothing else may correct this clock.
        reference: see `Reference`.
        bound_s: see `BOUND_S`.
    """

    def __init__(
        self,
        clock: SystemClock,
        reference: Reference,
        bound_s: float = BOUND_S,
        *,
        wall_ns: Nanoseconds = time.time_ns,
    ) -> None:
        self._clock = clock
        self._reference = reference
        self._bound_us = bound_s * 1e6
        self._wall_ns = wall_ns
        self._answers: list[Answer] = []
        self._keeping: object | None = None
        self._leases: list[Lease] = []
        self._corrected_us = 0
        self._landed = False
        self._heard_us = 0
        self._told = ""
        self._wall_anchor_us = self._machine_anchor_us()

    def bind(self, lease: Lease) -> None:
        """Let a host claim and start only while its clock is known."""
        self._leases.append(lease)
        lease.sure(self._sure_until_s())

    def unbind(self, lease: Lease) -> None:
        self._leases.remove(lease)

    async def begin(self) -> None:
        """Set the clock before its first use; leave it as it is if the reference does not answer."""
        await self._ask(FIRST)

    async def known(self) -> None:
        """Wait until the clock is set, however long the reference does not answer."""
        while not self._answers:
            await self._ask(FIRST)
            if not self._answers:
                await asyncio.sleep(LOOK_S)

    async def keep(self) -> None:
        """Keep asking the reference; of several such calls only one asks. Ends by cancellation."""
        me = object()
        try:
            while True:
                self._keeping = self._keeping or me
                if self._keeping is me:
                    await self._keep()
                await pace.rest(LOOK_S)
        finally:
            if self._keeping is me:
                self._keeping = None

    async def _keep(self) -> None:
        asked_us = self._clock.passed_us()
        while True:
            await pace.rest(LOOK_S)
            passed_us = self._clock.passed_us()
            moved_us = self._machine_anchor_us() - self._wall_anchor_us
            if abs(moved_us) > JUMP_S * 1e6:
                self._wall_anchor_us += moved_us
                log.warning("the clock of this machine has jumped by %+.1f s", moved_us / 1e6)
                await self._ask(FIRST)
                asked_us = passed_us
            elif passed_us - asked_us >= INTERVAL_S * 1e6 or not self._answers:
                await self._ask(1 if self._answers else FIRST)
                asked_us = passed_us
            self._tell()

    @property
    def is_known(self) -> bool:
        """True while the clock is right within the bound, so that hosts may start messages."""
        return self._sure_until_s() > self._clock.now()

    def state(self) -> ClockState:
        """Return a snapshot of the clock's state."""
        best = self._best()
        passed_us = self._clock.passed_us()
        return ClockState(
            None if best is None else round(best.error_at(passed_us) / 1e6, 4),
            round(self._corrected_us / 1e6, 3),
            round((self._machine_anchor_us() - self._clock.anchor_us) / 1e6, 3),
            self._trouble() or None,
        )

    # ------------------------------------------------------------------------------------------------------- details

    async def _ask(self, times: int) -> None:
        for i in range(times):
            if i:
                await asyncio.sleep(AGAIN_S if self._answers and self._leases else 0)
            try:
                asked = await self._reference(self._clock.passed_us, bool(self._leases))
                if self._leases and self._went_back(asked):
                    asked = await self._reference(self._clock.passed_us, True, self._clock.anchor_us)
            except errors.DatabaseUnavailable:
                return  # the database has logged the error
            self._heard_us = asked.time_us
            self._take(_answer(asked))

    def _went_back(self, asked: Asked) -> bool:
        """Return True if the environment's time has gone back behind the time that this host has counted.

        The note alone does not show this: the reference's clock has jumped back by less than the age of the note, or
        the database has lost the note. If this host's clock is further ahead, the host's clock is wrong itself.
        """
        best, answer = self._best(), _answer(asked)
        if best is None:
            return False
        back_us = self._clock.anchor_us - answer.anchor_us
        slower_us = SLEW * (answer.at_us - best.at_us)
        least_us = answer.error_us + best.error_at(answer.at_us) + slower_us + TOLERANCE_US
        return least_us < back_us and (back_us < UNNOTED_US or asked.time_us < self._heard_us)

    def _take(self, answer: Answer) -> None:
        best = self._best()
        if best is None:
            self._clock.reset(answer.anchor_us)
        elif abs(answer.anchor_us - best.anchor_us) > answer.error_us + best.error_at(answer.at_us) + TOLERANCE_US:
            # Both answers cannot be right, and the later one knows of what has happened in between.
            self._answers.clear()
        self._answers.append(answer)
        if len(self._answers) > KEPT:
            self._answers.remove(max(self._answers, key=lambda a: a.error_at(answer.at_us)))
        self._correct()

    def _correct(self) -> None:
        best = self._best()
        assert best is not None
        by_us = best.anchor_us - self._clock.anchor_us
        if abs(by_us) > max(TOLERANCE_US, best.error_us):
            self._clock.adjust(by_us)
            self._corrected_us += by_us
            for lease in self._leases:
                lease.shift(by_us / 1e6)
            if abs(by_us) > JUMP_S * 1e6:
                how = "leaves out" if by_us > 0 else "stands still for"
                self._landed = True
                asyncio.get_running_loop().call_later(1.001 - self._clock.now() % 1.0, self._next_second)
                log.warning("this host's clock %s %.1f s to follow its environment's time", how, abs(by_us) / 1e6)
        self._bound_leases()

    def _next_second(self) -> None:
        self._landed = False
        self._bound_leases()

    def _bound_leases(self) -> None:
        for lease in self._leases:
            lease.sure(0.0 if self._landed else self._sure_until_s())

    def _best(self) -> Answer | None:
        now_us = self._clock.passed_us()
        return min(self._answers, key=lambda a: a.error_at(now_us), default=None)

    def _sure_until_s(self) -> float:
        """Return the time, by the clock, until which its error stays within the bound."""
        best = self._best()
        if best is None or best.error_us >= self._bound_us:
            return 0.0
        return (self._clock.anchor_us + best.at_us + (self._bound_us - best.error_us) / DRIFT) / 1e6

    def _machine_anchor_us(self) -> int:
        return self._wall_ns() // 1000 - self._clock.passed_us()

    def _trouble(self) -> str:
        if not self.is_known:
            best = self._best()
            known = (
                "not known" if best is None else f"uncertain by {best.error_at(self._clock.passed_us()) / 1e6:.2f} s"
            )
            bound = f"{self._bound_us / 1e6:g} s"
            return f"the time of the database is {known}; nothing is started before it is known to {bound}"
        ahead_s = (self._machine_anchor_us() - self._clock.anchor_us) / 1e6
        if abs(ahead_s) > 2 * JUMP_S:
            side = "ahead of" if ahead_s > 0 else "behind"
            return (
                f"the clock of this machine is {abs(ahead_s):.1f} s {side} the database's, by which the host goes; "
                "run a time service (NTP) on all machines"
            )
        return ""

    def _tell(self) -> None:
        """Log a trouble of the clock once, and its end."""
        trouble = self._trouble()
        kind = trouble.partition(" is ")[0]
        if kind == self._told:
            return
        if trouble:
            log.warning("%s", trouble)
        else:
            log.info("the time is known again")
        self._told = kind
