"""`emq topic encrypt`: encrypt stored secrets again, after the key has changed."""

from __future__ import annotations

from typing import Annotated

import typer

from emq.runtime import errors
from emq_cli import exit_codes, output
from emq_cli.extras import needing
from emq_cli.patterns import none
from emq_cli.progress import Bar
from emq_cli.session import Session, fail

TOLD = 20
"""Most topics that are named as unreadable."""


async def encrypt(
    session: Session,
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="Topics, such as 'shop-*'. (default: all)")] = "*",
) -> None:
    """Encrypt the secrets of push.* attributes with the first key of the setting secret_key.

    Secrets that are plain, or encrypted with another key of the setting, are written again. Give the new key before the
    old one, to all hosts, then run this; after that the old key is needed no more. Safe to repeat.

    Example: emq topic encrypt
    """
    with needing("push over HTTP", "push"):
        from emq_push.secrets import Secrets, reencrypt
    secrets = Secrets.of_setting(session.settings)
    written, changed, unreadable = 0, 0, dict[str, str]()
    async with session.app() as opened:
        if not secrets.encrypts:
            raise errors.InvalidSettings("there is no key; set secret_key or secret_key_file")
        names = await opened.catalog.names(pattern)
        if not names and pattern != "*":
            raise errors.UnknownTopic(none(pattern, opened.place))
        with Bar(session, "encrypting", len(names)) as bar:
            for number, name in enumerate(names):
                try:
                    count = await reencrypt(opened.catalog, name, secrets)
                except ValueError as exc:
                    unreadable[name] = str(exc)
                except errors.UnknownTopic:  # deleted meanwhile
                    pass
                else:
                    written, changed = written + count, changed + bool(count)
                bar.set(number + 1)
    text = f"encrypted {output.count(written, 'secret')} of {output.count(changed, 'topic')}"
    data = {"topics": len(names), "changed": changed, "secrets": written, "failed": unreadable}
    session.say(f"{text}; {output.count(len(names), 'topic')} looked at", data)
    for name, why in [*unreadable.items()][:TOLD]:
        session.err.print(output.plain(f"topic {name!r}: {why}"), soft_wrap=True)
    if unreadable:
        text = f"{output.count(len(unreadable), 'topic')} cannot be read; give the key that is missing, and repeat"
        fail(text, exit_codes.FAILED)
