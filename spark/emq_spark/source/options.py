"""The options of the data source, with their uses and valid values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from emq.runtime import errors, passwords, settings
from emq.runtime.settings import Settings
from emq_spark.source import places

READ, STREAM, WRITE, STREAM_WRITE = "read", "readStream", "write", "writeStream"
EVERY = (READ, STREAM, WRITE, STREAM_WRITE)
READING, WRITING = (READ, STREAM), (WRITE, STREAM_WRITE)

MESSAGES, CATALOG, OFFSETS, LAG, DEAD = "messages", "catalog", "offsets", "lag", "dead"
KINDS = (MESSAGES, CATALOG, OFFSETS, LAG, DEAD)

SPARKS_OWN = frozenset({"path", "checkpointlocation", "queryname", "outputmode", "truncate"})
"""Options that Spark passes on to every source and sink, in lower case."""


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of one read or write; see `OPTIONS` for each.

    Attributes:
        settings: store, database and environment, from the options, else from the environment variables and `emq.toml`
            of the driver.
    """

    settings: Settings
    what: str = MESSAGES
    topics: str = "*"
    columns: tuple[str, ...] = ()
    pushdown: bool = False
    messages_per_partition: int = 100_000
    messages_per_batch: int = 0
    start: places.Place = places.AT_HEAD
    end: places.Place = places.AT_TAIL
    trimmed: str = "fail"
    topic: str = ""
    per_second: float = 0.0
    run: str = ""


class Option(NamedTuple):
    """One option.

    Attributes:
        uses: the uses (READ, STREAM, WRITE, STREAM_WRITE) for which the option is valid.
        parse: makes a value from its text; raises ValueError with a text about valid values.
        meaning: description in one line.
    """

    uses: tuple[str, ...]
    parse: Callable[[str], Any]
    meaning: str


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return text.lower()

    return parse


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return text.lower() == "true"


def _whole(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError("must be a whole number, 1 or more")
    return int(text)


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not (math.isfinite(rate) and rate > 0):
        raise ValueError("must be a number above 0")
    return rate


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _text(text: str) -> str:
    if not text:
        raise ValueError("must not be empty")
    return text


def _run(text: str) -> str:
    if not (1 <= len(text) <= 64 and text.isascii() and text.isprintable() and " " not in text):
        raise ValueError("must be 1 to 64 ASCII characters without spaces")
    return text


OPTIONS: dict[str, Option] = {
    "store": Option(EVERY, _text, "URL of the store; not memory:, which no other process can see"),
    "database": Option(EVERY, _text, "URL of catalog and checkpoints; else beside the store"),
    "environment": Option(EVERY, _one_of("online", "sandbox"), "whose data; else online"),
    "what": Option(READING, _one_of(*KINDS), "messages (default), catalog, offsets, lag or dead"),
    "topics": Option(READING, _text, "names of topics as a shell pattern; else all"),
    "columns": Option(READING, _names, "names of the columns to read, with commas; else all"),
    "pushdown": Option((READ,), _truth, "filter while reading; only where the data frame is used in one query"),
    "messages_per_partition": Option(READING, _whole, "most messages that one task reads; 100000"),
    "messages_per_batch": Option((STREAM,), _whole, "most messages in a micro-batch; else all there are"),
    "start": Option(
        READING,
        lambda text: places.parse(text, places.HEAD),
        "where a read or a new query begins: head (default), tail, a time, or offsets by queue as JSON",
    ),
    "end": Option(
        (READ,),
        lambda text: places.parse(text, places.TAIL),
        "where a read ends, before that place; as start, else tail",
    ),
    "trimmed": Option((STREAM,), _one_of("fail", "skip"), "when messages were trimmed before they were read"),
    "topic": Option(WRITING, _text, "where rows go that have no topic of their own"),
    "per_second": Option(WRITING, _rate, "most messages that each task publishes in a second; else no limit"),
    "run": Option((WRITE,), _run, "name of this write: repeated under the same name, it publishes what is missing"),
}


def parse(given: Mapping[str, str], use: str | None = None) -> Options:
    """Parse the options of a read or write.

    Args:
        given: the options as Spark passes them on; names in upper or lower case.
        use: READ, STREAM, WRITE or STREAM_WRITE; None if Spark has not said yet whether it reads in a stream.

    Raises:
        InvalidSettings: an option is unknown, not for this use, or has an invalid value; the text names valid ones.
    """
    uses = READING if use is None else (use,)
    values: dict[str, Any] = {}
    for name, text in given.items():
        option = OPTIONS.get(name.lower())
        if option is None and name.lower() in SPARKS_OWN:
            continue
        if option is None or not set(uses) & set(option.uses):
            raise errors.InvalidSettings(_unknown(name, uses))
        try:
            values[name.lower()] = option.parse(str(text).strip())
        except ValueError as exc:
            raise errors.InvalidSettings(f"option {name} {text!r} {exc}") from None
    where = {key: values.pop(key, None) for key in ("store", "database", "environment")}
    found = settings.load(None, **where)
    check_place(found)
    return Options(found, **values)


def _unknown(name: str, uses: tuple[str, ...]) -> str:
    valid = ", ".join(known for known, option in OPTIONS.items() if set(uses) & set(option.uses))
    if (option := OPTIONS.get(name.lower())) is not None:
        where = " and ".join(option.uses)
        return f"option {name!r} is for {where}, not for {' and '.join(uses)}; the options are: {valid}"
    return f"there is no option {name!r} for {' and '.join(uses)}; the options are: {valid}"


def check_place(found: Settings) -> None:
    """Raise `InvalidSettings` if other processes cannot see the data of this store or database."""
    scheme = found.store.partition(":")[0]
    if scheme == "memory" or found.database_url in ("sqlite://", "sqlite:///:memory:"):
        shown, database = passwords.hide_password(found.store), passwords.hide_password(found.database_url)
        raise errors.InvalidSettings(
            f"store {shown!r} with database {database!r}: what lies in one process's "
            "memory cannot be seen by Spark's workers; use sqlite:///FILE, redis:// or postgresql://"
        )
