"""The log of a command that runs for long: on standard error, as text for people or as JSON lines for programs.

Records hold texts of strangers, such as errors that quote a message. As text, only the first line of a record begins at
the margin, so that no text can pass for a record. As JSON, each record is one line.
"""

from __future__ import annotations

import datetime
import functools
import json
import logging
import os
import re
import select
import sys
import traceback
from collections.abc import Callable

import structlog
from structlog.typing import EventDict, ExcInfo, WrappedLogger

from emq.cli.log_options import Format, Level

MAX_TRACEBACK = 16_000
"""Most characters of a traceback. The text of an error, which is part of its traceback, may be of any length."""

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
"""Control characters except tabs and new lines, and separators that some programs take for new lines."""

MARGIN = "    "
"""The indent of each further line of a record, in the text format."""

_OWN = ("event", "exception", "level", "logger", "pid", "timestamp")
"""Names in a JSON record that its `extra` may not use."""

CHATTY = ("aiosqlite", "alembic", "asyncio", "kazoo", "sqlalchemy")
"""Libraries that log each step or statement at the level debug; EMQ shows only their warnings and errors."""


def configure(level: str, format_: str, *, shared: bool = False) -> None:
    """Send all records of `logging` to standard error. Does nothing if this process has configured logging already.

    Args:
        level: a value of `Level`.
        format_: a value of `Format`.
        shared: True if several processes write to this standard error. The output of
            another could tear apart a text longer than `select.PIPE_BUF` (4,096 bytes), so JSON tracebacks are cut to
            fit.
    """
    if logging.root.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(format_, colors=_has_colors(), most=select.PIPE_BUF if shared else None))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    if level == Level.DEBUG:
        for name in CHATTY:
            logging.getLogger(name).setLevel(logging.WARNING)


def formatter(format_: str, *, colors: bool = False, most: int | None = None) -> logging.Formatter:
    """Return the formatter for a value of `Format`; `colors` are for text, `most` bytes of a line for JSON."""
    return _json(most) if format_ == Format.JSON else _text(colors)


def _has_colors() -> bool:
    return sys.stderr.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def _json(most: int | None) -> logging.Formatter:
    """One object for each record: timestamp (ISO 8601, UTC), level, logger, pid, event, and the record's `extra`.

    If the object already has the name of an `extra`, the `extra` is called `extra_<name>`.
    """
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            _add_extra,
            _add_utc,
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
        ],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            _add_pid,
            structlog.processors.ExceptionRenderer(_traceback),
            structlog.processors.JSONRenderer(functools.partial(_dumped, most=most)),
        ],
    )


def _text(colors: bool) -> logging.Formatter:
    """Local time, level and message in one line, then the traceback, indented. A message of EMQ says all of its
    `extra`.
    """
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


def _add_extra(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    extra = _extra_of(logger, method, {"_record": event["_record"]})
    del extra["_record"]
    return {**event, **{f"extra_{name}" if name in _OWN else name: value for name, value in extra.items()}}


_extra_of = structlog.stdlib.ExtraAdder()


def _dumped(event: EventDict, default: Callable[[object], object], *, most: int | None, **_: object) -> str:
    """Return the record as JSON, with its new line in at most `most` bytes if a shorter traceback is enough for that.

    A value of an `extra` that JSON cannot hold is shown as Python writes it.
    """
    line, text = _json_of(event, default), event.get("exception")
    if most is not None and isinstance(text, str):
        left = len(text)
        while len(line) >= most and left > 100:
            left = left * 4 // 5
            line = _json_of({**event, "exception": _cut(text, left)}, default)
    return line


def _json_of(event: EventDict, default: Callable[[object], object]) -> str:
    try:
        return json.dumps(event, default=default, allow_nan=False)
    except Exception:  # of the value's own class, too
        return json.dumps({name: value if type(value) in _PLAIN else _written(value) for name, value in event.items()})


_PLAIN = (str, int, bool, type(None))


def _written(value: object) -> str:
    try:
        return repr(value)
    except Exception:
        return f"<{type(value).__name__}>"


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
    """Escape control characters, such as those with which a stranger's text would draw on the terminal; indent."""
    for name, first in (("event", ""), ("exception", MARGIN)):
        if (text := event.get(name)) is not None:
            text = _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)
            event[name] = first + text.replace("\n", "\n" + MARGIN)
    return event


def _traceback(exc_info: ExcInfo) -> str:
    text = "".join(traceback.format_exception(*exc_info)).rstrip("\n")
    return text if len(text) <= MAX_TRACEBACK else _cut(text, MAX_TRACEBACK)


def _cut(text: str, most: int) -> str:
    half = most // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out ...]\n{text[-half:]}"
