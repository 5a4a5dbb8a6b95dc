"""Fenced blocks of a page of the documentation, and what a test does with each.

A page is a session of a reader in an empty directory, from its first block to its last:

- A block with `title="shop.py"` is written to that file. A Python file must be importable.
- The other ```python blocks are one program, in their order, in which `await` works everywhere.
- In both, a function `async def name(app)` is called with an open `emq.App()`.
- In ```console blocks, lines that begin with `$ ` are commands; the other lines are what they print (see `compared`).

A comment before a block changes this, and is not shown to readers:

    <!-- snippet: skip: REASON -->      not run; the reason says why
    <!-- snippet: background -->        the command runs until the end of the page, in the same way as a second terminal
    <!-- snippet: background again -->  as above, after Ctrl-C to all commands that run in the background
    <!-- snippet: exit 1 -->            the last command of the block ends with this exit code
    <!-- snippet: raises NotOwner -->   the Python block ends with this exception

A block within a comment `<!-- snippet: hidden ... -->` is run, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_FENCE = re.compile(
    r"(?:<!-- snippet: (?P<mark>[^\n]*?)(?: -->)?\n\s*)?"
    r"^(?P<indent> *)(?P<ticks>`{3,})(?P<language>[a-z]*)(?P<words>[^\n`]*)\n"
    r"(?P<text>.*?)^(?P=indent)(?P=ticks)[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
_TITLE = re.compile(r'title="([^"]+)"')


class UnknownMark(ValueError):
    """A page has a mark that says nothing to the test."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a console block, with the lines that it prints."""

    line: str
    printed: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block.

    Attributes:
        line: number of its first line of text in the page.
        title: the file that it is; empty if none.
        mark: what the comment before it says; empty if none.
    """

    language: str
    text: str
    line: int
    title: str
    mark: str

    @property
    def skipped(self) -> str:
        """The reason why the block is not run; empty if it is run."""
        return self.mark.removeprefix("skip:").strip() if self.mark.startswith("skip:") else ""

    def commands(self) -> list[Command]:
        """Return the commands of a console block. A backslash continues a command on the next line."""
        found: list[Command] = []
        continued = False
        for line in self.text.splitlines():
            if continued:
                found[-1] = Command(found[-1].line + "\n" + line)
            elif line.startswith("$ "):
                found.append(Command(line.removeprefix("$ ")))
            elif found and line.strip():
                found[-1].printed.append(line)
            continued = line.endswith("\\") and (continued or line.startswith("$ "))
        return found


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page, in their order.

    Raises:
        UnknownMark: a mark that says nothing; a mark to skip that gives no reason.
    """
    return list(_blocks(page.read_text()))


def _blocks(text: str) -> Iterator[Block]:
    for match in _FENCE.finditer(text):
        indent = match["indent"]
        lines = "\n".join(line.removeprefix(indent) for line in match["text"].splitlines()) + "\n"
        title = _TITLE.search(match["words"])
        mark = (match["mark"] or "").strip()
        number = text.count("\n", 0, match.start("text")) + 1
        if not re.fullmatch(r"|hidden|background( again)?|exit \d+|raises \w+|skip: \S.{9,}", mark):
            raise UnknownMark(f"line {number}: <!-- snippet: {mark} --> says nothing that tests understand")
        yield Block(match["language"], lines, number, title[1] if title else "", mark)


_ID = re.compile(r"(?<![\w/.-])(?=[\w-]*\d)(?=[\w-]*[A-Za-z])[\w-]{13,}")
_PORT = re.compile(r"127\.0\.0\.1:\d+")
_VARYING = (
    (_ID, "ID"),
    (_PORT, "127.0.0.1:PORT"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?!:)"), "TIME"),  # another day's, to the minute
    (re.compile(r"\d{4}-\d\d-\d\d[T ]?"), ""),
    (re.compile(r"\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?"), "TIME"),
    (re.compile(r"\(UTC([+-]\d\d:\d\d|/)*\)"), "(ZONE)"),
    (re.compile(r"\b\d+(\.\d+)? ?(ms|us|s|min|h|d)\b"), "DURATION"),
    (re.compile(r"\d+\.\d+"), "DECIMAL"),
    (re.compile(r"[─━═-]{3,}"), "---"),
    (re.compile(r"\s+"), " "),
)


def alike(line: str) -> str:
    """Return a line without what differs from run to run.

    These are ids, ports, times and their zones, durations, fractions, and the widths of tables.
    """
    for pattern, word in _VARYING:
        line = pattern.sub(word, line)
    return line.strip()


class Missing(Exception):
    """The output of a command lacks a line that the page shows."""


def compared(printed: list[str], output: str) -> dict[str, str]:
    """Look for each line of `printed` in the output, in this order.

    Lines are compared as `alike` returns them. `...` stands for any text, and a line of its own for any lines.

    Returns:
        The ids and addresses of this run, by those that the page shows.

    Raises:
        Missing: the output lacks a line.
    """
    lines = output.splitlines()
    place = 0
    found: dict[str, str] = {}
    for wanted in printed:
        if wanted.strip() == "...":
            continue
        pattern = re.compile(".*".join(re.escape(part) for part in re.split(r" ?\.\.\. ?", alike(wanted))))
        at = next((i for i in range(place, len(lines)) if pattern.fullmatch(alike(lines[i]))), None)
        if at is None:
            raise Missing(f"lacks the line {wanted!r}")
        place = at + 1
        for kind in (_ID, _PORT):
            found.update(zip(kind.findall(wanted), kind.findall(lines[at]), strict=False))
    return found
