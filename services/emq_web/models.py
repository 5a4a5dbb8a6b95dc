"""The structs of requests and answers as pydantic models, by which FastAPI reads, writes and documents them.

A struct says once what a thing has: its fields and defaults, their ranges (`msgspec.Meta`), and in the section
"Attributes" of its docstring their meaning. The structs of answers are those into which `emq_clients` reads them; the
structs of bodies are those that the services take.
"""

from __future__ import annotations

import functools
import inspect
import operator
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Union

import fastapi
import msgspec
import pydantic
from fastapi.datastructures import DefaultPlaceholder

from emq_web import forms
from emq_web.repeating import RepeatableRoute

Struct = type[msgspec.Struct]
Model = type[pydantic.BaseModel]

_ENTRY = re.compile(r"(?m)^ {4}(?P<names>\w+(?:, \w+)*): (?P<text>.*(?:\n {5}.*)*)")
_WORDS = {"None": "null", "True": "true", "False": "false"}
"""Words of docstrings, which tell of Python, and what the document says instead, which tells of JSON."""
_RANGES = ("gt", "ge", "lt", "le", "min_length", "max_length")
_models: dict[tuple[Any, Model], Model] = {}


class Router(fastapi.APIRouter):
    """Routes to operations that return structs. Each answer is written and documented by the model of the struct.

    Requests with an `Idempotency-Key` are carried out once.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(route_class=RepeatableRoute, **options)

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        """Add an operation. Without a `response_model` it has the one of its return type."""
        if isinstance(options.get("response_model"), DefaultPlaceholder):
            returned = typing.get_type_hints(endpoint)["return"]
            options["response_model"] = _modelled(returned, forms.Shown)
        super().add_api_route(path, endpoint, **options)


def answer(kind: Struct, name: str = "", *, without: tuple[str, ...] = ()) -> Any:
    """Return a new model of a struct that operations return. All fields are in the answers.

    The first model of a struct stands for it wherever no other is named.

    Args:
        name: in the OpenAPI document; empty for that of the struct.
        without: fields that are left out.
    """
    model = _made(kind, name or kind.__name__, forms.Shown, without)
    _models.setdefault((kind, forms.Shown), model)
    return model


def of(kind: Struct) -> Any:
    """Return the model that stands for a struct in answers."""
    return _modelled(kind, forms.Shown)


def body(kind: Struct, name: str) -> Any:
    """Return the dependency that reads a body: the fields that the body has, by name.

    Args:
        kind: has the fields that the body may have.
        name: in the OpenAPI document.
    """

    async def given(body: Any) -> dict[str, Any]:
        found: dict[str, Any] = body.model_dump(exclude_unset=True)
        return found

    given.__annotations__["body"] = _made(kind, name, forms.Body)
    return fastapi.Depends(given)


def patch(kind: Struct, name: str) -> Any:
    """Return the dependency that reads a JSON Merge Patch: the fields that the body has, by name.

    A field that is null has its default; the members of objects may be null.

    Args:
        kind: has the fields that the body may have.
        name: in the OpenAPI document.
    """
    defaults = {each.name: _plain(each) for each in msgspec.structs.fields(kind) if not each.required}

    async def given(body: Any) -> dict[str, Any]:
        found: dict[str, Any] = body.model_dump(exclude_unset=True)
        nulls = [name for name, value in found.items() if value is None and defaults[name] != {}]
        return found | {name: defaults[name] for name in nulls}

    given.__annotations__["body"] = _patched(kind, name)
    return fastapi.Depends(given)


def _made(kind: Any, name: str, base: Model, without: tuple[str, ...] = ()) -> Model:
    fields = {}
    for each in msgspec.structs.fields(kind):
        if each.name not in without:
            default: Any = ... if base is forms.Shown or each.required else _plain(each)
            fields[each.name] = (_modelled(each.type, base), default)
    return _named(kind, name, base, fields)


def _patched(kind: Any, name: str) -> Model:
    fields = {}
    for each in msgspec.structs.fields(kind):
        type_ = _members(each.type)
        fields[each.name] = (type_ if each.required else type_ | None, None)
    return _named(kind, name, _Changes, fields)


def _named(kind: Any, name: str, base: Model, fields: Mapping[str, tuple[Any, Any]]) -> Model:
    """Return a model with these fields, each a type and a default, and the texts of the struct."""
    texts = descriptions(kind)
    given = {
        each: (type_, pydantic.Field(default, description=texts.get(each))) for each, (type_, default) in fields.items()
    }
    made: Model = pydantic.create_model(name, __base__=base, __doc__=summary(kind), **given)  # type: ignore[call-overload]
    return made


def _members(kind: Any) -> Any:
    """Return a type whose objects may have each of their members, or null for it."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if inspect.isclass(kind) and issubclass(kind, msgspec.Struct):
        return _patched(kind, f"{kind.__name__}Changes")
    if origin is Annotated:
        return Annotated[(_members(parts[0]), *map(_range, parts[1:]))]
    if origin in (Union, types.UnionType):
        return functools.reduce(operator.or_, map(_members, parts))
    if origin is dict:
        return origin[parts[0], _modelled(parts[1], forms.Body) | None]
    return _modelled(kind, forms.Body)


