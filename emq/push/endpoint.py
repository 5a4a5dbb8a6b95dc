"""A tenant's HTTP endpoint, as kept in the attributes of its topic."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence

import yarl

from emq import errors
from emq.push import signature
from emq.push.signature import Sign
from emq.topics import model

DEFAULT_TIMEOUT_S = 10.0
MIN_TIMEOUT_S = 0.1
MAX_TIMEOUT_S = 300.0
DEFAULT_CONTENT_TYPE = "application/json"
MAX_URL_LENGTH = 4096
MAX_HEADER_LENGTH = 4096

_PREFIX = "push."
_HEADER_PREFIX = "push.headers."
_KNOWN = ("push.url", "push.timeout_s", "push.content_type", "push.throttle", "push.secret", "push.headers.<Name>")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_SPACES_AND_CONTROLS = re.compile(r"[\s\x00-\x1f\x7f]")

_RESERVED = frozenset(
    (
        *("connection", "content-encoding", "content-length", "content-type", "expect", "host", "keep-alive"),
        *("proxy-authorization", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "user-agent"),
    )
)
"""Headers that frame the request or that EMQ writes itself."""
_RESERVED_PREFIXES = ("emq-", "webhook-")


@dataclasses.dataclass(frozen=True, slots=True)
class Endpoint:
    """One tenant's HTTP endpoint.

    Attributes:
        topic: name of the topic.
        url: sent as written: an escape such as %2F is not touched, since a signed URL must not change.
        priorities: the topic's priority names, highest first.
        timeout_s: seconds for the whole delivery, from connecting to the last byte of the answer.
        content_type: of the payload.
        throttles: True if the topic gets less than its quota while the endpoint cannot take more.
        signers: sign each delivery; none without `push.secret`.
        headers: extra headers of each request; they may hold secrets and are left out of `repr`.
    """

    topic: str
    url: yarl.URL
    priorities: tuple[str, ...] = ()
    timeout_s: float = DEFAULT_TIMEOUT_S
    content_type: str = DEFAULT_CONTENT_TYPE
    throttles: bool = True
    signers: Sequence[Sign] = dataclasses.field(default=(), repr=False, compare=False)
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False, hash=False)

    @classmethod
    def from_topic(cls, topic: model.Topic) -> Endpoint | None:
        """The endpoint in the topic's attributes; None if it has no attribute that starts with `push.`.

        Raises:
            InvalidTopic: an attribute is missing, unknown or out of range; correct the one named.
        """
        attributes = {name: value for name, value in topic.options.attributes.items() if name.startswith(_PREFIX)}
        if not attributes:
            return None
        try:
            url = _url(attributes.pop("push.url", ""))
            timeout_s = _timeout(attributes.pop("push.timeout_s", str(DEFAULT_TIMEOUT_S)))
            content_type = attributes.pop("push.content_type", DEFAULT_CONTENT_TYPE)
            _check_value("push.content_type", content_type)
            throttles = _switch("push.throttle", attributes.pop("push.throttle", "on"))
            secrets = attributes.pop("push.secret", "")
            signers = signature.signers(secrets) if secrets else ()
            headers: dict[str, str] = {}
            for name, value in attributes.items():
                if not name.startswith(_HEADER_PREFIX):
                    raise ValueError(f"{name} is not known; known are {', '.join(_KNOWN)}")
                headers[_header_name(name, headers)] = value
                _check_value(name, value)
        except ValueError as exc:
            raise errors.InvalidTopic(f"topic {topic.name!r}: {exc}") from None
        return cls(topic.name, url, topic.priorities, timeout_s, content_type, throttles, signers, headers)


FEW = 1_000
"""Number of known endpoints up to which deleted ones are not searched for."""


class Endpoints:
    """Endpoints by topic name, read from the topic again only when the catalog has a new version of it.

    Args:
        topic_of: the catalog's current topic of that name, or None; called for each delivery, so it must be cheap.
    """

    def __init__(self, topic_of: Callable[[str], model.Topic | None]) -> None:
        self._topic_of = topic_of
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
            known = self._known[name] = topic, Endpoint.from_topic(topic)
        return known[1]

    def _forget_deleted(self) -> None:
        """Forget endpoints of deleted topics; search again when twice as many are known as remain now."""
        self._known = {name: known for name, known in self._known.items() if self._topic_of(name) is known[0]}
        self._most = max(FEW, 2 * len(self._known))


def _url(text: str) -> yarl.URL:
    if not text:
        raise ValueError("push.url is missing; give an http or https URL")
    if len(text) > MAX_URL_LENGTH:
        raise ValueError(f"push.url has {len(text)} characters; at most {MAX_URL_LENGTH}")
    if _SPACES_AND_CONTROLS.search(text):
        raise ValueError(f"push.url {text!r} contains white space or control characters; percent-encode them")
    try:
        url = yarl.URL(text, encoded=text.isascii())
        port = url.port
    except ValueError as exc:
        raise ValueError(f"push.url {text!r} is not a URL: {exc}") from None
    if url.scheme not in ("http", "https"):
        raise ValueError(f"push.url {text!r} must start with http:// or https://")
    if url.raw_user is not None or url.raw_password is not None:
        # The value is not named: it would carry the password into logs.
        raise ValueError("push.url must not contain a user or password; use push.headers.Authorization")
    if not url.host:
        raise ValueError(f"push.url {text!r} names no host")
    if not port:
        raise ValueError(f"push.url {text!r} has port 0; give 1 to 65535")
    return url


def _timeout(text: str) -> float:
    try:
        timeout_s = float(text)
    except ValueError:
        timeout_s = 0.0
    if not MIN_TIMEOUT_S <= timeout_s <= MAX_TIMEOUT_S:
        raise ValueError(f"push.timeout_s {text!r} must be a number from {MIN_TIMEOUT_S} to {MAX_TIMEOUT_S:g}")
    return timeout_s


def _switch(attribute: str, text: str) -> bool:
    if text not in ("on", "off"):
        raise ValueError(f"{attribute} {text!r} must be on or off")
    return text == "on"


def _header_name(attribute: str, others: Mapping[str, str]) -> str:
    name = attribute.removeprefix(_HEADER_PREFIX)
    folded = name.lower()
    if not _TOKEN.fullmatch(name):
        raise ValueError(f"{attribute!r} is not a header name; use letters, digits and hyphens")
    if folded in _RESERVED or folded.startswith(_RESERVED_PREFIXES):
        raise ValueError(f"{attribute} cannot be set; it is reserved (for the type of the body: push.content_type)")
    if folded in (other.lower() for other in others):
        raise ValueError(f"{attribute} is given twice, in different case; keep one")
    return name


def _check_value(attribute: str, value: str) -> None:
    if not (value.isascii() and value.isprintable() and value == value.strip()) or len(value) > MAX_HEADER_LENGTH:
        # The value is not shown: it may be a secret.
        raise ValueError(
            f"the value of {attribute} must be printable ASCII without spaces around it, "
            f"at most {MAX_HEADER_LENGTH} characters"
        )
