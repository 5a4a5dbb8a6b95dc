"""The options of an audit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from emq.runtime import errors
from emq.topics.model import Topic
from emq_spark.audit.store import StoreView

CARRIED_S = 600.0
CRASH_S = 5.0
UNWRITTEN_S = 2.0
SKEW_S = 0.25


@dataclass(frozen=True)
class AuditOptions:
    """The directories to audit, and the facts that a trail cannot hold.

    Attributes:
        trails: directories of the hosts' (and producers') trails, at least one.
        ledgers: directories with the ledgers of load runs; empty if the producers kept a trail.
        runs: ids of the load runs to audit; empty if the directories hold one run only, ("*",) for all runs.
        topics: the topics of the catalog; None if unknown: then caps are not judged, and all topics count as strict.
        earlier: earlier versions of the catalog, where somebody changed quotas or other settings. A topic is judged by
            its highest cap and its most attempts; its priorities are judged only if it was strict throughout.
        store: the contents of store and database now; None if nobody read them.
        state: directory in which an audit leaves its state for the next one; None for a single audit.
        crashed: sources that were killed and therefore did not close their trails.
        live: True if hosts may still run: then a trail may be open, and a message may still be delivered.
        purged: True if somebody may have purged dead letters, or removed them in another way that no trail shows.
        max_skew_s: seconds that the clocks of two machines may differ, 0 or more.
        crash_s: seconds before a host's death whose deliveries the next owner may repeat: the interval of checkpoints
            plus the time that writing them took.
        unwritten_s: seconds before a host's death that are missing from its trail: the interval of its segments plus
            the time that writing one took. The audit believes a checkpoint about messages finished in this time.
        carried_s: an audit with a state hands on the events of the last so many seconds, because others come late.
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
