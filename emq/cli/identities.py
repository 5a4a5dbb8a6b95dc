"""The arguments by which commands take one message: its id, which other messages may have as well, or its identity."""

from __future__ import annotations

from typing import Annotated

import typer

OneId = Annotated[str | None, typer.Argument(metavar="[ID]", help="The id of the message.", show_default=False)]
Identity = Annotated[
    str | None,
    typer.Option(
        "--identity", metavar="IDENTITY", help="The identity of the message, in place of ID; no other has it."
    ),
]


def one_of(message_id: str | None, identity: str | None) -> tuple[str, bool]:
    """Return the id or the identity, whichever was given, and whether it is the identity.

    Raises:
        BadParameter: both were given, or neither.
    """
    if message_id is not None and identity is None:
        return message_id, False
    if identity is not None and message_id is None:
        return identity, True
    raise typer.BadParameter("give either the ID of the message or --identity")
