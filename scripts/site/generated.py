"""What pages take from the code itself: a page says `<!-- generated: settings -->` where a table belongs.

`<!-- generated: note -->` and the quotation behind it (lines with `> `) are for readers of the checkout, who see no
table; the site leaves both out.
"""

from __future__ import annotations

import ast
import html
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import pool_tables
import typer

from emq.runtime import errors, settings
from emq.topics.model import SORTED_OPTIONS, Topic
from emq.topics.options import Described, TopicOptions, described, in_words
from emq_cli.commands import app
from emq_cli.topic_options import written

_MARK = re.compile(r"^<!-- generated: ([a-z-]+) -->$", re.MULTILINE)
_NOTE = re.compile(r"^<!-- generated: note -->\n(?:> .*\n)+", re.MULTILINE)


def inserted(markdown: str, uri: str, warn: Callable[[str], None]) -> str:
    """Return the page's text with each mark replaced; `warn` is told of a mark that nothing stands for."""

    def text(mark: re.Match[str]) -> str:
        if mark[1] not in _PARTS:
            warn(f"{uri}: nothing is generated for {mark[1]!r}; there are {', '.join(_PARTS)}")
            return ""
        return _PARTS[mark[1]]()

    return _MARK.sub(text, _NOTE.sub("", markdown))


def _settings() -> str:
    hints = inspect.get_annotations(settings.Settings, eval_str=True)
    parts = []
    for name, default in msgspec.to_builtins(settings.Settings()).items():
        shown = '""' if default == "" else written(default)
        facts = f"`{settings.PREFIX}{name.upper()}` · {in_words(hints[name])}{_bounds(hints[name])} · default `{shown}`"
        parts.append(f"### {name}\n\n{facts}\n\n{_prose(settings.DESCRIPTIONS[name])}\n")
    return "\n".join(parts)


def _bounds(hint: Any) -> str:
    words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    metas = [m for m in getattr(hint, "__metadata__", ()) if isinstance(m, msgspec.Meta)]
    found = [f"{word} {getattr(m, key):g}" for m in metas for key, word in words.items() if getattr(m, key) is not None]
    return f", {' and '.join(found)}" if found else ""


def _topic() -> str:
    return _options(described(Topic))


def _any_kind() -> str:
    return _options(option for option in described(TopicOptions) if option.name not in SORTED_OPTIONS)


def _sorted() -> str:
    return _options(option for option in described(TopicOptions) if option.name in SORTED_OPTIONS)


def _options(options: Iterable[Described]) -> str:
    parts = []
    for option in options:
        default = "required" if option.default == "required" else f"default `{written(option.default) or 'empty'}`"
        unit = f", {'' if option.unit.startswith('per ') else 'in '}{option.unit}" if option.unit else ""
        parts.append(f"### {option.name}\n\n{option.type}{unit} · {default}\n\n{_prose(option.meaning)}\n")
    return "\n".join(parts)


def _commands() -> str:
    root: Any = typer.main.get_command(app)
    context = root.context_class(root, info_name="emq")
    return "\n".join(_command(root.commands[name], name, context, 2) for name in root.list_commands(context))


def _command(command: Any, name: str, above: Any, level: int) -> str:
    """Return a part for a command, or for a group with its commands."""
    context = command.context_class(command, info_name=name, parent=above)
    lines = [f"{'#' * level} {context.command_path}", "", *_help(command.help or ""), ""]
    inner = getattr(command, "commands", None)
    if inner is not None:
        return "\n".join(
            [*lines, *(_command(inner[key], key, context, level + 1) for key in command.list_commands(context))]
        )
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    rows = list(_parameters(command, context))
    table = ["| | |", "|---|---|", *rows, ""] if rows else []
    return "\n".join([*lines, "```text", usage, "```", "", *table])


def _parameters(command: Any, context: Any) -> Iterator[str]:
    for parameter in command.get_params(context):
        if getattr(parameter, "hidden", False) or parameter.name == "help":
            continue
        if getattr(parameter, "rich_help_panel", None) == "Where":
            continue
        is_option = parameter.param_type_name == "option"
        name = ", ".join(parameter.opts) if is_option else parameter.metavar or parameter.name.upper()
        if is_option and not getattr(parameter, "is_flag", False):
            name += f" {parameter.metavar or parameter.display_type(context)}"
        default = ""
        if parameter.default not in (None, False, "", ()) and is_option and not callable(parameter.default):
            default = f" Default: {written(getattr(parameter.default, 'value', parameter.default))}."
        required = " Required." if parameter.required and is_option else ""
        shown = html.escape(name, quote=False).replace("|", "&#124;")  # a code span would show the entity
        yield f"| <code>{shown}</code> | {_cell(parameter.help or '')}{default}{required} |"


def _help(text: str) -> Iterator[str]:
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        example = re.match(r"Example: (.*)", " ".join(paragraph.split()))
        if example:
            yield f"```console\n$ {example[1]}\n```\n"
        elif "\b" in paragraph:
            yield "```text\n" + paragraph.replace("\b", "").strip("\n") + "\n```\n"
        else:
            yield _prose(" ".join(paragraph.split())) + "\n"


def _errors() -> str:
    rows = ["| error | when | what to do |", "|---|---|---|"]
    for node in ast.parse(inspect.getsource(errors)).body:
        if isinstance(node, ast.ClassDef) and issubclass(getattr(errors, node.name), errors.EMQError):
            when, remedy = _halves(inspect.cleandoc(ast.get_docstring(node) or ""))
            bases = [
                base.id
                for base in node.bases
                if isinstance(base, ast.Name) and base.id not in ("Exception", "EMQError")
            ]
            kind = f"<br>also a {', '.join(f'`{base}`' for base in bases)}" if bases else ""
            rows.append(f"| `{node.name}`{kind} | {_cell(when)} | {_cell(remedy)} |")
    return "\n".join(rows)


def _halves(docstring: str) -> tuple[str, str]:
    """Return the first sentence of a docstring, and the rest."""
    text = " ".join(docstring.split())
    first, _, rest = re.sub(r"\. (?=[A-Z])", ".\0", text, count=1).partition("\0")
    return first, rest


def _cell(text: str) -> str:
    return _prose(" ".join(text.split())).replace("|", "&#124;")


def _prose(text: str) -> str:
    """Escape what Markdown would take for markup outside of code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else html.escape(part, quote=False).replace("*", r"\*").replace("_", r"\_")
        for part in parts
    )


_PARTS: dict[str, Callable[[], str]] = {
    "settings": _settings,
    "topic": _topic,
    "topic-options": _any_kind,
    "sorted-options": _sorted,
    "commands": _commands,
    "errors": _errors,
    "pool": lambda: pool_tables.markdown(_cell),
}
