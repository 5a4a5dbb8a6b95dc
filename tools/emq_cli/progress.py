"""A progress bar on a terminal."""

from __future__ import annotations

from typing import Any

from emq_cli.session import Session


class Bar:
    """Shows a progress bar on a terminal, else nothing.

    Args:
        text: before the bar.
        total: the number at the end; None if unknown.
        count: behind the bar, instead of "done/total"; may name `task.fields[...]`.
        fields: first values of what `set` changes.
    """

    def __init__(
        self, session: Session, text: str, total: int | None = None, *, count: str = "", **fields: Any
    ) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        counted = TextColumn(count) if count else MofNCompleteColumn()
        columns = (TextColumn("{task.description}"), BarColumn(), counted, TimeElapsedColumn())
        quiet = session.json or not session.err.is_terminal
        self._progress = Progress(*columns, console=session.err, transient=True, disable=quiet)
        self._task = self._progress.add_task(text, total=total, **fields)

    def set(self, done: int, **fields: Any) -> None:
        """Show this progress, and change fields of the bar, such as `total` or `visible`."""
        self._progress.update(self._task, completed=done, **fields)

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._progress.stop()
