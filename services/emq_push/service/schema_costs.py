"""How long a check of a payload may take, counted before it is made.

A check holds the whole process: the library keeps Python's lock, and nothing can stop it half-way. So a schema has a
number of parts, which with the size of a payload bounds the steps of its check. Schemas that double by `$ref` come to
millions of parts; patterns have as many as their repeats say.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

MOST_PARTS = 10_000
"""Most parts of a schema."""
MOST_OPEN = 100
"""Most schemas within each other, with those that they refer to."""
MOST_STEPS = 100_000_000
"""Most parts times bytes of a check: some tenths of a second, or two seconds for the worst of patterns."""
MOST_TO_EXPLAIN = 32_768
"""The same for an error of `anyOf` or `oneOf`, of which the library first writes what is wrong with each choice."""

_WITHIN = {
    *("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "contains", "propertyNames"),
    *("items", "prefixItems", "additionalItems", "additionalProperties", "unevaluatedItems", "unevaluatedProperties"),
}
"""Keywords with schemas that count where they stand; those of others only where they are referred to."""
_EXACT = 1_000
"""Parts of a `multipleOf` with a fraction: the library divides exactly, however large the number."""
_CLASS = 50
"""States of a class of Unicode."""
_AGAIN = 3
"""How often `unevaluatedProperties` has the parts beside it checked, with those that it asks once more."""
_Counts: TypeAlias = tuple[int, int, int]
_OF_LISTS = {"items", "prefixItems", "additionalItems", "unevaluatedItems", "contains"}
_OF_OBJECTS = {"properties", "patternProperties", "additionalProperties", "unevaluatedProperties", "propertyNames"}
_REFS = ("$ref", "$dynamicRef", "$recursiveRef")
_MAPS = ("patternProperties", "dependentSchemas", "dependencies")


class Cost(NamedTuple):
    """What a schema costs.

    Attributes:
        parts: most schemas, and states of patterns, that one value of a payload meets.
        again: how often a schema refers to itself for one value. Beyond 1, each level of a payload has so many times
            the parts of the one above.
        has_choice: it has `anyOf` or `oneOf`.
    """

    parts: int
    again: int
    has_choice: bool

    def steps(self, payload: bytes, levels: Callable[[], int]) -> int:
        """Return the steps of a check of a payload; `levels` counts the objects and arrays within each other."""
        return self.parts * len(payload) * (self.again ** levels() if self.again > 1 else 1)


def of(schema: Any) -> Cost:
    """Return what a schema costs.

    Raises:
        ValueError: it costs too much.
        LookupError: a reference leads out of it.
    """
    walk = _Walk(schema)
    parts, *_ = walk.of(schema)
    if parts > MOST_PARTS:
        raise ValueError(f"a value would be checked against more than {MOST_PARTS:,} parts of it; make it simpler")
    return Cost(parts, walk.most_again, walk.has_choice)


class _Walk:
    def __init__(self, schema: Any) -> None:
        every = [each for each in _all(schema) if isinstance(each, dict)]
        ids = [(each.get("$id", each.get("id")), each) for each in every]
        self._bases = [("", schema), *((id_, each) for id_, each in ids if isinstance(id_, str))]
        self._anchors: dict[str, list[Any]] = {}
        for each in every:
            for name in {str(each[word]) for word in ("$anchor", "$dynamicAnchor") if word in each} | _old_anchor(each):
                self._anchors.setdefault(name, []).append(each)
        self.has_choice = any(word in each for each in every for word in ("anyOf", "oneOf"))
        self._done: dict[int, _Counts] = {}
        self._open: set[int] = set()
        self.most_again = 0

    def of(self, schema: Any) -> _Counts:
        """Return the parts of a schema, and how often it refers to one that it is a part of: for a list, an object."""
        if not isinstance(schema, dict):
            return (1, 0, 0) if not isinstance(schema, list) else _sum(self.of(each) for each in schema)
        place = id(schema)
        if place in self._open:
            return 1, 1, 1
        if place not in self._done:
            if len(self._open) >= MOST_OPEN:
                raise ValueError(f"it has more than {MOST_OPEN} parts within each other, with those that it refers to")
            self._open.add(place)
            parts, *again = _sum(self._keyword(word, value) for word, value in schema.items())
            self._open.remove(place)
            parts = (parts + 1) * (_AGAIN if "unevaluatedItems" in schema or "unevaluatedProperties" in schema else 1)
            self._done[place] = parts, again[0], again[1]
            self.most_again = max(self.most_again, *again)
        return self._done[place]

    def _keyword(self, word: str, value: Any) -> _Counts:
        parts, in_list, in_object = self._whole(word, value)
        if word in _OF_LISTS:
            return parts, max(in_list, in_object), 0
        return (parts, 0, max(in_list, in_object)) if word in _OF_OBJECTS else (parts, in_list, in_object)

    def _whole(self, word: str, value: Any) -> _Counts:
        if word in _REFS and isinstance(value, str):
            return _most(self.of(each) for each in self._targets(value))
        if word == "pattern" and isinstance(value, str):
            return states(value), 0, 0
        if word == "multipleOf" and isinstance(value, float):
            return _EXACT, 0, 0
        if word in ("items", "prefixItems") and isinstance(value, list):
            return _most(self.of(each) for each in value)  # a value of the payload has one place
        if word == "properties" and isinstance(value, dict):
            return _most(self.of(each) for each in value.values())  # and one name
        if word in _MAPS and isinstance(value, dict):
            names = sum(states(name) for name in value) if word == "patternProperties" else 0
            return _sum([(names, 0, 0), *(self.of(each) for each in value.values())])
        return self.of(value) if word in _WITHIN and isinstance(value, dict | list) else (0, 0, 0)

    def _targets(self, reference: str) -> list[Any]:
        """Return where a reference may lead; with an `$id` below the root, that may be more than one place."""
        base, _, fragment = reference.partition("#")
        if fragment and not fragment.startswith("/"):
            found = self._anchors.get(fragment, [])
        else:
            bases = [each for id_, each in self._bases if id_.partition("#")[0].endswith(base.removeprefix("./"))]
            found = [there for each in bases if (there := _at(each, fragment)) is not None]
        if not found:
            raise LookupError(reference)
        return found


def states(pattern: str) -> int:
    """Return about how many states a regular expression has: its length, with repeats written out."""
    total, last, at = 0, 0, 0
    outer: list[int] = []
    while at < len(pattern):
        char = pattern[at]
        if char == "(":
            outer.append(total + last)
            total = last = 0
        elif char == ")" and outer:
            total, last = outer.pop(), total + last + 1
        elif char == "{" and (end := pattern.find("}", at)) > 0 and (most := _repeats(pattern[at + 1 : end])):
            last, at = last * most, end
        else:
            is_class = pattern.startswith(("\\p{", "\\P{"), at)
            total, last = total + last, _CLASS if is_class else 1
            if is_class or char == "[":
                end = pattern.find("}" if is_class else "]", at + 2)
                at = max(at, end)
            elif char == "\\":
                at += 1
        at += 1
    return total + last + sum(outer)


def _repeats(bounds: str) -> int:
    """Return the most repeats of `3`, `3,` or `3,5`; 0 for what is none."""
    low, _, high = bounds.partition(",")
    number = high.strip() or low.strip()
    return max(int(number), 1) if number.isascii() and number.isdigit() and len(number) < 10 else 0


def _all(value: Any) -> Iterator[Any]:
    todo = [value]
    while todo:
        each = todo.pop()
        yield each
        if isinstance(each, dict | list):
            todo += each.values() if isinstance(each, dict) else each


def _old_anchor(schema: Mapping[str, Any]) -> set[str]:
    """Return the anchor of `"$id": "#name"`, as the older drafts write it."""
    return {str(schema[word]).partition("#")[2] for word in ("$id", "id") if "#" in str(schema.get(word, ""))} - {""}


def _at(base: Any, pointer: str) -> Any:
    """Return the value at a JSON pointer of a URI; None for nothing."""
    for part in urllib.parse.unquote(pointer).split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(base, dict):
            base = base.get(name)
        else:
            base = base[int(name)] if isinstance(base, list) and name.isdecimal() and int(name) < len(base) else None
    return base


def _sum(counts: Iterable[_Counts]) -> _Counts:
    parts, in_list, in_object = zip((0, 0, 0), *counts, strict=True)
    return sum(parts), sum(in_list), sum(in_object)


def _most(counts: Iterable[_Counts]) -> _Counts:
    parts, in_list, in_object = zip((0, 0, 0), *counts, strict=True)
    return max(parts), max(in_list), max(in_object)
