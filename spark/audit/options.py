"""What an audit is asked to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from emq import errors
from emq.topics.model import Topic
from spark.audit.store import StoreView

CARRIED_S = 600.0
CRASH_S = 5.0
UNWRITTEN_S = 2.0
SKEW_S = 0.25


@dataclass(frozen=True)
class AuditOptions:
    """What to audit, and what a trail cannot know.

    Attributes:
        trails: directories of the hosts' (and producers') trails, at least one.
        ledgers: directories with the ledgers of load runs; none if the producers kept a trail.
        runs: of which runs; empty for the only one there is, ("*",) for all that are there.
        topics: as the catalog has them; without them caps are not judged, and all topics count as strict.
        earlier: as it had them before, where quotas or other settings were changed meanwhile: the highest cap and the
            most attempts that a topic ever had count, and priority only where it was strict throughout.
        store: what store and database say now; None if they were not asked.
        state: where an audit leaves what the next one goes on from; None for one that stands alone.
        crashed: sources known to have been killed, whose trails therefore were not closed.
        live: hosts may still run, so that no trail has to be closed and what was not delivered may still be.
        purged: dead letters may have been purged, or left by other ways that no trail shows.
        max_skew_s: seconds that the clocks of two machines may differ, 0 or more.
        crash_s: seconds before its death of which a crash may repeat what happened: the interval of checkpoints, and
            how long writing them took.
        unwritten_s: seconds before its death of which the trail of a killed host tells nothing: the interval of its
            segments, and how long writing one took. What a checkpoint says that it finished then is believed.
        carried_s: seconds of the newest events that an audit with a state hands on, for what comes late.
    """

    trails: Sequence[Path]
    ledgers: Sequence[Path] = ()
    runs: Sequence[str] = ()
    topics: Sequence[Topic] | None = None
    earlier: Sequence[Sequence[Topic]] = ()
    store: StoreView | None = None
    state: Path | None = None
    crashed: frozenset[str] = frozenset()
    live: bool = False
    purged: bool = False
    max_skew_s: float = SKEW_S
    crash_s: float = CRASH_S
    unwritten_s: float = UNWRITTEN_S
    carried_s: float = CARRIED_S

    def __post_init__(self) -> None:
        # The JVM need not have the working directory of this process.
        for name in ("trails", "ledgers"):
            object.__setattr__(self, name, tuple(path.absolute() for path in getattr(self, name)))
        if self.state is not None:
            object.__setattr__(self, "state", self.state.absolute())
        if not self.trails:
            raise errors.InvalidSettings("no trail directory was given; name at least one")
        for name in ("max_skew_s", "crash_s", "unwritten_s", "carried_s"):
            value = getattr(self, name)
            if not 0 <= value < 1e9:
                raise errors.InvalidSettings(f"{name} {value} must be a number of seconds, 0 or more")
        if len(set(self.trails)) < len(self.trails) or len(set(self.ledgers)) < len(self.ledgers):
            raise errors.InvalidSettings("a directory was given twice; name each once")

    @property
    def slack_us(self) -> int:
        """`max_skew_s` in microseconds."""
        return round(self.max_skew_s * 1e6)

    @property
    def crash_us(self) -> int:
        """`crash_s` in microseconds."""
        return round(self.crash_s * 1e6)

    @property
    def carried_us(self) -> int:
        """`carried_s` in microseconds."""
        return round(self.carried_s * 1e6)
