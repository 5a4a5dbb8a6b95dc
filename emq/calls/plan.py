"""What a handler is called with, worked out once from its parameters.

The first parameter gets the message if it has no annotation, or the annotation `Message`, `Any` or `object`. With any
other annotation it gets the payload, decoded. Of the further parameters, those annotated `Message` get the message,
those with a `Depends` get what that returns, and all others keep their defaults.
"""

from __future__ import annotations

import collections.abc
import inspect
import re
import typing
from collections.abc import Callable
from typing import Any, NamedTuple

from emq import errors
from emq.calls import decoding, signatures
from emq.message import Message

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_LISTS = (list, collections.abc.Sequence, collections.abc.Collection, collections.abc.Iterable)
_UNTYPED = (inspect.Parameter.empty, Any, object)
_MESSAGE = re.compile(r"(emq\.|emq\.message\.)?Message")
_MESSAGES = re.compile(rf"(list|List|Sequence|Iterable|Collection)\[{_MESSAGE.pattern}\]")


class Plan(NamedTuple):
    """How to call a handler.

    Attributes:
        decode: decodes the payload of a message for the first parameter; None if that gets the message.
        messages: names of the further parameters that get the message, or the list of messages.
    """

    decode: decoding.Decode | None
    messages: tuple[str, ...]

    @property
    def is_direct(self) -> bool:
        """True if the handler is called with the message, or the list of messages, and nothing else."""
        return self.decode is None and not self.messages


DIRECT = Plan(None, ())


def of_handler(function: Callable[..., Any], pattern: str, *, batched: bool) -> Plan:
    """Return the plan for a handler.

    Args:
        pattern: what the handler is bound to, for errors.
        batched: whether the handler takes lists.

    Raises:
        InvalidSettings: the function cannot be called so, or EMQ cannot decode an annotation; the text says which.
    """
    signature = signatures.signature_of(function)
    if signature is None:
        return DIRECT
    name = f"the handler {getattr(function, '__qualname__', function)} for {pattern!r}"
    parameters = [*signature.parameters.values()]
    if not parameters or parameters[0].kind not in (*_POSITIONAL, inspect.Parameter.VAR_POSITIONAL):
        raise _unfit(function, signature, pattern, batched)
    first, further = parameters[0], parameters[1:]
    decode = _decode_first(function, first, name, batched)
    messages = []
    for parameter in further:
        if parameter.kind in _VARIABLE:
            continue
        if _is_of_messages(function, parameter, name, batched):
            if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
                raise errors.InvalidSettings(
                    f"the parameter {parameter.name!r} of {name} is positional only; EMQ gives it by name, so put it "
                    "behind the /"
                )
            messages.append(parameter.name)
        elif parameter.default is inspect.Parameter.empty:
            raise _unfit(function, signature, pattern, batched)
    return Plan(decode, tuple(messages))


def _unfit(function: object, signature: inspect.Signature, pattern: str, batched: bool) -> errors.InvalidSettings:
    called = f"{getattr(function, '__qualname__', function)}{signature}"
    argument = "a list of messages" if batched else "the message"
    return errors.InvalidSettings(
        f"the handler {called} for {pattern!r} cannot be called with one argument, {argument}; give it one parameter, "
        "and defaults for all others but those annotated Message"
    )


def _decode_first(
    function: Callable[..., Any], first: inspect.Parameter, name: str, batched: bool
) -> decoding.Decode | None:
    if first.annotation in _UNTYPED:
        return None
    annotation = _resolved(function, first, name)
    bare = signatures.without_metadata(annotation)
    what = f"the parameter {first.name!r} of {name} is annotated {signatures.shown(annotation)}"
    if bare in _UNTYPED:
        return None
    if batched:
        if bare in _LISTS:
            return None
        if typing.get_origin(bare) not in _LISTS:
            raise errors.InvalidSettings(
                f"{what}, but a handler with batch_size gets lists; annotate list[{signatures.shown(annotation)}]"
            )
        annotation = typing.get_args(bare)[0]
        bare = signatures.without_metadata(annotation)
        if bare is Message or bare in _UNTYPED or isinstance(bare, typing.TypeVar):
            return None
    elif bare is Message or isinstance(bare, typing.TypeVar):
        return None
    elif typing.get_origin(bare) in _LISTS and typing.get_args(bare) == (Message,):
        raise errors.InvalidSettings(f"{what}, but gets one message; annotate Message, or give a batch_size above 1")
    if first.kind is inspect.Parameter.VAR_POSITIONAL:
        raise errors.InvalidSettings(f"{what}; a payload needs a parameter of its own, without *")
    try:
        return decoding.decoder(annotation, signatures.shown(annotation))
    except Exception as exc:  # a class may have annotations of its own that cannot be resolved
        raise errors.InvalidSettings(
            f"{what}, and EMQ cannot decode a payload to this type ({_line(exc)}); annotate Message, bytes, str, dict, "
            "a dataclass, a TypedDict, a msgspec.Struct or a pydantic model"
        ) from exc


def _is_of_messages(function: Callable[..., Any], parameter: inspect.Parameter, name: str, batched: bool) -> bool:
    """Return whether a parameter behind the first is annotated `Message`, or `list[Message]` where there are lists."""
    if parameter.annotation in _UNTYPED:
        return False
    has_default = parameter.default is not inspect.Parameter.empty
    try:
        annotation = signatures.without_metadata(_resolved(function, parameter, name))
    except errors.InvalidSettings:
        if has_default:
            return False  # none of EMQ's business
        raise
    one = annotation is Message
    many = typing.get_origin(annotation) in _LISTS and typing.get_args(annotation) == (Message,)
    if one if batched else many:
        right = "list[Message]" if batched else "Message"
        raise errors.InvalidSettings(
            f"the parameter {parameter.name!r} of {name} is annotated {signatures.shown(annotation)}; annotate {right}"
        )
    return one or many


def _resolved(function: Callable[..., Any], parameter: inspect.Parameter, name: str) -> Any:
    annotation = parameter.annotation
    if isinstance(annotation, type):
        return annotation
    try:
        return signatures.resolved(function, annotation)
    except signatures.UNRESOLVED as exc:
        text = getattr(annotation, "__forward_arg__", annotation)
        if isinstance(text, str):  # `Message` may be imported for type checkers only
            bare = text.strip("'\" ")
            if _MESSAGE.fullmatch(bare):
                return Message
            if _MESSAGES.fullmatch(bare):
                return list[Message]
        raise errors.InvalidSettings(
            f"the annotation {signatures.shown(text)} of the parameter {parameter.name!r} of {name} cannot be resolved "
            f"({_line(exc)}); import the name where the handler's module runs, not for type checkers only"
        ) from exc


def _line(exc: Exception) -> str:
    text = " ".join(str(exc).split())
    return text[:200] if text else type(exc).__name__
