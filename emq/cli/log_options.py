"""The options --log-level and --log-format of commands that run for long."""

from __future__ import annotations

import enum
from typing import Annotated

import typer


class Level(enum.StrEnum):
    """The least level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Format(enum.StrEnum):
    """How lines of the log look."""

    TEXT = "text"
    JSON = "json"


LogLevel = Annotated[
    Level | None,
    typer.Option("--log-level", case_sensitive=False, help="Least level that is logged.", show_default=False),
]
LogFormat = Annotated[
    Format | None,
    typer.Option(
        "--log-format", case_sensitive=False, help="text, or one JSON object for each line.", show_default=False
    ),
]
