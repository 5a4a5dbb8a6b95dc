"""The public entry point: one object that opens everything, binds handlers, publishes, and runs a host."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Unpack, cast

from emq.app import sending
from emq.app.operating import OperatingApp
from emq.app.typed_family import P, TypedFamily
from emq.calls import content_types, decoding, encoding, signatures
from emq.calls.encoding import PLAIN, Payload
from emq.calls.middleware import Middleware, PublishChain, checked
from emq.observe.families import Declared
from emq.producer.options import PublishManyOptions, PublishOptions, ScheduleOptions, check_names
from emq.producer.outcomes import Outcome
from emq.producer.outgoing import Outgoing
from emq.runtime import errors, settings
from emq.runtime.environment import Environment
from emq.topics import families
from emq.topics.families import Bounds, Family
from emq.topics.option_types import FamilyArguments
from emq.trail.sink import TrailSink


class App(OperatingApp):
    """EMQ in one object.

    Use the app as an asynchronous context manager: entering opens the store and the database, leaving closes them. The
    app belongs to the event loop that entered it.

    **Settings.** The app reads them as the command line does: the arguments below go first, then the `EMQ_` variables,
    then `emq.toml` in the current directory, then the defaults. With `options` it reads neither variables nor file.
    Options of a command that opens the app (`emq up --app shop:app --store URL`) go before all of these.

    Args:
        store: URL of the store, such as `sqlite:///emq.db` or `redis://localhost`; None for the setting `store`.
        database: URL of the catalog and checkpoints; None for the setting `database`, which is by default beside the
            store (see `Settings.database_url`).
        environment: "online", or "sandbox" to try changes in; None for the setting `environment`.
        options: all other settings, as `emq.runtime.settings.load` returns them; the arguments `store`, `database` and
            `environment` override those in `options`.
        trail: records the events of each message; None means the directory of the setting `trail`, or no trail. The
            caller closes a trail given here.
        patient: if True, entering waits for a store or database server that does not answer yet, and logs that, for
            hosts that are started with the machine. If False, entering raises `StoreUnavailable` or
            `DatabaseUnavailable`.
        create: if False, entering raises `NoDatabase` instead of setting up a new database.
        content_type: how `publish` encodes objects, "application/json" or "application/msgpack". Handlers decode both.
        middleware: runs around each publish and each call of a handler; the first one is the outermost. See
            docs/middleware.md.

    Raises:
        InvalidSettings: a setting is wrong; the text names it.
    """

    def __init__(
        self,
        store: str | None = None,
        *,
        database: str | None = None,
        environment: Environment | str | None = None,
        options: settings.Settings | None = None,
        trail: TrailSink | None = None,
        patient: bool = False,
        create: bool = True,
        content_type: Literal["application/json", "application/msgpack"] = content_types.JSON,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        if not isinstance(content_type, str) or content_types.format_of(content_type) is None:
            raise errors.InvalidSettings(
                f"content_type {content_type!r} must be {content_types.JSON!r} or {content_types.MSGPACK!r}"
            )
        self._content_type = content_type
        self._options = options
        self._arguments = {"store": store, "database": database, "environment": environment}
        super().__init__(self._effective(None, {}), trail, patient=patient, create=create)
        self._middleware: list[Middleware] = []
        self._publish_chain: PublishChain | None = None
        for each in middleware:
            self.add_middleware(each)

    def configure(self, file: str | None = None, *, patient: bool = False, **overrides: Any) -> None:
        """Read the settings again, for a program that opens this app for its author, as `emq up --app` does.

        Args:
            file: the settings file instead of `emq.toml`; None for `emq.toml`, if it exists.
            patient: as for the constructor.
            overrides: settings that go before the app's own arguments; None values are ignored.

        Raises:
            WrongState: the app is open already.
            InvalidSettings: a setting is wrong; the text names it.
        """
        if self._is_entered:
            raise errors.WrongState("the App is open already; configure it before `async with app:`")
        self.settings = self._effective(file, overrides)
        self._patient = patient

    def add_middleware(self, middleware: Middleware) -> None:
        """Run a middleware around each publish and each call of a handler, within those added before.

        Raises:
            WrongState: the app is open already.
            InvalidSettings: it is not an object of a subclass of `Middleware` whose methods are `async def`.
        """
        if self._is_entered:
            raise errors.WrongState("the App is open already; add middleware before `async with app:`")
        self._middleware.append(checked(middleware))
        self._publish_chain = PublishChain.of(self._middleware, self._content_type)
        self.handlers.run_within(self._middleware)

    @property
    def dependency_overrides(self) -> dict[Callable[..., Any], Callable[..., Any]]:
        """For tests: replacements for the functions that handlers name in `Depends`, by these functions."""
        return self.handlers.overrides

    def _effective(self, file: str | None, overrides: Mapping[str, Any]) -> settings.Settings:
        arguments = {**self._arguments, **{name: value for name, value in overrides.items() if value is not None}}
        if self._options is not None:
            return settings.merged(self._options, **arguments)
        return settings.load(file, **arguments)

    def family(
        self,
        name: str,
        payload: type[P] = cast("type[Any]", bytes),  # noqa: B008, a default for type checkers: any payload
        *,
        bounds: Bounds | None = None,
        update: bool = False,
        **settings: Unpack[FamilyArguments],
    ) -> TypedFamily[P]:
        """Declare a family: settings for all topics below a prefix. The app creates it whenever it opens.

        The first publish to a name below the prefix makes the topic.

        Args:
            name: a prefix and a star, such as `orders.*`.
            payload: the type of its messages' payloads, for type checkers; left out, they check nothing.
            bounds: on what publishers may cause; see `emq.topics.families.Bounds`.
            update: if the family exists with other settings, give it and its topics these; else it keeps its own, and
                a warning in the log names it.
            settings: `qps`, the most starts a second of each topic, `idle_s` (300), and others as for `create_topic`.

        Returns:
            What publishes to the topics of the family, and binds their handler.

        Raises:
            InvalidSettings: EMQ cannot decode a payload to the type.
            InvalidTopic: a value is unknown or out of range, or the app has declared this family already. What the
                catalog must check is told when the app opens.
            WrongState: the app is open already.
        """
        if self._is_entered:
            raise errors.WrongState("the App is open already; declare families before `async with app:`")
        if "qps" not in settings:
            raise errors.InvalidTopic(f"family {name!r}: give qps, the most starts a second of each topic")
        try:
            decoding.decoder(payload, signatures.shown(payload))
        except TypeError as exc:
            raise errors.InvalidSettings(
                f"family {name!r}: payload {signatures.shown(payload)}: {exc}; give a type that `publish` takes"
            ) from exc
        wanted = families.checked(Family(families.asked(families.of_prefix(name), settings), bounds or Bounds()))
        if any(one.family.name == name for one in self.declared):
            raise errors.InvalidTopic(f"family {name!r}: this app has declared it already; declare it once")
        self.declared.append(Declared(wanted, update))
        return TypedFamily(name, self.publish, self.publish_many, self.handler(name))

    async def publish(
        self, topic: str, payload: Payload, *, content_type: str | None = None, **options: Unpack[PublishOptions]
    ) -> str:
        """Publish one message; return its id. See `Producer.publish`.

        Args:
            payload: bytes and text are published as they are. A dict, a list, or an object of a dataclass, a
                msgspec.Struct or a pydantic model is encoded; the message says how in its header `content-type`.
            content_type: "application/json" or "application/msgpack" for objects; None for the app's. Bytes and text
                get the header with any content type that is given here. A header `content-type` in `headers` wins.
            options: key, priority, headers, delay_ms ...; see `emq.producer.options.PublishOptions`.

        Raises:
            As `Producer.publish`; `InvalidMessage` also for an object that cannot be encoded.
        """
        send: Callable[..., Awaitable[str]] = self.producer.publish
        if self._publish_chain is not None:
            check_names("publish", options, PublishOptions.__optional_keys__)
            send = self._publish_chain.one("publish", send, content_type)
        elif content_type is not None or type(payload) not in PLAIN:
            payload, options["headers"] = encoding.encoded(
                payload, options.get("headers"), content_type, self._content_type
            )
        return await send(topic, payload, **options)

    async def publish_many(
        self,
        topic: str,
        payloads: Iterable[Payload],
        *,
        content_type: str | None = None,
        **options: Unpack[PublishManyOptions],
    ) -> list[str]:
        """Publish many messages to one topic; return their ids. See `Producer.publish_many`.

        Payloads and `content_type` are as for `publish`. All payloads of a call are objects, or all are bytes or text.

        Args:
            options: keys, scores, message_ids ...; see `emq.producer.options.PublishManyOptions`.
        """
        send: Callable[..., Awaitable[list[str]]] = self.producer.publish_many
        if self._publish_chain is not None:
            check_names("publish_many", options, PublishManyOptions.__optional_keys__)
            send = self._publish_chain.many(send, content_type)
        else:
            payloads, options["headers"] = encoding.encoded_many(
                payloads, options.get("headers"), content_type, self._content_type
            )
        return await send(topic, payloads, **options)

    async def send(self, messages: Iterable[Outgoing]) -> list[Outcome]:
        """Publish messages of any topics; return the outcome of each, in order. See `Producer.send`.

        With middleware around publishes, each message passes through `publish` by itself, those of a topic one after
        another.
        """
        if self._publish_chain is None:
            return await self.producer.send(messages)
        return await sending.each(self._publish_chain, self.producer, messages)

    async def schedule(
        self, topic: str, payload: Payload, *, content_type: str | None = None, **options: Unpack[ScheduleOptions]
    ) -> str:
        """Publish a message again and again; return the schedule's id. See `Producer.schedule`.

        The payload and `content_type` are as for `publish`.

        Args:
            options: every_s, cron, at ...; see `emq.producer.options.ScheduleOptions`.
        """
        send: Callable[..., Awaitable[str]] = self.producer.schedule
        if self._publish_chain is not None:
            check_names("schedule", options, ScheduleOptions.__optional_keys__)
            send = self._publish_chain.one("schedule", send, content_type)
        elif content_type is not None or type(payload) not in PLAIN:
            payload, options["headers"] = encoding.encoded(
                payload, options.get("headers"), content_type, self._content_type
            )
        return await send(topic, payload, **options)
