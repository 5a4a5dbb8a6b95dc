"""Styles of signatures: receivers of other senders check them with those senders' own packages."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Mapping

import pytest
import stripe
import svix.webhooks
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from emq.runtime import errors
from emq.storage.message import Message
from emq.topics import model
from emq_push import headers, signature, styles
from emq_push.endpoint import Endpoint
from emq_push.styles import Signable

OLD, NEW = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
OWN = "It's a Secret to Everybody".replace(" ", "-")
BODY = b'{"test": 2432232314}'


def endpoint(secret: str, signing: str, **attributes: str) -> Endpoint:
    kept = {"push.url": "http://x.example/", "push.secret": secret, "push.signing": signing, **attributes}
    found = Endpoint.from_topic(model.Topic("t", 1.0, options=model.TopicOptions(attributes=kept)))
    assert found is not None
    return found


def sent(secret: str, signing: str, payload: bytes = BODY, event: str = "order.paid") -> dict[str, str]:
    of = Message("msg_1", payload, headers={"event-type": event})
    return headers.of_delivery(endpoint(secret, signing), of, int(time.time()))


def digest(secret: str, content: bytes, name: str = "sha256") -> str:
    return hmac.new(secret.encode(), content, name).hexdigest()


@pytest.mark.parametrize("payload", [BODY, b"", "späße 🎉".encode()])
@pytest.mark.parametrize("secret", [OLD, NEW])
def test_svixs_package_accepts_either_secret_in_its_own_headers(payload: bytes, secret: str) -> None:
    found = {k: v for k, v in sent(f"{NEW} {OLD}", "svix", payload).items() if k.startswith("svix-")}
    assert sorted(found) == ["svix-id", "svix-signature", "svix-timestamp"]
    svix.webhooks.Webhook(secret).verify(payload, found)
    with pytest.raises(WebhookVerificationError):
        svix.webhooks.Webhook(secret).verify(payload + b" ", found)


@pytest.mark.parametrize("secret", [OLD, OWN])
def test_stripes_package_accepts_either_secret(secret: str) -> None:
    header = sent(f"{OLD} {OWN}", "stripe")["Stripe-Signature"]
    assert stripe.WebhookSignature.verify_header(BODY.decode(), header, secret, 300)
    with pytest.raises(stripe.SignatureVerificationError):
        stripe.WebhookSignature.verify_header(BODY.decode() + " ", header, secret, 300)


def test_githubs_headers_have_the_newest_secrets_signature_of_the_body_alone() -> None:
    found = sent(f"{OWN} {OLD}", "github")
    assert found["X-Hub-Signature-256"] == f"sha256={digest(OWN, BODY)}"
    assert (found["X-GitHub-Delivery"], found["X-GitHub-Event"]) == ("msg_1", "order.paid")


def test_githubs_own_example_has_its_own_signature() -> None:
    """The test values that GitHub's documentation gives to receivers."""
    sign = styles.signed("X-Hub-Signature-256: sha256={hex} of {payload}", "It's-a-secret")
    assert sign(Signable("i", 0, b"Hello, World!"))["X-Hub-Signature-256"][:7] == "sha256="
    key = "It's a Secret to Everybody"
    expected = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    assert digest(key, b"Hello, World!") == expected


def test_a_style_of_ones_own_says_headers_and_what_they_cover() -> None:
    style = (
        "X-Acme-Id: {id}; X-Acme-Signature: t={timestamp},[v1={hex}|,];end of {timestamp},{payload}; "
        "X-Acme-512: {sha512_base64} of v0:{id}:{payload}; X-Acme-1: sha1={sha1_hex} of {payload}"
    )
    sign = styles.signed(style, f"{OWN} {OLD}")
    content = b"17," + BODY
    assert sign(Signable("msg_1", 17, BODY)) == {
        "X-Acme-Id": "msg_1",
        "X-Acme-Signature": f"t=17,v1={digest(OWN, content)},v1={digest(OLD, content)};end",
        "X-Acme-512": base64.b64encode(hmac.new(OWN.encode(), b"v0:msg_1:" + BODY, hashlib.sha512).digest()).decode(),
        "X-Acme-1": f"sha1={digest(OWN, BODY, 'sha1')}",
    }


def test_each_request_keeps_id_and_time_of_the_standard_in_any_style() -> None:
    for style in ("svix", "stripe", "github"):
        found = sent(OLD, style)
        assert found["webhook-id"] == "msg_1"
        assert "webhook-timestamp" in found
        assert "webhook-signature" not in found
    Webhook(OLD).verify(BODY, sent(OLD, "standard"))
    assert sent(OLD, "") == sent(OLD, "standard")


def test_a_header_for_an_event_is_left_out_without_one() -> None:
    found = headers.of_delivery(endpoint(OWN, "github"), Message("msg_1", BODY), 17)
    assert "X-GitHub-Event" not in found
    odd = sent(OWN, "github", event="a\r\nX-Injected: b")
    assert odd["X-GitHub-Event"] == "a%0D%0AX-Injected: b"


