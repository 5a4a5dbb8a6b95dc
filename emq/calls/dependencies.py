"""Dependencies: results of functions that a handler asks for, made for each call and closed after it."""

from __future__ import annotations

import contextlib
import inspect
import types
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeVar, overload

from emq.calls import signatures
from emq.runtime import errors
from emq.storage.message import Message

T = TypeVar("T")

Kind = Literal["async", "plain", "async generator", "generator"]

Argument = Message | list[Message]
"""The argument of a handler's call: a message, or the messages of a batch."""

Run = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Awaits a plain function without arguments."""


DEEPEST = 100
"""Most functions that ask for each other in a row."""


class Dependency:
    """The mark that `Depends` leaves on a parameter."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __repr__(self) -> str:
        return f"Depends({getattr(self.function, '__qualname__', self.function)})"


@overload
def Depends(function: Callable[..., AsyncIterator[T]]) -> T: ...
@overload
def Depends(function: Callable[..., Iterator[T]]) -> T: ...
@overload
def Depends(function: Callable[..., Awaitable[T]]) -> T: ...
@overload
def Depends(function: Callable[..., T]) -> T: ...
def Depends(function: Callable[..., Any]) -> Any:
    """Ask for the value that `function` returns or yields: as a parameter's default, or in `Annotated`.

    EMQ calls the function once for each call of the handler, however often it is asked for. A generator goes on after
    the handler, with the handler's error if there is one; the last one made is closed first. The function may ask for
    dependencies itself, and for the message by the annotation `Message` (`list[Message]` for batches). Plain functions
    run in the threads of plain handlers. See docs/dependencies.md.

    Args:
        function: an `async def` or a plain function, with or without `yield`; or a class.

    Raises:
        InvalidSettings: `function` cannot be called.
    """
    if not callable(function):
        raise errors.InvalidSettings(f"Depends({function!r}) needs a function; give the function itself, without ()")
    return Dependency(function)


class Recipe(NamedTuple):
    """How to call a dependency.

    Attributes:
        function: returns or yields the value.
        kind: the kind of the function.
        messages: names of the parameters that get the message, or the list of messages.
        needs: names of the parameters that get dependencies.
        place: equal for recipes of the same function.
        is_plain: neither the function nor any that it asks for is asynchronous.
    """

    function: Callable[..., Any]
    kind: Kind
    messages: tuple[str, ...]
    needs: tuple[tuple[str, Recipe], ...]
    place: object
    is_plain: bool


Needs = tuple[tuple[str, Recipe], ...]
"""Names of parameters, with the dependencies that they get."""


class Recipes:
    """The dependencies of the handlers of an app.

    Attributes:
        overrides: functions to call instead of others, by the function; for tests.
    """

    def __init__(self) -> None:
        self.overrides: dict[Callable[..., Any], Callable[..., Any]] = {}

    def of(
        self,
        function: Callable[..., Any],
        name: str,
        batched: bool,
        above: tuple[object, ...] = (),
        known: dict[object, Recipe] | None = None,
    ) -> Recipe:
        """Return the recipe of a dependency.

        Args:
            name: the dependency and the handler, as errors name them.
            batched: whether the handler takes lists.
            above: the places of the functions that ask for this one.
            known: recipes that others have asked for, by place.

        Raises:
            InvalidSettings: a parameter cannot be filled, the function depends on itself, or dependencies ask for each
                other more than `DEEPEST` deep.
        """
        known, place = {} if known is None else known, _place(function)
        if place in above:
            raise errors.InvalidSettings(f"{name} depends on itself; break the circle")
        if len(above) >= DEEPEST:
            raise errors.InvalidSettings(
                f"dependencies ask for each other more than {DEEPEST} deep, at last for {shown(function)}"
            )
        if place in known:
            return known[place]
        signature = signatures.signature_of(function)
        messages, needs = [], []
        for parameter in () if signature is None else signature.parameters.values():
            if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
                continue
            filled = filling(function, parameter, name, batched)
            if filled is not None and parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
                raise errors.InvalidSettings(f"{positional_only(parameter, name)}")
            if isinstance(filled, Dependency):
                below = f"the dependency {shown(filled.function)} of {name}"
                needs.append((parameter.name, self.of(filled.function, below, batched, (*above, place), known)))
            elif filled is Message:
                messages.append(parameter.name)
            elif parameter.default is inspect.Parameter.empty:
                raise errors.InvalidSettings(
                    f"EMQ cannot fill the parameter {parameter.name!r} of {name}; give it a default, a Depends, or the "
                    f"annotation {'list[Message]' if batched else 'Message'}"
                )
        kind = _kind(function)
        is_plain = kind in ("plain", "generator") and all(need.is_plain for _, need in needs)
        known[place] = Recipe(function, kind, tuple(messages), tuple(needs), place, is_plain)
        return known[place]

    def current(self, recipe: Recipe, batched: bool) -> Recipe:
        """Return the recipe in force: that of the override, if there is one.

        Raises:
            InvalidSettings: as `of`; also if the override asks for the function that it replaces.
        """
        if not self.overrides:
            return recipe
        try:
            function = self.overrides.get(recipe.function)
        except TypeError:  # a callable object that cannot be hashed
            return recipe
        if function is None or _place(function) == recipe.place:
            return recipe
        return self.of(function, f"the override {shown(function)}", batched, (recipe.place,))

    def is_plain(self, recipe: Recipe, batched: bool, seen: set[object] | None = None) -> bool:
        """Return True if neither a dependency nor any that it asks for is asynchronous.

        Args:
            seen: the places that were looked at already.
        """
        if not self.overrides:
            return recipe.is_plain
        seen = set() if seen is None else seen
        if recipe.place in seen:
            return True
        seen.add(recipe.place)
        recipe = self.current(recipe, batched)
        return recipe.kind in ("plain", "generator") and all(
            self.is_plain(need, batched, seen) for _, need in recipe.needs
        )


