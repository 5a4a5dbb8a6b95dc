"""The operations of a client of the API, held against what the API documents."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from types import ModuleType
from typing import Any, get_type_hints

import msgspec

from emq import App
from emq_clients.requests import Request
from emq_push.service.service import PushService
from emq_web import application

Operation = Callable[..., Request[Any]]


def of(module: ModuleType, besides: Collection[str]) -> dict[str, Operation]:
    """Return the public functions of a module by name, without some that make no request."""
    found = {name: each for name, each in vars(module).items() if inspect.isfunction(each) and name[0] != "_"}
    return {name: each for name, each in found.items() if each.__module__ == module.__name__ and name not in besides}


def documented() -> dict[str, Any]:
    """Return the OpenAPI document."""
    return application.build(PushService(App("memory:"))).openapi()


def documented_at(document: Mapping[str, Any], operation: Operation, samples: Mapping[str, Any]) -> list[str]:
    """Return the paths that the API documents for the request that an operation makes with sample arguments."""
    required = [p for p in inspect.signature(operation).parameters.values() if p.default is p.empty and p.kind != 4]
    request = operation(**{p.name: samples[p.name] for p in required})
    return [
        path
        for path, methods in document["paths"].items()
        if request.method.lower() in methods and re.fullmatch(re.sub(r"\{\w+\}", "[^/:]+", path), request.path)
    ]


def unknown_fields(document: Mapping[str, Any], shown: Mapping[type[msgspec.Struct], str]) -> dict[str, set[str]]:
    """Return the fields of structs that the schemas of these names do not have, by schema."""
    schemas = document["components"]["schemas"]
    found: dict[str, set[str]] = {}
    for struct, name in shown.items():
        # old versions of FastAPI give some models that are only answers a schema as input, too
        schema = schemas[name] if name in schemas else schemas[f"{name}-Output"]
        found[name] = set(get_type_hints(struct)) - set(schema["properties"])
    return {name: fields for name, fields in found.items() if fields}
