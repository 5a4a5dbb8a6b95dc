"""A progress bar on a terminal."""

from __future__ import annotations

from emq.cli.session import Session


class Bar:
    """Shows a progress bar on a terminal, else nothing.

    Args:
        text: beside the bar.
        total: the number at the end; None if unknown.
    """

    def __init__(self, session: Session, text: str, total: int | None) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn(text), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        quiet = session.json or not session.err.is_terminal
        self._progress = Progress(*columns, console=session.err, transient=True, disable=quiet)
        self._task = self._progress.add_task("", total=total)

    def set(self, done: int) -> None:
        self._progress.update(self._task, completed=done)

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._progress.stop()
