"""Arguments and options that several commands take, each declared once."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

import typer

from emq.runtime.environment import Environment

Level = Literal["debug", "info", "warning", "error"]
"""The least level that is logged."""
Format = Literal["text", "json"]
"""How lines of the log look."""

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.", show_default=False)]
Pattern = Annotated[
    str,
    typer.Argument(
        metavar="[TOPIC|PATTERN]",
        help="A topic's name, or a shell pattern such as 'shop.*'. (default: all)",
        show_default=False,
    ),
]
NameOrPattern = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC|PATTERN", help="A topic's name, or a shell pattern such as 'shop.*'.", show_default=False
    ),
]
OneId = Annotated[str | None, typer.Argument(metavar="[ID]", help="The id of the message.", show_default=False)]
Identity = Annotated[
    str | None,
    typer.Option(
        "--identity", metavar="IDENTITY", help="The identity of the message, in place of ID; no other has it."
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask. Needed if standard input is not a terminal.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
LogLevel = Annotated[
    Level | None,
    typer.Option("--log-level", case_sensitive=False, help="Least level that is logged.", show_default=False),
]
LogFormat = Annotated[
    Format | None,
    typer.Option(
        "--log-format", case_sensitive=False, help="text, or one JSON object for each line.", show_default=False
    ),
]


def _text(option: str, help: str, metavar: str | None = None, *, where: bool = False) -> Any:
    """Return an option with a text; `where`: it names a place of EMQ's, as those that every command takes."""
    panel = "Where" if where else None
    return Annotated[
        str | None, typer.Option(option, metavar=metavar, help=help, rich_help_panel=panel, show_default=False)
    ]


SettingsFile = _text("--settings", "TOML file with settings. (default: emq.toml, if it exists)", "FILE", where=True)

SETTINGS: Mapping[str, Any] = MappingProxyType(
    {
        "app": _text("--app", "Use the handlers of this emq.App, such as shop.handlers.", "MODULE[:ATTRIBUTE]"),
        "api": _text(
            "--api",
            "Serve the HTTP API of the push service and of pools there, such as 127.0.0.1:8080.",
            "HOST:PORT",
        ),
        "metrics": _text(
            "--metrics", "Serve /metrics, /livez and /readyz over HTTP there, such as 127.0.0.1:9464.", "HOST:PORT"
        ),
        "log_level": LogLevel,
        "log_format": LogFormat,
        "store": _text(
            "--store",
            "URL of the store: memory:, sqlite:///FILE, redis://HOST:PORT/DB, postgresql://USER@HOST/DB; "
            "also redis+cluster://, redis+servers:// and redis+sentinel://.",
            where=True,
        ),
        "database": _text(
            "--database",
            "URL of the database with topics and checkpoints; left out: beside the store.",
            where=True,
        ),
        "cluster": _text(
            "--cluster",
            "ZooKeeper in which hosts meet: zookeeper://HOST:PORT,...; left out: in the database.",
            where=True,
        ),
        "environment": Annotated[
            Environment | None,
            typer.Option(
                "--env",
                help="online is production; sandbox is for trials and shares nothing with it.",
                rich_help_panel="Where",
            ),
        ],
    }
)
"""Settings that commands take as options, by the names of the settings."""

WHERE = ("store", "database", "cluster", "environment")
"""Those that every command takes."""

LOGGING = ("log_level", "log_format")


def one_of(message_id: str | None, identity: str | None) -> tuple[str, bool]:
    """Return the id or the identity of a message, whichever was given, and whether it is the identity.

    Raises:
        BadParameter: both were given, or neither.
    """
    if message_id is not None and identity is None:
        return message_id, False
    if identity is not None and message_id is None:
        return identity, True
    raise typer.BadParameter("give either the ID of the message or --identity")
