"""Benchmarks of several parts, of which each run measures one. The options of a part begin with its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from bench.cluster.crew import InvalidRun


class Parts:
    """Args:
        option: the option that chooses the part.
        modules: the parts by name; each has `OPTIONS`, of (name, usual, short, help), and `run`.

    Attributes:
        options: (name, default, help) of each option, as `Benchmark` takes them: the choice, then the sizes.
        short: the sizes that `--short` has instead.
    """

    def __init__(self, option: str, modules: Mapping[str, ModuleType]) -> None:
        self._option = option
        self._modules = modules
        sizes = [(f"{part}-{name}", *others) for part, module in modules.items() for name, *others in module.OPTIONS]
        choice = (option, next(iter(modules)), f"one of {', '.join(modules)}")
        self.options: Sequence[tuple[str, Any, str]] = [
            choice,
            *((name, usual, text) for name, usual, _, text in sizes),
        ]
        self.short: Mapping[str, Any] = {name: short for name, _, short, _ in sizes}

    def concerning(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options without the sizes of other parts."""
        others = tuple(f"{part}_" for part in self._modules if part != options[self._option])
        return {name: value for name, value in options.items() if not name.startswith(others)}

    def chosen(self, part: str, sizes: Mapping[str, float]) -> tuple[ModuleType, dict[str, float]]:
        """Return a part, and its own sizes by their names within it.

        Raises:
            InvalidRun: there is no such part, a number of its sizes is below 1, or a time below 0.
        """
        if part not in self._modules:
            raise InvalidRun(f"part {part!r}: choose one of {', '.join(self._modules)}")
        mine = {name.removeprefix(f"{part}_"): size for name, size in sizes.items() if name.startswith(f"{part}_")}
        if wrong := [name for name, size in mine.items() if size < isinstance(size, int)]:
            raise InvalidRun(f"--{part}-{wrong[0].replace('_', '-')}: {mine[wrong[0]]:g} is too small")
        return self._modules[part], mine
