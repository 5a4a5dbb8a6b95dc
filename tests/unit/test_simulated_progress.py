"""The judge of M: what counts as going back, also after the database lost its last writes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from emq.offsets.checkpoints import Checkpoint
from support.simulation.progress import Progress

QUEUE, GROUP = "keyed/1/low", "keyed/1"


class Judged:
    """A judge and what it has found."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []
        evidence = SimpleNamespace(
            offsets={QUEUE: {offset: f"m{offset}" for offset in range(1, 100)}},
            succeeded={f"m{offset}" for offset in range(1, 100)},
            moved=set[str](),
            dropped_names=set[str](),
            violated=lambda promise, _, text: self.found.append((promise, text)),
        )
        self.progress = Progress(cast(Any, evidence))

    def taken_over(self) -> None:
        """The former owner h1 saves 50; h2 loads that under a later epoch."""
        self.progress.saved("h1", GROUP, Checkpoint(QUEUE, 1, 50))
        self.progress.loaded("h2", GROUP, Checkpoint(QUEUE, 1, 50))


def test_an_owner_that_comes_with_less_than_was_saved_is_found() -> None:
    judged = Judged()
    judged.taken_over()
    judged.progress.saved("h2", GROUP, Checkpoint(QUEUE, 2, 49))
    assert [promise for promise, _ in judged.found] == ["M"]


def test_a_fence_that_the_database_lost_lets_the_former_owner_save_once_more() -> None:
    judged = Judged()
    judged.taken_over()
    judged.progress.database_lost({QUEUE: Checkpoint(QUEUE, 1, 50)})
    judged.progress.saved("h1", GROUP, Checkpoint(QUEUE, 1, 52))
    judged.progress.saved("h2", GROUP, Checkpoint(QUEUE, 2, 51))
    assert judged.found == []
    judged.progress.saved("h1", GROUP, Checkpoint(QUEUE, 1, 53))
    assert [promise for promise, _ in judged.found] == ["O"], "the fence holds again from the owner's save on"
