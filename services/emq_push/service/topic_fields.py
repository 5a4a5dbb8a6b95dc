"""What a request says of an endpoint that its topic alone keeps, as attributes: credentials, batches, signatures."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from emq_push import endpoint as delivered
from emq_push.endpoint import Batch
from emq_push.endpoint_values import HEADER_PREFIX, MAX_HEADER_LENGTH, MAX_URL_LENGTH
from emq_push.merging import merged
from emq_push.records.endpoints import END, Endpoint, EndpointSettings
from emq_push.secrets import PREFIX, Secrets, is_encrypted
from emq_push.service.refusals import Invalid, converted
from emq_push.signature import Kind
from emq_push.styles import MAX_LENGTH, SIGNING, STANDARD
from emq_push.template import TEMPLATE

AUTH = "push-auth"
"""The attribute that tells which header authenticates, so that a change of the others leaves it alone."""
AUTHORIZATION = "Authorization"
MAX_SECRET = 512
MOST_HEADERS = 20

_NEEDED = {
    "bearer": ("token",),
    "basic": ("username", "password"),
    "header": ("name", "value"),
    "oauth2": ("token_url", "client_id", "client_secret"),
}
_OPTIONAL = {"oauth2": ("scope",)}


class Auth(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How requests to the endpoint authenticate.

    Attributes:
        token: for "bearer".
        username, password: for "basic".
        name, value: for "header".
        token_url: for "oauth2", by client credentials: http or https.
        client_id, client_secret: for "oauth2".
        scope: for "oauth2"; empty for the server's default.
    """

    type: Literal["none", "bearer", "basic", "header", "oauth2"]
    token: Annotated[str, Meta(max_length=4000)] = ""
    username: Annotated[str, Meta(max_length=500)] = ""
    password: Annotated[str, Meta(max_length=500)] = ""
    name: Annotated[str, Meta(max_length=100)] = ""
    value: Annotated[str, Meta(max_length=4000)] = ""
    token_url: Annotated[str, Meta(max_length=MAX_URL_LENGTH)] = ""
    client_id: Annotated[str, Meta(max_length=500)] = ""
    client_secret: Annotated[str, Meta(max_length=4000)] = ""
    scope: Annotated[str, Meta(max_length=1000)] = ""

    def __repr__(self) -> str:
        """Show the type alone: a repr gets into logs and error reports."""
        return f"Auth(type={self.type!r})"

    def attributes(self, secrets: Secrets) -> dict[str, str]:
        """Return the attributes of the topic. Raises `Invalid`."""
        needed, optional = _NEEDED.get(self.type, ()), _OPTIONAL.get(self.type, ())
        for field in self.__struct_fields__[1:]:
            if field not in optional and bool(getattr(self, field)) != (field in needed):
                what = f"needs {field}" if field in needed else f"takes no {field}"
                raise Invalid("invalid_request", f"auth of type {self.type!r} {what}", f"/auth/{field}")
        if self.type == "oauth2":
            secret = _encrypted(self.client_secret, secrets, "/auth/client_secret")
            values = (self.token_url, self.client_id, secret, self.scope)
            return {name: value for name, value in zip(delivered.OAUTH2, values, strict=True) if value}
        header = self._header()
        if header is None:
            return {}
        return {HEADER_PREFIX + header[0]: _encrypted(header[1], secrets, "/auth"), AUTH: header[0]}

    def _header(self) -> tuple[str, str] | None:
        match self.type:
            case "bearer":
                return AUTHORIZATION, f"Bearer {self.token}"
            case "basic":
                if ":" in self.username:
                    raise Invalid("invalid_request", "a username must not contain a colon", "/auth/username")
                pair = f"{self.username}:{self.password}".encode()
                return AUTHORIZATION, f"Basic {base64.b64encode(pair).decode()}"
            case "header":
                return self.name, self.value
        return None


Secret = Annotated[str, Meta(max_length=MAX_SECRET, pattern=r"^\S*" + END)]
Style = Annotated[str, Meta(min_length=1, max_length=MAX_LENGTH)]


class EndpointFields(EndpointSettings, frozen=True, kw_only=True):
    """A caller's settings of an endpoint.

    Attributes:
        headers: of each request; values are never shown again.
        auth: never shown again.
        batch: None for a request of its own for each message.
        signature: "hmac" with a secret that the receiver shares, or "ed25519" with a public key.
        secret: one that the receiver has already; empty for a new one. Never shown again.
        signing: the headers that carry signatures: "standard", "svix", "stripe", "github", or a style of one's own.
        template: the payload that the endpoint gets, as an object whose fields with names that end with `.$` have
            paths into the message's payload, such as `{"text.$": "$.data.title"}`; None for the payload itself.
    """

    headers: Annotated[dict[str, Annotated[str, Meta(max_length=MAX_HEADER_LENGTH)]], Meta(max_length=MOST_HEADERS)] = (
        msgspec.field(default_factory=dict)
    )
    auth: Auth = Auth("none")
    batch: Batch | None = None
    signature: Kind = "hmac"
    secret: Secret = ""
    signing: Style = STANDARD
    template: dict[str, Any] | None = None


