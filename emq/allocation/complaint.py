"""A complaint in the log that comes once, however often the trouble repeats."""

from __future__ import annotations

import logging


class Complaint:
    """Logs a trouble once, until something has worked again. The part of a text behind a semicolon may vary."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._said = ""

    def say(self, text: str) -> None:
        """Log the text as a warning, unless the last one told of the same trouble."""
        trouble = text.partition(";")[0]
        if trouble != self._said:
            self._said = trouble
            self._log.warning("%s", text)

    def over(self) -> None:
        """Note that something has worked again, so that the next trouble is logged."""
        self._said = ""
