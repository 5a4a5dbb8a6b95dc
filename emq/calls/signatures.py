"""The parameters of a function, with their annotations as types."""

from __future__ import annotations

import collections.abc
import functools
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable
from typing import Any

from emq.runtime import errors
from emq.storage.message import Message

LISTS = (list, collections.abc.Sequence, collections.abc.Collection, collections.abc.Iterable)

_UNRESOLVED = (NameError, AttributeError, SyntaxError, TypeError)
"""Errors of resolving an annotation that names something unknown or is no type."""

_DEEPEST = 100
"""Most layers around a function that are looked through."""

_MESSAGE = re.compile(r"(emq\.(storage\.message\.)?)?Message")
_MESSAGES = re.compile(rf"(list|List|Sequence|Iterable|Collection)\[{_MESSAGE.pattern}\]")


def signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    """Return the signature of a function; None if the function does not tell, as some in C."""
    try:
        if sys.version_info >= (3, 14):
            import annotationlib

            # From 3.14 on, annotations are evaluated here, and one may name what exists for type checkers only.
            return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def type_of(function: Callable[..., Any], parameter: inspect.Parameter, name: str) -> Any:
    """Return the annotation of a parameter as a type, also where it is (or holds) a text such as list["Order"].

    Names are looked for in the functions around this one, if these run now, and in its module. `Message` is known also
    where it is imported for type checkers only.

    Args:
        name: the function, as errors name it.

    Raises:
        InvalidSettings: a name is unknown, or the text is no type.
    """
    annotation = parameter.annotation
    if isinstance(annotation, type):
        return annotation

    def holder() -> None: ...

    holder.__annotations__ = {"it": annotation}
    bare_function = plain(function)
    globals_ = getattr(bare_function, "__globals__", {})
    try:
        return typing.get_type_hints(holder, globals_, _names_around(bare_function), include_extras=True)["it"]
    except _UNRESOLVED as exc:
        text = getattr(annotation, "__forward_arg__", annotation)
        if isinstance(text, str):
            bare = text.strip("'\" ")
            if _MESSAGE.fullmatch(bare):
                return Message
            if _MESSAGES.fullmatch(bare):
                return list[Message]
        raise errors.InvalidSettings(
            f"the annotation {shown(text)} of the parameter {parameter.name!r} of {name} cannot be resolved "
            f"({line(exc)}); import the name where the module runs, not for type checkers only"
        ) from exc


def is_message(annotation: Any) -> bool:
    """Return True for `Message`, also in a union with None or `list[Message]`."""
    return Message in _choices(annotation) and all(c is Message or is_messages(c) for c in _choices(annotation))


def is_messages(annotation: Any) -> bool:
    """Return True for `list[Message]`, also in a union with None or `Message`."""
    choices = _choices(annotation)
    listed = [typing.get_origin(c) in LISTS and typing.get_args(c) == (Message,) for c in choices]
    return any(listed) and all(is_list or c is Message for c, is_list in zip(choices, listed, strict=True))


def _choices(annotation: Any) -> list[Any]:
    """Return the types of a union but None; the type itself if it is no union."""
    bare = without_metadata(annotation)
    if typing.get_origin(bare) in (typing.Union, types.UnionType):
        return [choice for choice in typing.get_args(bare) if choice is not types.NoneType]
    return [bare]


def line(exc: Exception) -> str:
    """Return an error's text in one line of at most 200 characters."""
    text = " ".join(str(exc).split())
    return text[:200] if text else type(exc).__name__


def without_metadata(annotation: Any) -> Any:
    """Return T for `Annotated[T, ...]`."""
    return annotation.__origin__ if typing.get_origin(annotation) is typing.Annotated else annotation


def shown(annotation: Any) -> str:
    """Return an annotation as errors name it."""
    if isinstance(annotation, str):
        return annotation
    annotation = without_metadata(annotation)
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return annotation.__qualname__.rpartition("<locals>.")[2]
    arguments = typing.get_args(annotation)
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return " | ".join("None" if a is types.NoneType else shown(a) for a in arguments)
    if isinstance(origin, type) and arguments:
        return f"{origin.__qualname__}[{', '.join('...' if a is ... else shown(a) for a in arguments)}]"
    return str(annotation)


def plain(function: Any) -> Any:
    """Return the function itself, from within partials, bound methods, decorators and callable objects."""
    for _ in range(_DEEPEST):  # a decorator may wrap itself by mistake
        if isinstance(function, functools.partial):
            function = function.func
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif inspect.ismethod(function):
            function = function.__func__
        elif inspect.isclass(function):
            return function.__init__
        elif not inspect.isroutine(function) and hasattr(type(function), "__call__"):  # noqa: B004
            function = type(function).__call__
        else:
            break
    return function


def _names_around(function: Any) -> dict[str, Any]:
    """Return the local names of the functions around a function that run now, as where a class is local to one."""
    globals_, path = getattr(function, "__globals__", None), getattr(function, "__qualname__", "")
    found: dict[str, Any] = {}
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals is globals_ and path.startswith(f"{frame.f_code.co_qualname}.<locals>."):
            found = {**frame.f_locals, **found}
        frame = frame.f_back
    return found