def _plain(field: msgspec.structs.FieldInfo) -> Any:
    """Return the default of a field as JSON has it."""
    value = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    return msgspec.json.decode(msgspec.json.encode(value))


def _without_defaults(schema: dict[str, Any]) -> None:
    for each in schema["properties"].values():
        each.pop("default", None)


class _Changes(forms.Body):
    """A body whose fields keep their values where it leaves them out."""

    model_config = pydantic.ConfigDict(json_schema_extra=_without_defaults)


def _modelled(kind: Any, base: Model) -> Any:
    """Return a type with models instead of its structs, and the ranges of pydantic instead of those of msgspec."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if inspect.isclass(origin or kind) and issubclass(origin or kind, msgspec.Struct):
        return _model_of(kind, base)
    if kind is msgspec.Raw:
        return Any
    if not parts or origin is Literal:
        return kind
    if origin is Annotated:
        return Annotated[(_modelled(parts[0], base), *map(_range, parts[1:]))]
    inner = [_modelled(each, base) for each in parts]
    if origin in (Union, types.UnionType):
        return functools.reduce(operator.or_, inner)
    if origin is tuple:  # of any length, which a body has as a list
        return list[inner[0]]  # type: ignore[valid-type]
    return origin[tuple(inner)]


def _model_of(kind: Any, base: Model) -> Model:
    found = _models.get((kind, base))
    if found is None:
        parts = typing.get_args(kind)
        if parts:  # a page
            name = _modelled(parts[0], base).__name__.removesuffix("Shown") + "Page"
        else:
            name = kind.__name__ + base.__name__
        found = _models[kind, base] = _made(kind, name, base)
    return found


def _range(meta: msgspec.Meta) -> Any:
    given = {name: getattr(meta, name) for name in _RANGES if getattr(meta, name) is not None}
    # JSON Schema and pydantic end a text at `$`, Python at `\Z`.
    pattern = None if meta.pattern is None else meta.pattern.replace(r"\Z", "$")
    return pydantic.Field(**given, pattern=pattern, json_schema_extra=meta.extra_json_schema)


def summary(kind: Any) -> str:
    """Return the docstring of a struct without the section on its fields."""
    return told((typing.get_origin(kind) or kind).__doc__ or "")[0]


def descriptions(kind: Any) -> dict[str, str]:
    """Return the texts on fields in the docstrings of a struct and of those from which it inherits."""
    found: dict[str, str] = {}
    for each in reversed(inspect.getmro(typing.get_origin(kind) or kind)):
        found |= told(each.__doc__ or "")[1]
    return found


def told(docstring: str) -> tuple[str, dict[str, str]]:
    """Return what a docstring says of a struct, and of each of its fields."""
    head, _, section = inspect.cleandoc(docstring).partition("Attributes:\n")
    found: dict[str, str] = {}
    for entry in _ENTRY.finditer(section):
        text = re.sub(r"\s+", " ", entry["text"]).removesuffix(".")
        text = re.sub(r"\b(None|True|False)\b", lambda word: _WORDS[word[0]], text)
        found |= dict.fromkeys(entry["names"].split(", "), text)
    return head.strip(), found