class Making:
    """Makes the dependencies of one call of a handler, each of them once.

    Args:
        argument: the message or messages of the call.
        run: calls plain functions.
        closing: closes the dependencies after the call.
    """

    def __init__(self, recipes: Recipes, argument: Argument, run: Run, closing: contextlib.AsyncExitStack) -> None:
        self._recipes = recipes
        self._argument = argument
        self._run = run
        self._closing = closing
        self._made: dict[object, Any] = {}

    async def all(self, needs: Needs) -> dict[str, Any]:
        """Return the values of dependencies, by the names of the parameters that get them."""
        return {name: await self._value(recipe) for name, recipe in needs}

    async def _value(self, recipe: Recipe) -> Any:
        place = recipe.place
        if place not in self._made:
            self._made[place] = await self._new(self._recipes.current(recipe, isinstance(self._argument, list)))
        return self._made[place]

    async def _new(self, recipe: Recipe) -> Any:
        named = {**dict.fromkeys(recipe.messages, self._argument), **(await self.all(recipe.needs))}
        if recipe.kind == "async":
            return await recipe.function(**named)
        if recipe.kind == "async generator":
            opened = contextlib.asynccontextmanager(recipe.function)(**named)
            value = await opened.__aenter__()
            self._closing.push_async_exit(_without_verdict(opened.__aexit__))
            return value
        if recipe.kind == "generator":
            held = contextlib.contextmanager(recipe.function)(**named)
            value = await self._run(held.__enter__)
            self._closing.push_async_exit(_without_verdict(lambda *failure: self._run(lambda: held.__exit__(*failure))))
            return value
        value = await self._run(lambda: recipe.function(**named))
        if inspect.iscoroutine(value):
            value.close()
            raise errors.InvalidSettings(
                f"the dependency {shown(recipe.function)} returned a coroutine; make it an `async def`"
            )
        return value


async def call_with(
    recipes: Recipes,
    needs: Needs,
    argument: Argument,
    run: Run,
    call: Callable[[Mapping[str, Any]], Awaitable[Any]],
) -> Any:
    """Await `call` with the values of its dependencies by name, then close these.

    An error of the call reaches each dependency that is a generator. None of them can turn the error into success: the
    message would be lost. If one fails while it is closed, its error counts instead, as in `with` blocks.
    """
    async with contextlib.AsyncExitStack() as closing:
        return await call(await Making(recipes, argument, run, closing).all(needs))
    raise AssertionError("an exit of the stack has ended an error")


def run_to_end(coroutine: Any) -> Any:
    """Run in this thread a coroutine that never waits; return its value."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    raise RuntimeError("a plain dependency waited")


def filling(function: Callable[..., Any], parameter: inspect.Parameter, name: str, batched: bool) -> Any:
    """Return the content of a parameter: a `Dependency`, `Message` for the message(s), or None for its default.

    Raises:
        InvalidSettings: the annotation cannot be resolved, or asks for a message where there are lists, or vice versa.
    """
    mark = mark_of(function, parameter, name)
    if mark is not None:
        return mark
    try:
        annotation = signatures.type_of(function, parameter, name)
    except errors.InvalidSettings:
        return None  # of a parameter with a default; else `mark_of` has raised
    one, many = signatures.is_message(annotation), signatures.is_messages(annotation)
    if (one and not many) if batched else (many and not one):
        raise errors.InvalidSettings(
            f"the parameter {parameter.name!r} of {name} is annotated {signatures.shown(annotation)}; annotate "
            f"{'list[Message]' if batched else 'Message'}"
        )
    return Message if one or many else None


def mark_of(function: Callable[..., Any], parameter: inspect.Parameter, name: str) -> Dependency | None:
    """Return the mark of `Depends` on a parameter, or None. Raises as `filling` does."""
    if isinstance(parameter.default, Dependency):
        return parameter.default
    try:
        annotation = signatures.type_of(function, parameter, name)
    except errors.InvalidSettings:
        if parameter.default is inspect.Parameter.empty:
            raise
        return None  # the annotation of a parameter with a default is none of EMQ's business
    marks = typing.get_args(annotation)[1:] if typing.get_origin(annotation) is typing.Annotated else ()
    return next((mark for mark in marks if isinstance(mark, Dependency)), None)


def positional_only(parameter: inspect.Parameter, name: str) -> str:
    return (
        f"the parameter {parameter.name!r} of {name} is positional only; EMQ gives it by name, so put it behind the /"
    )


def shown(function: object) -> str:
    """Return the name of a function."""
    return str(getattr(signatures.plain(function), "__qualname__", function))


def _place(function: Callable[..., Any]) -> object:
    """Return a key of a function. Each look at a method of an object makes a new method, equal to the others."""
    return function if isinstance(function, types.MethodType | types.BuiltinMethodType) else id(function)


def _kind(function: Callable[..., Any]) -> Kind:
    code = function if inspect.isroutine(function) or inspect.isclass(function) else signatures.plain(function)
    if inspect.isasyncgenfunction(code):
        return "async generator"
    if inspect.isgeneratorfunction(code):
        return "generator"
    return "async" if inspect.iscoroutinefunction(code) else "plain"


def _without_verdict(close: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[bool]]:
    """Close a dependency; the error of the handler goes on even if the dependency swallows it."""

    async def closed(*failure: Any) -> bool:
        await close(*failure)
        return False

    return closed
