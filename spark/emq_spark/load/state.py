"""The state of a run, in files beside its ledger: the run's intent, and the progress of each partition.

    _load.json             intent of the run; only a load with the same intent may continue the run
    _part-<n>.json         progress of a partition, written before each slice is published
    _queues-<n>-<attempt>.json    incarnations of the queues, see `emq_spark.load.incarnations`
    _stop                  asks all partitions to end after their slice

The files are small, and each is replaced atomically. Files whose names begin with `_` do not belong to the ledger.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from emq.runtime import errors

REMEDY = "load under another run id"
"""What to do if nobody can tell any more which messages a run has published."""

T = TypeVar("T", bound=msgspec.Struct)

_RUN = "_load.json"
_STOP = "_stop"


class Intent(msgspec.Struct, frozen=True):
    """The intent of a run: the plan and options that a restart must repeat.

    Attributes:
        plan: the plan as TOML or JSON text, with all options given beside it.
        seed: seed of the run.
        partitions: number of partitions.
        paced: True if slices wait for their time.
        file: checksum of the replayed file; 0 for tenants.
        started_us: first start of the run by the driver, microseconds since the epoch.
    """

    plan: str
    seed: int
    partitions: int
    paced: bool
    file: int
    started_us: int


class State(msgspec.Struct, frozen=True):
    """The progress of a partition.

    Attributes:
        partition, attempt: the partition, and the attempt that wrote this state.
        begin_us: begin of the partition's load, microseconds since the epoch; the same in each attempt.
        begun: slices below this number may have been published.
        rows: messages whose outcome is in the ledger, or about to be written there.
        failed: messages among `rows` that were refused or have an unknown outcome.
        late_s: seconds by which the last slice was late.
        pid: id of the process.
        ended: True if the partition is published, and its ledger closed.
    """

    partition: int
    attempt: int
    begin_us: int
    begun: int = 0
    rows: int = 0
    failed: int = 0
    late_s: float = 0.0
    pid: int = 0
    ended: bool = False


def save_intent(place: Path, intent: Intent) -> None:
    write(place / _RUN, intent)


def intent_of(place: Path) -> Intent | None:
    return read(place / _RUN, Intent)


def save(place: Path, state: State) -> None:
    """Replace the partition's state.

    Raises:
        EMQError: a later attempt has taken the partition over; publish nothing more.
    """
    there = state_of(place, state.partition)
    if there is not None and there.attempt > state.attempt:
        raise errors.EMQError(
            f"partition {state.partition} of the load is published by attempt {there.attempt}; "
            f"attempt {state.attempt} ends"
        )
    write(_path(place, state.partition), state)


def state_of(place: Path, partition: int) -> State | None:
    return read(_path(place, partition), State)


def states(place: Path, partitions: int) -> list[State]:
    """Return the states of the partitions that have begun."""
    found = (state_of(place, partition) for partition in range(partitions))
    return [state for state in found if state is not None]


def ask_to_stop(place: Path) -> None:
    (place / _STOP).touch()


def is_stopping(place: Path) -> bool:
    return (place / _STOP).exists()


def clear_stop(place: Path) -> None:
    (place / _STOP).unlink(missing_ok=True)


def _path(place: Path, partition: int) -> Path:
    return place / f"_part-{partition}.json"


def write(path: Path, value: msgspec.Struct) -> None:
    """Write a file, or replace it whole."""
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(msgspec.json.encode(value))
    temporary.replace(path)


def read(path: Path, kind: type[T]) -> T | None:
    """Return what a file holds; None if there is no such file. Raises `EMQError` if nobody can read it."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as exc:
        raise errors.EMQError(f"{path} cannot be read ({exc}); {REMEDY}") from exc
