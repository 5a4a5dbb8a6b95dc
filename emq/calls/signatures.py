"""The parameters of a function, with their annotations as types."""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from typing import Any

UNRESOLVED = (NameError, AttributeError, SyntaxError, TypeError)
"""Errors of resolving an annotation that names something unknown or is no type."""


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


def resolved(function: Callable[..., Any], annotation: Any) -> Any:
    """Return an annotation as a type, where it is (or holds) a text such as "Order" or list["Order"].

    Names are looked for in the module of the function, then where the caller binds the function: a class may be local
    to the code that does so.

    Raises:
        UNRESOLVED: a name is unknown, or the text is no type.
    """

    def holder() -> None: ...

    holder.__annotations__ = {"it": annotation}
    return typing.get_type_hints(holder, _globals(function), _locals_of_caller(), include_extras=True)["it"]


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
    if isinstance(origin, type) and arguments:
        return f"{origin.__qualname__}[{', '.join('...' if a is ... else shown(a) for a in arguments)}]"
    return str(annotation)


def plain(function: Any) -> Any:
    """Return the function itself, from within partials, bound methods, decorators and callable objects."""
    while True:
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
            return function


def _globals(function: Callable[..., Any]) -> dict[str, Any]:
    found = getattr(plain(function), "__globals__", None)
    return found if isinstance(found, dict) else {}


def _locals_of_caller() -> Mapping[str, Any]:
    """Return the local names of the innermost code outside of EMQ that is being run."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__")):
        frame = frame.f_back
    return dict(frame.f_locals)


def _is_ours(module: object) -> bool:
    return isinstance(module, str) and (module.partition(".")[0] in ("emq", "typing", "functools"))
