"""Mistakes of a standard kind in any file: each operator of `OPERATORS` at each place that it fits.

They complete the list, which holds mistakes that somebody thought of. Nobody keeps these up: they follow the code.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from mutants.mutant import Mutant

_SWAPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


def _negate(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    if isinstance(node, (ast.If, ast.While, ast.IfExp)):
        yield node.test, f"not ({ast.unparse(node.test)})"


def _swap(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    if isinstance(node, ast.Compare):
        for i, old in enumerate(node.ops):
            ops = [*node.ops[:i], _SWAPPED[type(old)](), *node.ops[i + 1 :]]
            yield node, f"({ast.unparse(ast.Compare(node.left, ops, node.comparators))})"


def _replace(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        yield node, f"({not node.value})" if isinstance(node.value, bool) else f"({node.value + 1!r})"


def _drop(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    is_call = isinstance(node, ast.Expr) and isinstance(node.value, (ast.Call, ast.Await))
    is_change = isinstance(node, ast.AugAssign) or (
        isinstance(node, ast.Assign) and isinstance(node.targets[0], (ast.Attribute, ast.Subscript))
    )
    if is_call or is_change or isinstance(node, (ast.Raise, ast.Delete, ast.Break, ast.Continue)):
        yield node, "pass"


def _return_early(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        if body and ast.unparse(body[0]) not in ("...", "pass", "return"):
            yield body[0], "return"


OPERATORS: dict[str, Callable[[ast.AST], Iterator[tuple[ast.AST, str]]]] = {
    "negate": _negate,
    "swap": _swap,
    "replace": _replace,
    "drop": _drop,
    "return": _return_early,
}
"""Each returns the places in a node that it changes, with the text that takes their place."""


def mutants_of(file: str, text: str) -> Iterator[tuple[int, Mutant]]:
    """Return each mistake in a file with the line that it changes; the test that catches it is not known yet.

    Args:
        file: from the root of the tree.
        text: what the file holds.
    """
    lines = text.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    data = text.encode()
    for node in _code(ast.parse(text)):
        for operator, change in OPERATORS.items():
            for i, (place, new) in enumerate(change(node)):
                assert isinstance(place, (ast.expr, ast.stmt))
                assert place.end_lineno is not None
                assert place.end_col_offset is not None
                begin = starts[place.lineno - 1] + place.col_offset
                end = starts[place.end_lineno - 1] + place.end_col_offset
                changed = (data[:begin] + new.encode() + data[end:]).decode()
                old = " ".join(data[begin:end].decode().split())
                name = f"{file}:{place.lineno}:{place.col_offset}-{operator}" + (f"-{i}" if i else "")
                yield place.lineno, Mutant(name, "-", f"{old[:60]} -> {new[:60]}", file, text, changed, "")


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run: no annotations, no text of an f-string, nothing that only the type checker reads."""
    yield node
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr) and not _is_for_types(child):
                yield from _code(child)


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