class TopicFields(msgspec.Struct, frozen=True):
    """Fields of a request for the topic alone; what is not given stays as it is.

    Attributes:
        headers: values by name, without the one that authenticates; None as a value removes the header. Other headers
            stay. None for no headers at all; `UNSET` if not given.
        auth: members of `Auth`; those that are left out stay if the type does (`resolved`). None if not given.
        batch: fields of `Batch`, of which those that are left out stay; None for a request of its own for each message;
            `UNSET` if not given.
        signature: the kind of signatures; None if not given.
        secret: of the signatures; empty if not given.
        signing: the style of the signatures; None if not given.
        template: members of the template, of which those that are left out stay; None for no template; `UNSET` if not
            given.
    """

    headers: Mapping[str, str | None] | UnsetType | None = UNSET
    auth: Mapping[str, Any] | None = None
    batch: Mapping[str, Any] | UnsetType | None = UNSET
    signature: Kind | None = None
    secret: Secret = ""
    signing: Style | None = None
    template: Mapping[str, Any] | UnsetType | None = UNSET

    def __repr__(self) -> str:
        return f"TopicFields({self.shown()})"

    def shown(self) -> dict[str, Any]:
        """Return the given fields as the audit log has them: names and kinds, and no secret."""
        found: dict[str, Any] = {} if self.headers is UNSET else {"header_names": list(self.headers or ())}
        if self.auth is not None:
            found["auth"] = self.auth.get("type", "changed")
        if self.batch is not UNSET:
            found["batch"] = self.batch
        if self.template is not UNSET:
            found["template"] = self.template
        if self.signature is not None:
            found["signature"] = self.signature
        if self.secret:
            found["secret"] = "given"
        if self.signing is not None:
            found["signing"] = self.signing
        return found

    def resolved(self, kind: str, before: Mapping[str, str], secrets: Secrets) -> TopicFields:
        """Return these fields with all members of `auth`, if it is given.

        Args:
            kind: the type of authentication that the topic has now.
            before: the attributes that the topic has now.
        """
        if self.auth is None:
            return self
        kept = _auth_there(kind, before, secrets) if self.auth.get("type", kind) == kind else {}
        return msgspec.structs.replace(self, auth=merged({**kept, "type": kind}, self.auth))

    def named(self, endpoint: Endpoint) -> Endpoint:
        """Return the row of an endpoint with the headers' names and the kind of authentication, if they are given."""
        if self.headers is not UNSET:
            names = dict.fromkeys(endpoint.header_names, "")
            endpoint = msgspec.structs.replace(endpoint, header_names=tuple(self._with_headers(names)))
        if self.auth is not None:
            endpoint = msgspec.structs.replace(endpoint, auth=self.auth.get("type", endpoint.auth))
        return endpoint

    def attributes(self, before: Mapping[str, str], secrets: Secrets) -> dict[str, str]:
        """Return the attributes of a topic with the given fields, except `signature` and `secret`.

        Args:
            before: the attributes that the topic has now.

        `auth` must have all its members (`resolved`).

        Raises:
            Invalid: the authentication is wrong, or a secret looks encrypted.
        """
        found = dict(before)
        if self.auth is not None:
            _drop_auth(found)
        if self.headers is not UNSET:
            keys = [
                key for key in found if key.startswith(HEADER_PREFIX) and key != HEADER_PREFIX + found.get(AUTH, "")
            ]
            there = {key.removeprefix(HEADER_PREFIX): found.pop(key) for key in keys}
            for name in self.headers or ():
                if not name.isascii() or len(name) > MAX_HEADER_LENGTH:
                    text = f"{name[:80]!a} is not a header name; use letters, digits and hyphens"
                    raise Invalid("invalid_request", text, "/headers")
            given = {name: value for name, value in (self.headers or {}).items() if value is not None}
            sealed = {name: _encrypted(value, secrets, f"/headers/{name}") for name, value in given.items()}
            headers = {**self._with_headers(there), **sealed}
            if len(headers) > MOST_HEADERS:
                text = f"an endpoint has at most {MOST_HEADERS} headers, and not {len(headers)}"
                raise Invalid("invalid_request", f"{text}; remove one: null as its value", "/headers")
            found |= {HEADER_PREFIX + name: value for name, value in headers.items()}
        if self.auth is not None:
            found |= converted(self.auth, Auth).attributes(secrets)
        if self.batch is not UNSET:
            batch = batch_in(found)
            for name in delivered.BATCH:
                found.pop(name, None)
            found |= {} if self.batch is None else _of_batch(_batch(batch, self.batch))
        if self.template is not UNSET:
            template = merged(template_in(found), self.template)
            found.pop(TEMPLATE, None)
            found |= {} if template is None else {TEMPLATE: msgspec.json.encode(template).decode()}
        if self.signing == STANDARD:
            found.pop(SIGNING, None)
        elif self.signing is not None:
            found[SIGNING] = self.signing
        return found

    def _with_headers(self, there: Mapping[str, str]) -> dict[str, str]:
        """Return the headers that there are with the given ones; names in upper and lower case are the same."""
        given = self.headers or {}
        changed = {name.lower() for name in (there if self.headers is None else given)}
        kept = {name: value for name, value in there.items() if name.lower() not in changed}
        return kept | {name: value for name, value in given.items() if value is not None}