def test_the_text_of_a_secret_is_masked_in_any_style() -> None:
    assert endpoint(OWN, "github").masked(f"no {OWN}!") == "no ***!"
    assert endpoint(OLD, "stripe").masked(f"no {OLD}!") == "no whsec_***!"


def test_a_new_private_key_signs_in_the_headers_of_svix() -> None:
    secret = signature.new_secret("ed25519")
    assert sent(secret, "svix")["svix-signature"].startswith("v1a,")


@pytest.mark.parametrize(
    ("style", "secret", "text"),
    [
        ("paypal", OWN, "push.signing 'paypal' has no place for a signature; give standard, svix, stripe, github"),
        ("X-A: {id}", OWN, "has no place for a signature"),
        ("X-A: {hex}", OWN, "does not say what {hex} signs"),
        ("X-A: {hex} of {timestamp}", OWN, "which has no {payload}; add it, or anybody could send anything"),
        ("X-A: {md5} {hex} of {payload}", OWN, "has the place {md5}, which a value cannot have"),
        ("X-A: {hex} of {payload}{event}", OWN, "signs {event}, which is not known"),
        ("X-A: {hex of {payload}", OWN, "has no place for a signature"),
        ("X-A: {{hex}} of {payload}", OWN, "has a brace that belongs to no place"),
        ("X-A {hex} of {payload}", OWN, "has the part 'X-A {hex} of {payload}'; write NAME: VALUE"),
        ("X-A: [{hex} of {payload}", OWN, "has the part"),
        ("X-A: [{hex}] of {payload}", OWN, "has the part"),
        ("X A: {hex} of {payload}", OWN, "has the part"),
        ("X-A: {hex} of {payload}; x-a: {id}", OWN, "push.signing with the header x-a is given twice"),
        ("Host: {hex} of {payload}", OWN, "push.signing with the header Host cannot be set; it is reserved"),
        ("webhook-id: {hex} of {payload}", OWN, "it is reserved"),
        ("X-A: \u00fc{hex} of {payload}", OWN, "must be printable ASCII"),
        ("X-A: {hex} of {payload}" + "; X-B: {id}" * 8, OWN, "has 9 headers; at most 8"),
        ("X-A: {hex} of {payload}" + " " * 1000, OWN, "at most 1000 characters"),
        ("X-A: " + "{hex}" * 5 + " of {payload}", OWN, "has 5 places for signatures; at most 4"),
        ("X-A: {hex} of {payload}{payload}", OWN, "which has 2 times {payload}; write it once"),
        ("X-A: {standard} of {payload}", OLD, "whose value has no place for a signature of '{payload}'"),
        ("stripe", "tab\x00and-more", "printable ASCII characters without spaces"),
        ("stripe", "short", "push.secret has a secret of 5 characters; give 8 to 256"),
        ("stripe", "x" * 257, "push.secret has a secret of 257 characters"),
        ("stripe", signature.ASYMMETRIC + "A" * 44, "push.secret has a private key; push.signing must be standard or"),
        ("stripe", " ".join([OWN] * 5), "push.secret must have 1 to 4 secrets"),
        ("svix", OWN, "begins with neither whsec_ nor whsk_"),
        ("github", "", "push.signing needs push.secret; give both"),
    ],
)
def test_a_wrong_style_or_secret_gets_one_clear_line_without_the_secret(style: str, secret: str, text: str) -> None:
    with pytest.raises(errors.InvalidTopic) as caught:
        endpoint(secret, style)
    assert text in str(caught.value)
    assert not secret or secret not in str(caught.value)


@pytest.mark.parametrize(
    "attributes",
    [
        {"push.basic": "user:password"},
        {"push.oauth2.url": "https://x.example/", "push.oauth2.client_id": "me", "push.oauth2.secret": "secret"},
    ],
)
def test_a_style_never_stands_in_the_way_of_what_authenticates(attributes: dict[str, str]) -> None:
    with pytest.raises(errors.InvalidTopic, match=r"push\.signing has the header authorization, as push\.basic and"):
        endpoint(OWN, "authorization: {hex} of {payload}", **attributes)
    assert "authorization" in endpoint(OWN, "authorization: {hex} of {payload}").signed(Signable("i", 1, b""))  # type: ignore[misc]


def test_a_part_for_each_secret_signs_once_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0

    def counted(digest: bytes) -> str:
        nonlocal count
        count += 1
        return digest.hex()

    monkeypatch.setitem(styles._DIGESTS, "hex", ("sha256", counted))
    styles.signed("X-A: [{hex}|,] of {payload}", f"{OWN} {OLD} {NEW}")(Signable("i", 1, b""))
    assert count == 3


def test_no_value_has_spaces_around_it() -> None:
    found = styles.signed("X-A:  {id}  ; X-B: {hex} {event} of {payload}; X-C: {event} ", OWN)(Signable("i", 1, b""))
    assert found == {"X-A": "i", "X-B": digest(OWN, b"")}


def test_a_header_of_the_style_is_no_extra_header() -> None:
    attributes: Mapping[str, str] = {"push.headers.x-hub-signature-256": "mine"}
    with pytest.raises(errors.InvalidTopic, match=r"is a header of push\.signing; keep one"):
        endpoint(OWN, "github", **attributes)
