"""The functions that a client calls when what it has read changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from emq.allocation.tree.protocol import OnChange

UNKNOWN: Final = object()


class Aspect(NamedTuple):
    """The part of a node that a client watches: the node itself, or its list of children."""

    path: str
    of: Literal["node", "children"]


@dataclass(eq=False)
class Watch:
    """The functions of an aspect, each once.

    Attributes:
        number: the number of the last change that the client has read, in a tree that numbers changes.
        value: what the client has read; it holds as long as nothing has changed. `UNKNOWN` if the client did not say.
    """

    number: int
    value: Any = UNKNOWN
    functions: dict[OnChange, None] = field(default_factory=dict)


class Watches:
    """The outstanding watches of one client. Each ends with its call."""

    def __init__(self) -> None:
        self._watches: dict[Aspect, Watch] = {}

    def __contains__(self, aspect: Aspect) -> bool:
        return aspect in self._watches

    def add(self, aspect: Aspect, on_change: OnChange, number: int = 0, value: Any = UNKNOWN) -> None:
        """Call a function at the next change; for several numbers, the lowest counts."""
        watch = self._watches.setdefault(aspect, Watch(number, value))
        watch.value = value if watch.number == number else UNKNOWN
        watch.number = min(watch.number, number)
        watch.functions[on_change] = None

    def known(self, aspect: Aspect, on_change: OnChange) -> Any:
        """Call a function at the next change of what is watched already; return its value, or `UNKNOWN`."""
        watch = self._watches.get(aspect)
        if watch is None or watch.value is UNKNOWN:
            return UNKNOWN
        watch.functions[on_change] = None
        return watch.value

    def forget_values(self) -> None:
        """Know no value any more, since the client itself has changed the tree."""
        for watch in self._watches.values():
            watch.value = UNKNOWN

    def now(self) -> dict[Aspect, Watch]:
        """Return the watches as they are now."""
        return dict(self._watches)

    def call(self, aspect: Aspect, watch: Watch | None = None) -> bool:
        """Call the functions of an aspect that has changed, once; return whether there were any.

        Args:
            watch: call only these, and not those that were added after their call; None for any.
        """
        there = self._watches.get(aspect)
        if there is None or watch not in (None, there):
            return False
        del self._watches[aspect]
        for on_change in there.functions:
            on_change()
        return True

    def call_all(self) -> None:
        """Call all functions, since a change may have been missed."""
        for aspect in self.now():
            self.call(aspect)

    def clear(self) -> None:
        self._watches.clear()
