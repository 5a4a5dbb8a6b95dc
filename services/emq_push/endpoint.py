"""A tenant's HTTP endpoint, as kept in the attributes of its topic."""

from __future__ import annotations

import dataclasses
import ssl
import zlib
from collections.abc import Callable, Mapping
from typing import Annotated, Literal

import msgspec
import yarl
from msgspec import Meta

from emq.runtime import errors
from emq.topics import model
from emq_push import destinations, endpoint_values, signature, styles, tls
from emq_push.attributes import DISABLED, FAILING_SINCE, PAUSED, URL
from emq_push.masking import Masking, secrets_of
from emq_push.oauth2 import OAuth2
from emq_push.schedule import Schedule
from emq_push.secrets import LacksKey, Secrets
from emq_push.styles import SIGNING, STANDARD, Signed
from emq_push.template import TEMPLATE, Template, parsed

DEFAULT_TIMEOUT_S = 10.0
DEFAULT_CONTENT_TYPE = "application/json"
DEFAULT_DISABLE_AFTER_S = 5 * 86_400.0
"""Five days, in seconds: an endpoint that has failed for so long, without a success, is disabled."""
MAX_BATCH = 1_000
DEFAULT_BATCH_MS = 100.0
MAX_BATCH_MS = 60_000.0
MAX_RATE = 1_000_000_000

_PREFIX = "push."
_AUTHORIZATION = "Authorization"
BASIC = "push.basic"
OAUTH2 = ("push.oauth2.url", "push.oauth2.client_id", "push.oauth2.secret", "push.oauth2.scope")
BATCH = ("push.batch", "push.batch_ms", "push.batch_format")
_TLS = ("push.tls.ca", "push.tls.cert", "push.tls.key")
_KNOWN = (
    *(URL, "push.timeout_s", "push.content_type", "push.throttle", "push.secret", SIGNING, BASIC, *OAUTH2, *_TLS),
    *("push.origin", "push.allowed_rate", TEMPLATE, *BATCH),
    *("push.disable_after_s", DISABLED, PAUSED, FAILING_SINCE, "push.headers.<Name>"),
)


class Batch(msgspec.Struct, frozen=True):
    """How messages share a request.

    Attributes:
        most: most messages of one request.
        wait_s: most seconds that a message waits for others.
        format: a JSON array of the payloads, or one payload a line.
    """

    most: Annotated[int, Meta(ge=2, le=MAX_BATCH)]
    wait_s: Annotated[float, Meta(ge=0, le=MAX_BATCH_MS / 1000)] = DEFAULT_BATCH_MS / 1000
    format: Literal["json", "lines"] = "json"


class KeyMissing(errors.InvalidTopic):
    """The endpoint is in order, but this process lacks the key of one of its secrets; set `secret_key`."""


@dataclasses.dataclass(frozen=True, slots=True)
class Endpoint:
    """One tenant's endpoint.

    Attributes:
        topic: name of the topic.
        url: sent as written: an escape such as %2F is not touched, since a signed URL must not change.
        priorities: the topic's priority names, highest first.
        timeout_s: seconds for the whole delivery, from connecting to the last byte of the answer.
        content_type: of the payload.
        throttles: True if the topic gets less than its quota while the endpoint cannot take more.
        signed: signs each delivery; None without `push.secret`.
        headers: extra headers of each request, with `Authorization` for `push.basic`; they may hold secrets and are
            left out of `repr`.
        oauth2: where to get the token of each request; None for none.
        tls: the endpoint's own settings of TLS; None for the usual ones.
        batch: how messages share a request; None if each has its own.
        disabled: why nothing is delivered, also while the tenant is paused; empty for an endpoint in use.
        failing_since: when it began to fail, as noted by hosts, in seconds since the epoch; 0 if it does not.
        disable_after_s: seconds of failure after which it is disabled; infinity for never.
        schedule: when failed messages are tried again.
        written_url: the URL as the attribute has it.
        masked: masks the endpoint's secrets in a text.
        template: rewrites payloads; None to send them as they are.
    """

    topic: str
    url: yarl.URL
    priorities: tuple[str, ...] = ()
    timeout_s: float = DEFAULT_TIMEOUT_S
    content_type: str = DEFAULT_CONTENT_TYPE
    throttles: bool = True
    signed: Signed | None = dataclasses.field(default=None, repr=False, compare=False)
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False, hash=False)
    oauth2: OAuth2 | None = None
    tls: ssl.SSLContext | None = dataclasses.field(default=None, repr=False, compare=False)
    batch: Batch | None = None
    disabled: str = dataclasses.field(default="", compare=False)
    failing_since: float = dataclasses.field(default=0.0, compare=False)
    disable_after_s: float = dataclasses.field(default=DEFAULT_DISABLE_AFTER_S, compare=False)
    schedule: Schedule = dataclasses.field(default=Schedule(), compare=False)
    written_url: str = dataclasses.field(default="", compare=False)
    masked: Masking = dataclasses.field(default_factory=Masking, repr=False, compare=False)
    template: Template | None = None

    @classmethod
    def from_topic(cls, topic: model.Topic, secrets: Secrets | None = None) -> Endpoint | None:
        """The endpoint in the topic's attributes; None if it has no attribute that starts with `push.`.

        Args:
            topic: as the catalog has it.
            secrets: decrypts secrets in the attributes; None if all of them are plain.

        Raises:
            KeyMissing: this process lacks the key of a secret.
            InvalidTopic: an attribute is missing, unknown or out of range; correct the one named.
        """
        attributes = {name: value for name, value in topic.options.attributes.items() if name.startswith(_PREFIX)}
        if not attributes:
            return None
        try:
            return _Reader(attributes, secrets or Secrets()).endpoint(topic)
        except ValueError as exc:
            kind = KeyMissing if isinstance(exc, LacksKey) else errors.InvalidTopic
            raise kind(f"{model.called(topic.name)}: {exc}") from None


