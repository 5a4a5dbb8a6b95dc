"""Documents, such as a parsed TOML file, as structs; an error names the key, its value and what would be right."""

from __future__ import annotations

import contextlib
import re
import tomllib
import typing
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from emq.runtime import durations, errors
from emq.runtime.inputs import alike, shown
from emq.runtime.passwords import hide_password

T = TypeVar("T", bound=msgspec.Struct)

_KEY = re.compile(r"\[\.\.\.\]|[^.\[\]]+")
_WRITTEN: dict[object, str] = {bool: "true or false", int: "a whole number", float: "a number", type(None): "none"}
_FIELD = re.compile(r"Object (contains unknown|missing required) field `(.*)`", re.DOTALL)


def parsed(text: str, fmt: str, source: str, error: type[errors.EMQError]) -> Any:
    """Return the values in a text.

    Args:
        fmt: "toml" or "json".
        source: what errors call the document.
        error: the class of an error.

    Raises:
        error: the text is not valid TOML or JSON; correct it.
    """
    try:
        return tomllib.loads(text) if fmt == "toml" else msgspec.json.decode(text)
    except RecursionError:
        reason = "its values are nested too deeply"
    except UnicodeError:
        reason = "it has characters that UTF-8 cannot hold"
    except (tomllib.TOMLDecodeError, msgspec.DecodeError) as exc:
        reason = " ".join(str(exc).split())
    except ValueError:  # Python reads no integer with more than 4,300 digits
        reason = "a number has thousands of digits"
    raise error(f"{source} is not valid {fmt.upper()}: {reason}")


def converted(document: object, kind: type[T], source: str, error: type[errors.EMQError]) -> T:
    """Return the document as a struct; the constraints of its fields (`msgspec.Meta`) hold. Seconds may be texts: 90s.

    Args:
        source: what errors call the document.
        error: the class of an error.

    Raises:
        error: a key is unknown or missing, or a value has the wrong type or is out of range.
    """
    with contextlib.suppress(msgspec.ValidationError):
        return msgspec.convert(document, kind)
    try:
        return msgspec.convert(_in_seconds(document, inspect.type_info(kind)), kind)
    except msgspec.ValidationError as exc:
        raise error(f"{source}: {explained(exc, document, kind)}") from exc


def _in_seconds(value: Any, kind: inspect.Type, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _in_seconds(each, _kind(kind, name), f"{key}.{name}") for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_in_seconds(each, _kind(kind, str(n)), key) for n, each in enumerate(value)]
    is_number = any(isinstance(part, inspect.FloatType | inspect.IntType) for part in _parts(kind))
    return durations.in_seconds(key, value) if is_number and isinstance(value, str) else value


def explained(exc: msgspec.ValidationError, document: object, kind: type[Any]) -> str:
    """Return one line: the value of a document that does not fit a struct, and the right values."""
    return _explained(exc, document, inspect.type_info(kind))


def _explained(exc: msgspec.ValidationError, document: object, kind: inspect.Type) -> str:
    text, _, at = str(exc).partition(" - at `$")
    path, value = at.rstrip("`").lstrip("."), document
    for key in _KEY.findall(path):
        value, kind = _value(value, key), _kind(kind, key)
    if field := _FIELD.fullmatch(text):
        key = f"{path}.{field[2]}" if path else field[2]
        if field[1] == "missing required":
            return f"key {key!r} is missing; give it a value"
        names = [field.name for part in _parts(kind) if isinstance(part, inspect.StructType) for field in part.fields]
        return unknown(key, field[2], names)
    # Where a table or a list belongs, a text may be a secret in the wrong place.
    given = " = ".join(filter(None, (path, plain(value) if _takes_plain(kind) else ""))) or "the document"
    if ", got `" in text and _takes_plain(kind) and durations.IN_SECONDS.search(path.partition("[")[0]):
        return f"{given} is not a duration; {durations.REMEDY}"
    right = "" if ", got `" in text else " or ".join(filter(None, map(_right, _parts(kind))))
    return f"{given} must be {right}" if right else f"{given} does not fit: {text}"


def unknown(key: str, name: str, names: Iterable[str]) -> str:
    """Return one line: the keys that a table has, for the name of a key that it has not; `key` is its whole path."""
    names = [*names]
    hint = alike(name, names) or f"; the keys are {', '.join(names)}"
    return f"there is no key {key!r}{hint}"


def remedy(exc: msgspec.ValidationError, hint: Any) -> str:
    """Return the end of an error about a value written as text: the right values, or else the fault.

    Args:
        hint: the type that the value must have.
    """
    right = " or ".join(dict.fromkeys(_written(hint)))
    return f"; write {right}" if right and ", got `" in str(exc) else f": {exc}"


def _written(hint: Any) -> Iterable[str]:
    """Yield words for the plain types of a hint."""
    if typing.get_origin(hint) is typing.Annotated:
        yield from _written(typing.get_args(hint)[0])
    elif isinstance(hint, type):
        yield from filter(None, [_WRITTEN.get(hint)])
    else:
        for part in typing.get_args(hint):
            yield from _written(part)


def plain(value: object) -> str:
    """Return a wrong value as an error shows it; nothing for tables and lists, which may hold secrets."""
    if isinstance(value, str):
        return shown(hide_password(value))
    return shown(value) if value is None or isinstance(value, bool | int | float) else ""


def _value(document: object, key: str) -> object:
    """Return the value of a key; for `[...]` (some key of a table), the table itself."""
    if isinstance(document, dict):
        return document.get(key, document)
    return document[int(key)] if isinstance(document, list | tuple) else document


def _kind(kind: inspect.Type, key: str) -> inspect.Type:
    """Return the type of a key's value."""
    for part in _parts(kind):
        if isinstance(part, inspect.StructType):
            return next((field.type for field in part.fields if field.name == key), inspect.AnyType())
        if isinstance(part, inspect.DictType):
            return part.value_type
        if isinstance(part, inspect.VarTupleType | inspect.ListType):
            return part.item_type
        if isinstance(part, inspect.TupleType):
            return part.item_types[int(key)]
    return inspect.AnyType()


def _takes_plain(kind: inspect.Type) -> bool:
    containers = (inspect.StructType, inspect.DictType, inspect.ListType, inspect.VarTupleType, inspect.TupleType)
    return any(not isinstance(part, (*containers, inspect.NoneType)) for part in _parts(kind))


def _parts(kind: inspect.Type) -> Iterable[inspect.Type]:
    """Yield the types that a value may have."""
    if isinstance(kind, inspect.Metadata):
        return _parts(kind.type)
    return kind.types if isinstance(kind, inspect.UnionType) else (kind,)


def _right(kind: inspect.Type) -> str:
    """Return words for the values of a type of names or numbers; empty for other types, and if all values will do."""
    if isinstance(kind, inspect.LiteralType):
        return "one of " + ", ".join(map(str, kind.values))
    if isinstance(kind, inspect.EnumType):
        return "one of " + ", ".join(str(member.value) for member in kind.cls)
    if not isinstance(kind, inspect.IntType | inspect.FloatType):
        return ""
    if kind.ge is not None and kind.le is not None:
        return f"from {_number(kind.ge)} to {_number(kind.le)}"
    bounds = {"above": kind.gt, "at least": kind.ge, "below": kind.lt, "at most": kind.le}
    return " and ".join(f"{name} {_number(bound)}" for name, bound in bounds.items() if bound is not None)


def _number(bound: float) -> str:
    """Write 1e6 as 1,000,000: Python shares equal hints, so a bound may be the float or the int of another module."""
    return f"{int(bound) if bound == int(bound) else bound:,}"
