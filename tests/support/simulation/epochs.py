"""O: epochs are given out once each, and a group is never acquired twice under one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from support.simulation.evidence import Evidence


class Epochs:
    """Whatever the database forgets: a fence lets equal epochs pass."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._given: dict[int, str] = {}
        self._acquired: dict[tuple[str, int], str] = {}

    def given(self, to: str, epoch: int) -> None:
        """The database has counted its number of the newest epoch up."""
        self._evidence.note("", f"{to} is given epoch {epoch}")
        if epoch in self._given:
            self._evidence.violated(
                "O", "", f"{to} is given epoch {epoch}, which {self._given[epoch]} was given before"
            )
        self._given[epoch] = to

    def acquired(self, host: str, group: str, epoch: int) -> None:
        before = self._acquired.setdefault((group, epoch), host)
        if before != host:
            self._evidence.violated("O", group, f"{host} acquires it under epoch {epoch}, as {before} had")