def is_delivered(attributes: Mapping[str, str]) -> bool:
    """Return True if a topic of these attributes has an endpoint that is not disabled or paused: hosts consume it."""
    return URL in attributes and not attributes.get(DISABLED) and not attributes.get(PAUSED)


def failing_note(since: float, written_url: str) -> str:
    """Return the value of `push.failing_since`: when the endpoint began to fail, and of which URL that is true."""
    return f"{since:.0f} {_checksum(written_url)}"


def _checksum(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


def batch_of(attributes: Mapping[str, str]) -> Batch | None:
    """Return how the messages of an endpoint share a request; None if each has its own.

    Raises:
        ValueError: an attribute is out of range; the text names it.
    """
    most = endpoint_values.whole_number(BATCH[0], attributes.get(BATCH[0], "1"), 1, MAX_BATCH)
    wait_ms = endpoint_values.number(BATCH[1], attributes.get(BATCH[1], f"{DEFAULT_BATCH_MS}"), 0.0, MAX_BATCH_MS)
    form = endpoint_values.choice(BATCH[2], attributes.get(BATCH[2]) or "json", ("json", "lines"))
    return None if most == 1 else Batch(most, wait_ms / 1000, "json" if form == "json" else "lines")


class _Reader:
    """Reads the attributes of one topic, and remembers the secrets among them."""

    def __init__(self, attributes: Mapping[str, str], secrets: Secrets) -> None:
        self._attributes = dict(attributes)
        self._secrets = secrets
        self._seen: list[str] = []

    def endpoint(self, topic: model.Topic) -> Endpoint:
        url = destinations.url(self._take(URL))
        timeout_s = self._number("push.timeout_s", DEFAULT_TIMEOUT_S, *_TIMEOUTS)
        content_type = self._take("push.content_type") or DEFAULT_CONTENT_TYPE
        endpoint_values.check_value("push.content_type", content_type)
        throttles = endpoint_values.switch("push.throttle", self._take("push.throttle") or "on")
        signed = self._signed()
        oauth2 = self._oauth2()
        own_tls = tls.context(self._take("push.tls.ca"), self._take("push.tls.cert"), self._secret("push.tls.key"))
        batch = batch_of({name: self._attributes.pop(name) for name in BATCH if name in self._attributes})
        paused = self._take(PAUSED)
        disabled, failing_since = self._take(DISABLED) or paused, self._failing_since(topic.options.attributes[URL])
        disable_after_s = self._disable_after_s()
        template = self._template()
        self._number("push.allowed_rate", 1.0, 1.0, MAX_RATE)
        headers = self._headers(oauth2)  # last, since all that is left must be a header
        if url.scheme not in destinations.HTTP:
            self._check_for(url.scheme, {OAUTH2[0]: oauth2, _TLS[0]: own_tls, BATCH[0]: batch})
        if template is not None and url.scheme == destinations.POLL:
            raise ValueError(f"{TEMPLATE} is not for poll:, where payloads come as they were sent; leave it out")
        return Endpoint(
            topic.name,
            url,
            topic.priorities,
            timeout_s,
            content_type,
            throttles,
            signed,
            headers,
            oauth2,
            own_tls,
            batch,
            disabled,
            failing_since,
            disable_after_s,
            Schedule.of(topic),
            topic.options.attributes[URL],
            Masking(self._seen),
            template,
        )

    def _template(self) -> Template | None:
        try:
            return parsed(self._take(TEMPLATE))
        except ValueError as exc:
            raise ValueError(f"{TEMPLATE} {exc}") from None

    def _check_for(self, scheme: str, ways_of_http: Mapping[str, object]) -> None:
        """Refuse what only a request of HTTP has."""
        for name, given in ways_of_http.items():
            if given is not None:
                raise ValueError(f"{name} is for http and https, not for {scheme}:; leave it out")

    def _headers(self, oauth2: OAuth2 | None) -> dict[str, str]:
        origin, basic = self._take("push.origin"), self._secret("push.basic")
        given = dict(self._attributes)
        for name, value in given.items():
            if not name.startswith(endpoint_values.HEADER_PREFIX):
                raise ValueError(f"{name} is not known; known are {', '.join(_KNOWN)}")
            given[name] = self._decrypted(name, value)
        found = endpoint_values.headers(given)
        self._seen += [secret for value in found.values() for secret in secrets_of(value)]
        ways = ["push.basic"] * bool(basic) + ["push.oauth2.url"] * (oauth2 is not None)
        ways += [f"push.headers.{name}" for name in found if name.lower() == _AUTHORIZATION.lower()]
        if len(ways) > 1:
            raise ValueError(f"{' and '.join(ways)} give one header twice; keep one")
        if basic:
            found[_AUTHORIZATION] = endpoint_values.basic("push.basic", basic)
            self._seen += (found[_AUTHORIZATION].partition(" ")[2], basic.partition(":")[2])
        if origin:
            endpoint_values.check_value("push.origin", origin)
            found["WebHook-Request-Origin"] = origin
        return found

    def _signed(self) -> Signed | None:
        secrets, style = self._secret("push.secret"), self._take(SIGNING) or STANDARD
        self._seen += [signature.without_prefix(text) for text in secrets.split()]
        for name in styles.header_names(style):
            of_style = f"{endpoint_values.HEADER_PREFIX}{name}"
            if of_style.lower() in map(str.lower, self._attributes):
                raise ValueError(f"{of_style} is a header of {SIGNING}; keep one")
            if name.lower() == _AUTHORIZATION.lower() and {BASIC, OAUTH2[0]} & self._attributes.keys():
                raise ValueError(f"{SIGNING} has the header {name}, as {BASIC} and {OAUTH2[0]} have; keep one")
        if secrets:
            return styles.signed(style, secrets)
        if style != STANDARD:
            raise ValueError(f"{SIGNING} needs push.secret; give both")
        return None

    def _oauth2(self) -> OAuth2 | None:
        url, client_id, scope = (self._take(name) for name in (OAUTH2[0], OAUTH2[1], OAUTH2[3]))
        secret = self._secret("push.oauth2.secret")
        if not (url or client_id or scope or secret):
            return None
        if not (url and client_id and secret):
            raise ValueError("push.oauth2.url, push.oauth2.client_id and push.oauth2.secret go together; give all")
        self._seen.append(secret)
        return OAuth2(endpoint_values.url("push.oauth2.url", url), client_id, secret, scope)

    def _failing_since(self, written_url: str) -> float:
        """Return the time in the note of hosts, or 0 if they noted it of another URL."""
        text = self._take(FAILING_SINCE)
        seconds, _, url = text.partition(" ")
        return endpoint_values.number(FAILING_SINCE, seconds, 0.0, 1e11) if url == _checksum(written_url) else 0.0

    def _disable_after_s(self) -> float:
        if self._attributes.get("push.disable_after_s") == "off":
            self._take("push.disable_after_s")
            return float("inf")
        return self._number("push.disable_after_s", DEFAULT_DISABLE_AFTER_S, 60.0, 366 * 86_400.0)

    def _number(self, name: str, default: float, least: float, most: float) -> float:
        text = self._attributes.pop(name, None)
        return default if text is None else endpoint_values.number(name, text, least, most)

    def _secret(self, name: str) -> str:
        return self._decrypted(name, self._take(name))

    def _decrypted(self, name: str, value: str) -> str:
        try:
            return self._secrets.decrypt(value)
        except ValueError as exc:
            raise type(exc)(f"{name} {exc}") from None

    def _take(self, name: str) -> str:
        return self._attributes.pop(name, "")


_TIMEOUTS = (endpoint_values.MIN_TIMEOUT_S, endpoint_values.MAX_TIMEOUT_S)

FEW = 1_000
"""Number of known endpoints up to which deleted ones are not searched for."""


class Endpoints:
    """Endpoints by topic name, read from the topic again only when the catalog has a new version of it.

    Args:
        topic_of: the catalog's current topic of that name, or None; called for each delivery, so it must be cheap.
        secrets: decrypts secrets in the attributes; None if all of them are plain.
    """

    def __init__(self, topic_of: Callable[[str], model.Topic | None], secrets: Secrets | None = None) -> None:
        self._topic_of = topic_of
        self._secrets = secrets or Secrets()
        self._known: dict[str, tuple[model.Topic, Endpoint | None]] = {}
        self._most = FEW

    def __call__(self, name: str) -> Endpoint | None:
        """The topic's endpoint; None without a topic or an endpoint. Raises `InvalidTopic` as `from_topic` does."""
        topic = self._topic_of(name)
        if topic is None:
            self._known.pop(name, None)
            return None
        known = self._known.get(name)
        if known is None or known[0] is not topic:
            if len(self._known) >= self._most:
                self._forget_deleted()
            known = self._known[name] = topic, Endpoint.from_topic(topic, self._secrets)
        return known[1]

    def _forget_deleted(self) -> None:
        """Forget endpoints of deleted topics; search again when twice as many are known as remain now."""
        self._known = {name: known for name, known in self._known.items() if self._topic_of(name) is known[0]}
        self._most = max(FEW, 2 * len(self._known))
