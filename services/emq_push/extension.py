"""The extension of the push service: endpoints of topics, their deliveries on hosts, its commands."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any

from emq.runtime.extending import Extension, Standstill
from emq_push.attributes import DISABLED, FAILING_SINCE, PAUSED, URL

if TYPE_CHECKING:
    import sqlalchemy as sa
    import typer

    from emq import App, Settings
    from emq.topics.model import Topic

_SECRETS = ("push.headers.", "push.secret")
_SECRET = ("push.basic", "push.oauth2.secret", "push.tls.key")


class Push(Extension):
    """See `emq.runtime.extending.Extension`."""

    prefix = "push."
    address = URL
    recipient = "endpoint"
    help = (
        "push.url, push.timeout_s (10 s), push.content_type (application/json), push.throttle (on), push.secret, "
        "push.signing, push.headers.NAME, and more: see docs/webhooks.md"
    )
    notes = frozenset((FAILING_SINCE, PAUSED))

    def is_secret(self, attribute: str) -> bool:
        return attribute in _SECRET or attribute.startswith(_SECRETS)

    def permit(self, topic: Topic, before: Topic | None) -> None:
        from emq_push import allowed_rates

        allowed_rates.check(topic, before)

    def standstill(self, topic: Topic) -> Standstill | None:
        attributes, name = topic.options.attributes, topic.name
        if disabled := attributes.get(DISABLED):
            return Standstill(f"its endpoint is disabled: {disabled}", f"emq topic set {name} push.disabled=")
        if paused := attributes.get(PAUSED):
            return Standstill(paused, f"emq push resume {name.partition('.')[0]}")
        return None

    def check(self, topic: Topic, settings: Settings, *, is_new: bool) -> None:
        if any(name.startswith(self.prefix) for name in topic.options.attributes):
            from emq_push import of_topics

            of_topics.check(topic, settings, is_new=is_new)

    def stored(self, topic: Topic, settings: Settings) -> Topic:
        if not settings.secret_key and not settings.secret_key_file:
            return topic
        from emq_push import of_topics

        return of_topics.encrypted(topic, settings)

    async def agreed(self, topic: Topic, origin: str, settings: Settings) -> Topic:
        from emq_push import of_topics

        return await of_topics.agreed(topic, origin, settings)

    async def noted(self, app: App, topic: Topic, changes: Mapping[str, Any]) -> Callable[[sa.Connection], None] | None:
        from emq_push import topic_audit

        return await topic_audit.entry(app, topic, changes)

    async def set_up(self, app: App) -> None:
        from emq_push.records import schema

        await schema.ensure(app.database)

    @contextlib.asynccontextmanager
    async def consuming(self, app: App) -> AsyncIterator[None]:
        from emq_push.cli import pushing

        async with pushing.with_push(app):
            yield

    def add_commands(self, root: typer.Typer) -> None:
        from emq_cli import topics
        from emq_cli.session import command
        from emq_push.cli import encrypting, importing, push, types

        command(push.app, "import")(importing.import_)
        push.app.add_typer(types.app, name="types")
        root.add_typer(push.app, name="push")
        command(topics.app, "encrypt")(encrypting.encrypt)
