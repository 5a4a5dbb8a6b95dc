"""The log of a command that runs for long: on standard error, as text for people or as JSON lines for programs.

Records hold texts of strangers, such as errors that quote a message. As text, only the first line of a record begins at
the margin, so that no text can pass for a record. As JSON, each record is one line.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
import re
import select
import sys
import traceback

MAX_TRACEBACK = 16_000
"""Most characters of a traceback. The text of an error, which is part of its traceback, may be of any length."""

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
"""Control characters except tabs and new lines, and separators that some programs take for new lines."""

MARGIN = "    "
"""The indent of each further line of a record, in the text format."""

_OWN = ("event", "exception", "level", "logger", "pid", "timestamp")
"""Names in a JSON record that its `extra` may not use."""

_NO_EXTRA = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"))
"""Attributes of every record, which are no `extra`."""

_BOLD, _DIM, _PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"
_GREEN, _YELLOW, _RED = "\x1b[32m", "\x1b[33m", "\x1b[31m"
_COLORS = {logging.DEBUG: _GREEN, logging.INFO: _GREEN, logging.WARNING: _YELLOW}
_COLORS |= {logging.ERROR: _RED, logging.CRITICAL: _RED}

CHATTY = ("aiosqlite", "alembic", "asyncio", "kazoo", "sqlalchemy")
"""Libraries that log each step or statement at the level debug; EMQ shows only their warnings and errors."""


def configure(level: str, format_: str, *, shared: bool = False) -> None:
    """Send all records of `logging` to standard error. Does nothing if this process has configured logging already.

    Args:
        level: one of `emq_cli.arguments.Level`.
        format_: one of `emq_cli.arguments.Format`.
        shared: True if several processes write to this standard error. The output of
            another could tear apart a text longer than `select.PIPE_BUF` (4,096 bytes), so JSON tracebacks are cut to
            fit.
    """
    if logging.root.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(format_, colors=_has_colors(), most=select.PIPE_BUF if shared else None))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    if level == "debug":
        for name in CHATTY:
            logging.getLogger(name).setLevel(logging.WARNING)


def formatter(format_: str, *, colors: bool = False, most: int | None = None) -> logging.Formatter:
    """Return the formatter of a format; `colors` are for text, `most` bytes of a line for JSON."""
    return _Json(most) if format_ == "json" else _Text(colors)


def _has_colors() -> bool:
    return sys.stderr.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


class _Json(logging.Formatter):
    """One object for each record: timestamp (ISO 8601, UTC), level, logger, pid, event, and the record's `extra`.

    A record with an error or a stack also has `exception` or `stack_info`.

    If the object already has the name of an `extra`, the `extra` is called `extra_<name>`. A value of an `extra` that
    JSON cannot hold is shown as Python writes it.

    Args:
        most: bytes of a line with its new line, if a shorter traceback is enough for that.
    """

    def __init__(self, most: int | None) -> None:
        super().__init__()
        self._most = most

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, object] = {"event": record.getMessage()}
        for name, value in vars(record).items():
            if name not in _NO_EXTRA:
                told[f"extra_{name}" if name in _OWN else name] = value
        created = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        told["timestamp"] = created.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        told |= {"level": record.levelname.lower(), "logger": record.name}
        told["pid"] = os.getpid()  # several host processes may share one log
        if record.stack_info:
            told["stack_info"] = record.stack_info
        if not (text := _traceback(record)):
            return _json_of(told)
        line, left = _json_of({**told, "exception": text}), len(text)
        while self._most is not None and len(line) >= self._most and left > 100:
            left = left * 4 // 5
            line = _json_of({**told, "exception": _cut(text, left)})
        return line


class _Text(logging.Formatter):
    """Local time, level and message in one line, then the traceback and the stack, indented. A message of EMQ says all
    of its `extra`.
    """

    def __init__(self, colors: bool) -> None:
        super().__init__()
        self._colors = colors

    def format(self, record: logging.LogRecord) -> str:
        created = datetime.datetime.fromtimestamp(record.created)
        time, level = created.isoformat(sep=" ", timespec="milliseconds"), f"{record.levelname.lower():9}"
        text = _printable(record.getMessage())
        if self._colors:
            time, text = f"{_DIM}{time}{_PLAIN}", f"{_BOLD}{text}{_PLAIN}"
            level = f"{_COLORS.get(record.levelno, '')}{_BOLD}{level}{_PLAIN}"
        below = filter(None, (_traceback(record), record.stack_info))
        return f"{time} [{level}] {text}" + "".join(f"\n{MARGIN}{_printable(found)}" for found in below)


def _json_of(told: dict[str, object]) -> str:
    try:
        return json.dumps(told, default=repr, allow_nan=False)
    except Exception:  # of the value's own class, too
        plain = (str, int, bool, type(None))
        return json.dumps({name: value if type(value) in plain else _written(value) for name, value in told.items()})


def _written(value: object) -> str:
    try:
        return repr(value)
    except Exception:
        return f"<{type(value).__name__}>"


def _printable(text: str) -> str:
    """Escape control characters, such as those with which a stranger's text would draw on the terminal; indent."""
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text).replace("\n", "\n" + MARGIN)


def _traceback(record: logging.LogRecord) -> str:
    """Return the record's traceback, cut to `MAX_TRACEBACK`; empty if it has none."""
    if record.exc_info is None or record.exc_info[0] is None:
        return ""
    text = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
    return text if len(text) <= MAX_TRACEBACK else _cut(text, MAX_TRACEBACK)


def _cut(text: str, most: int) -> str:
    half = most // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out ...]\n{text[-half:]}"
