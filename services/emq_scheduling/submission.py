"""A task to submit, and the receipt for it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from emq_scheduling.model import Costs


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """The receipt that `submit` returns.

    Attributes:
        id: of the task, for `status` and `cancel`.
        wait_s: predicted seconds until it starts; infinity for over a day, as while all its resources are paused; None
            while no host schedules the pool.
    """

    id: str
    wait_s: float | None = None


class Submission(msgspec.Struct, frozen=True, gc=False):
    """One task to submit; fields as for `Scheduling.submit`."""

    type: str
    payload: bytes | str
    tenant: str = ""
    key: str | None = None
    id: str | None = None
    deadline_s: float | None = None
    zone: str | None = None
    costs: Costs | None = None
    keep: bool = False
    reply_to: str | None = None
    keys: dict[str, str] | None = None
    tries: Sequence[str] | None = None
    patience_s: float | None = None
