"""The plan of a handler's calls, made once from its parameters.

The first parameter gets the message if it has no annotation, or the annotation `Message`, `Any` or `object`. With any
other annotation it gets the payload, decoded. Of the further parameters, those annotated `Message` get the message,
those with a `Depends` get what that returns, and all others keep their defaults.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any, NamedTuple

from emq.calls import decoding, dependencies, signatures
from emq.runtime import errors
from emq.storage.message import Message

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_UNTYPED = (inspect.Parameter.empty, Any, object)


class Plan(NamedTuple):
    """How to call a handler.

    Attributes:
        decode: decodes the payload of a message for the first parameter; None if that gets the message.
        messages: names of the further parameters that get the message, or the list of messages.
        needs: names of the further parameters that get dependencies.
    """

    decode: decoding.Decode | None = None
    messages: tuple[str, ...] = ()
    needs: tuple[tuple[str, dependencies.Recipe], ...] = ()

    @property
    def is_direct(self) -> bool:
        """True if the handler is called with the message, or the list of messages, and nothing else."""
        return self == DIRECT


DIRECT = Plan()


def of_handler(function: Callable[..., Any], pattern: str, recipes: dependencies.Recipes, *, batched: bool) -> Plan:
    """Return the plan for a handler.

    Args:
        recipes: those of the app's dependencies.
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
    messages, needs = [], []
    for parameter in further:
        if parameter.kind in _VARIABLE:
            continue
        filled = dependencies.filling(function, parameter, name, batched)
        if filled is None:
            if parameter.default is inspect.Parameter.empty:
                raise _unfit(function, signature, pattern, batched)
            continue
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise errors.InvalidSettings(dependencies.positional_only(parameter, name))
        if filled is Message:
            messages.append(parameter.name)
        else:
            asked = f"the dependency {dependencies.shown(filled.function)} of {name}"
            needs.append((parameter.name, recipes.of(filled.function, asked, batched)))
    return Plan(decode, tuple(messages), tuple(needs))


def _unfit(function: object, signature: inspect.Signature, pattern: str, batched: bool) -> errors.InvalidSettings:
    called = f"{getattr(function, '__qualname__', function)}{signature}"
    argument = "a list of messages" if batched else "the message"
    return errors.InvalidSettings(
        f"the handler {called} for {pattern!r} cannot be called with one argument, {argument}; give it one parameter, "
        "and defaults for all others but those annotated Message or with a Depends"
    )


def _decode_first(
    function: Callable[..., Any], first: inspect.Parameter, name: str, batched: bool
) -> decoding.Decode | None:
    if first.annotation in _UNTYPED and not isinstance(first.default, dependencies.Dependency):
        return None
    if dependencies.mark_of(function, first, name) is not None:
        raise errors.InvalidSettings(
            f"the first parameter {first.name!r} of {name} is a dependency; put one for message or payload before it"
        )
    annotation = signatures.type_of(function, first, name)
    bare = signatures.without_metadata(annotation)
    what = f"the parameter {first.name!r} of {name} is annotated {signatures.shown(annotation)}"
    if bare in _UNTYPED:
        return None
    if signatures.is_messages(bare) if batched else signatures.is_message(bare):
        return None
    if batched:
        if bare in signatures.LISTS:
            return None
        if typing.get_origin(bare) not in signatures.LISTS:
            raise errors.InvalidSettings(
                f"{what}, but a handler with batch_size gets lists; annotate list[{signatures.shown(annotation)}]"
            )
        annotation = typing.get_args(bare)[0]
        bare = signatures.without_metadata(annotation)
        if bare in _UNTYPED or isinstance(bare, typing.TypeVar):
            return None
    elif isinstance(bare, typing.TypeVar):
        return None
    elif signatures.is_messages(bare):
        raise errors.InvalidSettings(f"{what}, but gets one message; annotate Message, or give a batch_size above 1")
    if first.kind is inspect.Parameter.VAR_POSITIONAL:
        raise errors.InvalidSettings(f"{what}; a payload needs a parameter of its own, without *")
    try:
        return decoding.decoder(annotation, signatures.shown(annotation))
    except Exception as exc:  # a class may have annotations of its own that cannot be resolved
        raise errors.InvalidSettings(
            f"{what}, and EMQ cannot decode a payload to this type ({signatures.line(exc)}); annotate Message, bytes, "
            "str, dict, a dataclass, a TypedDict, a msgspec.Struct or a pydantic model"
        ) from exc
