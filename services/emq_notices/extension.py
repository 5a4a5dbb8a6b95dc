"""The extension of notices: each host watches while it leads; commands."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from emq.runtime import errors
from emq.runtime.extending import Extension

if TYPE_CHECKING:
    import typer

    from emq import App
    from emq.runtime.settings import Settings
    from emq.topics.model import Topic


class Notices(Extension):
    """See `emq.runtime.extending.Extension`."""

    prefix = "notices."
    help = "notices.after_s (300)"

    def check(self, topic: Topic, settings: Settings, *, is_new: bool) -> None:
        from emq_notices.watching import AFTER, after_s_of

        for name in topic.options.attributes:
            if name.startswith(self.prefix) and name != AFTER:
                raise errors.InvalidTopic(f"topic {topic.name!r}: {name} is not known; known is {AFTER}")
        try:
            after_s_of(topic)
        except ValueError as exc:
            raise errors.InvalidTopic(f"topic {topic.name!r}: {exc}") from None

    @contextlib.asynccontextmanager
    async def consuming(self, app: App) -> AsyncIterator[None]:
        from emq_notices.watching import watch

        async with watch(app):
            yield

    def add_commands(self, root: typer.Typer) -> None:
        from emq_notices.cli import notices

        root.add_typer(notices.app, name="notices")