def _batch(there: Batch | None, given: Mapping[str, Any]) -> Batch:
    try:
        return msgspec.convert(merged(msgspec.to_builtins(there), given), Batch)
    except msgspec.ValidationError as exc:
        raise Invalid("invalid_request", f"batch: {exc}", "/batch") from None


def _encrypted(value: str, secrets: Secrets, pointer: str) -> str:
    """Return a caller's secret as the catalog keeps it.

    Raises:
        Invalid: it looks encrypted. If it were kept so, hosts would decrypt what the caller may have found elsewhere.
    """
    if is_encrypted(value):
        raise Invalid(
            "invalid_request", f"the value begins with {PREFIX}, as only what EMQ has encrypted does", pointer
        )
    return secrets.encrypt(value)


def _drop_auth(attributes: dict[str, str]) -> None:
    """Take away all that authenticates, whoever has set it: the API, or an operator by hand."""
    attributes.pop(HEADER_PREFIX + attributes.pop(AUTH, ""), None)
    for name in (delivered.BASIC, *delivered.OAUTH2):
        attributes.pop(name, None)


def _auth_there(kind: str, attributes: Mapping[str, str], secrets: Secrets) -> dict[str, str]:
    """Return the members of an authentication that the topic has; none if this process cannot read them."""
    try:
        if kind == "oauth2":
            url, client_id, secret, scope = (attributes.get(name, "") for name in delivered.OAUTH2)
            secret = secrets.decrypt(secret)
            return {"token_url": url, "client_id": client_id, "client_secret": secret, "scope": scope}
        name = attributes.get(AUTH, "")
        value = secrets.decrypt(attributes.get(HEADER_PREFIX + name, ""))
        if kind == "basic":
            pair = value and base64.b64decode(value.partition(" ")[2]).decode()
            username, _, password = (pair or secrets.decrypt(attributes.get(delivered.BASIC, ""))).partition(":")
            return {"username": username, "password": password}
    except ValueError:
        return {}
    return {"bearer": {"token": value.partition(" ")[2]}, "header": {"name": name, "value": value}}.get(kind, {})


def _of_batch(batch: Batch) -> dict[str, str]:
    values = (str(batch.most), f"{batch.wait_s * 1000:.10g}", batch.format)
    return dict(zip(delivered.BATCH, values, strict=True))


def auth_headers(attributes: Mapping[str, str]) -> list[str]:
    """Return the header that authenticates, which no other may set; empty for none."""
    found = [attributes[AUTH]] if attributes.get(AUTH) else []
    return found + [AUTHORIZATION] * bool(attributes.get(delivered.BASIC) or attributes.get(delivered.OAUTH2[0]))


def batch_in(attributes: Mapping[str, str]) -> Batch | None:
    """Return how messages share a request; None if each has its own, or hosts cannot read the attributes."""
    try:
        return delivered.batch_of(attributes)
    except ValueError:
        return None


def template_in(attributes: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the template of payloads; None if there is none, or hosts cannot read it."""
    try:
        found: object = msgspec.json.decode(attributes.get(TEMPLATE) or "null")
    except msgspec.DecodeError:
        return None
    return found if isinstance(found, dict) else None


def auth_in(attributes: Mapping[str, str], kept: str) -> str:
    """Return the kind of authentication.

    Args:
        kept: the kind that the API has set; an operator may have set another one by hand.
    """
    if attributes.get(delivered.OAUTH2[0]):
        return "oauth2"
    if attributes.get(delivered.BASIC):
        return "basic"
    return "none" if kept == "oauth2" else kept
