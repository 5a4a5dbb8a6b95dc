"""One mistake, and the test that must catch it."""

from __future__ import annotations

import pathlib
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[2]

PROMISES = {
    "L": "no loss",
    "D": "at least once, and hardly ever twice",
    "Q": "the cap holds, and is used",
    "P": "priority",
    "K": "key order",
    "O": "one owner",
    "M": "offsets only go forward, behind what is finished",
    "X": "dead letters",
    "I": "isolation",
    "A": "cost follows activity",
}

SIMULATION = "simulation"
"""Value of `caught_by`: some seed of `SEEDS` violates a promise."""

SEEDS = 200


class Misfit(Exception):
    """The mistake cannot be planted: the text to replace is missing from its file, or occurs more than once."""


class Mutant(NamedTuple):
    """A mistake.

    Attributes:
        name: unique, lower case with hyphens.
        promise: the letter of the promise that it breaks; see `PROMISES`.
        mistake: what the code does wrong, in one line.
        file: the file to change, from the root of the tree.
        before: text that occurs there exactly once.
        after: the text that takes its place.
        caught_by: id of a pytest test, from the root of the tree; or `SIMULATION`.
    """

    name: str
    promise: str
    mistake: str
    file: str
    before: str
    after: str
    caught_by: str

    def planted(self, text: str) -> str:
        """Return the file's text with the mistake in it.

        Raises:
            Misfit: the code has changed; write the mistake in its new words.
        """
        if (times := text.count(self.before)) != 1:
            raise Misfit(f"{self.name}: the text to replace occurs {times} times in {self.file}, not once")
        return text.replace(self.before, self.after)
