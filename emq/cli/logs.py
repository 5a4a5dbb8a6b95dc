"""The log of a command that runs for long: on standard error, as text for people or as JSON lines for programs."""

from __future__ import annotations

import datetime
import logging
import os
import re
import sys
import traceback

import structlog
from structlog.typing import EventDict, ExcInfo, WrappedLogger

from emq.cli.log_options import Format, Level

MAX_TRACEBACK = 16_000
"""Most characters of a traceback. The text of an error, which is part of its traceback, may be of any length."""

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""All but tabs and new lines."""

CHATTY = ("aiosqlite", "alembic", "asyncio", "kazoo", "sqlalchemy")
"""Libraries that would log each of their steps or statements with the level debug; they log from warning up."""


def configure(level: str, format_: str) -> None:
    """Send all records of `logging` to standard error. Does nothing if this process has configured logging already.

    Args:
        level: a value of `Level`.
        format_: a value of `Format`.
    """
    if logging.root.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(format_, colors=_has_colors()))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    if level == Level.DEBUG:
        for name in CHATTY:
            logging.getLogger(name).setLevel(logging.WARNING)


def formatter(format_: str, *, colors: bool = False) -> logging.Formatter:
    """Return the formatter for a value of `Format`; `colors` are for text."""
    return _json() if format_ == Format.JSON else _text(colors)


def _has_colors() -> bool:
    return sys.stderr.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def _json() -> logging.Formatter:
    """One object for each record: timestamp (ISO 8601, UTC), level, logger, pid, event, and the record's `extra`."""
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.stdlib.ExtraAdder(),
            _add_utc,
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
        ],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            _add_pid,
            structlog.processors.ExceptionRenderer(_traceback),
            structlog.processors.JSONRenderer(),
        ],
    )


def _text(colors: bool) -> logging.Formatter:
    """Local time, level and message in one line, then the traceback. A message of EMQ says all of its `extra`."""
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[_add_local_time, structlog.stdlib.add_log_level],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.ExceptionRenderer(_traceback),
            _make_printable,
            structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback),
        ],
    )


def _created(event: EventDict) -> datetime.datetime:
    record: logging.LogRecord = event["_record"]
    return datetime.datetime.fromtimestamp(record.created, datetime.UTC)


def _add_utc(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    event["timestamp"] = _created(event).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return event


def _add_local_time(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    local = _created(event).astimezone().replace(tzinfo=None)
    event["timestamp"] = local.isoformat(sep=" ", timespec="milliseconds")
    return event


def _add_pid(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Several host processes may share one log."""
    event["pid"] = os.getpid()
    return event


def _make_printable(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Escape control characters, such as those with which a stranger's text would draw on the terminal."""
    for name in ("event", "exception"):
        if (text := event.get(name)) is not None:
            event[name] = _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)
    return event


def _traceback(exc_info: ExcInfo) -> str:
    text = "".join(traceback.format_exception(*exc_info)).rstrip("\n")
    if len(text) <= MAX_TRACEBACK:
        return text
    half = MAX_TRACEBACK // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out ...]\n{text[-half:]}"
