"""How numbers, times and tables look on a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from emq.runtime import plurals

if TYPE_CHECKING:
    from rich.table import Table

    from emq_cli.tables import FittingTable

Cell = str | int | float | None


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    right: Iterable[str] = (),
    spare: Sequence[str] = (),
) -> FittingTable:
    """Return a table without vertical lines; names are folded, never cut off, numbers have thousands separators.

    Args:
        title: above the table, at the left; empty for none.
        right: the columns of numbers.
        spare: columns that a narrow terminal may leave out, the first one first.
    """
    from emq_cli.tables import FittingTable

    return FittingTable(title, columns, [[*map(cell, row)] for row in rows], {*right}, spare)


def facts(lines: Iterable[tuple[str, str]]) -> Table:
    """Names with their values, one in a line."""
    from rich.table import Table

    made = Table.grid(padding=(0, 2))
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in lines:
        made.add_row(name, plain(value))
    return made


def with_payload(data: dict[str, Any]) -> dict[str, Any]:
    """Return a message as plain values: the payload as text if it is UTF-8, else in base64."""
    try:
        data["payload"] = data["payload"].decode()
    except UnicodeDecodeError:
        data["payload_base64"] = data.pop("payload")
    return data


def cell(value: Cell) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return plain(value)
    return number(value)


def number(value: float) -> str:
    """12,345, or 3.5 and 0.25 where the fraction matters."""
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def plain(text: str) -> str:
    """Return the text with escapes for all characters that could disturb a terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def payload(body: bytes) -> str:
    """Return a payload for people: as text if it is UTF-8."""
    try:
        return plain(body.decode())
    except UnicodeDecodeError:
        return repr(body)


def by_priority(counts: Mapping[str, int]) -> str:
    """`high 3  mid 0  low 12`."""
    return "  ".join(f"{name} {number(count)}" for name, count in counts.items())


def of_most(n: int, most: int) -> str:
    """Return `3 of 250`; `-` if both are unknown."""
    return f"{number(n)} of {number(most)}" if most else number(n) if n else "-"


def zone(times_ms: Iterable[float] = ()) -> str:
    """Return the offset of local time at these times, or now: `UTC`, `UTC+05:30`; two where they differ (summer)."""
    offsets = {time.localtime(ms / 1000).tm_gmtoff for ms in times_ms} or {time.localtime().tm_gmtoff}
    return "UTC" + "/".join(_offset(seconds) for seconds in sorted(offsets) if seconds or len(offsets) > 1)


def _offset(seconds: int) -> str:
    return f"{'-' if seconds < 0 else '+'}{abs(seconds) // 3600:02}:{abs(seconds) // 60 % 60:02}"


def zoned(column: str, times_ms: Iterable[float] = ()) -> str:
    """Return the head of a column of times: `died (UTC+01:00)`."""
    return f"{column} ({zone(times_ms)})"


def when_in_zone(ms: float) -> str:
    """Return local time to the second with its zone, for places where no head of a column names the zone."""
    return f"{when(ms)} {zone([ms])}"


def when(ms: float) -> str:
    """Local time to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ms / 1000))


def when_briefly(ms: float) -> str:
    """Return local time: to the second if it is today, else to the minute."""
    then, now = time.localtime(ms / 1000), time.localtime()
    today = (then.tm_year, then.tm_yday) == (now.tm_year, now.tm_yday)
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M", then)


count = plurals.count
"""`1 topic`, `2 topics`; see `emq.runtime.plurals`."""
